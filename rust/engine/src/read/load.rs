//! Loading manifests and chunks from the store into the cache.
//!
//! # Flow
//! A miss becomes one ranged GET: of the chunk that is missed, and of those behind it that are loaded ahead ([`super::ahead`]). Each chunk is
//! verified and filled into the cache as soon as its last byte is here, while the rest is still on its way.
//!
//! # Invariants
//! * Memory is reserved before the request: whoever waits for it holds no connection and no turn that another load needs to end.
//! * Nothing unverified gets into the cache.
//!
//! # Failure
//! A chunk that somebody waits for fails with the reason; those behind it are given up without a word, and loaded again by whoever needs them.

use std::{future::Future, ops::Range, sync::Arc, time::Duration};

use alluvium_format::{ChunkIndex, Codec, Crc32, FormatError, MANIFEST_BYTES_MAX, Manifest, SegmentMetadata, Uuid};
use alluvium_store::{Body, ErrorKind as StoreKind, GetObject, Key, StoreError};
use bytes::{Bytes, BytesMut};
use futures::StreamExt;

use super::{Source, ahead::Run};
use crate::{
    Error, ErrorKind, Result,
    block::Block,
    budget::{Budget, PooledBuffer, Reservation},
    cache::{CachedManifest, Entry, EntryKey, Lookup, Ticket},
    completion::{blocking, contained},
    instance::Shared,
};

/// Times that bytes with a wrong checksum are asked for again: damage on the way is cured by it, damage in the store is not.
const REFETCHES_MAX: u32 = 1;

/// Limit of a read from the disk tier; after it, the store is asked.
const DISK_READ_TIMEOUT: Duration = Duration::from_secs(2);

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
    pub(super) fn sibling(segment: &SegmentMetadata, (start_offset, segment_id): (i64, Uuid)) -> Self {
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
        let load = again_if_corrupt(|| load_manifest(&instance, &key, identity, expected));
        let manifest = contained(limited(instance.config.fetch_timeout, load)).await;
        ticket.fill(manifest.map(Entry::Manifest));
    });
}

/// Length of a manifest when nobody has told it, as of a segment of some hundred megabytes. One that is longer costs a second request.
const MANIFEST_BYTES_USUAL: u64 = 1 << 20;

/// Memory of a manifest that is loaded, as a multiple of its object: compressed indexes are held in both forms. Kafka's get two to three
/// times smaller.
const MANIFEST_SWELL: u64 = 4;

async fn load_manifest(
    shared: &Arc<Shared>,
    key: &Key,
    identity: Identity,
    mut expected_length: u64,
) -> Result<Arc<CachedManifest>> {
    let wrong = |error: Error| error.during(format_args!("manifest {key}"));
    if let Some(manifest) = manifest_from_disk(shared, identity, expected_length).await {
        return Ok(manifest);
    }
    let (object, mut reserved) = loop {
        let reserved = shared.cache.reserve_apart(expected_length * MANIFEST_SWELL).await?;
        let object = shared.fetch_store.get(key, None).await?;
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
    let bytes = collect_manifest(object).await.map_err(wrong)?;
    let length = bytes.len() as u64;
    let announced = Manifest::announced_index_bytes(&bytes).map_err(|error| wrong(error.into()))?;
    if length + announced > expected_length * MANIFEST_SWELL {
        // Given back first: of two loads that held some and waited for more, neither would get on.
        drop(reserved);
        reserved = shared.cache.reserve_apart(length + announced).await?;
    }
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
    keep_on_disk(shared, EntryKey::Manifest(identity.segment_id), bytes);
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
    let most = expected_length * MANIFEST_SWELL;
    let turn = Arc::clone(&shared.disk_reads).try_acquire_owned().ok()?;
    let mut reserved = shared.cache.reserve_apart(most).await.ok()?;
    let instance = Arc::clone(shared);
    let read = blocking(move || {
        let _turn = turn;
        let room = |length| (length as u64 <= most).then(|| Block::new(length).ok()).flatten();
        let Some((object, length)) = disk.read(&key, None, room) else {
            return Ok(None);
        };
        let object = Bytes::from_owner(object).slice(..length);
        let needed = length as u64 + Manifest::announced_index_bytes(&object).unwrap_or(u64::MAX / 2);
        // One that needs more memory than is usual is loaded the long way.
        if needed > most {
            return Ok(None);
        }
        match Manifest::decode(object, &instance.keys, |length| Block::new(length).ok()) {
            Ok(manifest) if Identity::of(manifest.segment()) == identity => Ok(Some((manifest, needed))),
            // Not the fault of the file.
            Err(FormatError::NoDataKey { .. } | FormatError::NoRoom { .. }) => Ok(None),
            _ => {
                disk.remove(&key);
                Ok(None)
            }
        }
    });
    let (manifest, needed) = limited(DISK_READ_TIMEOUT, read).await.ok().flatten()?;
    Some(CachedManifest::new(manifest, reserved.split(needed)))
}

/// Keeps stored bytes, which are verified, on disk as well; nobody waits for it.
pub(crate) fn keep_on_disk(shared: &Shared, key: EntryKey, stored: Bytes) {
    if let Some(disk) = shared.disk() {
        shared.spawn_blocking(move || disk.write(&key, &stored));
    }
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
    let length = usize::try_from(object.object_length).unwrap_or(usize::MAX);
    let mut room = Block::new(length)?;
    let head = futures::stream::iter([Ok(head.freeze())]);
    let mut pieces = Pieces::new(head.chain(object.body).boxed());
    let mut filled = 0;
    while let Some(rest) = room.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        filled += pieces.read(rest).await?;
    }
    pieces.end().await?;
    Ok(Bytes::from_owner(room))
}

