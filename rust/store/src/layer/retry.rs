//! Another attempt for what may pass.
//!
//! # Purpose
//! Hides short troubles of the store within the operation's deadline, without adding to them.
//!
//! # Flow
//! An error that says it is retryable is followed by a pause (full jitter: anything from nothing to a limit that doubles each time;
//! at least what the store asked for in `Retry-After`, up to a cap) and another attempt. A body that breaks is resumed at the byte
//! it reached, in the same budget of waiting time.
//!
//! Of a store that is away or overloaded, time alone is the limit: it comes back when it comes back. What rather has a lasting cause
//! (broken bytes, unusable answers, refusals) is not tried more than a few times.
//!
//! # Invariants
//! * A resumed body is of the same object: its tag must not have changed.
//! * The error given back is the last one, with the number of attempts.
//!
//! # Failure
//! A pause that would pass the deadline is not begun: the last error is returned at once. When the deadline passes while the store
//! is away, the breaker knows better than this layer what to say.

use std::{
    future::Future,
    ops::Range,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use futures::{StreamExt, stream};
use rand::{RngExt, SeedableRng, rngs::StdRng};

use super::{Budget, Policies, breaker::Breaker, metrics::StoreMetrics};
use crate::{
    Body, ErrorKind, GetObject, Key, ListPage, ObjectInfo, ObjectStore, Operation, Payload, StoreError, StoreResult,
    UploadId, UploadedPart, boxed_body,
};

/// The layer.
#[derive(Debug)]
pub struct RetryStore {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    inner: Arc<dyn ObjectStore>,
    policies: Policies,
    metrics: Arc<StoreMetrics>,
    /// Of the layer below, when it holds attempts.
    breaker: Option<Arc<Breaker>>,
    jitter: Mutex<StdRng>,
}

impl RetryStore {
    /// Repeats failed attempts at `inner`, in which `breaker`, if any, holds them.
    pub fn new(
        inner: Arc<dyn ObjectStore>,
        policies: Policies,
        metrics: Arc<StoreMetrics>,
        breaker: Option<Arc<Breaker>>,
    ) -> Self {
        let generator = match policies.jitter_seed {
            Some(seed) => StdRng::seed_from_u64(seed),
            None => rand::make_rng(),
        };
        RetryStore {
            shared: Arc::new(Shared {
                inner,
                policies,
                metrics,
                breaker,
                jitter: Mutex::new(generator),
            }),
        }
    }

    async fn run<T, F>(&self, operation: Operation, extra: Duration, attempt: impl Fn() -> F + Send) -> StoreResult<T>
    where
        F: Future<Output = StoreResult<T>> + Send,
    {
        let mut budget = Budget::new(self.shared.policies.operation_timeout + extra);
        let mut attempts = Attempts::default();
        self.shared.run(operation, &mut budget, &mut attempts, attempt).await
    }
}

impl Shared {
    /// Attempts until one succeeds, fails for good, or the budget is spent. `attempts` goes on counting over several calls.
    async fn run<T, F>(
        &self,
        operation: Operation,
        budget: &mut Budget,
        attempts: &mut Attempts,
        attempt: impl Fn() -> F + Send,
    ) -> StoreResult<T>
    where
        F: Future<Output = StoreResult<T>> + Send,
    {
        let mut last: Option<StoreError> = None;
        loop {
            attempts.made += 1;
            let outcome = match budget.spend(attempt()).await {
                Ok(outcome) => outcome,
                Err(_) => return Err(self.out_of_time(operation, budget, last).with_attempts(attempts.made)),
            };
            let error = match outcome {
                Ok(value) => return Ok(value),
                Err(error) => error,
            };
            self.pause(operation, budget, attempts, &error).await?;
            last = Some(error);
        }
    }

    /// Waits before the attempt that follows `error`, or gives `error` back when there must be none.
    async fn pause(
        &self,
        operation: Operation,
        budget: &mut Budget,
        attempts: &mut Attempts,
        error: &StoreError,
    ) -> StoreResult<()> {
        let made = attempts.made;
        let give_up = || Err(error.clone().with_attempts(made));
        if !passes_with_time(error.kind()) {
            attempts.doubtful += 1;
        }
        if !error.is_retryable()
            || attempts.doubtful >= self.policies.attempts_max.max(1)
            || may_have_begun(operation, error)
        {
            return give_up();
        }
        let pause = self.pause_before(made, error.retry_after());
        if pause >= budget.left {
            return give_up();
        }
        tracing::debug!(operation = operation.name(), attempts = made, ?pause, %error, "store request failed, trying again");
        if budget.spend(tokio::time::sleep(pause)).await.is_err() {
            return give_up();
        }
        self.metrics.count_retry(operation);
        Ok(())
    }

    fn out_of_time(&self, operation: Operation, budget: &Budget, last: Option<StoreError>) -> StoreError {
        if let Some(away) = self.breaker.as_ref().and_then(|breaker| breaker.away(operation)) {
            return away;
        }
        let total = budget.total;
        let detail = match last {
            None => format!("no answer within {total:?}"),
            Some(last) => format!("no success within {total:?}, the last failure was: {}", last.detail()),
        };
        StoreError::new(ErrorKind::Timeout, operation, detail)
    }

    fn pause_before(&self, failed: u32, retry_after: Option<Duration>) -> Duration {
        let doublings = failed.saturating_sub(1).min(16);
        let limit = self
            .policies
            .pause_first
            .saturating_mul(1 << doublings)
            .min(self.policies.pause_max);
        let share = self
            .jitter
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .random_range(0.0..=1.0);
        let asked = retry_after.unwrap_or_default().min(self.policies.retry_after_max);
        // Those who were asked to wait the same time must not come back at the same moment.
        asked + limit.mul_f64(share)
    }
}

/// Attempts of one operation, or of one stretch of a body without progress.
#[derive(Clone, Copy, Debug, Default)]
struct Attempts {
    made: u32,
    /// Those of them that failed in a way that time alone does not mend.
    doubtful: u32,
}

/// Whether waiting is all that can be done.
fn passes_with_time(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::Throttled | ErrorKind::Unavailable | ErrorKind::Unreachable | ErrorKind::Timeout
    )
}

