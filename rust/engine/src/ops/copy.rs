//! `copyLogSegmentData`.

use std::sync::Arc;

use alluvium_format::{CustomMetadata, IndexPayload, IndexType, Manifest};
use bytes::Bytes;
use tokio_util::sync::CancellationToken;

use super::{CopyRequest, ObjectKeys, bounded};
use crate::{
    Result, VERSION,
    instance::Shared,
    write::{SegmentFile, Upload, read_index},
};

/// Copies a segment and returns the custom metadata for Kafka.
///
/// The manifest goes up last, so a segment is there whole or not at all. On any failure, a deadline, a cancel or a panic of a task,
/// everything that went up is removed before the error leaves: Kafka does not clean up after a copy that it cancelled.
pub(crate) async fn copy(shared: &Arc<Shared>, request: CopyRequest, cancel: &CancellationToken) -> Result<Vec<u8>> {
    let _running = shared.metrics.copy.running.enter();
    let outcome = Box::pin(copy_or_clean_up(shared, &request, cancel)).await;
    shared.metrics.copy.ended(&outcome, shared.metrics.clock);
    match outcome {
        Ok(custom) => {
            shared.metrics.copy.bytes.add(request.segment.metadata.segment_size);
            tracing::debug!(segment = %request.segment.metadata, bytes = request.segment.metadata.segment_size, "segment copied");
            Ok(custom)
        }
        Err(error) => {
            shared.metrics.failed(&error);
            Err(error.during(format_args!("cannot copy {}", request.segment.metadata)))
        }
    }
}

async fn copy_or_clean_up(shared: &Arc<Shared>, request: &CopyRequest, cancel: &CancellationToken) -> Result<Vec<u8>> {
    let keys = ObjectKeys::new(&shared.config.key_prefix, &request.segment.metadata)?;
    let mut upload = Upload::new(Arc::clone(shared), keys);
    let outcome = bounded(
        shared.config.copy_timeout,
        cancel,
        write_segment(shared, request, &mut upload),
    )
    .await;
    if outcome.is_err() && !upload.abandon().await {
        shared.metrics.copy_cleanup_failures.add(1);
    }
    outcome
}

async fn write_segment(shared: &Arc<Shared>, request: &CopyRequest, upload: &mut Upload) -> Result<Vec<u8>> {
    request.segment.metadata.check()?;
    let metadata = &request.segment.metadata;
    let file = SegmentFile::open(&request.files.log, metadata.segment_size).await?;
    // Read before the upload: a missing index should not cost a gigabyte of traffic.
    let indexes = read_indexes(request).await?;
    let chunks = upload.send_log(file, metadata.segment_size).await?;
    let log_length = chunks.stored_length();
    let manifest = Manifest::new(metadata.clone(), chunks, indexes, format!("alluvium {VERSION}"))?;
    let object = manifest.encode()?;
    let custom = CustomMetadata {
        features: manifest.features(),
        manifest_length: u32::try_from(object.len()).expect("a manifest has at most MANIFEST_BYTES_MAX bytes"),
        log_length,
        prefix: shared.config.key_prefix.clone(),
    };
    upload.send_manifest(object).await?;
    Ok(custom.encode())
}

async fn read_indexes(request: &CopyRequest) -> Result<Vec<IndexPayload>> {
    let files = &request.files;
    let mut indexes = vec![
        IndexPayload::new(IndexType::Offset, read_index(&files.offset_index).await?),
        IndexPayload::new(IndexType::Timestamp, read_index(&files.time_index).await?),
        IndexPayload::new(IndexType::ProducerSnapshot, read_index(&files.producer_snapshot).await?),
        IndexPayload::new(IndexType::LeaderEpoch, Bytes::clone(&files.leader_epochs)),
    ];
    if let Some(path) = &files.transaction_index {
        indexes.push(IndexPayload::new(IndexType::Transaction, read_index(path).await?));
    }
    Ok(indexes)
}
