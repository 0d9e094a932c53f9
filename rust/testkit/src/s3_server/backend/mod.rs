//! Purpose: the S3 operations, over a directory.
//!
//! Flow: this type implements s3s' trait and only dispatches: `bucket`, `object`, `list` and `multipart` translate S3's
//! structures, `store` and `upload` hold the state, `blob` moves the bytes.
//!
//! Invariants: every operation on a bucket that does not exist is `NoSuchBucket`, before anything else is looked at.
//!
//! Not here: signatures, faults, counters (the layers in front); versions, ACLs, encryption, copies (answered
//! `NotImplemented`).

mod blob;
mod bucket;
mod checksum;
mod key;
mod list;
mod multipart;
mod object;
mod store;
mod upload;

use self::store::Store;
use super::counters::Counters;
use s3s::dto::*;
use s3s::{S3, S3Error, S3Request, S3Response, S3Result};
use std::io;
use std::path::Path;
use std::sync::Arc;

/// S3 over a directory.
#[derive(Clone, Debug)]
pub(super) struct Backend {
    store: Arc<Store>,
    region: Arc<str>,
}

impl Backend {
    pub(super) fn open(root: &Path, buckets: &[String], region: &str, counters: Arc<Counters>) -> io::Result<Self> {
        let store = Arc::new(Store::open(root, buckets, counters)?);
        Ok(Self {
            store,
            region: Arc::from(region),
        })
    }

    /// Runs a change of the store, which touches files, on a blocking thread.
    async fn change<Output: Send + 'static>(
        &self,
        work: impl FnOnce(&Store) -> S3Result<Output> + Send + 'static,
    ) -> S3Result<Output> {
        let store = Arc::clone(&self.store);
        tokio::task::spawn_blocking(move || work(&store))
            .await
            .map_err(S3Error::internal_error)?
    }
}

/// An S3 number that must not be negative.
fn checked_limit(value: Option<i32>, default: usize, name: &'static str) -> S3Result<usize> {
    let Some(value) = value else { return Ok(default) };
    // S3 never gives more than its default at once, whatever is asked.
    usize::try_from(value).map(|value| value.min(default)).map_err(|_| {
        s3s::s3_error!(
            InvalidArgument,
            "Argument {name} must be an integer between 0 and 2147483647"
        )
    })
}

#[async_trait::async_trait]
impl S3 for Backend {
    async fn create_bucket(&self, request: S3Request<CreateBucketInput>) -> S3Result<S3Response<CreateBucketOutput>> {
        self.create_bucket_impl(request.input).await.map(S3Response::new)
    }

    async fn head_bucket(&self, request: S3Request<HeadBucketInput>) -> S3Result<S3Response<HeadBucketOutput>> {
        self.store.check_bucket(&request.input.bucket)?;
        Ok(S3Response::new(self.head_bucket_impl()))
    }

    async fn get_bucket_location(
        &self,
        request: S3Request<GetBucketLocationInput>,
    ) -> S3Result<S3Response<GetBucketLocationOutput>> {
        self.store.check_bucket(&request.input.bucket)?;
        Ok(S3Response::new(self.get_bucket_location_impl()))
    }

    async fn put_object(&self, request: S3Request<PutObjectInput>) -> S3Result<S3Response<PutObjectOutput>> {
        self.store.check_bucket(&request.input.bucket)?;
        self.put_object_impl(request).await.map(S3Response::new)
    }

    async fn get_object(&self, request: S3Request<GetObjectInput>) -> S3Result<S3Response<GetObjectOutput>> {
        self.store.check_bucket(&request.input.bucket)?;
        self.get_object_impl(request.input).await.map(S3Response::new)
    }

    async fn head_object(&self, request: S3Request<HeadObjectInput>) -> S3Result<S3Response<HeadObjectOutput>> {
        self.store.check_bucket(&request.input.bucket)?;
        self.head_object_impl(&request.input).map(S3Response::new)
    }

    async fn delete_object(&self, request: S3Request<DeleteObjectInput>) -> S3Result<S3Response<DeleteObjectOutput>> {
        self.store.check_bucket(&request.input.bucket)?;
        let output = self.delete_object_impl(request.input).await?;
        Ok(S3Response::with_status(output, hyper::StatusCode::NO_CONTENT))
    }

    async fn delete_objects(
        &self,
        request: S3Request<DeleteObjectsInput>,
    ) -> S3Result<S3Response<DeleteObjectsOutput>> {
        self.store.check_bucket(&request.input.bucket)?;
        self.delete_objects_impl(request).await.map(S3Response::new)
    }

    async fn list_objects_v2(
        &self,
        request: S3Request<ListObjectsV2Input>,
    ) -> S3Result<S3Response<ListObjectsV2Output>> {
        self.store.check_bucket(&request.input.bucket)?;
        self.list_objects_v2_impl(request.input).map(S3Response::new)
    }

    async fn create_multipart_upload(
        &self,
        request: S3Request<CreateMultipartUploadInput>,
    ) -> S3Result<S3Response<CreateMultipartUploadOutput>> {
        self.store.check_bucket(&request.input.bucket)?;
        self.create_multipart_upload_impl(request.input)
            .await
            .map(S3Response::new)
    }

    async fn upload_part(&self, request: S3Request<UploadPartInput>) -> S3Result<S3Response<UploadPartOutput>> {
        self.store.check_bucket(&request.input.bucket)?;
        self.upload_part_impl(request).await.map(S3Response::new)
    }

    async fn complete_multipart_upload(
        &self,
        request: S3Request<CompleteMultipartUploadInput>,
    ) -> S3Result<S3Response<CompleteMultipartUploadOutput>> {
        self.store.check_bucket(&request.input.bucket)?;
        self.complete_multipart_upload_impl(request.input)
            .await
            .map(S3Response::new)
    }

    async fn abort_multipart_upload(
        &self,
        request: S3Request<AbortMultipartUploadInput>,
    ) -> S3Result<S3Response<AbortMultipartUploadOutput>> {
        self.store.check_bucket(&request.input.bucket)?;
        let output = self.abort_multipart_upload_impl(request.input).await?;
        Ok(S3Response::with_status(output, hyper::StatusCode::NO_CONTENT))
    }

    async fn list_parts(&self, request: S3Request<ListPartsInput>) -> S3Result<S3Response<ListPartsOutput>> {
        self.store.check_bucket(&request.input.bucket)?;
        self.list_parts_impl(&request.input).map(S3Response::new)
    }

    async fn list_multipart_uploads(
        &self,
        request: S3Request<ListMultipartUploadsInput>,
    ) -> S3Result<S3Response<ListMultipartUploadsOutput>> {
        self.store.check_bucket(&request.input.bucket)?;
        self.list_multipart_uploads_impl(request.input).map(S3Response::new)
    }
}
