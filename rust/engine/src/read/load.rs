//! Loading manifests and chunks from the store into the cache.

use std::{future::Future, sync::Arc, time::Duration};

use alluvium_format::{ChunkIndex, MANIFEST_BYTES_MAX, Manifest, SegmentMetadata, Unverified};
use alluvium_store::{ErrorKind as StoreKind, GetObject, Key, StoreError};
use bytes::{Bytes, BytesMut};
use futures::StreamExt;

use crate::{
    Error, ErrorKind, Result,
    cache::{Entry, EntryKey, Lookup},
    completion::blocking,
    instance::Shared,
};

/// Times that bytes with a wrong checksum are asked for again: damage on the way is cured by it, damage in the store is not.
const REFETCHES_MAX: u32 = 1;

/// Looks a segment's manifest up, and loads it when nobody does.
///
/// `expected_length` is that of its object, if known.
pub(crate) fn lookup_manifest(
    shared: &Arc<Shared>,
    key: &Key,
    metadata: &SegmentMetadata,
    expected_length: Option<u64>,
) -> Lookup {
    let expected = expected_length.unwrap_or(MANIFEST_BYTES_USUAL).min(MANIFEST_BYTES_MAX);
    let work = || {
        let (instance, key, metadata) = (Arc::clone(shared), key.clone(), metadata.clone());
        limited(shared.config.fetch_timeout, async move {
            again_if_corrupt(|| load_manifest(Arc::clone(&instance), key.clone(), metadata.clone(), expected)).await
        })
    };
    shared
        .cache
        .get_or_load(EntryKey::Manifest(metadata.segment_id), work, |load| shared.spawn(load))
}

/// Looks a chunk of a segment up, and loads it when nobody does.
pub(crate) fn lookup_chunk(shared: &Arc<Shared>, key: &Key, manifest: &Arc<Manifest>, index: ChunkIndex) -> Lookup {
    let work = || {
        let (instance, key, manifest) = (Arc::clone(shared), key.clone(), Arc::clone(manifest));
        limited(shared.config.fetch_timeout, async move {
            again_if_corrupt(|| load_chunk(Arc::clone(&instance), key.clone(), Arc::clone(&manifest), index)).await
        })
    };
    let entry_key = EntryKey::Chunk(manifest.segment().segment_id, index);
    shared.cache.get_or_load(entry_key, work, |load| shared.spawn(load))
}

/// Length of a manifest when nobody has told it, as of a segment of some hundred megabytes. One that is longer costs a second request.
const MANIFEST_BYTES_USUAL: u64 = 1 << 20;

/// Memory of a manifest that is loaded, as a multiple of its object: compressed indexes are held in both forms. Kafka's get two to three
/// times smaller.
const MANIFEST_SWELL: u64 = 4;

async fn load_manifest(
    shared: Arc<Shared>,
    key: Key,
    metadata: SegmentMetadata,
    mut expected_length: u64,
) -> Result<Entry> {
    // Memory before the request: whoever waits for it holds no connection and no turn that another load needs to end.
    let (object, mut reserved) = loop {
        let reserved = shared.loads.reserve(expected_length * MANIFEST_SWELL).await?;
        let object = shared.fetch_store.get(&key, None).await?;
        if object.object_length > MANIFEST_BYTES_MAX {
            let reason = format!(
                "{key} has {} bytes, a manifest has at most {MANIFEST_BYTES_MAX}",
                object.object_length
            );
            return Err(Error::new(ErrorKind::Corrupt, reason));
        }
        if object.object_length <= expected_length {
            break (object, reserved);
        }
        expected_length = object.object_length;
    };
    let bytes = collect_manifest(object)
        .await
        .map_err(|error| error.during(format_args!("manifest {key}")))?;
    let length = bytes.len();
    let announced = Manifest::announced_index_bytes(&bytes)
        .map_err(|error| Error::from(error).during(format_args!("manifest {key}")))?;
    let needed = length as u64 + announced;
    if needed > expected_length * MANIFEST_SWELL {
        // Given back first: of two loads that held some and waited for more, neither would get on.
        drop(reserved);
        reserved = shared.loads.reserve(needed).await?;
    }
    // Unwrapping a key takes milliseconds of computing.
    let instance = Arc::clone(&shared);
    let manifest = blocking(move || Ok(Manifest::decode(bytes, &instance.keys)?))
        .await
        .map_err(|error| error.during(format_args!("manifest {key}")))?;
    drop(reserved);
    let found = manifest.segment();
    if (found.segment_id, found.topic_id, found.partition, found.start_offset)
        != (
            metadata.segment_id,
            metadata.topic_id,
            metadata.partition,
            metadata.start_offset,
        )
    {
        return Err(Error::new(
            ErrorKind::Corrupt,
            format!("manifest {key} is that of {found}"),
        ));
    }
    // An index that is stored plain keeps the whole object.
    let held = length as u64 + manifest.memory_bytes();
    let held = usize::try_from(held).unwrap_or(usize::MAX);
    Ok(Entry::Manifest(Arc::new(manifest), held))
}