/// Whether an upload may have begun although the answer does not say so. Sending the request again could then leave an upload
/// whose id nobody knows; who wants another one first looks for that one by its key.
///
/// It has not begun when there was no connection, or when the store itself (its errors have a code, those of a gateway in between
/// have not) refused the request or asked for patience. A 500, 502 or 504 may come after the work was done.
fn may_have_begun(operation: Operation, error: &StoreError) -> bool {
    let refused = matches!(error.status(), Some(400..=499 | 503)) && error.code().is_some();
    operation == Operation::CreateUpload && !refused && error.kind() != ErrorKind::Unreachable
}

/// Objects are written once: another one at the same key is not what was stored there, and reading it again helps nothing.
fn replaced() -> StoreError {
    let detail = "the object was replaced while it was read";
    StoreError::new(ErrorKind::ChecksumMismatch, Operation::Get, detail).with_retryable(false)
}

/// A body that survives the breaking of its connection.
struct Resumable {
    shared: Arc<Shared>,
    key: Key,
    range: Range<u64>,
    object_length: u64,
    tag: Option<String>,
    position: u64,
    body: Body,
    budget: Budget,
    /// Attempts of all GETs together, for the error.
    attempts: u32,
    /// Attempts since the last byte, with the one whose body is being read, for the limit.
    fruitless: Attempts,
}

impl Resumable {
    async fn next(&mut self) -> Option<StoreResult<Bytes>> {
        loop {
            if self.position == self.range.end {
                return self.end().await;
            }
            let error = match self.budget.spend(self.body.next()).await {
                Ok(Some(Ok(piece))) => {
                    self.position += piece.len() as u64;
                    self.fruitless = Attempts { made: 1, doubtful: 0 };
                    return Some(Ok(piece));
                }
                Ok(Some(Err(error))) => error,
                Ok(None) => {
                    let detail = format!("the body ended at byte {} of {:?}", self.position, self.range);
                    StoreError::new(ErrorKind::Truncated, Operation::Get, detail)
                }
                Err(_) => {
                    let error = self.shared.out_of_time(Operation::Get, &self.budget, None);
                    return Some(Err(error.with_attempts(self.attempts).with_key(&self.key)));
                }
            };
            if let Err(error) = self.resume(error).await {
                let error = error.with_attempts(self.attempts);
                return Some(Err(if error.key().is_none() {
                    error.with_key(&self.key)
                } else {
                    error
                }));
            }
        }
    }

    /// Asks the body for its end, so that the connection can be used again; that it does not come is no loss.
    async fn end(&mut self) -> Option<StoreResult<Bytes>> {
        match self.budget.spend(self.body.next()).await {
            Ok(Some(Ok(extra))) if !extra.is_empty() => {
                let detail = format!("the body goes on behind {:?}", self.range);
                let error = StoreError::new(ErrorKind::Unexpected, Operation::Get, detail);
                Some(Err(error.with_attempts(self.attempts).with_key(&self.key)))
            }
            Ok(Some(Err(error))) if error.kind() == ErrorKind::Unexpected => Some(Err(error)),
            _ => None,
        }
    }

