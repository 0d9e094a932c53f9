//! Holds attempts while the store is away.
//!
//! # Purpose
//! Of a store that is away one request asks whether it is back, not all of them; who waits is served when it is, and who could as
//! well come later ([`Breaker::refuse_while_away`]) hears so at once.
//!
//! # Flow
//! *Closed*: attempts pass. Enough failures in a row, over long enough a time, open it. *Open*: attempts are held. *Half-open*: one
//! of those held probes the store, first after a second, then less often; an answer closes the breaker and lets all go on, another
//! failure opens it again.
//!
//! What counts is whether the store answers: a refusal is an answer (`Verdict`).
//!
//! # Invariants
//! * One probe at a time; only one that has been silent for ten seconds is overtaken by another.
//! * A probe that is dropped before it has been silent for so long gives its turn to another at once.
//! * An outage is logged when it begins and when it ends, never per request.
//!
//! # Failure
//! [`ErrorKind::Unavailable`] for one who was held too long: it tells how long the store has been away, and the last failure.
//!
//! # Cancel
//! Who is held and is dropped leaves nothing.
//!
//! # Not here
//! Bodies: the head of a GET's answer has shown that the store is there.

use std::{
    future::Future,
    ops::Range,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use tokio::{sync::Notify, time::Instant};

use super::{Guards, Policies, limit::Limits};
use crate::{
    ErrorKind, GetObject, Key, ListPage, ObjectInfo, ObjectStore, Operation, Payload, StoreError, StoreResult,
    UploadId, UploadedPart,
};

/// A silence that tells something: longer than a store that is there takes for a request, shorter than an attempt's deadline. A
/// probe, which may be lost on a connection from before the outage, no longer keeps others from trying; a request without a body
/// that is given up is a failed one.
const SILENCE: Duration = Duration::from_secs(10);

/// How long one newcomer who was let in to probe has before the next is let in: reading a part and waiting for memory come first.
const NEWCOMER_PATIENCE: Duration = Duration::from_secs(10);

/// The breaker of one store, shared by its stacks.
#[derive(Debug)]
pub struct Breaker {
    failures_min: u32,
    lasting_min: Duration,
    interval_first: Duration,
    interval_max: Duration,
    state: Mutex<State>,
    /// Told whenever those who are held should look again.
    changed: Notify,
    opened: AtomicU64,
    held: AtomicU64,
}

/// A breaker at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerSnapshot {
    /// Whether the store is away.
    pub open: bool,
    /// How often it has gone away.
    pub opened: u64,
    /// Attempts that are held.
    pub held: u64,
}

#[derive(Debug, Default)]
struct State {
    /// When the store answered last.
    answered: Option<Instant>,
    /// Failures since then.
    failures: Option<Failures>,
    /// Open or half-open.
    outage: Option<Outage>,
}

#[derive(Debug)]
struct Failures {
    count: u32,
    begin: Instant,
}

#[derive(Debug)]
struct Outage {
    begin: Instant,
    last: StoreError,
    /// Before the probe after the next one.
    interval: Duration,
    next_probe: Instant,
    /// The probe under way, by its number: half-open.
    probe: Option<u64>,
    probes: u64,
    next_newcomer: Option<Instant>,
}

/// What an attempt says of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// It has answered, be it with a refusal or a wish for fewer requests.
    There,
    /// It was not reached, was silent, or says that it cannot serve.
    Away,
    /// The request was never sent, or something else has answered.
    Unknown,
}

impl Verdict {
    fn of<T>(operation: Operation, outcome: &StoreResult<T>) -> Self {
        let Err(error) = outcome else {
            return Verdict::There;
        };
        match (error.kind(), error.status()) {
            (ErrorKind::Unexpected, _) => Verdict::Unknown,
            (_, Some(400..=499)) => Verdict::There,
            // Without a code, which every store gives where there is a body, it is a gateway with nothing behind it.
            (ErrorKind::Throttled, Some(503)) if error.code().is_none() && operation != Operation::Head => {
                Verdict::Away
            }
            (ErrorKind::Unreachable | ErrorKind::Timeout | ErrorKind::Unavailable | ErrorKind::Tls, _) => Verdict::Away,
            (ErrorKind::Invalid | ErrorKind::InvalidCredentials, None) => Verdict::Unknown,
            _ => Verdict::There,
        }
    }
}

impl Breaker {
    /// A closed breaker with the numbers of `policies`.
    pub fn new(policies: &Policies) -> Self {
        Breaker {
            failures_min: policies.away_failures,
            lasting_min: policies.away_after,
            interval_first: policies.probe_interval,
            interval_max: policies.probe_interval_max.max(policies.probe_interval),
            state: Mutex::default(),
            changed: Notify::new(),
            opened: AtomicU64::new(0),
            held: AtomicU64::new(0),
        }
    }

    /// What there is to know.
    pub fn snapshot(&self) -> BreakerSnapshot {
        BreakerSnapshot {
            open: self.state().outage.is_some(),
            opened: self.opened.load(Ordering::Relaxed),
            held: self.held.load(Ordering::Relaxed),
        }
    }

