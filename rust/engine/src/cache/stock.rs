//! What is loaded ahead and was not used yet, counted for those who share the memory.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};

use super::lock;

/// Bytes that are loaded ahead, or being loaded, and that nobody has used.
#[derive(Debug)]
pub(crate) struct Stock {
    bytes: AtomicU64,
    /// When a reader was there for whom they are loaded.
    touched: Mutex<Instant>,
}

impl Stock {
    /// Nothing yet.
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Stock {
            bytes: AtomicU64::new(0),
            touched: Mutex::new(Instant::now()),
        })
    }

    /// Notes that a reader is there for whom they are loaded.
    pub(crate) fn touch(&self) {
        *lock(&self.touched) = Instant::now();
    }

    /// How long no reader was there.
    pub(super) fn rested(&self) -> Duration {
        lock(&self.touched).elapsed()
    }

    /// How many.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    fn try_add(&self, bytes: u64, max: u64) -> bool {
        let add = |stocked: u64| stocked.checked_add(bytes).filter(|&sum| sum <= max);
        self.bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add)
            .is_ok()
    }

    fn remove(&self, bytes: u64) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// A part of a stock and of the one that all have together, until it is used or gone.
#[derive(Debug)]
pub(crate) struct Stocked {
    own: Arc<Stock>,
    all: Arc<Stock>,
    changed: Arc<Notify>,
    /// Whether others are told when it is gone.
    is_told: bool,
    bytes: u64,
}

impl Stocked {
    /// Counts `bytes` if both stay within their limits.
    pub(super) fn new(
        (own, own_max): (&Arc<Stock>, u64),
        (all, all_max): (&Arc<Stock>, u64),
        bytes: u64,
        changed: &Arc<Notify>,
    ) -> Option<Self> {
        if !own.try_add(bytes, own_max) {
            return None;
        }
        if !all.try_add(bytes, all_max) {
            own.remove(bytes);
            return None;
        }
        Some(Stocked {
            own: Arc::clone(own),
            all: Arc::clone(all),
            changed: Arc::clone(changed),
            is_told: true,
            bytes,
        })
    }

    /// How long no reader was there for whom it was loaded.
    pub(super) fn rested(&self) -> Duration {
        self.own.rested()
    }

    /// Takes the count back of what did not come to be: nothing has changed for others.
    pub(super) fn withdraw(mut self) {
        self.shrink_to(0);
        self.is_told = false;
    }

    /// Counts no more than `bytes` from now on.
    pub(super) fn shrink_to(&mut self, bytes: u64) {
        let less = self.bytes.saturating_sub(bytes);
        self.own.remove(less);
        self.all.remove(less);
        self.bytes -= less;
    }
}

impl Drop for Stocked {
    fn drop(&mut self) {
        self.shrink_to(0);
        if self.is_told {
            self.changed.notify_waiters();
        }
    }
}
