//! What the disk tier counts.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::metrics::Counter;

/// A number that is what it was last set to.
#[derive(Debug, Default)]
pub(crate) struct Level(AtomicU64);

impl Level {
    pub(super) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> i64 {
        i64::try_from(self.0.load(Ordering::Relaxed)).unwrap_or(i64::MAX)
    }
}

/// The counters; all 0 without a disk tier.
#[derive(Debug, Default)]
pub(crate) struct DiskMetrics {
    pub(crate) bytes: Level,
    pub(crate) capacity: Level,
    pub(crate) entries: Level,
    pub(crate) hits: Counter,
    pub(crate) misses: Counter,
    pub(crate) writes: Counter,
    pub(crate) skipped_writes: Counter,
    pub(crate) evictions: Counter,
    pub(crate) faults: Counter,
}
