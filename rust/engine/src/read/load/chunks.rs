//! Chunks: from disk or from the store, one or many with one request, into the cache.

use std::{
    collections::VecDeque,
    future::Future,
    ops::{Range, RangeInclusive},
    sync::Arc,
    time::Duration,
};

use alluvium_format::{ChunkIndex, Codec, Crc32};
use alluvium_store::{ErrorKind as StoreKind, StoreError};
use bytes::Bytes;
use tokio::time::Instant;

use super::{DISK_READ_TIMEOUT, again_if_corrupt, keep_on_disk, kept_since, limited, pieces::Pieces};
use crate::{
    Error, ErrorKind, Result,
    budget::{Budget, PooledBuffer, Reservation},
    cache::{Entry, EntryKey, Moment, Ticket},
    completion::{blocking, contained},
    instance::Shared,
    read::{
        Source,
        ahead::{Run, Share},
    },
};

/// A chunk to be loaded ahead. It takes its memory when its bytes come.
pub(in crate::read) struct Claim {
    pub(in crate::read) index: ChunkIndex,
    pub(in crate::read) ticket: Ticket,
}

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

    /// Waits for it: all in one step, so that nobody holds a part and waits for the rest.
    async fn wait(shared: &Shared, source: &Source, index: ChunkIndex) -> Result<Self> {
        let (total, decompressed) = Self::needed(source, index)?;
        Ok(Self::of(shared.cache.reserve(total).await?, decompressed))
    }

    /// Takes it at once, if that can be.
    fn at_once(shared: &Shared, source: &Source, index: ChunkIndex) -> Option<Self> {
        let (total, decompressed) = Self::needed(source, index).ok()?;
        Some(Self::of(shared.cache.try_reserve_wanted(total)?, decompressed))
    }

    /// Takes it for a chunk that is loaded ahead, if the run has its share of it.
    pub(in crate::read) fn ahead(
        shared: &Shared,
        source: &Source,
        claim: &mut Claim,
        run: &Run,
        share: Share,
    ) -> Option<Self> {
        let (total, decompressed) = Self::needed(source, claim.index).ok()?;
        let (whole, stocked) = shared
            .cache
            .try_reserve_ahead(total, run.stock(), (share.own, share.all))?;
        claim.ticket.stock(stocked);
        Some(Self::of(whole, decompressed))
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
pub(in crate::read) fn start_chunk_load(
    shared: &Arc<Shared>,
    source: &Arc<Source>,
    index: ChunkIndex,
    ticket: Ticket,
    ahead: VecDeque<Claim>,
    run: &Arc<Run>,
) {
    let (instance, source, run) = (Arc::clone(shared), Arc::clone(source), Arc::clone(run));
    shared.spawn(async move {
        let limit = instance.config.fetch_timeout;
        // Those behind come with the first request only.
        let mut ahead = Some(ahead);
        let chunk = again_if_corrupt(|| {
            let behind = ahead.take().unwrap_or_default();
            let load = load_missed(&instance, &source, index, behind, &run, &ticket);
            contained(limited(limit, load))
        })
        .await;
        ticket.fill(chunk);
    });
}

/// Loads chunks that follow each other, for nobody in particular.
pub(in crate::read) fn start_ahead_load(
    shared: &Arc<Shared>,
    source: &Arc<Source>,
    claims: VecDeque<Claim>,
    run: &Arc<Run>,
) {
    spawn_ahead(shared, source, run, |instance, source, run| async move {
        load_claims(&instance, &source, claims, &run).await
    });
}

/// Runs what nobody waits for as a request of the run's. Its failure says nothing to anybody: whoever needs the chunks loads them.
fn spawn_ahead<Work>(
    shared: &Arc<Shared>,
    source: &Arc<Source>,
    run: &Arc<Run>,
    work: impl FnOnce(Arc<Shared>, Arc<Source>, Arc<Run>) -> Work,
) where
    Work: Future<Output = Result<()>> + Send + 'static,
{
    let running = run.begin_request();
    let key = source.key.clone();
    let work = work(Arc::clone(shared), Arc::clone(source), Arc::clone(run));
    shared.spawn(async move {
        if let Err(error) = contained(work).await {
            tracing::debug!(%key, %error, "reading ahead failed");
        }
        drop(running);
    });
}

/// Reads a chunk from disk, for nobody in particular.
pub(in crate::read) fn start_disk_load(
    shared: &Arc<Shared>,
    source: &Arc<Source>,
    Claim { index, ticket }: Claim,
    memory: Memory,
    run: &Arc<Run>,
) {
    let (instance, source) = (Arc::clone(shared), Arc::clone(source));
    let running = run.begin_request();
    shared.spawn(async move {
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
        let reserved = memory.stored.bytes();
        let room = room_in(&instance, Some(memory.stored));
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
    mut behind: VecDeque<Claim>,
    run: &Arc<Run>,
    ticket: &Ticket,
) -> Result<Entry> {
    let follows = behind.front().is_none_or(|first| first.index.0 == index.0 + 1);
    if !follows {
        // What lies between is on disk.
        start_ahead_load(shared, source, std::mem::take(&mut behind), run);
    }
    let mut memory = match Memory::at_once(shared, source, index) {
        Some(memory) => memory,
        None => {
            // Others may want those behind, and need not wait for this one's memory.
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
    let last = behind.back().map_or(index, |claim| claim.index);
    let mut pieces = open(shared, source, index..=last).await?;
    let chunk = take_chunk(shared, source, index, memory, &mut pieces).await?;
    let chunk = restore(shared, source, index, chunk, kept_since(shared, ticket)).await?;
    if behind.is_empty() {
        if let Err(error) = pieces.end().await {
            tracing::debug!(key = %source.key, %error, "a body did not end behind its bytes");
        }
    } else {
        spawn_ahead(shared, source, run, |instance, source, run| async move {
            fill_claims(&instance, &source, behind, &run, pieces).await
        });
    }
    Ok(chunk)
}

async fn load_claims(
    shared: &Arc<Shared>,
    source: &Arc<Source>,
    claims: VecDeque<Claim>,
    run: &Arc<Run>,
) -> Result<()> {
    let (Some(first), Some(last)) = (claims.front(), claims.back()) else {
        return Ok(());
    };
    let opening = open(shared, source, first.index..=last.index);
    let pieces = limited(shared.config.fetch_timeout, opening).await?;
    fill_claims(shared, source, claims, run, pieces).await
}

/// Fills one chunk after the other. Stops between two when the readers are gone, or when there is no memory for long; what is left is given up.
async fn fill_claims(
    shared: &Arc<Shared>,
    source: &Arc<Source>,
    mut claims: VecDeque<Claim>,
    run: &Arc<Run>,
    mut pieces: Pieces,
) -> Result<()> {
    while let Some(mut claim) = claims.pop_front() {
        let share = shared.ahead.share(shared, source.chunk_size());
        let memory = match Memory::ahead(shared, source, &mut claim, run, share) {
            Some(memory) => memory,
            None => match memory_late(shared, source, &mut claim, &claims, run).await? {
                Some(memory) => memory,
                None => {
                    shared.metrics.ahead_abandoned.add(1);
                    run.gave_up(source, claim.index);
                    return Ok(());
                }
            },
        };
        let Claim { index, ticket } = claim;
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
            let since = kept_since(shared, &ticket);
            ticket.fill(restore(shared, source, index, chunk, since).await);
        } else {
            // The next one arrives while this one is decoded.
            let (instance, source) = (Arc::clone(shared), Arc::clone(source));
            shared.spawn(async move {
                let since = kept_since(&instance, &ticket);
                let restored = contained(restore(&instance, &source, index, chunk, since)).await;
                ticket.fill(restored);
            });
        }
    }
    pieces.end().await
}

/// How often it is looked whether anybody still reads what is loaded ahead.
const LOOK_AT_READERS: Duration = Duration::from_millis(250);

/// How often a request that waits for memory looks again at least.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// A request that finds no memory for so long is given up: its readers are slower than was thought, and the store will not wait for ever.
const MEMORY_AWAITED: Duration = Duration::from_secs(5);

/// Memory for a chunk of a request that is on its way, when there was none at once; meanwhile, the store is made to wait. `None`: the request is to be
/// given up.
async fn memory_late(
    shared: &Arc<Shared>,
    source: &Arc<Source>,
    claim: &mut Claim,
    behind: &VecDeque<Claim>,
    run: &Arc<Run>,
) -> Result<Option<Memory>> {
    shared.metrics.ahead_memory_waits.add(1);
    let turn = run.await_memory(source, claim.index);
    let given_up_at = Instant::now() + MEMORY_AWAITED;
    loop {
        let changed = shared.cache.changed();
        tokio::pin!(changed);
        changed.as_mut().enable();
        if turn.is_first()
            && let share = shared.ahead.share(shared, source.chunk_size())
            && let Some(memory) = Memory::ahead(shared, source, claim, run, share)
        {
            return Ok(Some(memory));
        }
        if claim.ticket.is_wanted() || behind.iter().any(|claim| claim.ticket.is_wanted()) {
            let waiting = Memory::wait(shared, source, claim.index);
            return limited(shared.config.fetch_timeout, waiting).await.map(Some);
        }
        let is_in_the_way = shared.guards.limits.reads().waiting > 0;
        if is_in_the_way || run.is_forgotten() || !claim.ticket.is_registered() || Instant::now() >= given_up_at {
            return Ok(None);
        }
        // What readers let go of comes without a change.
        let _ = tokio::time::timeout(LOOK_AGAIN, changed).await;
    }
}

/// Asks for the stored bytes of chunks.
async fn open(shared: &Arc<Shared>, source: &Source, indexes: RangeInclusive<ChunkIndex>) -> Result<Pieces> {
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

/// Verifies and decodes a chunk of the store's, and keeps it on disk.
async fn restore(
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
