//! A second request for a GET that is slow, or stalls.
//!
//! # Purpose
//! Of a store most of whose answers come soon, the few that do not (one disk, one node, one lost packet) no longer hold a consumer up.
//!
//! # Flow
//! A GET that has no answer after the delay gets a second request, the hedge. The first of the two that answers is the answer, the other
//! is dropped. The delay is the p95 of the recent GETs, within limits. What counts is the time to the head of the answer: it
//! hardly depends on how many bytes are asked for, so there is one p95 for all sizes.
//!
//! A body that comes to a halt is ended as one that broke, so that the rest is asked for with a second request.
//!
//! It is above [`breaker`](super::breaker), so that each of the two is an attempt for those who count, judge and end attempts; and below
//! [`retry`](super::retry), since a hedge is part of an attempt: two loops of retries for one GET would double the load of a store in
//! trouble. [`limit`](super::limit) is further up and has let one request pass, so the hedge needs a permit of its own.
//!
//! # Invariants
//! * Only GETs. What writes may not happen twice, and nobody waits for what looks up or lists.
//! * Hedges are at most one in twenty of the GETs, and a small burst: a store that has become slow for all has no more to do than before. A
//!   GET counts again with each mebibyte behind the first that has begun to come: it stands for many GETs, and may halt at any of them.
//! * A hedge takes a free permit or is not sent; it never waits for one and passes nobody who does. It gives it back when the race is over.
//! * None while the store is away or has asked for fewer requests of late.
//! * A GET is measured by its first request alone, one that is overtaken by the time it had taken until then: a p95 without its slowest
//!   would sink and sink. One that fails, or begins while requests are held, says nothing.
//!
//! # Failure
//! One of the two that fails waits for the other. When both fail the error is the first one's; it is one attempt.
//!
//! # Cancel
//! Dropping the GET drops both. A request that is dropped without an answer takes its connection with it, where that carries one request at a
//! time: a hedge costs a request, up to one answer that is thrown away, and a connection (a TLS handshake) to be made anew.
//!
//! # Not here
//! The rest of a body that broke: [`retry`](super::retry) asks for it.

