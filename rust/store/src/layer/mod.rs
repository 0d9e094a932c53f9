//! The policies, one layer each.
//!
//! # Purpose
//! Every wait has a deadline, every failure that may pass is tried again, every request is counted, a slow answer is overtaken, a store
//! that is overloaded or away is spared, for all backends alike.
//!
//! # Flow
//! [`guarded`] builds, from the caller down: [`limit`] (as many operations at a time as the store can take) over [`retry`] (decides
//! on another attempt, resumes broken bodies) over [`hedge`] (where the policies say so: sends a second request for a slow GET) over
//! [`breaker`] (holds attempts while the store is away) over [`metrics`] (sees each attempt) over [`timeout`] (ends an attempt) over the
//! backend. [`stack`] builds the same without [`limit`], [`hedge`] and [`breaker`], for what must be tried whatever they think: the
//! start and the clean-up.
//!
//! # Invariants
//! * A layer changes no bytes and no keys.
//! * Time is tokio's, which a test can pause; chance is a generator that a test can seed.
//!
//! # Cancel
//! Dropping a future drops what is below it at once.

pub mod breaker;
pub mod hedge;
pub mod limit;
pub mod metrics;
pub mod retry;
pub mod timeout;

use std::{future::Future, sync::Arc, time::Duration};

use tokio::time::{Instant, error::Elapsed};

use crate::{ErrorKind, ObjectStore, Operation, StoreError, StoreResult, UploadedPart};
use breaker::{Breaker, BreakerStore};
use hedge::HedgeStore;
use limit::{LimitStore, Limits};
use metrics::{MetricsStore, StoreMetrics};
use retry::RetryStore;
use timeout::TimeoutStore;

/// The slowest transfer that is not yet a failure, bytes per second: 256 KiB/s moves a 16 MiB part in 64 s.
pub const MIN_BYTES_PER_SECOND: u64 = 256 << 10;

/// How fast a store may put an object together from its parts, bytes per second: copying between slow disks.
const ASSEMBLY_BYTES_PER_SECOND: u64 = 16 << 20;

/// Most reads, and most writes, at a time: more than ten copies (Kafka's default threads) have memory for, and than a busy broker's
/// fetches need, so that it shows only when a store has asked for less; and few enough sockets for any broker.
const OPERATIONS_MAX: usize = 64;

/// Share of a limited upload rate that each write at a time must have, bytes per second: a part of 16 MiB then takes 16 s, about
/// as long as any part on a slow line, and not so long that its copy's other requests wait behind it.
const PACED_WRITE_BYTES_PER_SECOND: u64 = 1 << 20;

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
    /// Whether a GET that is slow gets a second request. Default no: it is for those whom somebody waits for.
    pub hedging: bool,
    /// Most GETs at a time, with their bodies. Default 64.
    pub reads_max: usize,
    /// Most writes at a time: puts, parts, begins and ends of uploads. Default 64.
    pub writes_max: usize,
    /// Attempts in a row without an answer after which the store counts as away. Default 5.
    pub away_failures: u32,
    /// How long they must have gone on: connections that break at one moment are one event, however many. Default 2 s.
    pub away_after: Duration,
    /// Pause before the first probe of a store that is away; doubled for every later one. Default 1 s.
    pub probe_interval: Duration,
    /// Upper limit of the pause between two probes. Default 5 s.
    pub probe_interval_max: Duration,
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
            hedging: false,
            reads_max: OPERATIONS_MAX,
            writes_max: OPERATIONS_MAX,
            away_failures: 5,
            away_after: Duration::from_secs(2),
            probe_interval: Duration::from_secs(1),
            probe_interval_max: Duration::from_secs(5),
        }
    }
}

impl Policies {
    /// These policies where uploads are held to `bytes_per_second` together, so that no attempt ends only because of that.
    ///
    /// Writes at a time share the rate, so there are no more of them than it feeds: one for each MiB/s, at least one. The slowest
    /// transfer that is no failure is then half of a write's share: the other half is for what waits its turn, and for retries.
    #[must_use]
    pub fn paced(mut self, bytes_per_second: u64) -> Self {
        let fed = (bytes_per_second / PACED_WRITE_BYTES_PER_SECOND).max(1);
        self.writes_max = self.writes_max.min(usize::try_from(fed).unwrap_or(usize::MAX)).max(1);
        let share = bytes_per_second / (2 * self.writes_max as u64);
        self.min_bytes_per_second = self.min_bytes_per_second.min(share).max(1);
        self
    }

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

/// What all stacks of one store share, since it is one store that is overloaded or away.
#[derive(Clone, Debug)]
pub struct Guards {
    /// How many operations it can take at a time.
    pub limits: Arc<Limits>,
    /// Whether it is there.
    pub breaker: Arc<Breaker>,
}

impl Guards {
    /// Guards of a store that is there and has not complained.
    pub fn new(policies: &Policies) -> Self {
        Guards {
            limits: Arc::new(Limits::new(policies)),
            breaker: Arc::new(Breaker::new(policies)),
        }
    }
}

/// Puts all layers around `base`.
pub fn guarded(
    base: Arc<dyn ObjectStore>,
    policies: Policies,
    metrics: Arc<StoreMetrics>,
    guards: &Guards,
) -> Arc<dyn ObjectStore> {
    layered(base, policies, metrics, Some(guards))
}

/// Puts all layers but the guards around `base`: its requests are neither limited in number nor held, nor hedged.
pub fn stack(base: Arc<dyn ObjectStore>, policies: Policies, metrics: Arc<StoreMetrics>) -> Arc<dyn ObjectStore> {
    layered(base, policies, metrics, None)
}

/// The order of the layers, from the backend up.
fn layered(
    base: Arc<dyn ObjectStore>,
    policies: Policies,
    metrics: Arc<StoreMetrics>,
    guards: Option<&Guards>,
) -> Arc<dyn ObjectStore> {
    let timed = Arc::new(TimeoutStore::new(base, policies.clone()));
    let counted = Arc::new(MetricsStore::new(timed, Arc::clone(&metrics)));
    let Some(guards) = guards else {
        return Arc::new(RetryStore::new(counted, policies, metrics, None));
    };
    let held: Arc<dyn ObjectStore> = Arc::new(BreakerStore::new(counted, &policies, guards));
    let hedged = if policies.hedging {
        Arc::new(HedgeStore::new(held, &policies, Arc::clone(&metrics), guards))
    } else {
        held
    };
    let breaker = Arc::clone(&guards.breaker);
    let repeated = Arc::new(RetryStore::new(hedged, policies, metrics, Some(breaker)));
    Arc::new(LimitStore::new(repeated, Arc::clone(&guards.limits)))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_paced_transfer_has_twice_the_time_that_its_share_needs() {
        const MIB: u64 = 1 << 20;
        for (rate, writes, slowest) in [
            (1, 1, 1),
            (100_000, 1, 50_000),
            (MIB, 1, MIN_BYTES_PER_SECOND),
            (5 * MIB + 1, 5, MIN_BYTES_PER_SECOND),
            (1000 * MIB, 64, MIN_BYTES_PER_SECOND),
            (u64::MAX, 64, MIN_BYTES_PER_SECOND),
        ] {
            let policies = Policies::default().paced(rate);
            assert_eq!(
                (policies.writes_max, policies.min_bytes_per_second),
                (writes, slowest),
                "{rate}"
            );
            assert_eq!(policies.reads_max, Policies::default().reads_max);
        }
        let few = Policies {
            writes_max: 2,
            ..Policies::default()
        };
        assert_eq!(few.paced(100 * MIB).writes_max, 2);
    }
}
