//! As many operations at a time as the store can take.
//!
//! # Purpose
//! A store that asks for fewer requests gets fewer, instead of the same ones again and again.
//!
//! # Flow
//! [`LimitStore`] takes a permit for an operation and keeps it over all attempts and pauses; that of a GET lives as long as its body.
//! A hedge takes one of its own where one is free. [`Limits::observe`] hears of each attempt: a throttled one lowers the limit to half of what is under way, and as many successes as the limit is raise it by
//! one, up to its maximum.
//!
//! # Invariants
//! * Permits are given in the order in which they were asked for.
//! * Reads and writes have a limit each. What looks up, lists, deletes or aborts needs no permit: a clean-up never queues behind
//!   the uploads that made it necessary.
//! * What is in use and what waits return to zero, whatever is dropped when.
//!
//! # Cancel
//! One who waits and is dropped has taken nothing.
//!
//! # Not here
//! A deadline: the wait for a permit belongs to no attempt and no operation below. The caller bounds it by its own.

use std::{
    collections::VecDeque,
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use futures::{StreamExt, stream};
use tokio::{sync::oneshot, time::Instant};

use super::Policies;
use crate::{
    ErrorKind, GetObject, Key, ListPage, ObjectInfo, ObjectStore, Operation, Payload, StoreResult, UploadId,
    UploadedPart, boxed_body,
};

/// After a limit was halved, refusals say nothing new for this long: they are of requests that were under way already.
const HALVE_EVERY: Duration = Duration::from_secs(1);

/// The limits of one store, shared by its stacks.
#[derive(Debug)]
pub struct Limits {
    reads: Arc<Limit>,
    writes: Arc<Limit>,
}

/// A limit at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitSnapshot {
    /// Operations that may be under way at a time, at present.
    pub limit: usize,
    /// Operations under way. More than the limit when that was just lowered.
    pub in_use: usize,
    /// Operations that wait for a permit.
    pub waiting: usize,
}

impl Limits {
    /// Limits at their maxima, which `policies` name.
    pub fn new(policies: &Policies) -> Self {
        Limits {
            reads: Arc::new(Limit::new(policies.reads_max)),
            writes: Arc::new(Limit::new(policies.writes_max)),
        }
    }

    /// The limit of GETs.
    pub fn reads(&self) -> LimitSnapshot {
        self.reads.snapshot()
    }

    /// The limit of writes.
    pub fn writes(&self) -> LimitSnapshot {
        self.writes.snapshot()
    }

    /// A permit for one more GET, when one is free and nobody waits for it.
    pub(super) fn try_read(&self) -> Option<Permit> {
        self.reads.try_acquire()
    }

    /// Whether the store has asked for fewer requests, of either kind, in the time before now.
    pub(super) fn have_throttled_within(&self, time: Duration) -> bool {
        [&self.reads, &self.writes]
            .iter()
            .any(|limit| limit.state().halved.is_some_and(|halved| halved.elapsed() < time))
    }

    /// Learns from an attempt at the store.
    pub fn observe<T>(&self, operation: Operation, outcome: &StoreResult<T>) {
        let limit = match operation {
            Operation::Get => &self.reads,
            Operation::Put | Operation::CreateUpload | Operation::UploadPart | Operation::CompleteUpload => {
                &self.writes
            }
            _ => return,
        };
        match outcome {
            Ok(_) => limit.succeeded(),
            Err(error) if error.kind() == ErrorKind::Throttled => limit.throttled(operation),
            Err(_) => {}
        }
    }
}

#[derive(Debug)]
struct Limit {
    max: usize,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    limit: usize,
    in_use: usize,
    waiting: VecDeque<oneshot::Sender<Permit>>,
    /// Since the limit was changed last.
    successes: usize,
    halved: Option<Instant>,
}

impl Limit {
    fn new(max: usize) -> Self {
        let max = max.max(1);
        Limit {
            max,
            state: Mutex::new(State {
                limit: max,
                in_use: 0,
                waiting: VecDeque::new(),
                successes: 0,
                halved: None,
            }),
        }
    }

    async fn acquire(self: &Arc<Self>) -> Permit {
        let (sender, receiver) = oneshot::channel();
        self.state().waiting.push_back(sender);
        self.grant();
        receiver
            .await
            .expect("a sender goes only when it has sent or its receiver is gone")
    }

