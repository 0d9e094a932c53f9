//! A deadline for every attempt.
//!
//! # Purpose
//! No request waits for ever on a store that accepts and says nothing.
//!
//! # Flow
//! The limit is the fixed one plus the time that the bytes of the request may take. For a GET the fixed limit covers the answer's
//! head; its body has a budget of waiting time by its length (the silence between two pieces is the backend's to limit).
//!
//! # Failure
//! [`ErrorKind::Timeout`]: whether the store carried the request out is unknown.

use std::{ops::Range, sync::Arc, time::Duration};

use async_trait::async_trait;
use futures::{StreamExt, stream};

use super::{Budget, Policies, within};
use crate::{
    Body, ErrorKind, GetObject, Key, ListPage, ObjectInfo, ObjectStore, Operation, Payload, StoreError, StoreResult,
    UploadId, UploadedPart, boxed_body,
};

/// The layer.
#[derive(Debug)]
pub struct TimeoutStore {
    inner: Arc<dyn ObjectStore>,
    policies: Policies,
}

impl TimeoutStore {
    /// Limits every attempt at `inner`.
    pub fn new(inner: Arc<dyn ObjectStore>, policies: Policies) -> Self {
        TimeoutStore { inner, policies }
    }

    fn limit(&self, bytes: u64) -> Duration {
        self.policies.attempt_timeout + self.policies.transfer_time(bytes)
    }
}

#[async_trait]
impl ObjectStore for TimeoutStore {
    async fn put(&self, key: &Key, payload: Payload) -> StoreResult<()> {
        let limit = self.limit(payload.length());
        within(limit, Operation::Put, self.inner.put(key, payload))
            .await
            .map_err(|error| named(error, key))
    }

    async fn create_upload(&self, key: &Key) -> StoreResult<UploadId> {
        within(self.limit(0), Operation::CreateUpload, self.inner.create_upload(key))
            .await
            .map_err(|error| named(error, key))
    }

    async fn upload_part(
        &self,
        key: &Key,
        upload: &UploadId,
        number: u32,
        payload: Payload,
    ) -> StoreResult<UploadedPart> {
        let limit = self.limit(payload.length());
        within(
            limit,
            Operation::UploadPart,
            self.inner.upload_part(key, upload, number, payload),
        )
        .await
        .map_err(|error| named(error, key))
    }

    async fn complete_upload(
        &self,
        key: &Key,
        upload: &UploadId,
        parts: &[UploadedPart],
        crc32: u32,
    ) -> StoreResult<()> {
        let limit = self.limit(0) + self.policies.assembly_time(parts);
        within(
            limit,
            Operation::CompleteUpload,
            self.inner.complete_upload(key, upload, parts, crc32),
        )
        .await
        .map_err(|error| named(error, key))
    }

    async fn abort_upload(&self, key: &Key, upload: &UploadId) -> StoreResult<()> {
        within(
            self.limit(0),
            Operation::AbortUpload,
            self.inner.abort_upload(key, upload),
        )
        .await
        .map_err(|error| named(error, key))
    }

    async fn list_uploads(&self, key: &Key) -> StoreResult<Vec<UploadId>> {
        within(self.limit(0), Operation::ListUploads, self.inner.list_uploads(key))
            .await
            .map_err(|error| named(error, key))
    }

    async fn get(&self, key: &Key, range: Option<Range<u64>>) -> StoreResult<GetObject> {
        let answer = within(self.limit(0), Operation::Get, self.inner.get(key, range))
            .await
            .map_err(|error| named(error, key))?;
        let budget = Budget::new(self.limit(answer.length()));
        Ok(GetObject {
            body: limited(answer.body, budget, key.clone()),
            ..answer
        })
    }

    async fn head(&self, key: &Key) -> StoreResult<ObjectInfo> {
        within(self.limit(0), Operation::Head, self.inner.head(key))
            .await
            .map_err(|error| named(error, key))
    }

    async fn delete(&self, keys: &[Key]) -> StoreResult<()> {
        within(self.limit(0), Operation::Delete, self.inner.delete(keys)).await
    }

    async fn list(&self, prefix: &str, start_after: Option<&str>, max_keys: u32) -> StoreResult<ListPage> {
        within(
            self.limit(0),
            Operation::List,
            self.inner.list(prefix, start_after, max_keys),
        )
        .await
    }
}

/// Names the object in an error made here; one from below is named already.
fn named(error: StoreError, key: &Key) -> StoreError {
    if error.key().is_none() {
        error.with_key(key)
    } else {
        error
    }
}

fn limited(body: Body, budget: Budget, key: Key) -> Body {
    boxed_body(stream::unfold(Some((body, budget)), move |state| {
        let key = key.clone();
        async move {
            let (mut body, mut budget) = state?;
            match budget.spend(body.next()).await {
                Ok(Some(Ok(piece))) => Some((Ok(piece), Some((body, budget)))),
                Ok(Some(Err(error))) => Some((Err(error), None)),
                Ok(None) => None,
                Err(_) => {
                    let detail = format!("the body took longer than {:?}", budget.total);
                    Some((
                        Err(StoreError::new(ErrorKind::Timeout, Operation::Get, detail).with_key(&key)),
                        None,
                    ))
                }
            }
        }
    }))
}
