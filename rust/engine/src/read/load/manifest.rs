//! Manifests: from disk or from the store, into the cache.

use std::sync::Arc;

use alluvium_format::{FormatError, MANIFEST_BYTES_MAX, Manifest, SegmentMetadata, Uuid};
use alluvium_store::{GetObject, Key};
use bytes::{Bytes, BytesMut};
use futures::StreamExt;

use super::{again_if_corrupt, keep_on_disk, kept_since, limited, pieces::Pieces};
use crate::{
    Error, ErrorKind, Result,
    block::Block,
    budget::Reservation,
    cache::{CachedManifest, DiskCache, Entry, EntryKey, Lookup, Ticket},
    completion::{blocking, contained},
    instance::Shared,
    read::ahead::Flow,
};

/// Which segment a manifest must be of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    topic_id: Uuid,
    partition: i32,
    segment_id: Uuid,
    start_offset: i64,
}

impl Identity {
    /// Of a segment that Kafka names.
    pub(crate) fn of(segment: &SegmentMetadata) -> Self {
        Identity {
            topic_id: segment.topic_id,
            partition: segment.partition,
            segment_id: segment.segment_id,
            start_offset: segment.start_offset,
        }
    }

    /// Of another segment of the same partition.
    pub(in crate::read) fn sibling(segment: &SegmentMetadata, (start_offset, segment_id): (i64, Uuid)) -> Self {
        Identity {
            segment_id,
            start_offset,
            ..Self::of(segment)
        }
    }
}

/// A segment's manifest, out of the cache or loaded into it.
///
/// `expected_length` is that of its object, if known.
///
/// # Cancel safety
/// Dropping it leaves the load running for the next who asks.
pub(crate) async fn manifest(
    shared: &Arc<Shared>,
    key: &Key,
    identity: Identity,
    expected_length: Option<u64>,
) -> Result<Arc<CachedManifest>> {
    let load = match shared.cache.look_up(EntryKey::Manifest(identity.segment_id), 0) {
        Lookup::Hit(entry) => return entry.manifest(),
        Lookup::Loading(load) => load,
        Lookup::Missing(ticket, load) => {
            start_manifest_load(shared, key, identity, expected_length, ticket);
            load
        }
    };
    load.completion.finished().await?.manifest()
}

fn start_manifest_load(
    shared: &Arc<Shared>,
    key: &Key,
    identity: Identity,
    expected_length: Option<u64>,
    ticket: Ticket,
) {
    let expected = expected_length.unwrap_or(MANIFEST_BYTES_USUAL).min(MANIFEST_BYTES_MAX);
    let (instance, key) = (Arc::clone(shared), key.clone());
    shared.spawn(async move {
        let load = again_if_corrupt(|| load_manifest(&instance, &key, identity, expected, &ticket));
        let manifest = contained(limited(instance.config.fetch_timeout, load)).await;
        ticket.fill(manifest.map(Entry::Manifest));
    });
}

/// Length of a manifest when nobody has told it, as of a segment of some hundred megabytes. One that is longer costs a second request.
const MANIFEST_BYTES_USUAL: u64 = 1 << 20;

/// What indexes that are compressed in a manifest take besides, as a multiple of its object: Kafka's get two to three times smaller.
const MANIFEST_SWELL: u64 = 3;

/// Most that is reserved for it before it is known.
const MANIFEST_SWELL_MAX: u64 = 4 << 20;

/// Memory to begin with for a manifest that is loaded: its object is held, and what is compressed in it in both forms. One that needs more is
/// known by its begin.
fn usual_memory(object_length: u64) -> u64 {
    object_length + (object_length * MANIFEST_SWELL).min(MANIFEST_SWELL_MAX)
}

