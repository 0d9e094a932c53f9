//! Counters and gauges of an instance, and the table that names them.
//!
//! # Purpose
//! Operations count here with relaxed atomics; the boundary reads a snapshot, in the order of [`DEFINITIONS`].
//!
//! # Invariants
//! * Counters never go down; a gauge returns to zero when what it counts is over.
//! * Names are stable: `tiered_<part>_<name>` with the unit in the name, labels from closed sets only.

mod definitions;

use std::sync::{
    Arc,
    atomic::{AtomicI64, AtomicU64, Ordering},
};

use alluvium_store::layer::{breaker::BreakerSnapshot, limit::LimitSnapshot, metrics::StoreMetrics};

pub use definitions::{DEFINITIONS, Definition, Kind, markdown};

use crate::{
    Error,
    budget::Budget,
    cache::{Cache, DiskMetrics},
    clock::Clock,
    instance::Shared,
    read::Ahead,
};

/// A number that only grows.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, amount: u64) {
        self.0.fetch_add(amount, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> i64 {
        i64::try_from(self.0.load(Ordering::Relaxed)).unwrap_or(i64::MAX)
    }
}

/// A number of things that are there now.
#[derive(Debug, Default)]
pub(crate) struct Gauge(AtomicI64);

impl Gauge {
    /// Counts one until the guard is dropped.
    pub(crate) fn enter(self: &Arc<Self>) -> GaugeGuard {
        self.0.fetch_add(1, Ordering::Relaxed);
        GaugeGuard(Arc::clone(self))
    }

    pub(crate) fn get(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Debug)]
pub(crate) struct GaugeGuard(Arc<Gauge>);

impl Drop for GaugeGuard {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What every operation counts.
#[derive(Debug, Default)]
pub(crate) struct OperationMetrics {
    pub(crate) succeeded: Counter,
    pub(crate) failed: Counter,
    pub(crate) bytes: Counter,
    pub(crate) running: Arc<Gauge>,
    /// Begun so far; only counted where somebody asks.
    pub(crate) begun: Counter,
    /// When the last one succeeded, on the instance's clock; 0 before the first.
    last_success_ms: AtomicU64,
}

impl OperationMetrics {
    /// Counts the end of one.
    pub(crate) fn ended<T>(&self, result: &crate::Result<T>, clock: Clock) {
        match result {
            Ok(_) => {
                self.succeeded.add(1);
                self.last_success_ms.store(clock.now_ms(), Ordering::Relaxed);
            }
            Err(_) => self.failed.add(1),
        }
    }
}

/// Failures of operations by kind.
#[derive(Debug, Default)]
pub(crate) struct Failures([Counter; crate::ErrorKind::ALL.len()]);

impl Failures {
    fn of(&self, kind: crate::ErrorKind) -> &Counter {
        // ALL is ordered by the numbers, which start at 1; a test holds it to that.
        &self.0[kind as usize - 1]
    }
}

/// All that an instance counts.
#[derive(Debug)]
pub(crate) struct Metrics {
    pub(crate) clock: Clock,
    pub(crate) copy: OperationMetrics,
    pub(crate) fetch: OperationMetrics,
    pub(crate) index: OperationMetrics,
    pub(crate) delete: OperationMetrics,
    pub(crate) copy_cleanup_failures: Counter,
    pub(crate) failures: Failures,
    pub(crate) cache_hits: Counter,
    pub(crate) cache_misses: Counter,
    pub(crate) cache_load_failures: Counter,
    pub(crate) cache_evictions: Counter,
    pub(crate) cache_unused_evictions: Counter,
    pub(crate) ahead_requests: Counter,
    pub(crate) ahead_chunks: Counter,
    pub(crate) ahead_abandoned: Counter,
    pub(crate) ahead_memory_waits: Counter,
    pub(crate) disk: Arc<DiskMetrics>,
    pub(crate) store: Arc<StoreMetrics>,
}

impl Metrics {
    pub(crate) fn new(store: Arc<StoreMetrics>) -> Self {
        Metrics {
            clock: Clock::start(),
            copy: OperationMetrics::default(),
            fetch: OperationMetrics::default(),
            index: OperationMetrics::default(),
            delete: OperationMetrics::default(),
            copy_cleanup_failures: Counter::default(),
            failures: Failures::default(),
            cache_hits: Counter::default(),
            cache_misses: Counter::default(),
            cache_load_failures: Counter::default(),
            cache_evictions: Counter::default(),
            cache_unused_evictions: Counter::default(),
            ahead_requests: Counter::default(),
            ahead_chunks: Counter::default(),
            ahead_abandoned: Counter::default(),
            ahead_memory_waits: Counter::default(),
            disk: Arc::default(),
            store,
        }
    }

    /// Counts a failure that reaches Kafka.
    pub(crate) fn failed(&self, error: &Error) {
        self.failures.of(error.kind()).add(1);
    }
}

/// Where a snapshot is read from.
pub(crate) struct Sources<'instance> {
    pub(crate) metrics: &'instance Metrics,
    pub(crate) cache: &'instance Cache,
    pub(crate) uploads: &'instance Budget,
    pub(crate) ahead: &'instance Ahead,
    pub(crate) cleanups_pending: u64,
    coding_memory: u64,
    reads: LimitSnapshot,
    writes: LimitSnapshot,
    breaker: BreakerSnapshot,
    store: alluvium_store::layer::metrics::MetricsSnapshot,
}

impl<'instance> Sources<'instance> {
    pub(crate) fn of(shared: &'instance Shared) -> Self {
        Sources {
            metrics: &shared.metrics,
            cache: &shared.cache,
            uploads: &shared.uploads,
            ahead: &shared.ahead,
            cleanups_pending: shared.janitor.pending(),
            coding_memory: shared.config.workshop_memory,
            reads: shared.guards.limits.reads(),
            writes: shared.guards.limits.writes(),
            breaker: shared.guards.breaker.snapshot(),
            store: shared.metrics.store.snapshot(),
        }
    }

    /// The values, in the order of [`DEFINITIONS`].
    pub(crate) fn values(&self) -> Vec<i64> {
        DEFINITIONS.iter().map(|definition| (definition.read)(self)).collect()
    }

    /// Milliseconds since the last success, or since the start when there was none.
    fn age_ms(&self, operation: &OperationMetrics) -> i64 {
        let last = operation.last_success_ms.load(Ordering::Relaxed);
        i64::try_from(self.metrics.clock.now_ms().saturating_sub(last)).unwrap_or(i64::MAX)
    }
}

fn count(value: usize) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn kinds_are_numbered_from_one_in_order() {
        for (position, kind) in ErrorKind::ALL.iter().enumerate() {
            assert_eq!(*kind as usize, position + 1);
        }
    }

    #[test]
    fn names_come_once_and_tell_their_unit() {
        let mut seen = std::collections::BTreeSet::new();
        for definition in DEFINITIONS {
            assert!(seen.insert((definition.part, definition.name)), "{}", definition.name);
            assert_eq!(
                definition.name.ends_with("_total"),
                definition.kind == Kind::Counter,
                "{}",
                definition.name
            );
            assert!(
                definition
                    .name
                    .bytes()
                    .all(|byte| byte.is_ascii_lowercase() || byte == b'_'),
                "{}",
                definition.name
            );
        }
    }

    #[test]
    fn the_page_of_metrics_is_up_to_date() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/METRICS.md");
        assert_eq!(
            std::fs::read_to_string(path).unwrap(),
            markdown(),
            "run: alluvium metrics > docs/METRICS.md"
        );
    }
}