/// A chunk to be loaded, and the memory for it.
pub(super) struct Claim {
    pub(super) index: ChunkIndex,
    pub(super) ticket: Ticket,
    pub(super) memory: Memory,
}

/// What a chunk is loaded into: its stored bytes, and, where they are compressed, Kafka's.
#[derive(Debug)]
pub(super) struct Memory {
    stored: Reservation,
    decompressed: Option<Reservation>,
}

impl Memory {
    /// Bytes that a chunk takes while it is loaded: in all, and of these what its decompressed bytes take.
    fn needed(source: &Source, index: ChunkIndex) -> Result<(u64, Option<u64>)> {
        let (chunks, codec) = (source.manifest.chunks(), source.manifest.coding().codec);
        let bytes = |crc32: Option<Crc32>| match crc32 {
            Some(crc32) => Ok(Budget::rounded(crc32.length())),
            None => Err(no_chunk(source, index)),
        };
        let stored = bytes(chunks.stored_crc32(index))?;
        match codec {
            Codec::None => Ok((stored, None)),
            Codec::Zstd => {
                let plain = bytes(chunks.plain_crc32_of(index))?;
                Ok((stored + plain, Some(plain)))
            }
        }
    }

    /// Waits for it: all in one step, so that nobody holds a part and waits for the rest.
    async fn wait(shared: &Shared, source: &Source, index: ChunkIndex) -> Result<Self> {
        let (total, decompressed) = Self::needed(source, index)?;
        Ok(Self::of(shared.cache.reserve(total).await?, decompressed))
    }

    /// Takes it for a chunk that is loaded ahead, if there is any.
    pub(super) fn ahead(shared: &Shared, source: &Source, index: ChunkIndex) -> Option<Self> {
        let (total, decompressed) = Self::needed(source, index).ok()?;
        Some(Self::of(shared.cache.try_reserve_ahead(total)?, decompressed))
    }

    fn of(mut whole: Reservation, decompressed: Option<u64>) -> Self {
        let decompressed = decompressed.map(|bytes| whole.split(bytes));
        Memory {
            stored: whole,
            decompressed,
        }
    }
}

/// Loads the chunk that a reader misses, and with the same request those that are claimed behind it.
pub(super) fn start_chunk_load(
    shared: &Arc<Shared>,
    source: &Arc<Source>,
    index: ChunkIndex,
    ticket: Ticket,
    ahead: Vec<Claim>,
    run: &Arc<Run>,
) {
    let (instance, source, run) = (Arc::clone(shared), Arc::clone(source), Arc::clone(run));
    shared.spawn(async move {
        let limit = instance.config.fetch_timeout;
        let mut ahead = Some(ahead);
        let mut tries = 0;
        let chunk = loop {
            let behind = ahead.take().unwrap_or_default();
            let load = load_missed(&instance, &source, index, behind, &run, &ticket);
            let loaded = contained(limited(limit, load)).await;
            match loaded {
                Err(error) if error.kind() == ErrorKind::Corrupt && tries < REFETCHES_MAX => {
                    tracing::warn!(%error, "bytes from the store are wrong, asking once more");
                    tries += 1;
                }
                outcome => break outcome,
            }
        };
        ticket.fill(chunk);
    });
}