async fn load_manifest(
    shared: &Arc<Shared>,
    key: &Key,
    identity: Identity,
    expected_length: u64,
    ticket: &Ticket,
) -> Result<Arc<CachedManifest>> {
    let wrong = |error: Error| error.during(format_args!("manifest {key}"));
    if let Some(manifest) = manifest_from_disk(shared, identity, expected_length).await {
        return Ok(manifest);
    }
    let mut memory = usual_memory(expected_length);
    let (bytes, announced, mut reserved) = loop {
        let reserved = shared.cache.reserve_apart(memory).await?;
        let object = shared.fetch_store.get(key, None).await?;
        if object.object_length > MANIFEST_BYTES_MAX {
            let reason = format!(
                "{key} has {} bytes, a manifest has at most {MANIFEST_BYTES_MAX}",
                object.object_length
            );
            return Err(Error::new(ErrorKind::Corrupt, reason));
        }
        if object.object_length > memory {
            memory = usual_memory(object.object_length);
            continue;
        }
        let bytes = collect_manifest(object, shared.ahead.flow()).await.map_err(wrong)?;
        let announced = Manifest::announced_index_bytes(&bytes).map_err(|error| wrong(error.into()))?;
        let needed = bytes.len() as u64 + announced;
        if needed <= memory {
            break (bytes, announced, reserved);
        }
        // All is given back and asked for anew: of two loads that held some and waited for more, neither would get on.
        memory = needed;
    };
    let length = bytes.len() as u64;
    // Unwrapping a key takes milliseconds of computing.
    let (instance, object) = (Arc::clone(shared), bytes.clone());
    let decode = move || {
        Ok(Manifest::decode(object, &instance.keys, |length| {
            Block::new(length).ok()
        })?)
    };
    let manifest = blocking(decode).await.map_err(wrong)?;
    let found = manifest.segment();
    if Identity::of(found) != identity {
        return Err(Error::new(
            ErrorKind::Corrupt,
            format!("manifest {key} is that of {found}"),
        ));
    }
    if let Some(since) = kept_since(shared, ticket) {
        keep_on_disk(shared, EntryKey::Manifest(identity.segment_id), bytes, since);
    }
    Ok(CachedManifest::new(manifest, reserved.split(length + announced)))
}

/// A manifest that is on disk and as it should be.
async fn manifest_from_disk(
    shared: &Arc<Shared>,
    identity: Identity,
    expected_length: u64,
) -> Option<Arc<CachedManifest>> {
    let key = EntryKey::Manifest(identity.segment_id);
    let disk = shared.disk().filter(|disk| disk.contains(&key))?;
    let mut memory = usual_memory(expected_length);
    loop {
        let reserved = shared.cache.reserve_apart(memory).await.ok()?;
        let turn = shared.disk_reads.turn(&disk, memory).await?;
        let (instance, of_cache) = (Arc::clone(shared), Arc::clone(&disk));
        let read = move || read_manifest(&instance, &of_cache, identity, reserved);
        match turn.read(&disk, read).await? {
            OnDisk::Manifest(manifest) => return Some(manifest),
            // By its length, and then by its indexes.
            OnDisk::Needs(bytes) if bytes > memory => memory = bytes,
            OnDisk::Needs(_) => return None,
        }
    }
}

/// What was found on disk.
enum OnDisk {
    Manifest(Arc<CachedManifest>),
    /// A manifest that takes so many bytes of memory.
    Needs(u64),
}

/// Reads a manifest from disk into memory that is reserved, which goes with the read: it may hang.
fn read_manifest(shared: &Shared, disk: &DiskCache, identity: Identity, mut reserved: Reservation) -> Option<OnDisk> {
    let key = EntryKey::Manifest(identity.segment_id);
    let mut needed = reserved.bytes();
    let room = |length| {
        needed = needed.max(length as u64);
        (length as u64 <= reserved.bytes())
            .then(|| Block::new(length).ok())
            .flatten()
    };
    let Some((object, length)) = disk.read(&key, None, room) else {
        return (needed > reserved.bytes()).then(|| OnDisk::Needs(usual_memory(needed)));
    };
    let object = Bytes::from_owner(object).slice(..length);
    let announced = Manifest::announced_index_bytes(&object);
    if let Ok(announced) = announced
        && let needed = length as u64 + announced
        && needed > reserved.bytes()
    {
        return Some(OnDisk::Needs(needed));
    }
    match Manifest::decode(object, &shared.keys, |length| Block::new(length).ok()) {
        Ok(manifest) if Identity::of(manifest.segment()) == identity => {
            let needed = length as u64 + announced.unwrap_or(0);
            Some(OnDisk::Manifest(CachedManifest::new(manifest, reserved.split(needed))))
        }
        // Not the fault of the file.
        Err(FormatError::NoDataKey { .. } | FormatError::NoRoom { .. }) => None,
        _ => {
            disk.remove(&key);
            None
        }
    }
}

/// Takes a manifest in, once its first bytes say that it is one and as long as the object: a large object that is something else costs
/// no memory.
async fn collect_manifest(mut object: GetObject, flow: &Arc<Flow>) -> Result<Bytes> {
    let mut head = BytesMut::new();
    while head.len() < Manifest::HEADER_BYTES
        && let Some(piece) = object.body.next().await
    {
        head.extend_from_slice(&piece?);
    }
    Manifest::check_header(&head, object.object_length)?;
    let length = usize::try_from(object.object_length).unwrap_or(usize::MAX);
    let mut room = Block::new(length)?;
    let head = futures::stream::iter([Ok(head.freeze())]);
    let mut pieces = Pieces::new(head.chain(object.body).boxed(), flow);
    let mut filled = 0;
    while let Some(rest) = room.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        filled += pieces.read(rest).await?;
    }
    pieces.end().await?;
    Ok(Bytes::from_owner(room))
}