    fn try_acquire(self: &Arc<Self>) -> Option<Permit> {
        let mut state = self.state();
        let wanted = state.waiting.iter().any(|waiter| !waiter.is_closed());
        if wanted || state.in_use >= state.limit {
            return None;
        }
        state.in_use += 1;
        Some(Permit(Arc::clone(self)))
    }

    /// Gives permits to those who have waited longest, as long as there are any.
    fn grant(self: &Arc<Self>) {
        loop {
            let first = {
                let mut state = self.state();
                state.waiting.retain(|waiter| !waiter.is_closed());
                if state.in_use >= state.limit {
                    return;
                }
                let Some(first) = state.waiting.pop_front() else {
                    return;
                };
                state.in_use += 1;
                first
            };
            // Not under the lock: the permit of one who has just left gives itself back.
            let _ = first.send(Permit(Arc::clone(self)));
        }
    }

    fn succeeded(self: &Arc<Self>) {
        {
            let mut state = self.state();
            if state.limit >= self.max {
                return;
            }
            state.successes += 1;
            if state.successes < state.limit {
                return;
            }
            state.successes = 0;
            state.limit += 1;
        }
        self.grant();
    }

    fn throttled(&self, operation: Operation) {
        let mut state = self.state();
        if state.halved.is_some_and(|halved| halved.elapsed() < HALVE_EVERY) {
            return;
        }
        state.halved = Some(Instant::now());
        state.successes = 0;
        // Half of what is under way: the limit itself may be far above that.
        state.limit = (state.limit.min(state.in_use) / 2).max(1);
        let limit = state.limit;
        drop(state);
        tracing::debug!(
            operation = operation.name(),
            limit,
            "the store asks for fewer requests, fewer are made"
        );
    }

    fn snapshot(&self) -> LimitSnapshot {
        let state = self.state();
        LimitSnapshot {
            limit: state.limit,
            in_use: state.in_use,
            waiting: state.waiting.iter().filter(|waiter| !waiter.is_closed()).count(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing under the lock panics half way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The right to one operation; given back on drop.
#[derive(Debug)]
pub(super) struct Permit(Arc<Limit>);

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.state().in_use -= 1;
        self.0.grant();
    }
}

/// The layer.
#[derive(Debug)]
pub struct LimitStore {
    inner: Arc<dyn ObjectStore>,
    limits: Arc<Limits>,
}

impl LimitStore {
    /// Keeps operations on `inner` to `limits`.
    pub fn new(inner: Arc<dyn ObjectStore>, limits: Arc<Limits>) -> Self {
        LimitStore { inner, limits }
    }
}

#[async_trait]
impl ObjectStore for LimitStore {
    async fn put(&self, key: &Key, payload: Payload) -> StoreResult<()> {
        let _permit = self.limits.writes.acquire().await;
        self.inner.put(key, payload).await
    }

    async fn create_upload(&self, key: &Key) -> StoreResult<UploadId> {
        let _permit = self.limits.writes.acquire().await;
        self.inner.create_upload(key).await
    }

    async fn upload_part(
        &self,
        key: &Key,
        upload: &UploadId,
        number: u32,
        payload: Payload,
    ) -> StoreResult<UploadedPart> {
        let _permit = self.limits.writes.acquire().await;
        self.inner.upload_part(key, upload, number, payload).await
    }

    async fn complete_upload(
        &self,
        key: &Key,
        upload: &UploadId,
        parts: &[UploadedPart],
        crc32: u32,
    ) -> StoreResult<()> {
        let _permit = self.limits.writes.acquire().await;
        self.inner.complete_upload(key, upload, parts, crc32).await
    }

    async fn abort_upload(&self, key: &Key, upload: &UploadId) -> StoreResult<()> {
        self.inner.abort_upload(key, upload).await
    }

    async fn list_uploads(&self, key: &Key) -> StoreResult<Vec<UploadId>> {
        self.inner.list_uploads(key).await
    }

    async fn get(&self, key: &Key, range: Option<Range<u64>>) -> StoreResult<GetObject> {
        let permit = self.limits.reads.acquire().await;
        let answer = self.inner.get(key, range).await?;
        let body = stream::unfold(Some((answer.body, permit)), |state| async move {
            let (mut body, permit) = state?;
            match body.next().await? {
                Ok(piece) => Some((Ok(piece), Some((body, permit)))),
                // Nothing follows an error, so the permit goes before the reader does.
                Err(error) => Some((Err(error), None)),
            }
        });
        Ok(GetObject {
            body: boxed_body(body),
            ..answer
        })
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