/// Loads chunks that follow each other, for nobody in particular.
pub(super) fn start_ahead_load(shared: &Arc<Shared>, source: &Arc<Source>, claims: Vec<Claim>, run: &Arc<Run>) {
    let (instance, source, run) = (Arc::clone(shared), Arc::clone(source), Arc::clone(run));
    let running = run.begin_request();
    shared.spawn(async move {
        let load = contained(load_claims(&instance, &source, claims, &run)).await;
        if let Err(error) = load {
            tracing::debug!(key = %source.key, %error, "reading ahead failed");
        }
        drop(running);
    });
}

/// Reads a chunk from disk, for nobody in particular.
pub(super) fn start_disk_load(shared: &Arc<Shared>, source: &Arc<Source>, claim: Claim, run: &Arc<Run>) {
    let (instance, source) = (Arc::clone(shared), Arc::clone(source));
    let running = run.begin_request();
    shared.spawn(async move {
        let Claim { index, ticket, memory } = claim;
        // Without one, whoever needs it finds it missing.
        if let Some(chunk) = chunk_from_disk(&instance, &source, index, memory).await {
            ticket.fill(Ok(chunk));
        }
        drop(running);
    });
}

/// A chunk that is on disk and as it should be.
async fn chunk_from_disk(
    shared: &Arc<Shared>,
    source: &Arc<Source>,
    index: ChunkIndex,
    memory: Memory,
) -> Option<Entry> {
    let disk = shared.disk()?;
    let turn = Arc::clone(&shared.disk_reads).try_acquire_owned().ok()?;
    let (instance, source) = (Arc::clone(shared), Arc::clone(source));
    let read = blocking(move || {
        let _turn = turn;
        let key = source.chunk_key(index);
        let range = stored_range(&source, index)?;
        let (reserved, mut reservation) = (memory.stored.bytes(), Some(memory.stored));
        let room = |length| {
            let buffer = instance.cache.buffer(length, reservation.take()?).ok()?;
            Some(buffer.into_room())
        };
        let Some((bytes, _)) = disk.read(&key, Some(range.end - range.start), room) else {
            return Ok(None);
        };
        let stored = Stored {
            bytes,
            reserved,
            decompressed: memory.decompressed,
        };
        let restored = decode(&instance, &source, index, stored);
        if restored.as_ref().is_err_and(|error| error.kind() == ErrorKind::Corrupt) {
            disk.remove(&key);
        }
        Ok(restored.ok())
    });
    limited(DISK_READ_TIMEOUT, read).await.ok().flatten()
}

/// The chunk that is missed. The body goes on for the chunks behind it in a task of its own.
async fn load_missed(
    shared: &Arc<Shared>,
    source: &Arc<Source>,
    index: ChunkIndex,
    mut behind: Vec<Claim>,
    run: &Arc<Run>,
    ticket: &Ticket,
) -> Result<Entry> {
    let follows = behind.first().is_none_or(|first| first.index.0 == index.0 + 1);
    if !follows {
        // What lies between is on disk.
        start_ahead_load(shared, source, std::mem::take(&mut behind), run);
    }
    let mut memory = match Memory::ahead(shared, source, index) {
        Some(memory) => memory,
        None => {
            // Nobody waits for memory with some in his hands.
            behind.clear();
            Memory::wait(shared, source, index).await?
        }
    };
    let key = source.chunk_key(index);
    if behind.is_empty() && shared.disk().is_some_and(|disk| disk.contains(&key)) {
        if let Some(chunk) = chunk_from_disk(shared, source, index, memory).await {
            return Ok(chunk);
        }
        memory = Memory::wait(shared, source, index).await?;
    }
    let last = behind.last().map_or(index, |claim| claim.index);
    let mut pieces = open(shared, source, index..=last).await?;
    let chunk = take_chunk(shared, source, index, memory, &mut pieces).await?;
    let chunk = restore(shared, source, index, chunk, ticket.is_registered()).await?;
    if behind.is_empty() {
        if let Err(error) = pieces.end().await {
            tracing::debug!(key = %source.key, %error, "a body did not end behind its bytes");
        }
    } else {
        let (instance, source, run) = (Arc::clone(shared), Arc::clone(source), Arc::clone(run));
        let running = run.begin_request();
        shared.spawn(async move {
            let rest = contained(fill_claims(&instance, &source, behind, &run, pieces)).await;
            if let Err(error) = rest {
                tracing::debug!(key = %source.key, %error, "reading ahead failed");
            }
            drop(running);
        });
    }
    Ok(chunk)
}