    /// Whether the store is away.
    pub(super) fn is_open(&self) -> bool {
        self.state().outage.is_some()
    }

    /// For one who is about to begin `operation` and may as well come later: an error while the store is away.
    ///
    /// Nobody may be left to find out that it is back, so when a probe is due and nobody waits for it, one newcomer in ten seconds
    /// passes: its first attempt is the probe.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`], telling how long the store has been away and the last failure.
    pub fn refuse_while_away(&self, operation: Operation) -> StoreResult<()> {
        let now = Instant::now();
        let mut state = self.state();
        let Some(outage) = state.outage.as_mut() else {
            return Ok(());
        };
        let nobody = outage.probe.is_none() && self.held.load(Ordering::Relaxed) == 0;
        if nobody && now >= outage.next_probe && outage.next_newcomer.is_none_or(|next| now >= next) {
            outage.next_newcomer = Some(now + NEWCOMER_PATIENCE);
            return Ok(());
        }
        Err(outage.error(operation))
    }

    /// What to tell of `operation`, which was not served in time, when that is because the store is away.
    pub(super) fn away(&self, operation: Operation) -> Option<StoreError> {
        self.state().outage.as_ref().map(|outage| outage.error(operation))
    }

    /// Waits until an attempt may be made, at most for `limit`.
    async fn admit(self: &Arc<Self>, operation: Operation, limit: Duration) -> StoreResult<Pass> {
        if let Ok(pass) = self.pass(operation) {
            return Ok(pass);
        }
        let _held = Held::new(self);
        let waiting = async {
            loop {
                // Made before looking, so that no change is missed.
                let changed = self.changed.notified();
                let next_probe = match self.pass(operation) {
                    Ok(pass) => return pass,
                    Err(next_probe) => next_probe,
                };
                // Either way it is time to look again.
                let _ = tokio::time::timeout_at(next_probe, changed).await;
            }
        };
        tokio::time::timeout(limit, waiting).await.map_err(|_| {
            self.away(operation).unwrap_or_else(|| {
                let detail = format!("held back for {limit:?} while the store was away");
                StoreError::new(ErrorKind::Unavailable, operation, detail)
            })
        })
    }

    /// A pass for one attempt, or when to probe next.
    fn pass(self: &Arc<Self>, operation: Operation) -> Result<Pass, Instant> {
        let begin = Instant::now();
        let mut state = self.state();
        let probe = match state.outage.as_mut() {
            None => None,
            Some(outage) if begin < outage.next_probe => return Err(outage.next_probe),
            Some(outage) => {
                outage.probes += 1;
                outage.probe = Some(outage.probes);
                outage.next_probe = begin + SILENCE;
                outage.probe
            }
        };
        Ok(Pass {
            breaker: Arc::clone(self),
            operation,
            begin,
            probe,
            judged: false,
        })
    }

    fn there(&self) {
        let now = Instant::now();
        let ended = {
            let mut state = self.state();
            state.answered = Some(now);
            state.failures = None;
            state.outage.take()
        };
        if let Some(outage) = ended {
            self.changed.notify_waiters();
            tracing::info!(away = ?rounded(now - outage.begin), probes = outage.probes, "the store answers again");
        }
    }

    fn failed(&self, pass: &Pass, error: &StoreError) {
        let now = Instant::now();
        let mut state = self.state();
        if let Some(outage) = state.outage.as_mut() {
            outage.last = error.clone();
            if pass.probe.is_some() && pass.probe == outage.probe {
                outage.probe = None;
                outage.interval = outage.interval.saturating_mul(2).min(self.interval_max);
                outage.next_probe = now + outage.interval;
                drop(state);
                self.changed.notify_waiters();
            }
            return;
        }
        // One that got no answer in time has had none since it began.
        let begin = match error.kind() {
            ErrorKind::Timeout => state.answered.map_or(pass.begin, |answered| answered.max(pass.begin)),
            _ => now,
        };
        let failures = state.failures.get_or_insert(Failures { count: 0, begin });
        failures.count += 1;
        failures.begin = failures.begin.min(begin);
        let (count, begin) = (failures.count, failures.begin);
        if count < self.failures_min || now - begin < self.lasting_min {
            return;
        }
        state.outage = Some(Outage {
            begin,
            last: error.clone(),
            interval: self.interval_first,
            next_probe: now + self.interval_first,
            probe: None,
            probes: 0,
            next_newcomer: None,
        });
        drop(state);
        self.opened.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(failures = count, since = ?rounded(now - begin), %error, "the store is away, requests are held until it answers");
    }

