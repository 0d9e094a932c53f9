//! The upload of a segment's two objects, and the removal of all of it.
//!
//! # Invariants
//! * After [`Upload::abandon`] returned `true`, the store holds nothing of this upload, as far as the store's answers tell.
//! * A request whose effect would be unknown if it were dropped (beginning and completing an upload, whole puts) runs in a task
//!   of its own, so that a cancelled caller leaves it time to end before the clean-up.

use std::{
    future::Future,
    sync::{Arc, OnceLock},
    time::Duration,
};

use alluvium_format::ChunkTable;
use alluvium_store::{ErrorKind as StoreKind, Key, ObjectStore, Payload, StoreResult, UploadId, UploadedPart};
use bytes::Bytes;
use tokio::{sync::oneshot, task::JoinSet, time::Instant};

use super::{Part, Parts};
use crate::{Error, ErrorKind, Result, instance::Shared, ops::ObjectKeys};

/// Limit of removing what a failed upload left.
const ABANDON_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a request of unknown effect may go on before it is dropped for the clean-up.
const GRACE: Duration = Duration::from_secs(2);

/// Pause before the second pass of a clean-up.
const SECOND_PASS_PAUSE: Duration = Duration::from_millis(200);

/// Pause before an upload is begun again.
const CREATE_PAUSE: Duration = Duration::from_millis(200);

/// How often an upload is begun before the copy fails.
const CREATE_TRIES_MAX: u32 = 3;

/// An upload under way.
pub(crate) struct Upload {
    shared: Arc<Shared>,
    keys: ObjectKeys,
    parts: JoinSet<StoreResult<UploadedPart>>,
    mutations: JoinSet<()>,
    upload_begun: bool,
    upload_id: Arc<OnceLock<UploadId>>,
    log_touched: bool,
    manifest_touched: bool,
}

impl Upload {
    /// Nothing is sent yet.
    pub(crate) fn new(shared: Arc<Shared>, keys: ObjectKeys) -> Self {
        Upload {
            shared,
            keys,
            parts: JoinSet::new(),
            mutations: JoinSet::new(),
            upload_begun: false,
            upload_id: Arc::default(),
            log_touched: false,
            manifest_touched: false,
        }
    }

    /// Whether anything was asked of the store.
    pub(crate) fn is_begun(&self) -> bool {
        self.upload_begun || self.log_touched || self.manifest_touched
    }

    /// Sends the `.log` object: one put when it is one part, else parts in parallel.
    pub(crate) async fn send_log(&mut self, mut parts: Parts) -> Result<ChunkTable> {
        if parts.are_several() {
            // The first is read while the store answers.
            let (upload_id, first) = tokio::try_join!(self.begin(), parts.next(true))?;
            return self.send_parts(upload_id, first, parts).await;
        }
        let first = parts.next(false).await?;
        if !first.is_last {
            parts.pause();
            let upload_id = self.begin().await?;
            return self.send_parts(upload_id, first, parts).await;
        }
        let (store, key) = (Arc::clone(&self.shared.store), self.keys.log.clone());
        self.log_touched = true;
        self.mutate(async move { store.put(&key, first.payload).await }).await?;
        parts.into_table()
    }

    /// Sends the manifest, which makes the segment exist.
    pub(crate) async fn send_manifest(&mut self, object: Bytes) -> Result<()> {
        let store = Arc::clone(&self.shared.store);
        let key = self.keys.manifest.clone();
        self.manifest_touched = true;
        self.mutate(async move { store.put(&key, Payload::new(object)).await })
            .await
    }

    async fn send_parts(&mut self, upload_id: UploadId, first: Part, mut parts: Parts) -> Result<ChunkTable> {
        let concurrency = self.shared.config.upload_concurrency;
        let mut uploaded = Vec::new();
        let mut number = 1;
        let mut part = first;
        loop {
            let is_last = part.is_last;
            self.parts.spawn({
                let (store, key, upload_id) =
                    (Arc::clone(&self.shared.store), self.keys.log.clone(), upload_id.clone());
                async move { store.upload_part(&key, &upload_id, number, part.payload).await }
            });
            if is_last {
                break;
            }
            while self.parts.len() >= concurrency {
                parts.pause();
                uploaded.extend(self.next_part().await?);
            }
            part = parts.next(self.parts.len() + 1 < concurrency).await?;
            number += 1;
        }
        while !self.parts.is_empty() {
            uploaded.extend(self.next_part().await?);
        }
        uploaded.sort_unstable_by_key(|part| part.number);
        let table = parts.into_table()?;
        let whole = table.object_crc32().value();
        let (store, key) = (Arc::clone(&self.shared.store), self.keys.log.clone());
        self.log_touched = true;
        self.mutate(async move { store.complete_upload(&key, &upload_id, &uploaded, whole).await })
            .await?;
        Ok(table)
    }