async fn load_claims(shared: &Arc<Shared>, source: &Arc<Source>, claims: Vec<Claim>, run: &Arc<Run>) -> Result<()> {
    let (Some(first), Some(last)) = (claims.first(), claims.last()) else {
        return Ok(());
    };
    let opening = open(shared, source, first.index..=last.index);
    let pieces = limited(shared.config.fetch_timeout, opening).await?;
    fill_claims(shared, source, claims, run, pieces).await
}

/// Fills one chunk after the other. Stops between two when the readers are gone; what is left is given up.
async fn fill_claims(
    shared: &Arc<Shared>,
    source: &Arc<Source>,
    claims: Vec<Claim>,
    run: &Arc<Run>,
    mut pieces: Pieces,
) -> Result<()> {
    for Claim { index, ticket, memory } in claims {
        let abandoned = async {
            loop {
                tokio::time::sleep(LOOK_AT_READERS).await;
                if !ticket.is_registered() || (run.is_forgotten() && !ticket.is_wanted()) {
                    return;
                }
            }
        };
        let chunk = tokio::select! {
            biased;
            chunk = take_chunk(shared, source, index, memory, &mut pieces) => chunk?,
            () = abandoned => {
                shared.metrics.ahead_abandoned.add(1);
                return Ok(());
            }
        };
        if source.manifest.coding().is_plain() {
            let is_registered = ticket.is_registered();
            ticket.fill(restore(shared, source, index, chunk, is_registered).await);
        } else {
            // The next one arrives while this one is decoded.
            let (instance, source) = (Arc::clone(shared), Arc::clone(source));
            shared.spawn(async move {
                let is_registered = ticket.is_registered();
                let restored = contained(restore(&instance, &source, index, chunk, is_registered)).await;
                ticket.fill(restored);
            });
        }
    }
    pieces.end().await
}

/// How often it is looked whether anybody still reads what is loaded ahead.
const LOOK_AT_READERS: Duration = Duration::from_millis(250);

/// Asks for the stored bytes of chunks.
async fn open(shared: &Arc<Shared>, source: &Source, indexes: std::ops::RangeInclusive<ChunkIndex>) -> Result<Pieces> {
    let (first, last) = (*indexes.start(), *indexes.end());
    let range = stored_range(source, first)?.start..stored_range(source, last)?.end;
    let object = match shared.fetch_store.get(&source.key, Some(range)).await {
        Ok(object) => object,
        Err(error) => return Err(chunk_error(shared, source, first, error)),
    };
    let expected = source.manifest.chunks().stored_length();
    if object.object_length != expected {
        let (key, found) = (&source.key, object.object_length);
        return Err(Error::new(
            ErrorKind::Corrupt,
            format!("{key} has {found} bytes instead of {expected}"),
        ));
    }
    Ok(Pieces::new(object.body))
}

fn stored_range(source: &Source, index: ChunkIndex) -> Result<Range<u64>> {
    let range = source.manifest.chunks().stored_range(index);
    let range = range.ok_or_else(|| no_chunk(source, index))?;
    Ok(range.start.0..range.end.0)
}

fn no_chunk(source: &Source, index: ChunkIndex) -> Error {
    Error::new(ErrorKind::Internal, format!("{} has no chunk {}", source.key, index.0))
}

/// A chunk's stored bytes, and the memory for decompressing them.
struct Stored {
    bytes: PooledBuffer,
    /// Bytes that were reserved for them.
    reserved: u64,
    decompressed: Option<Reservation>,
}

async fn take_chunk(
    shared: &Shared,
    source: &Source,
    index: ChunkIndex,
    memory: Memory,
    pieces: &mut Pieces,
) -> Result<Stored> {
    let range = stored_range(source, index)?;
    let length = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
    let reserved = memory.stored.bytes();
    let mut buffer = shared.cache.buffer(length, memory.stored)?;
    while buffer.room() > 0 {
        let piece = pieces.next(buffer.room()).await?;
        buffer.fill(piece.len(), |room| {
            room.copy_from_slice(&piece);
            Ok(())
        })?;
    }
    Ok(Stored {
        bytes: buffer,
        reserved,
        decompressed: memory.decompressed,
    })
}

