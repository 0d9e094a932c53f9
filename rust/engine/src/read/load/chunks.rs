//! Chunks: from disk or from the store, into the cache.

use std::{
    ops::{Range, RangeInclusive},
    sync::Arc,
};

use alluvium_format::{ChunkIndex, Codec, Crc32};
use alluvium_store::{ErrorKind as StoreKind, StoreError};
use bytes::Bytes;

use super::{DiskTurn, keep_on_disk, pieces::Pieces};
use crate::{
    Error, ErrorKind, Result,
    budget::{Budget, PooledBuffer, Reservation},
    cache::{Entry, EntryKey, Moment, Ticket},
    completion::blocking,
    instance::Shared,
    read::{
        Source,
        ahead::{Run, Share},
    },
};

/// What a chunk is loaded into: its stored bytes, and, where they are compressed, Kafka's.
#[derive(Debug)]
pub(in crate::read) struct Memory {
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

    /// Bytes that a chunk takes while it is loaded.
    pub(in crate::read) fn needed_bytes(source: &Source, index: ChunkIndex) -> Option<u64> {
        Self::needed(source, index).ok().map(|(total, _)| total)
    }

    /// Waits for it: all in one step, so that nobody holds a part and waits for the rest.
    pub(super) async fn wait(shared: &Shared, source: &Source, index: ChunkIndex) -> Result<Self> {
        let (total, decompressed) = Self::needed(source, index)?;
        Ok(Self::of(shared.cache.reserve(total).await?, decompressed))
    }

    /// Takes it at once, if that can be.
    pub(super) fn at_once(shared: &Shared, source: &Source, index: ChunkIndex) -> Option<Self> {
        let (total, decompressed) = Self::needed(source, index).ok()?;
        Some(Self::of(shared.cache.try_reserve_wanted(total)?, decompressed))
    }

    /// Takes it for a chunk that is loaded ahead, if the run has its share of it.
    pub(in crate::read) fn ahead(
        shared: &Shared,
        source: &Source,
        index: ChunkIndex,
        ticket: &mut Ticket,
        run: &Run,
        share: Share,
    ) -> Option<Self> {
        let (total, decompressed) = Self::needed(source, index).ok()?;
        let (whole, stocked) = shared
            .cache
            .try_reserve_ahead(total, &run.stock(), (share.own, share.all))?;
        ticket.stock(stocked);
        Some(Self::of(whole, decompressed))
    }

    /// How many bytes.
    pub(in crate::read) fn bytes(&self) -> u64 {
        self.stored.bytes() + self.decompressed.as_ref().map_or(0, Reservation::bytes)
    }

    fn of(mut whole: Reservation, decompressed: Option<u64>) -> Self {
        let decompressed = decompressed.map(|bytes| whole.split(bytes));
        Memory {
            stored: whole,
            decompressed,
        }
    }
}

/// A chunk that is on disk and as it should be.
pub(super) async fn chunk_from_disk(
    shared: &Arc<Shared>,
    source: &Arc<Source>,
    index: ChunkIndex,
    memory: Memory,
    turn: DiskTurn,
) -> Option<Entry> {
    let disk = shared.disk()?;
    let (instance, source, of_cache) = (Arc::clone(shared), Arc::clone(source), Arc::clone(&disk));
    let read = move || {
        let key = source.chunk_key(index);
        let range = stored_range(&source, index).ok()?;
        let reserved = memory.stored.bytes();
        let room = room_in(&instance, Some(memory.stored));
        let (bytes, _) = of_cache.read(&key, Some(range.end - range.start), room)?;
        let stored = Stored {
            bytes,
            reserved,
            decompressed: memory.decompressed,
        };
        let restored = decode(&instance, &source, index, stored);
        if restored.as_ref().is_err_and(|error| error.kind() == ErrorKind::Corrupt) {
            of_cache.remove(&key);
        }
        restored.ok()
    };
    turn.read(&disk, read).await
}