    async fn resume(&mut self, error: StoreError) -> StoreResult<()> {
        self.shared
            .pause(Operation::Get, &mut self.budget, &mut self.fruitless, &error)
            .await?;
        let rest = self.position..self.range.end;
        let before = self.fruitless.made;
        let outcome = self
            .shared
            .run(Operation::Get, &mut self.budget, &mut self.fruitless, || {
                self.shared.inner.get(&self.key, Some(rest.clone()))
            })
            .await;
        self.attempts += self.fruitless.made.saturating_sub(before);
        let answer = match outcome {
            Ok(answer) => answer,
            // The rest was within the object when its body began.
            Err(error) if error.kind() == ErrorKind::Invalid && matches!(error.status(), None | Some(416)) => {
                return Err(replaced());
            }
            Err(error) => return Err(error),
        };
        let other = matches!((&self.tag, &answer.tag), (Some(old), Some(new)) if old != new);
        if other || answer.range != rest || answer.object_length != self.object_length {
            return Err(replaced());
        }
        self.body = answer.body;
        Ok(())
    }
}

#[async_trait]
impl ObjectStore for RetryStore {
    async fn put(&self, key: &Key, payload: Payload) -> StoreResult<()> {
        let extra = self.shared.policies.transfer_time(payload.length());
        self.run(Operation::Put, extra, || self.shared.inner.put(key, payload.clone()))
            .await
    }

    async fn create_upload(&self, key: &Key) -> StoreResult<UploadId> {
        self.run(Operation::CreateUpload, Duration::ZERO, || {
            self.shared.inner.create_upload(key)
        })
        .await
    }

    async fn upload_part(
        &self,
        key: &Key,
        upload: &UploadId,
        number: u32,
        payload: Payload,
    ) -> StoreResult<UploadedPart> {
        let extra = self.shared.policies.transfer_time(payload.length());
        self.run(Operation::UploadPart, extra, || {
            self.shared.inner.upload_part(key, upload, number, payload.clone())
        })
        .await
    }

    async fn complete_upload(
        &self,
        key: &Key,
        upload: &UploadId,
        parts: &[UploadedPart],
        crc32: u32,
    ) -> StoreResult<()> {
        let extra = self.shared.policies.assembly_time(parts);
        self.run(Operation::CompleteUpload, extra, || {
            self.shared.inner.complete_upload(key, upload, parts, crc32)
        })
        .await
    }

    async fn abort_upload(&self, key: &Key, upload: &UploadId) -> StoreResult<()> {
        self.run(Operation::AbortUpload, Duration::ZERO, || {
            self.shared.inner.abort_upload(key, upload)
        })
        .await
    }

    async fn list_uploads(&self, key: &Key) -> StoreResult<Vec<UploadId>> {
        self.run(Operation::ListUploads, Duration::ZERO, || {
            self.shared.inner.list_uploads(key)
        })
        .await
    }

    async fn get(&self, key: &Key, range: Option<Range<u64>>) -> StoreResult<GetObject> {
        let shared = &self.shared;
        let mut budget = Budget::new(shared.policies.operation_timeout);
        let mut attempts = Attempts::default();
        let answer = shared
            .run(Operation::Get, &mut budget, &mut attempts, || {
                shared.inner.get(key, range.clone())
            })
            .await?;
        let extra = shared.policies.transfer_time(answer.length());
        let resumable = Resumable {
            shared: Arc::clone(shared),
            key: key.clone(),
            range: answer.range.clone(),
            object_length: answer.object_length,
            tag: answer.tag.clone(),
            position: answer.range.start,
            body: answer.body,
            budget: Budget {
                total: budget.total + extra,
                left: budget.left + extra,
            },
            attempts: attempts.made,
            fruitless: attempts,
        };
        let body = stream::unfold(Some(resumable), |state| async move {
            let mut resumable = state?;
            match resumable.next().await? {
                Ok(piece) => Some((Ok(piece), Some(resumable))),
                Err(error) => Some((Err(error), None)),
            }
        });
        Ok(GetObject {
            range: answer.range,
            object_length: answer.object_length,
            tag: answer.tag,
            body: boxed_body(body),
        })
    }

    async fn head(&self, key: &Key) -> StoreResult<ObjectInfo> {
        self.run(Operation::Head, Duration::ZERO, || self.shared.inner.head(key))
            .await
    }

    async fn delete(&self, keys: &[Key]) -> StoreResult<()> {
        self.run(Operation::Delete, Duration::ZERO, || self.shared.inner.delete(keys))
            .await
    }

    async fn list(&self, prefix: &str, start_after: Option<&str>, max_keys: u32) -> StoreResult<ListPage> {
        self.run(Operation::List, Duration::ZERO, || {
            self.shared.inner.list(prefix, start_after, max_keys)
        })
        .await
    }
}