use std::{
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use futures::{
    StreamExt,
    future::{Either, select},
    stream,
};
use tokio::time::Instant;

use super::{Guards, Policies, limit::Permit, metrics::StoreMetrics};
use crate::{
    ErrorKind, GetObject, Key, ListPage, ObjectInfo, ObjectStore, Operation, Payload, StoreError, StoreResult,
    UploadId, UploadedPart, boxed_body,
};

/// GETs that the p95 is taken from: ten of them are slower. At fewer it would depend on a few requests, at many more it would still tell of
/// a store as it was before.
const WINDOW: usize = 200;

/// GETs before the p95 is known: two of them are slower, so that one alone, which made the connection, is not it. Until then the delay is the
/// longest.
const KNOWN_MIN: usize = 40;

/// After how many GETs the delay is computed anew: sorting is not for each of them.
const RECKON_EVERY: usize = 10;

/// Shortest delay. A seek, a handshake, a moment without a processor take up to that long, and a hedge, which may have to
/// connect, would not be there sooner.
const DELAY_MIN: Duration = Duration::from_millis(20);

/// Longest delay: what has no answer by then is lost rather than slow, whatever the others take. The same is true of a body without a byte for so
/// long.
const DELAY_MAX: Duration = Duration::from_secs(2);

/// Longest delay as a multiple of the median. When more than one GET in twenty is slow the p95 is itself a slow one, and to wait that
/// long gains nothing.
const DELAY_MEDIANS_MAX: u32 = 4;

/// GETs that pay for a hedge: 5 %, as many as are slower than the p95. The same number of [`BYTES_AS_GET`] pays for one.
const GETS_PER_HEDGE: u32 = 20;

/// Bytes of a body that count as a GET: what one would ask for without reading ahead.
const BYTES_AS_GET: usize = 1 << 20;

/// Hedges that can be saved up: a node that goes away slows several GETs at one moment.
const BURST: u32 = 10;

/// The layer.
#[derive(Debug)]
pub struct HedgeStore {
    inner: Arc<dyn ObjectStore>,
    hedges: Arc<Hedges>,
}

/// When there may be a hedge, and what becomes of them.
#[derive(Debug)]
struct Hedges {
    metrics: Arc<StoreMetrics>,
    guards: Guards,
    /// How long a store that has asked for fewer requests gets no hedges.
    respite: Duration,
    recent: Mutex<Recent>,
}

impl HedgeStore {
    /// Hedges GETs at `inner`, which keeps to `guards`.
    pub fn new(inner: Arc<dyn ObjectStore>, policies: &Policies, metrics: Arc<StoreMetrics>, guards: &Guards) -> Self {
        HedgeStore {
            inner,
            hedges: Arc::new(Hedges {
                metrics,
                guards: guards.clone(),
                respite: policies.retry_after_max,
                recent: Mutex::default(),
            }),
        }
    }

    /// The first answer of a GET and, if that is slow, of its hedge.
    async fn race(&self, key: &Key, range: Option<Range<u64>>) -> StoreResult<GetObject> {
        let hedges = &self.hedges;
        let begin = Instant::now();
        let slow_after = hedges.recent().begin();
        let mut first = self.inner.get(key, range.clone());
        // One that may not be hedged at this moment asks again: the longer it takes, the more it needs it.
        let _permit = loop {
            if let Ok(outcome) = tokio::time::timeout(slow_after, &mut first).await {
                return hedges.measured(begin, outcome);
            }
            if let Some(permit) = hedges.permit() {
                break permit;
            }
        };
        hedges.metrics.count_hedge();
        match select(first, self.inner.get(key, range)).await {
            Either::Left((Ok(answer), _)) => hedges.measured(begin, Ok(answer)),
            Either::Right((Ok(answer), _)) => {
                hedges.recent().add(begin.elapsed());
                hedges.won(answer)
            }
            Either::Left((Err(error), hedge)) => match hedge.await {
                Ok(answer) => hedges.won(answer),
                Err(_) => Err(error),
            },
            Either::Right((Err(error), first)) => {
                tracing::debug!(%error, "the second request for a slow GET failed, the first is still under way");
                hedges.measured(begin, first.await)
            }
        }
    }
}

impl Hedges {
    /// The right to a hedge now, if there is one.
    fn permit(&self) -> Option<Permit> {
        if !self.are_welcome() {
            return None;
        }
        let permit = self.guards.limits.try_read()?;
        self.recent().pay().then_some(permit)
    }

    /// The right to ask once more for what a request has not brought, in its place.
    fn pay_in_place(&self) -> bool {
        self.are_welcome() && self.recent().pay()
    }

    fn are_welcome(&self) -> bool {
        !self.guards.breaker.is_open() && !self.guards.limits.have_throttled_within(self.respite)
    }

    /// The body, ended as one that broke if it comes to a halt.
    fn watched(self: &Arc<Self>, key: &Key, answer: GetObject) -> GetObject {
        let state = (answer.body, Arc::clone(self), key.clone(), BYTES_AS_GET);
        let body = stream::unfold(Some(state), |state| async move {
            let (mut body, hedges, key, counted) = state?;
            loop {
                match tokio::time::timeout(DELAY_MAX, body.next()).await {
                    Ok(Some(Ok(piece))) => {
                        let counted = hedges.arrived(counted, piece.len());
                        return Some((Ok(piece), Some((body, hedges, key, counted))));
                    }
                    Ok(Some(Err(error))) => return Some((Err(error), None)),
                    Ok(None) => return None,
                    Err(_) if hedges.pay_in_place() => {
                        hedges.metrics.count_hedge();
                        let detail = format!("the body came to a halt for {DELAY_MAX:?}");
                        let error = StoreError::new(ErrorKind::Timeout, Operation::Get, detail);
                        return Some((Err(error.with_key(&key)), None));
                    }
                    // As with a head: the longer it takes, the more it needs it.
                    Err(_) => {}
                }
            }
        });
        GetObject {
            body: boxed_body(body),
            ..answer
        }
    }

    /// Counts bytes of a body of which the next `counted` are counted already; how many are so then.
    fn arrived(&self, counted: usize, bytes: usize) -> usize {
        let gets = bytes.saturating_sub(counted).div_ceil(BYTES_AS_GET);
        if gets > 0 {
            self.recent().earn(u32::try_from(gets).unwrap_or(u32::MAX));
        }
        counted + gets * BYTES_AS_GET - bytes
    }

    /// Learns from a first request that had no rival or has beaten it.
    fn measured(&self, begin: Instant, outcome: StoreResult<GetObject>) -> StoreResult<GetObject> {
        if outcome.is_ok() {
            self.recent().add(begin.elapsed());
        }
        outcome
    }

    fn won(&self, answer: GetObject) -> StoreResult<GetObject> {
        self.metrics.count_hedge_won();
        Ok(answer)
    }

    fn recent(&self) -> MutexGuard<'_, Recent> {
        // Nothing under the lock panics half way.
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the recent GETs took, and what they have earned.
#[derive(Debug)]
struct Recent {
    /// Times to the head of the answer; the oldest is at `next` once there are as many as [`WINDOW`].
    times: Vec<Duration>,
    next: usize,
    delay: Duration,
    /// In GETs: [`GETS_PER_HEDGE`] of them are a hedge.
    earned: u32,
}

impl Default for Recent {
    fn default() -> Self {
        Recent {
            times: Vec::new(),
            next: 0,
            delay: DELAY_MAX,
            // The first may be needed before one is earned.
            earned: GETS_PER_HEDGE,
        }
    }
}

impl Recent {
    /// Counts a GET, and tells after what time it is slow.
    fn begin(&mut self) -> Duration {
        self.earn(1);
        self.delay
    }

    fn earn(&mut self, gets: u32) {
        self.earned = self.earned.saturating_add(gets).min(BURST * GETS_PER_HEDGE);
    }

    fn pay(&mut self) -> bool {
        let left = self.earned.checked_sub(GETS_PER_HEDGE);
        self.earned = left.unwrap_or(self.earned);
        left.is_some()
    }

    fn add(&mut self, time: Duration) {
        match self.times.get_mut(self.next) {
            Some(oldest) => *oldest = time,
            None => self.times.push(time),
        }
        self.next = (self.next + 1) % WINDOW;
        if self.times.len() >= KNOWN_MIN && self.next.is_multiple_of(RECKON_EVERY) {
            self.delay = delay(&self.times);
        }
    }
}

/// The p95 of `times`, within the limits.
fn delay(times: &[Duration]) -> Duration {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    let at = |percent: usize| {
        sorted
            .get(sorted.len() * percent / 100 - 1)
            .copied()
            .unwrap_or(DELAY_MAX)
    };
    at(95).min(at(50) * DELAY_MEDIANS_MAX).clamp(DELAY_MIN, DELAY_MAX)
}

#[async_trait]
impl ObjectStore for HedgeStore {
    async fn put(&self, key: &Key, payload: Payload) -> StoreResult<()> {
        self.inner.put(key, payload).await
    }

    async fn create_upload(&self, key: &Key) -> StoreResult<UploadId> {
        self.inner.create_upload(key).await
    }

    async fn upload_part(
        &self,
        key: &Key,
        upload: &UploadId,
        number: u32,
        payload: Payload,
    ) -> StoreResult<UploadedPart> {
        self.inner.upload_part(key, upload, number, payload).await
    }

    async fn complete_upload(
        &self,
        key: &Key,
        upload: &UploadId,
        parts: &[UploadedPart],
        crc32: u32,
    ) -> StoreResult<()> {
        self.inner.complete_upload(key, upload, parts, crc32).await
    }

    async fn abort_upload(&self, key: &Key, upload: &UploadId) -> StoreResult<()> {
        self.inner.abort_upload(key, upload).await
    }

    async fn list_uploads(&self, key: &Key) -> StoreResult<Vec<UploadId>> {
        self.inner.list_uploads(key).await
    }

    async fn get(&self, key: &Key, range: Option<Range<u64>>) -> StoreResult<GetObject> {
        if self.hedges.guards.breaker.is_open() {
            return self.inner.get(key, range).await;
        }
        let answer = self.race(key, range).await?;
        Ok(self.hedges.watched(key, answer))
    }

    async fn head(&self, key: &Key) -> StoreResult<ObjectInfo> {
        self.inner.head(key).await
    }

    async fn delete(&self, keys: &[Key]) -> StoreResult<()> {
        self.inner.delete(keys).await
    }

    async fn list(&self, prefix: &str, start_after: Option<&str>, max_keys: u32) -> StoreResult<ListPage> {
        self.inner.list(prefix, start_after, max_keys).await
    }
}