    /// Ends the probe that `pass` is, if it is one, without a word on the store. Another one may follow after `pause`.
    fn give_back(&self, pass: &Pass, pause: Duration) {
        let mut state = self.state();
        if let Some(outage) = state.outage.as_mut()
            && pass.probe.is_some()
            && pass.probe == outage.probe
        {
            outage.probe = None;
            outage.next_probe = Instant::now() + pause;
            drop(state);
            self.changed.notify_waiters();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing under the lock panics half way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Outage {
    fn error(&self, operation: Operation) -> StoreError {
        let detail = format!(
            "the store has been away for {:?}, the last failure was: {}",
            rounded(self.begin.elapsed()),
            self.last
        );
        StoreError::new(ErrorKind::Unavailable, operation, detail)
    }
}

/// As exact as a reader needs it.
fn rounded(duration: Duration) -> Duration {
    Duration::from_millis(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}

/// Counts one who is held.
struct Held<'breaker>(&'breaker Breaker);

impl<'breaker> Held<'breaker> {
    fn new(breaker: &'breaker Breaker) -> Self {
        breaker.held.fetch_add(1, Ordering::Relaxed);
        Held(breaker)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.held.fetch_sub(1, Ordering::Relaxed);
    }
}

/// One attempt that may be made.
struct Pass {
    breaker: Arc<Breaker>,
    operation: Operation,
    begin: Instant,
    /// Its number, when it is a probe.
    probe: Option<u64>,
    judged: bool,
}

impl Pass {
    fn end<T>(mut self, outcome: &StoreResult<T>) {
        self.judged = true;
        match (Verdict::of(self.operation, outcome), outcome) {
            (Verdict::Away, Err(error)) => self.breaker.failed(&self, error),
            (Verdict::Unknown, _) => self.breaker.give_back(&self, self.breaker.interval_first),
            _ => self.breaker.there(),
        }
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        if self.judged {
            return;
        }
        let silence = self.begin.elapsed();
        // What sends bytes may have been busy with that, and what puts parts together takes its time.
        let sends = matches!(
            self.operation,
            Operation::Put | Operation::UploadPart | Operation::CompleteUpload
        );
        if sends || silence < SILENCE {
            self.breaker.give_back(self, Duration::ZERO);
        } else {
            let detail = format!("given up after {:?} without an answer", rounded(silence));
            let error = StoreError::new(ErrorKind::Timeout, self.operation, detail);
            self.breaker.failed(self, &error);
        }
    }
}

/// The layer. Since it sees how each attempt ends, it also tells the limits.
#[derive(Debug)]
pub struct BreakerStore {
    inner: Arc<dyn ObjectStore>,
    breaker: Arc<Breaker>,
    limits: Arc<Limits>,
    /// Longest that an attempt is held.
    hold_max: Duration,
}

impl BreakerStore {
    /// Holds attempts at `inner` while its store is away, each at most for an operation's time.
    pub fn new(inner: Arc<dyn ObjectStore>, policies: &Policies, guards: &Guards) -> Self {
        BreakerStore {
            inner,
            breaker: Arc::clone(&guards.breaker),
            limits: Arc::clone(&guards.limits),
            hold_max: policies.operation_timeout,
        }
    }

    async fn guard<T>(&self, operation: Operation, attempt: impl Future<Output = StoreResult<T>>) -> StoreResult<T> {
        let pass = self.breaker.admit(operation, self.hold_max).await?;
        let outcome = attempt.await;
        pass.end(&outcome);
        self.limits.observe(operation, &outcome);
        outcome
    }
}

#[async_trait]
impl ObjectStore for BreakerStore {
    async fn put(&self, key: &Key, payload: Payload) -> StoreResult<()> {
        self.guard(Operation::Put, self.inner.put(key, payload)).await
    }

    async fn create_upload(&self, key: &Key) -> StoreResult<UploadId> {
        self.guard(Operation::CreateUpload, self.inner.create_upload(key)).await
    }

    async fn upload_part(
        &self,
        key: &Key,
        upload: &UploadId,
        number: u32,
        payload: Payload,
    ) -> StoreResult<UploadedPart> {
        let attempt = self.inner.upload_part(key, upload, number, payload);
        self.guard(Operation::UploadPart, attempt).await
    }

    async fn complete_upload(
        &self,
        key: &Key,
        upload: &UploadId,
        parts: &[UploadedPart],
        crc32: u32,
    ) -> StoreResult<()> {
        let attempt = self.inner.complete_upload(key, upload, parts, crc32);
        self.guard(Operation::CompleteUpload, attempt).await
    }

    async fn abort_upload(&self, key: &Key, upload: &UploadId) -> StoreResult<()> {
        self.guard(Operation::AbortUpload, self.inner.abort_upload(key, upload))
            .await
    }

    async fn list_uploads(&self, key: &Key) -> StoreResult<Vec<UploadId>> {
        self.guard(Operation::ListUploads, self.inner.list_uploads(key)).await
    }

    async fn get(&self, key: &Key, range: Option<Range<u64>>) -> StoreResult<GetObject> {
        self.guard(Operation::Get, self.inner.get(key, range)).await
    }

    async fn head(&self, key: &Key) -> StoreResult<ObjectInfo> {
        self.guard(Operation::Head, self.inner.head(key)).await
    }

    async fn delete(&self, keys: &[Key]) -> StoreResult<()> {
        self.guard(Operation::Delete, self.inner.delete(keys)).await
    }

    async fn list(&self, prefix: &str, start_after: Option<&str>, max_keys: u32) -> StoreResult<ListPage> {
        self.guard(Operation::List, self.inner.list(prefix, start_after, max_keys))
            .await
    }
}
