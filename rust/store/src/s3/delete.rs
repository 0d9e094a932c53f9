//! DeleteObjects.
//!
//! # Invariants
//! * One request for all keys. Of the errors that its answer names for single keys, the first is told; the caller repeats all of it.
//! * An object that is not there is deleted.

use aws_sdk_s3::types::{Delete, ObjectIdentifier};
use aws_smithy_runtime_api::client::orchestrator::HttpRequest;
use base64::{Engine, prelude::BASE64_STANDARD};
use md5::{Digest, Md5};

use super::store::S3Store;
use crate::{ErrorKind, Key, Operation, StoreError, StoreResult};

/// Most keys in one request (S3: "DeleteObjects").
const KEYS_MAX: usize = 1000;

impl S3Store {
    pub(super) async fn delete_all(&self, keys: &[Key]) -> StoreResult<()> {
        let invalid = |detail: String| StoreError::new(ErrorKind::Invalid, Operation::Delete, detail);
        if keys.is_empty() {
            return Ok(());
        }
        if keys.len() > KEYS_MAX {
            return Err(invalid(format!(
                "{} keys in one request, at most {KEYS_MAX}",
                keys.len()
            )));
        }
        let mut delete = Delete::builder().quiet(true);
        for key in keys {
            let object = ObjectIdentifier::builder().key(key.as_str()).build();
            delete = delete.objects(object.map_err(|error| invalid(error.to_string()))?);
        }
        let delete = delete.build().map_err(|error| invalid(error.to_string()))?;
        let request = self
            .client()
            .delete_objects()
            .bucket(&self.config.bucket)
            .delete(delete)
            .customize()
            .mutate_request(add_content_md5)
            .send();
        let only = if let [key] = keys { Some(key) } else { None };
        let answer = self.answer(Operation::Delete, only, request).await?;
        let failed = answer
            .errors()
            .iter()
            .find(|error| !matches!(error.code(), Some("NoSuchKey" | "NoSuchVersion")));
        let Some(failed) = failed else {
            return Ok(());
        };
        let error = self
            .target
            .key_error(Operation::Delete, failed.code(), failed.message());
        Err(match keys.iter().find(|key| Some(key.as_str()) == failed.key()) {
            Some(key) => error.with_key(key),
            None => error,
        })
    }
}

/// Servers from before 2025 want the MD5 of a DeleteObjects body, newer ones the SDK's CRC-32: both are sent.
fn add_content_md5(request: &mut HttpRequest) {
    if let Some(bytes) = request.body().bytes() {
        let digest = BASE64_STANDARD.encode(Md5::digest(bytes));
        request.headers_mut().insert("content-md5", digest);
    }
}
