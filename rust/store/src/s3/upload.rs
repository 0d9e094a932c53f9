//! Multipart uploads.
//!
//! # Invariants
//! * CRC-32 everywhere: named when the upload begins, sent with each part, repeated at completion. Servers refuse any other mix.
//! * A completion, and a put, counts when the answer itself carries the object's checksum, or a HEAD shows the object with its
//!   length and checksum: an answer of 200 alone has been seen for an upload that was gone, and any proxy can give it.

use aws_sdk_s3::{
    primitives::ByteStream,
    types::{ChecksumAlgorithm, ChecksumType, CompletedMultipartUpload, CompletedPart},
};

use super::store::{S3Store, crc32_text, proper_etag, same_crc32, unexpected, whole_crc32};
use crate::{
    ErrorKind, Key, ObjectStore, Operation, PART_NUMBER_MAX, Payload, StoreError, StoreResult, UploadId, UploadedPart,
};

impl S3Store {
    pub(super) async fn begin_upload(&self, key: &Key) -> StoreResult<UploadId> {
        let request = self.attributes.of_upload(self.client().create_multipart_upload());
        let request = request
            .bucket(&self.config.bucket)
            .key(key.as_str())
            .checksum_algorithm(ChecksumAlgorithm::Crc32)
            .checksum_type(ChecksumType::FullObject)
            .send();
        let answer = self.answer(Operation::CreateUpload, Some(key), request).await?;
        match answer.upload_id() {
            Some(id) if !id.is_empty() => Ok(UploadId(id.to_owned())),
            _ => Err(unexpected(Operation::CreateUpload, key, "the answer names no upload")),
        }
    }

    pub(super) async fn send_part(
        &self,
        key: &Key,
        upload: &UploadId,
        number: u32,
        payload: Payload,
    ) -> StoreResult<UploadedPart> {
        let request = self
            .client()
            .upload_part()
            .bucket(&self.config.bucket)
            .key(key.as_str())
            .upload_id(&upload.0)
            .part_number(part_number(Operation::UploadPart, key, number)?)
            .checksum_crc32(crc32_text(payload.crc32()))
            .body(ByteStream::from(payload.bytes().clone()))
            .customize();
        let request = if self.config.payload_signing {
            request
        } else {
            request.disable_payload_signing()
        };
        let answer = self.answer(Operation::UploadPart, Some(key), request.send()).await?;
        let etag = proper_etag(Operation::UploadPart, key, answer.e_tag())?;
        if let Some(told) = whole_crc32(answer.checksum_crc32(), None) {
            same_crc32(Operation::UploadPart, key, told, payload.crc32())?;
        }
        Ok(UploadedPart {
            number,
            etag: etag.to_owned(),
            length: payload.length(),
            crc32: payload.crc32(),
        })
    }

    pub(super) async fn finish_upload(
        &self,
        key: &Key,
        upload: &UploadId,
        parts: &[UploadedPart],
        crc32: u32,
    ) -> StoreResult<()> {
        let mut listed = Vec::with_capacity(parts.len());
        for part in parts {
            listed.push(
                CompletedPart::builder()
                    .part_number(part_number(Operation::CompleteUpload, key, part.number)?)
                    .e_tag(&part.etag)
                    .checksum_crc32(crc32_text(part.crc32))
                    .build(),
            );
        }
        let request = self
            .client()
            .complete_multipart_upload()
            .bucket(&self.config.bucket)
            .key(key.as_str())
            .upload_id(&upload.0)
            .checksum_crc32(crc32_text(crc32))
            .checksum_type(ChecksumType::FullObject)
            .multipart_upload(CompletedMultipartUpload::builder().set_parts(Some(listed)).build())
            .send();
        let refused = match self.answer(Operation::CompleteUpload, Some(key), request).await {
            Ok(answer) if whole_crc32(answer.checksum_crc32(), answer.checksum_type()) == Some(crc32) => {
                return Ok(());
            }
            Ok(_) => None,
            Err(error) if error.kind() == ErrorKind::UploadNotFound => Some(error),
            Err(error) => return Err(error),
        };
        let length = parts.iter().map(|part| part.length).sum();
        self.prove(Operation::CompleteUpload, key, length, crc32, refused).await
    }

    /// Whether the object is there as it was sent. `refused` is the answer that the upload is gone, which holds if it is not.
    pub(super) async fn prove(
        &self,
        operation: Operation,
        key: &Key,
        length: u64,
        crc32: u32,
        refused: Option<StoreError>,
    ) -> StoreResult<()> {
        let found = match self.head(key).await {
            Ok(found) => found,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Err(
                    refused.unwrap_or_else(|| unexpected(operation, key, "answered as done, but there is no object"))
                );
            }
            Err(error) => return Err(error),
        };
        if found.length == length && found.crc32.is_none_or(|found| found == crc32) {
            return Ok(());
        }
        Err(refused.unwrap_or_else(|| {
            let detail = format!(
                "answered as done, but the object has {} bytes and CRC-32 {:08x?} instead of {length} and {crc32:08x}",
                found.length, found.crc32
            );
            // Put sends all its bytes again; of a completed upload there is nothing left to send.
            StoreError::new(ErrorKind::ChecksumMismatch, operation, detail)
                .with_key(key)
                .with_retryable(operation == Operation::Put)
        }))
    }

    pub(super) async fn drop_upload(&self, key: &Key, upload: &UploadId) -> StoreResult<()> {
        let request = self
            .client()
            .abort_multipart_upload()
            .bucket(&self.config.bucket)
            .key(key.as_str())
            .upload_id(&upload.0)
            .send();
        match self.answer(Operation::AbortUpload, Some(key), request).await {
            Ok(_) => Ok(()),
            Err(error) if error.kind() == ErrorKind::UploadNotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    pub(super) async fn uploads_of(&self, key: &Key) -> StoreResult<Vec<UploadId>> {
        let mut uploads = Vec::new();
        let mut key_marker = None;
        let mut id_marker = None;
        loop {
            let request = self
                .client()
                .list_multipart_uploads()
                .bucket(&self.config.bucket)
                // MinIO knows no other prefix than a whole key.
                .prefix(key.as_str())
                .set_key_marker(key_marker.clone())
                .set_upload_id_marker(id_marker.clone())
                .send();
            let answer = self.answer(Operation::ListUploads, Some(key), request).await?;
            let mut passed = false;
            for upload in answer.uploads() {
                if upload.key() == Some(key.as_str()) {
                    uploads.extend(upload.upload_id().map(|id| UploadId(id.to_owned())));
                } else {
                    // A key sorts before all longer ones that begin with it.
                    passed = true;
                }
            }
            let next_key = answer.next_key_marker().map(str::to_owned);
            let next_id = answer.next_upload_id_marker().map(str::to_owned);
            let stuck = next_key == key_marker && next_id == id_marker;
            if passed || stuck || !answer.is_truncated().unwrap_or(false) || next_key.is_none() {
                return Ok(uploads);
            }
            key_marker = next_key;
            id_marker = next_id.filter(|id| !id.is_empty());
        }
    }
}

fn part_number(operation: Operation, key: &Key, number: u32) -> StoreResult<i32> {
    match i32::try_from(number) {
        Ok(valid) if (1..=PART_NUMBER_MAX).contains(&number) => Ok(valid),
        _ => {
            let detail = format!("part number {number} is not between 1 and {PART_NUMBER_MAX}");
            Err(StoreError::new(ErrorKind::Invalid, operation, detail).with_key(key))
        }
    }
}