    /// Begins the multipart upload. A lost answer may have left one that nobody knows the id of, so it is looked for by its key and
    /// aborted before the next try; the layers below do not send such a request again.
    async fn begin(&mut self) -> Result<UploadId> {
        // A store that is away has been tried for long enough by the layers below.
        let limit = Instant::now() + self.shared.config.policies.operation_timeout;
        let mut tries = 0;
        loop {
            tries += 1;
            match self.create().await {
                Err(error) if error.is_retryable() && tries < CREATE_TRIES_MAX && Instant::now() < limit => {
                    tracing::warn!(key = %self.keys.log, %error, "the begin of an upload got no answer, trying again");
                    tokio::time::sleep(CREATE_PAUSE).await;
                    abort_uploads(&*self.shared.store, &self.keys.log).await?;
                }
                outcome => return outcome,
            }
        }
    }

    async fn create(&mut self) -> Result<UploadId> {
        let (store, key) = (Arc::clone(&self.shared.store), self.keys.log.clone());
        let known = Arc::clone(&self.upload_id);
        self.upload_begun = true;
        self.mutate(async move {
            let upload_id = store.create_upload(&key).await?;
            // Kept by the task itself: the caller may be gone, and the clean-up must know it.
            let _ = known.set(upload_id.clone());
            Ok(upload_id)
        })
        .await
    }

    async fn next_part(&mut self) -> Result<Option<UploadedPart>> {
        match self.parts.join_next().await {
            None => Ok(None),
            Some(Ok(outcome)) => Ok(Some(outcome?)),
            Some(Err(error)) => match error.try_into_panic() {
                Ok(payload) => Err(Error::panic(payload.as_ref())),
                Err(_) => Err(Error::closed()),
            },
        }
    }

    async fn mutate<T: Send + 'static>(
        &mut self,
        work: impl Future<Output = StoreResult<T>> + Send + 'static,
    ) -> Result<T> {
        let (sender, receiver) = oneshot::channel();
        self.mutations.spawn(async move {
            // The receiver is gone when the caller was cancelled; the effect is what counts then.
            let _ = sender.send(work.await);
        });
        match receiver.await {
            Ok(outcome) => Ok(outcome?),
            Err(_) => Err(Error::new(ErrorKind::Internal, "a request ended without a result")),
        }
    }

    /// Ends what is in flight and removes what went up; whether that succeeded. Does not depend on the caller's state: it runs to
    /// its own deadline also when the copy was cancelled.
    pub(crate) async fn abandon(&mut self) -> bool {
        let keys = self.keys.clone();
        match tokio::time::timeout(ABANDON_TIMEOUT, self.remove_all()).await {
            Ok(Ok(())) => true,
            Ok(Err(error)) => {
                tracing::warn!(key = %keys.log, %error, "the remains of a failed copy could not be removed");
                false
            }
            Err(_) => {
                tracing::warn!(key = %keys.log, limit = ?ABANDON_TIMEOUT, "the remains of a failed copy were not removed in time");
                false
            }
        }
    }

    async fn remove_all(&mut self) -> StoreResult<()> {
        let parts_in_flight = !self.parts.is_empty();
        self.parts.shutdown().await;
        let ended = async { while self.mutations.join_next().await.is_some() {} };
        let dropped = tokio::time::timeout(GRACE, ended).await.is_err();
        if dropped {
            self.mutations.shutdown().await;
        }
        let first = self.remove_once().await;
        if !parts_in_flight && !dropped {
            return first;
        }
        // The server may still have been at work on what was dropped: what it finished since is caught by a second pass.
        tokio::time::sleep(SECOND_PASS_PAUSE).await;
        self.remove_once().await
    }

    /// Tries everything, then tells the first failure.
    async fn remove_once(&self) -> StoreResult<()> {
        let store = &*self.shared.cleanup_store;
        let aborted = match self.upload_id.get() {
            Some(upload_id) => store.abort_upload(&self.keys.log, upload_id).await,
            None if self.upload_begun => abort_uploads(store, &self.keys.log).await,
            None => Ok(()),
        };
        let mut touched = Vec::new();
        if self.manifest_touched {
            touched.push(self.keys.manifest.clone());
        }
        if self.log_touched {
            touched.push(self.keys.log.clone());
        }
        let deleted = if touched.is_empty() {
            Ok(())
        } else {
            store.delete(&touched).await
        };
        aborted.and(deleted)
    }
}

/// Aborts every multipart upload of a key: those that a killed broker or a lost answer left.
pub(crate) async fn abort_uploads(store: &dyn ObjectStore, key: &Key) -> StoreResult<()> {
    let uploads = match store.list_uploads(key).await {
        Ok(uploads) => uploads,
        // The right to list is not among those that the plugin must have. The store's own expiry then frees the parts.
        Err(error) if matches!(error.kind(), StoreKind::AccessDenied | StoreKind::Invalid) => {
            tracing::warn!(%error, "stale multipart uploads cannot be looked for");
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    let mut outcome = Ok(());
    for upload in uploads {
        outcome = outcome.and(store.abort_upload(key, &upload).await);
    }
    outcome
}
