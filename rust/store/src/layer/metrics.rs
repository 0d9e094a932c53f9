//! Counts of every attempt.
//!
//! # Purpose
//! What the store was asked, how it answered, how long that took, and what is under way; for the operator and for tests.
//!
//! # Invariants
//! * Lock-free: counters only; a snapshot is not one instant.
//! * `in_flight` returns to zero when nothing is under way, also after cancellation; a GET is under way until its body ended or was
//!   dropped.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use futures::{StreamExt, stream};
use tokio::time::Instant;

use crate::{
    ErrorKind, GetObject, Key, ListPage, ObjectInfo, ObjectStore, Operation, Payload, StoreResult, UploadId,
    UploadedPart, boxed_body,
};

const OPERATIONS: usize = Operation::ALL.len();
const KINDS: usize = ErrorKind::ALL.len();

/// Counters of one store, shared by its layers and its readers.
#[derive(Debug, Default)]
pub struct StoreMetrics {
    operations: [Counters; OPERATIONS],
    hedges: AtomicU64,
    hedges_won: AtomicU64,
}

#[derive(Debug, Default)]
struct Counters {
    requests: AtomicU64,
    failures: [AtomicU64; KINDS],
    cancelled: AtomicU64,
    retries: AtomicU64,
    bytes_sent: AtomicU64,
    bytes_received: AtomicU64,
    in_flight: AtomicU64,
    latency_ns: AtomicU64,
}

/// What the counters of one operation said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperationSnapshot {
    /// Which operation.
    pub operation: Operation,
    /// Attempts begun.
    pub requests: u64,
    /// Attempts that failed, by kind: index `kind as usize`.
    pub failures: [u64; KINDS],
    /// Attempts dropped before they ended.
    pub cancelled: u64,
    /// Attempts that followed a failed one of the same operation.
    pub retries: u64,
    /// Payload bytes of the attempts begun.
    pub bytes_sent: u64,
    /// Body bytes received.
    pub bytes_received: u64,
    /// Attempts under way.
    pub in_flight: u64,
    /// Time of all attempts that ended, including their bodies, nanoseconds.
    pub latency_ns: u64,
}

impl OperationSnapshot {
    /// Attempts that failed with `kind`.
    pub fn failed(&self, kind: ErrorKind) -> u64 {
        self.failures[kind as usize]
    }
}

/// What all counters said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetricsSnapshot {
    /// By operation: index `operation as usize`.
    pub operations: Vec<OperationSnapshot>,
    /// Second requests for GETs that were slow. They are among the attempts begun.
    pub hedges: u64,
    /// Those of them that brought the answer.
    pub hedges_won: u64,
}

impl MetricsSnapshot {
    /// The counters of one operation.
    pub fn of(&self, operation: Operation) -> &OperationSnapshot {
        &self.operations[operation as usize]
    }

    /// Attempts begun, of all operations.
    pub fn requests(&self) -> u64 {
        self.operations.iter().map(|counters| counters.requests).sum()
    }

    /// Attempts under way, of all operations.
    pub fn in_flight(&self) -> u64 {
        self.operations.iter().map(|counters| counters.in_flight).sum()
    }

    /// Attempts that failed with `kind`, of all operations.
    pub fn failed(&self, kind: ErrorKind) -> u64 {
        self.operations.iter().map(|counters| counters.failed(kind)).sum()
    }
}

impl StoreMetrics {
    /// Reads all counters.
    pub fn snapshot(&self) -> MetricsSnapshot {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let operations = Operation::ALL
            .iter()
            .map(|&operation| {
                let counters = self.of(operation);
                OperationSnapshot {
                    operation,
                    requests: read(&counters.requests),
                    failures: std::array::from_fn(|kind| read(&counters.failures[kind])),
                    cancelled: read(&counters.cancelled),
                    retries: read(&counters.retries),
                    bytes_sent: read(&counters.bytes_sent),
                    bytes_received: read(&counters.bytes_received),
                    in_flight: read(&counters.in_flight),
                    latency_ns: read(&counters.latency_ns),
                }
            })
            .collect();
        MetricsSnapshot {
            operations,
            hedges: read(&self.hedges),
            hedges_won: read(&self.hedges_won),
        }
    }

