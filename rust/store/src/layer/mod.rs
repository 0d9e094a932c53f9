//! The policies, one layer each.
//!
//! # Purpose
//! Every wait has a deadline, every failure that may pass is tried again, every request is counted, for all backends alike.
//!
//! # Flow
//! [`stack`] builds, from the caller down: [`retry`] (decides on another attempt, resumes broken bodies) over [`metrics`] (sees each
//! attempt) over [`timeout`] (ends an attempt) over the backend.
//!
//! # Invariants
//! * A layer changes no bytes and no keys.
//! * Time is tokio's, which a test can pause; chance is a generator that a test can seed.
//!
//! # Cancel
//! Dropping a future drops what is below it at once.

pub mod metrics;
pub mod retry;
pub mod timeout;

use std::{future::Future, sync::Arc, time::Duration};

use tokio::time::{Instant, error::Elapsed};

use crate::{ErrorKind, ObjectStore, Operation, StoreError, StoreResult, UploadedPart};
use metrics::{MetricsStore, StoreMetrics};
use retry::RetryStore;
use timeout::TimeoutStore;

/// The slowest transfer that is not yet a failure, bytes per second: 256 KiB/s moves a 16 MiB part in 64 s.
pub const MIN_BYTES_PER_SECOND: u64 = 256 << 10;

/// How fast a store may put an object together from its parts, bytes per second: copying between slow disks.
const ASSEMBLY_BYTES_PER_SECOND: u64 = 16 << 20;

/// The numbers of all policies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policies {
    /// Limit of one attempt, without the time its bytes may take. Default 30 s.
    pub attempt_timeout: Duration,
    /// Limit of one operation with all its attempts and pauses, without the time its bytes may take. Default 120 s.
    pub operation_timeout: Duration,
    /// Deadlines grow by the bytes to move, divided by this. Default [`MIN_BYTES_PER_SECOND`].
    pub min_bytes_per_second: u64,
    /// Most attempts of one operation, or of one stretch of a body without progress, that may fail in a way that waiting does not
    /// mend, such as a wrong checksum or an unusable answer. A store that is unreachable, unavailable, throttling or silent is
    /// tried again until `operation_timeout`. Default 4.
    pub attempts_max: u32,
    /// Upper limit of the first pause; doubled for every later one. Default 100 ms.
    pub pause_first: Duration,
    /// Upper limit of any pause. Default 5 s.
    pub pause_max: Duration,
    /// Most that a store's `Retry-After` is honoured. Default 30 s.
    pub retry_after_max: Duration,
    /// Seed of the jitter; from the operating system when absent.
    pub jitter_seed: Option<u64>,
}

impl Default for Policies {
    fn default() -> Self {
        Policies {
            attempt_timeout: Duration::from_secs(30),
            operation_timeout: Duration::from_secs(120),
            min_bytes_per_second: MIN_BYTES_PER_SECOND,
            attempts_max: 4,
            pause_first: Duration::from_millis(100),
            pause_max: Duration::from_secs(5),
            retry_after_max: Duration::from_secs(30),
            jitter_seed: None,
        }
    }
}

impl Policies {
    /// Time that moving `bytes` may take beyond the fixed limits.
    fn transfer_time(&self, bytes: u64) -> Duration {
        per_second(bytes, self.min_bytes_per_second)
    }

    /// Time that putting `parts` together may take beyond the fixed limits.
    fn assembly_time(&self, parts: &[UploadedPart]) -> Duration {
        let bytes = parts.iter().fold(0u64, |sum, part| sum.saturating_add(part.length));
        per_second(bytes, ASSEMBLY_BYTES_PER_SECOND.max(self.min_bytes_per_second))
    }
}

fn per_second(bytes: u64, bytes_per_second: u64) -> Duration {
    Duration::from_millis(bytes.saturating_mul(1000) / bytes_per_second.max(1))
}

/// Puts all layers around `base`.
pub fn stack(base: Arc<dyn ObjectStore>, policies: Policies, metrics: Arc<StoreMetrics>) -> Arc<dyn ObjectStore> {
    let limited = Arc::new(TimeoutStore::new(base, policies.clone()));
    let counted = Arc::new(MetricsStore::new(limited, Arc::clone(&metrics)));
    Arc::new(RetryStore::new(counted, policies, metrics))
}

/// Waiting time left. Only time spent waiting for the store is taken from it, so a reader that pauses is not punished.
#[derive(Debug)]
struct Budget {
    total: Duration,
    left: Duration,
}

impl Budget {
    fn new(total: Duration) -> Self {
        Budget { total, left: total }
    }

    async fn spend<F: Future>(&mut self, future: F) -> Result<F::Output, Elapsed> {
        let begin = Instant::now();
        let outcome = tokio::time::timeout(self.left, future).await;
        self.left = self.left.saturating_sub(begin.elapsed());
        outcome
    }
}

/// Waits for an attempt until `limit`.
async fn within<T>(
    limit: Duration,
    operation: Operation,
    attempt: impl Future<Output = StoreResult<T>>,
) -> StoreResult<T> {
    match tokio::time::timeout(limit, attempt).await {
        Ok(outcome) => outcome,
        Err(_) => Err(StoreError::new(
            ErrorKind::Timeout,
            operation,
            format!("no answer within {limit:?}"),
        )),
    }
}