/// Verifies and decodes a chunk of the store's, and keeps it on disk, unless its segment was deleted meanwhile.
async fn restore(
    shared: &Arc<Shared>,
    source: &Arc<Source>,
    index: ChunkIndex,
    stored: Stored,
    is_registered: bool,
) -> Result<Entry> {
    if source.manifest.coding().is_plain() {
        let chunk = decode(shared, source, index, stored)?;
        if let Entry::Chunk(bytes, _) = &chunk
            && is_registered
        {
            keep_on_disk(shared, source.chunk_key(index), bytes.bytes().clone());
        }
        return Ok(chunk);
    }
    let (instance, source) = (Arc::clone(shared), Arc::clone(source));
    blocking(move || {
        // Before they are decrypted in place. What the checksum does not fit is refused by decoding.
        let expected = source.manifest.chunks().stored_crc32(index);
        if is_registered
            && let Some(disk) = instance.disk()
            && expected == Some(Crc32::of(stored.bytes.as_ref()))
        {
            disk.write(&source.chunk_key(index), stored.bytes.as_ref());
        }
        decode(&instance, &source, index, stored)
    })
    .await
}

fn decode(shared: &Shared, source: &Source, index: ChunkIndex, stored: Stored) -> Result<Entry> {
    let mut reservation = stored.decompressed;
    let kept = reservation.as_ref().map_or(stored.reserved, Reservation::bytes);
    let room = |length| {
        let buffer = shared.cache.buffer(length, reservation.take()?).ok()?;
        Some(buffer.into_room())
    };
    match source.manifest.restore_chunk(index, stored.bytes, room) {
        Ok(chunk) => Ok(Entry::Chunk(chunk, kept)),
        Err(error) => Err(Error::from(error).during(format_args!("{}", source.key))),
    }
}

fn chunk_error(shared: &Shared, source: &Source, index: ChunkIndex, error: StoreError) -> Error {
    match error.kind() {
        // The range is within the length that the manifest tells, so the object is shorter than that.
        StoreKind::Invalid => Error::new(
            ErrorKind::Corrupt,
            format!("{} ends before chunk {}: {error}", source.key, index.0),
        ),
        StoreKind::NotFound => {
            // Deleted under us, perhaps by another broker: the next open must find that out, not the cached manifest.
            shared.purge(source.manifest.segment());
            error.into()
        }
        _ => error.into(),
    }
}

/// A body, in pieces as large as they are wanted.
struct Pieces {
    body: Body,
    rest: Bytes,
}

impl Pieces {
    fn new(body: Body) -> Self {
        Pieces {
            body,
            rest: Bytes::new(),
        }
    }

    /// At least one and at most `max` bytes.
    async fn next(&mut self, max: usize) -> Result<Bytes> {
        while self.rest.is_empty() {
            self.rest = match self.body.next().await {
                Some(piece) => piece?,
                None => return Err(Error::new(ErrorKind::Corrupt, "the body is shorter than announced")),
            };
        }
        Ok(self.rest.split_to(self.rest.len().min(max)))
    }

    /// The next bytes into `room`; how many.
    async fn read(&mut self, room: &mut [u8]) -> Result<usize> {
        let piece = self.next(room.len()).await?;
        if let Some(room) = room.get_mut(..piece.len()) {
            room.copy_from_slice(&piece);
        }
        Ok(piece.len())
    }

    /// Proves that nothing follows; the connection can be used again then.
    async fn end(mut self) -> Result<()> {
        let nothing = self.rest.is_empty();
        match self.body.next().await {
            None if nothing => Ok(()),
            Some(Err(error)) => Err(error.into()),
            _ => Err(Error::new(ErrorKind::Corrupt, "the body is longer than announced")),
        }
    }
}

async fn limited<T>(limit: Duration, work: impl Future<Output = Result<T>>) -> Result<T> {
    match tokio::time::timeout(limit, work).await {
        Ok(outcome) => outcome,
        Err(_) => Err(Error::new(
            ErrorKind::Timeout,
            format!("nothing was loaded within {limit:?}"),
        )),
    }
}

async fn again_if_corrupt<T, Work: Future<Output = Result<T>>>(load: impl Fn() -> Work) -> Result<T> {
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