    /// Counts an attempt that follows a failed one.
    pub(super) fn count_retry(&self, operation: Operation) {
        self.of(operation).retries.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a second request for a GET.
    pub(super) fn count_hedge(&self) {
        self.hedges.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a second request that brought the answer.
    pub(super) fn count_hedge_won(&self) {
        self.hedges_won.fetch_add(1, Ordering::Relaxed);
    }

    fn of(&self, operation: Operation) -> &Counters {
        &self.operations[operation as usize]
    }
}

/// The layer.
#[derive(Debug)]
pub struct MetricsStore {
    inner: Arc<dyn ObjectStore>,
    metrics: Arc<StoreMetrics>,
}

impl MetricsStore {
    /// Counts every attempt at `inner`.
    pub fn new(inner: Arc<dyn ObjectStore>, metrics: Arc<StoreMetrics>) -> Self {
        MetricsStore { inner, metrics }
    }

    fn begin(&self, operation: Operation, bytes: u64) -> InFlight {
        InFlight::begin(Arc::clone(&self.metrics), operation, bytes)
    }
}

/// One attempt under way; ends on drop, whatever happens.
struct InFlight {
    metrics: Arc<StoreMetrics>,
    operation: Operation,
    begin: Instant,
    ended: bool,
}

impl InFlight {
    fn begin(metrics: Arc<StoreMetrics>, operation: Operation, bytes: u64) -> Self {
        let counters = metrics.of(operation);
        counters.requests.fetch_add(1, Ordering::Relaxed);
        counters.bytes_sent.fetch_add(bytes, Ordering::Relaxed);
        counters.in_flight.fetch_add(1, Ordering::Relaxed);
        InFlight {
            metrics,
            operation,
            begin: Instant::now(),
            ended: false,
        }
    }

    fn received(&self, bytes: usize) {
        self.metrics
            .of(self.operation)
            .bytes_received
            .fetch_add(bytes as u64, Ordering::Relaxed);
    }

    fn failed(&mut self, kind: ErrorKind) {
        self.ended = true;
        self.metrics.of(self.operation).failures[kind as usize].fetch_add(1, Ordering::Relaxed);
    }

    fn end<T>(mut self, outcome: StoreResult<T>) -> StoreResult<T> {
        match &outcome {
            Ok(_) => self.ended = true,
            Err(error) => self.failed(error.kind()),
        }
        outcome
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let counters = self.metrics.of(self.operation);
        counters.in_flight.fetch_sub(1, Ordering::Relaxed);
        counters
            .latency_ns
            .fetch_add(nanoseconds(self.begin.elapsed()), Ordering::Relaxed);
        if !self.ended {
            counters.cancelled.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[async_trait]
impl ObjectStore for MetricsStore {
    async fn put(&self, key: &Key, payload: Payload) -> StoreResult<()> {
        let attempt = self.begin(Operation::Put, payload.length());
        attempt.end(self.inner.put(key, payload).await)
    }

    async fn create_upload(&self, key: &Key) -> StoreResult<UploadId> {
        let attempt = self.begin(Operation::CreateUpload, 0);
        attempt.end(self.inner.create_upload(key).await)
    }

    async fn upload_part(
        &self,
        key: &Key,
        upload: &UploadId,
        number: u32,
        payload: Payload,
    ) -> StoreResult<UploadedPart> {
        let attempt = self.begin(Operation::UploadPart, payload.length());
        attempt.end(self.inner.upload_part(key, upload, number, payload).await)
    }

    async fn complete_upload(
        &self,
        key: &Key,
        upload: &UploadId,
        parts: &[UploadedPart],
        crc32: u32,
    ) -> StoreResult<()> {
        let attempt = self.begin(Operation::CompleteUpload, 0);
        attempt.end(self.inner.complete_upload(key, upload, parts, crc32).await)
    }

    async fn abort_upload(&self, key: &Key, upload: &UploadId) -> StoreResult<()> {
        let attempt = self.begin(Operation::AbortUpload, 0);
        attempt.end(self.inner.abort_upload(key, upload).await)
    }

    async fn list_uploads(&self, key: &Key) -> StoreResult<Vec<UploadId>> {
        let attempt = self.begin(Operation::ListUploads, 0);
        attempt.end(self.inner.list_uploads(key).await)
    }

    async fn get(&self, key: &Key, range: Option<Range<u64>>) -> StoreResult<GetObject> {
        let mut attempt = self.begin(Operation::Get, 0);
        let answer = match self.inner.get(key, range).await {
            Ok(answer) => answer,
            Err(error) => return attempt.end(Err(error)),
        };
        // A reader that drops the body has what it wanted.
        attempt.ended = true;
        let body = stream::unfold((answer.body, attempt), |(mut body, mut attempt)| async move {
            let piece = body.next().await?;
            match &piece {
                Ok(bytes) => attempt.received(bytes.len()),
                Err(error) => attempt.failed(error.kind()),
            }
            Some((piece, (body, attempt)))
        });
        Ok(GetObject {
            body: boxed_body(body),
            ..answer
        })
    }

    async fn head(&self, key: &Key) -> StoreResult<ObjectInfo> {
        let attempt = self.begin(Operation::Head, 0);
        attempt.end(self.inner.head(key).await)
    }

    async fn delete(&self, keys: &[Key]) -> StoreResult<()> {
        let attempt = self.begin(Operation::Delete, 0);
        attempt.end(self.inner.delete(keys).await)
    }

    async fn list(&self, prefix: &str, start_after: Option<&str>, max_keys: u32) -> StoreResult<ListPage> {
        let attempt = self.begin(Operation::List, 0);
        attempt.end(self.inner.list(prefix, start_after, max_keys).await)
    }
}