/// Takes a manifest in, once its first bytes say that it is one and as long as the object: a large object that is something else costs
/// no memory.
async fn collect_manifest(mut object: GetObject) -> Result<Bytes> {
    let mut head = BytesMut::new();
    while head.len() < Manifest::HEADER_BYTES
        && let Some(piece) = object.body.next().await
    {
        head.extend_from_slice(&piece?);
    }
    Manifest::check_header(&head, object.object_length)?;
    let head = futures::stream::iter([Ok(head.freeze())]);
    object.body = head.chain(object.body).boxed();
    Ok(object.collect().await?)
}

async fn load_chunk(shared: Arc<Shared>, key: Key, manifest: Arc<Manifest>, index: ChunkIndex) -> Result<Entry> {
    let chunks = manifest.chunks();
    let missing = || Error::new(ErrorKind::Internal, format!("{key} has no chunk {}", index.0));
    let range = chunks.stored_range(index).ok_or_else(missing)?;
    let plain_length = chunks.plain_crc32_of(index).ok_or_else(missing)?.length();
    let is_plain = manifest.coding().is_plain();
    // Before the request, so that a load that waits for memory holds no connection.
    let decoded = if is_plain { 0 } else { plain_length };
    let _reserved = shared.loads.reserve(range.end.0 - range.start.0 + decoded).await?;
    let object = match shared.fetch_store.get(&key, Some(range.start.0..range.end.0)).await {
        Ok(object) => object,
        Err(error) => return Err(chunk_error(&shared, &key, &manifest, index, error)),
    };
    if object.object_length != chunks.stored_length() {
        let reason = format!(
            "{key} has {} bytes instead of {}",
            object.object_length,
            chunks.stored_length()
        );
        return Err(Error::new(ErrorKind::Corrupt, reason));
    }
    let stored = Unverified::new(object.collect().await?);
    let chunk = if is_plain {
        manifest.restore_chunk(index, stored)
    } else {
        let manifest = Arc::clone(&manifest);
        blocking(move || Ok(manifest.restore_chunk(index, stored))).await?
    };
    Ok(Entry::Chunk(
        chunk.map_err(|error| Error::from(error).during(format_args!("{key}")))?,
    ))
}

fn chunk_error(shared: &Shared, key: &Key, manifest: &Manifest, index: ChunkIndex, error: StoreError) -> Error {
    match error.kind() {
        // The range is within the length that the manifest tells, so the object is shorter than that.
        StoreKind::Invalid => Error::new(
            ErrorKind::Corrupt,
            format!("{key} ends before chunk {}: {error}", index.0),
        ),
        StoreKind::NotFound => {
            // Deleted under us, perhaps by another broker: the next open must find that out, not the cached manifest.
            let segment = manifest.segment();
            shared.cache.purge(segment.segment_id, segment.segment_size);
            error.into()
        }
        _ => error.into(),
    }
}

async fn limited(limit: Duration, work: impl Future<Output = Result<Entry>>) -> Result<Entry> {
    match tokio::time::timeout(limit, work).await {
        Ok(outcome) => outcome,
        Err(_) => Err(Error::new(
            ErrorKind::Timeout,
            format!("nothing was loaded within {limit:?}"),
        )),
    }
}

async fn again_if_corrupt<Work: Future<Output = Result<Entry>>>(load: impl Fn() -> Work) -> Result<Entry> {
    let mut refetches = 0;
    loop {
        match load().await {
            Err(error) if error.kind() == ErrorKind::Corrupt && refetches < REFETCHES_MAX => {
                tracing::warn!(%error, "bytes from the store are wrong, asking once more");
                refetches += 1;
            }
            outcome => return outcome,
        }
    }
}