/// Asks for the stored bytes of chunks.
pub(super) async fn open(shared: &Arc<Shared>, source: &Source, indexes: RangeInclusive<ChunkIndex>) -> Result<Pieces> {
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
    Ok(Pieces::new(object.body, shared.ahead.flow()))
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
pub(super) struct Stored {
    bytes: PooledBuffer,
    /// Bytes that were reserved for them.
    reserved: u64,
    decompressed: Option<Reservation>,
}

/// Takes a chunk's bytes, however long they are on their way: the store's own limits of silence and of slowness end it.
pub(super) async fn take_chunk(
    shared: &Shared,
    source: &Source,
    index: ChunkIndex,
    memory: Memory,
    pieces: &mut Pieces,
    ticket: &Ticket,
) -> Result<Stored> {
    let range = stored_range(source, index)?;
    let length = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
    let reserved = memory.stored.bytes();
    let mut buffer = shared.cache.buffer(length, memory.stored)?;
    while buffer.room() > 0 {
        let piece = pieces.next(buffer.room()).await?;
        ticket.note_arrival();
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

/// Verifies and decodes a chunk of the store's, and keeps it on disk.
pub(super) async fn restore(
    shared: &Arc<Shared>,
    source: &Arc<Source>,
    index: ChunkIndex,
    stored: Stored,
    since: Option<Moment>,
) -> Result<Entry> {
    let key = source.chunk_key(index);
    if source.manifest.coding().is_plain() {
        let chunk = decode(shared, source, index, stored)?;
        if let (Entry::Chunk(bytes, _), Some(since)) = (&chunk, since) {
            keep_on_disk(shared, key, bytes.bytes().clone(), since);
        }
        return Ok(chunk);
    }
    let (instance, source) = (Arc::clone(shared), Arc::clone(source));
    blocking(move || {
        // Decoding uses the stored bytes up. No reader waits for the disk, which may be slow.
        let for_disk = since.and_then(|since| Some((copy_for_disk(&instance, &key, stored.bytes.as_ref())?, since)));
        let chunk = decode(&instance, &source, index, stored)?;
        if let Some((copy, since)) = for_disk {
            keep_on_disk(&instance, key, copy, since);
        }
        Ok(chunk)
    })
    .await
}

/// A copy of stored bytes, if the disk tier would take them and there is memory that nobody waits for.
fn copy_for_disk(shared: &Shared, key: &EntryKey, stored: &[u8]) -> Option<Bytes> {
    if !shared.disk()?.takes(key) {
        return None;
    }
    let reservation = shared.cache.try_reserve_idle(stored.len() as u64)?;
    let mut copy = shared.cache.buffer(stored.len(), reservation).ok()?.into_room();
    copy.as_mut().copy_from_slice(stored);
    Some(copy.share())
}

/// Gives the one room that `reservation` covers.
fn room_in(shared: &Shared, mut reservation: Option<Reservation>) -> impl FnMut(usize) -> Option<PooledBuffer> {
    move |length| {
        let buffer = shared.cache.buffer(length, reservation.take()?).ok()?;
        Some(buffer.into_room())
    }
}

fn decode(shared: &Shared, source: &Source, index: ChunkIndex, stored: Stored) -> Result<Entry> {
    let kept = stored.decompressed.as_ref().map_or(stored.reserved, Reservation::bytes);
    let room = room_in(shared, stored.decompressed);
    match source.manifest.restore_chunk(index, stored.bytes, room) {
        Ok(chunk) => Ok(Entry::Chunk(chunk, kept)),
        Err(error) => Err(Error::from(error).during(format_args!("{}", source.key))),
    }
}

fn chunk_error(shared: &Shared, source: &Source, index: ChunkIndex, error: StoreError) -> Error {
    match error.kind() {
        // The range is within the length that the manifest tells, so the object is shorter than that.
        StoreKind::Invalid if matches!(error.status(), None | Some(416)) => Error::new(
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
