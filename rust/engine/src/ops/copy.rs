//! `copyLogSegmentData`.

use std::{sync::Arc, time::Duration};

use alluvium_format::{Codec, Coding, Compressor, CustomMetadata, Manifest};
use alluvium_store::Operation;
use tokio_util::sync::CancellationToken;

use super::{CopyRequest, ObjectKeys, bounded};
use crate::{
    Result, VERSION,
    block::Block,
    cache::EntryKey,
    completion::{blocking, contained},
    config::Compression,
    instance::Shared,
    read::keep_on_disk,
    write::{IndexFiles, Janitor, Parts, SegmentFile, Upload, choose_codec},
};

/// How long buffers are kept after a copy.
const MEMORY_KEPT: Duration = Duration::from_secs(10);

/// zstd level of indexes: they are small, and every cold fetch waits for them.
const INDEX_LEVEL: i32 = 3;

/// Copies a segment and returns the custom metadata for Kafka.
///
/// The manifest goes up last, so a segment is there whole or not at all. On any failure, a deadline, a cancel or a panic of a task,
/// everything that went up is removed before the error leaves: Kafka does not clean up after a copy that it cancelled.
pub(crate) async fn copy(shared: &Arc<Shared>, request: CopyRequest, cancel: &CancellationToken) -> Result<Vec<u8>> {
    let running = shared.metrics.copy.running.enter();
    shared.metrics.copy.begun.add(1);
    let outcome = Box::pin(copy_or_clean_up(shared, &request, cancel)).await;
    drop(running);
    free_memory_later(shared);
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

/// Gives the memory of buffers back once no copy has run for a while: Kafka's copier goes from one segment to the next, and fresh memory
/// costs a page fault for each 4 KiB.
fn free_memory_later(shared: &Arc<Shared>) {
    let instance = Arc::clone(shared);
    let begun = shared.metrics.copy.begun.get();
    shared.spawn(async move {
        tokio::time::sleep(MEMORY_KEPT).await;
        if instance.metrics.copy.running.get() == 0 && instance.metrics.copy.begun.get() == begun {
            instance.buffers.clear();
            instance.workshop.clear();
            instance.cache.free_idle_memory();
        }
    });
}

async fn copy_or_clean_up(shared: &Arc<Shared>, request: &CopyRequest, cancel: &CancellationToken) -> Result<Vec<u8>> {
    let segment_id = request.segment.metadata.segment_id;
    // Kafka comes again in half a minute; until the store is back, its copier threads have better to do than to wait for it.
    shared.guards.breaker.refuse_while_away(Operation::Put)?;
    let keys = ObjectKeys::new(&shared.config.key_prefix, &request.segment.metadata)?;
    shared.janitor.forget(segment_id);
    let mut upload = Upload::new(Arc::clone(shared), keys.clone());
    let limit = shared.config.copy_limit(request.segment.metadata.segment_size);
    let work = contained(write_segment(shared, request, &mut upload));
    let outcome = bounded(limit, cancel, work).await;
    if outcome.is_err() {
        let cleaned = contained(async { Ok(upload.abandon().await) }).await == Ok(true);
        if !cleaned {
            shared.metrics.copy_cleanup_failures.add(1);
        }
        // Any request of a failed copy may have gone without an answer, whatever its last one said: the store may still do what it was
        // asked for, after the clean-up.
        if upload.is_begun() {
            Janitor::note(shared, segment_id, keys);
        }
    }
    outcome
}

async fn write_segment(shared: &Arc<Shared>, request: &CopyRequest, upload: &mut Upload) -> Result<Vec<u8>> {
    request.segment.metadata.check()?;
    let metadata = &request.segment.metadata;
    let file = Arc::new(SegmentFile::open(&request.files.log, metadata.segment_size).await?);
    // Opened before the upload, since a missing index should not cost a gigabyte of traffic; read after it, since nothing may be held
    // while memory for parts is waited for.
    let indexes = IndexFiles::open(&request.files).await?;
    let coding = Coding {
        codec: match shared.config.compression {
            Compression::None => Codec::None,
            Compression::Zstd => Codec::Zstd,
            Compression::Auto => choose_codec(&file, shared.config.compression_level).await?,
        },
        encryption: shared.keys.new_encryption()?,
    };
    let parts = Parts::new(Arc::clone(shared), file, coding.clone(), metadata.segment_id);
    let chunks = upload.send_log(parts).await?;
    let log_length = chunks.stored_length();
    // As read, and in the manifest.
    let _reserved = shared.buffers.reserve(2 * indexes.length()).await?;
    let indexes = indexes.read(&request.files.leader_epochs).await?;
    let manifest = Manifest::new(metadata.clone(), chunks, coding, indexes, format!("alluvium {VERSION}"))?;
    let (manifest, encoded) = blocking(move || {
        let room = Block::new(manifest.encoded_length_max())?;
        let encoded = manifest.encode_into(room, Some(&mut Compressor::new(INDEX_LEVEL)))?;
        Ok((manifest, encoded))
    })
    .await?;
    let manifest_length = encoded.object.len();
    let custom = CustomMetadata {
        features: encoded.features,
        manifest_length: u32::try_from(manifest_length).expect("a manifest has at most MANIFEST_BYTES_MAX bytes"),
        log_length,
        prefix: shared.config.key_prefix.clone(),
    };
    upload.send_manifest(encoded.object.clone()).await?;
    // Kafka gives every attempt a new id; whoever does not must not be served what an earlier copy left in the cache.
    shared.purge(metadata);
    // Consumers come for it from here on.
    shared.cache.keep(manifest);
    if let Some(since) = shared.disk().map(|disk| disk.now()) {
        keep_on_disk(shared, EntryKey::Manifest(metadata.segment_id), encoded.object, since);
    }
    Ok(custom.encode())
}
