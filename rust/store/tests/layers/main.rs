//! The layers on a scripted store, in paused time.

mod breaker;
mod hedge;
mod limit;
mod retry;
mod verdicts;

use std::{
    collections::VecDeque,
    ops::Range,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use alluvium_store::{
    ErrorKind, GetObject, Key, ListPage, ObjectInfo, ObjectStore, Operation, Payload, StoreError, StoreResult,
    UploadId, UploadedPart,
    layer::{Policies, metrics::StoreMetrics, stack},
    mem::MemStore,
};
use async_trait::async_trait;
use bytes::Bytes;
use futures::{StreamExt, stream};

/// What happens to one request.
#[derive(Clone, Debug)]
enum Step {
    Fail(StoreError),
    /// It takes this long and fails.
    FailAfter(Duration, StoreError),
    Hang,
    /// It takes this long and succeeds.
    Take(Duration),
    /// The body comes to a halt after so many bytes.
    Halt(usize),
    Pass,
}

/// A store whose next requests, those that clean up aside, follow a script, and then all do the same.
#[derive(Debug)]
struct Scripted {
    inner: MemStore,
    steps: Mutex<VecDeque<Step>>,
    afterwards: Mutex<Step>,
    /// Pause before every piece of a body.
    piece_pause: Duration,
    requests: AtomicUsize,
    under_way: AtomicUsize,
    /// Most requests that were under way at a time.
    most: AtomicUsize,
}

impl Default for Scripted {
    fn default() -> Self {
        Scripted {
            inner: MemStore::new(),
            steps: Mutex::default(),
            afterwards: Mutex::new(Step::Pass),
            piece_pause: Duration::ZERO,
            requests: AtomicUsize::new(0),
            under_way: AtomicUsize::new(0),
            most: AtomicUsize::new(0),
        }
    }
}

struct UnderWay<'store>(&'store Scripted);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Scripted {
    fn always(step: Step) -> Arc<Self> {
        let store = Scripted::default();
        store.then(step);
        Arc::new(store)
    }

    fn then(&self, step: Step) {
        *self.afterwards.lock().expect("no panic under the lock") = step;
    }

    fn requests(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }

    fn most(&self) -> usize {
        self.most.load(Ordering::Relaxed)
    }

    async fn step(&self) -> StoreResult<Step> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let under_way = self.under_way.fetch_add(1, Ordering::Relaxed) + 1;
        let _under_way = UnderWay(self);
        self.most.fetch_max(under_way, Ordering::Relaxed);
        let scripted = self.steps.lock().expect("no panic under the lock").pop_front();
        let step = scripted.unwrap_or_else(|| self.afterwards.lock().expect("no panic under the lock").clone());
        match step.clone() {
            Step::Fail(error) => Err(error),
            Step::FailAfter(time, error) => {
                tokio::time::sleep(time).await;
                Err(error)
            }
            Step::Hang => std::future::pending().await,
            Step::Take(time) => {
                tokio::time::sleep(time).await;
                Ok(step)
            }
            Step::Halt(_) | Step::Pass => Ok(step),
        }
    }
}

#[async_trait]
impl ObjectStore for Scripted {
    async fn put(&self, key: &Key, payload: Payload) -> StoreResult<()> {
        self.step().await?;
        self.inner.put(key, payload).await
    }

    async fn create_upload(&self, key: &Key) -> StoreResult<UploadId> {
        self.step().await?;
        self.inner.create_upload(key).await
    }

    async fn upload_part(&self, key: &Key, id: &UploadId, number: u32, payload: Payload) -> StoreResult<UploadedPart> {
        self.step().await?;
        self.inner.upload_part(key, id, number, payload).await
    }

    async fn complete_upload(&self, key: &Key, id: &UploadId, parts: &[UploadedPart], crc32: u32) -> StoreResult<()> {
        self.step().await?;
        self.inner.complete_upload(key, id, parts, crc32).await
    }

    async fn abort_upload(&self, key: &Key, id: &UploadId) -> StoreResult<()> {
        self.inner.abort_upload(key, id).await
    }

    async fn list_uploads(&self, key: &Key) -> StoreResult<Vec<UploadId>> {
        self.inner.list_uploads(key).await
    }

    async fn get(&self, key: &Key, range: Option<Range<u64>>) -> StoreResult<GetObject> {
        let step = self.step().await?;
        let mut answer = self.inner.get(key, range.clone()).await?;
        if let Step::Halt(bytes) = step {
            let mut whole = answer.collect().await?;
            let begin = stream::iter([Ok(whole.split_to(bytes))]);
            answer = self.inner.get(key, range).await?;
            answer.body = begin.chain(stream::pending()).boxed();
        }
        let pause = self.piece_pause;
        let body = answer.body.then(move |piece| async move {
            tokio::time::sleep(pause).await;
            piece
        });
        Ok(GetObject {
            body: body.boxed(),
            ..answer
        })
    }

    async fn head(&self, key: &Key) -> StoreResult<ObjectInfo> {
        self.step().await?;
        self.inner.head(key).await
    }

    async fn delete(&self, keys: &[Key]) -> StoreResult<()> {
        self.inner.delete(keys).await
    }

    async fn list(&self, prefix: &str, start_after: Option<&str>, max_keys: u32) -> StoreResult<ListPage> {
        self.inner.list(prefix, start_after, max_keys).await
    }
}

fn error(kind: ErrorKind) -> StoreError {
    StoreError::new(kind, Operation::Put, "scripted")
}

fn failing(kind: ErrorKind, times: usize) -> VecDeque<Step> {
    (0..times).map(|_| Step::Fail(error(kind))).collect()
}

fn stacked(steps: VecDeque<Step>, policies: Policies) -> (Arc<dyn ObjectStore>, Arc<StoreMetrics>) {
    let metrics = Arc::new(StoreMetrics::default());
    let base = Scripted {
        steps: Mutex::new(steps),
        ..Scripted::default()
    };
    (stack(Arc::new(base), policies, Arc::clone(&metrics)), metrics)
}

fn key() -> Key {
    Key::new("object").expect("a valid key")
}

fn payload() -> Payload {
    Payload::new(Bytes::from_static(b"bytes"))
}

fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}
