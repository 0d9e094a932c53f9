//! A segment on the way of a run, and its chunks.

use std::{collections::VecDeque, sync::Arc};

use alluvium_format::{ChunkIndex, Uuid};
use alluvium_store::Key;

use super::Run;
use crate::{
    cache::EntryKey,
    instance::Shared,
    read::{
        Source,
        ahead::Share,
        load::{Claim, Memory, start_disk_load},
    },
};

/// A segment on the way of a run. Holds no manifest: it takes memory, and runs are remembered for long.
#[derive(Clone, Debug)]
pub(super) struct Leg {
    pub(super) key: Key,
    pub(super) segment_id: Uuid,
    pub(super) start_offset: i64,
    pub(super) end_offset: i64,
    pub(super) length: u64,
    pub(super) chunk_size: u64,
    pub(super) chunk_count: u32,
    /// The first chunk that was not asked for.
    pub(super) next: u32,
}

impl Leg {
    pub(super) fn of(source: &Source) -> Self {
        let (segment, chunks) = (source.manifest.segment(), source.manifest.chunks());
        Leg {
            key: source.key.clone(),
            segment_id: segment.segment_id,
            start_offset: segment.start_offset,
            end_offset: segment.end_offset,
            length: chunks.plain_length(),
            chunk_size: chunks.chunk_size().bytes(),
            chunk_count: u32::try_from(chunks.chunks().len()).unwrap_or(u32::MAX),
            next: 0,
        }
    }

    /// The segment, as long as its manifest is cached.
    pub(super) fn source(&self, shared: &Shared) -> Option<Arc<Source>> {
        let manifest = shared.cache.manifest(self.segment_id)?;
        Some(Arc::new(Source {
            key: self.key.clone(),
            manifest: manifest.without_indexes(),
        }))
    }

    /// Whether a segment that begins there can be the next one. A duplicate begins somewhere in this one, and goes further.
    pub(super) fn goes_on_at(&self, start_offset: i64) -> bool {
        start_offset > self.start_offset && start_offset <= self.end_offset.saturating_add(1)
    }

    pub(super) fn is_of(&self, source: &Source) -> bool {
        self.segment_id == source.manifest.segment().segment_id
    }

    pub(super) fn is_done(&self) -> bool {
        self.next >= self.chunk_count
    }

    pub(super) fn next_key(&self) -> EntryKey {
        EntryKey::Chunk(self.segment_id, ChunkIndex(self.next))
    }

    /// Bytes that were asked for from a chunk on.
    pub(super) fn bytes_from(&self, chunk: u32) -> u64 {
        u64::from(self.next.saturating_sub(chunk)) * self.chunk_size
    }
}

/// What was claimed of chunks in a row.
pub(super) struct Claimed {
    pub(super) count: u32,
    /// Those that one request will bring. Those before them are being read from disk.
    pub(super) of_store: VecDeque<Claim>,
}

/// Claims up to `wanted` chunks from `first` on that nobody has or loads; those on disk as far as there are memory and turns for them.
pub(super) fn claim(
    shared: &Arc<Shared>,
    source: &Arc<Source>,
    first: u32,
    wanted: u64,
    run: &Arc<Run>,
    share: Share,
) -> Claimed {
    let chunk_count = source.manifest.chunks().chunks().len() as u64;
    let end = u64::from(first).saturating_add(wanted).min(chunk_count);
    let mut claimed = Claimed {
        count: 0,
        of_store: VecDeque::new(),
    };
    for index in u64::from(first)..end {
        let index = ChunkIndex(u32::try_from(index).unwrap_or(u32::MAX));
        let key = EntryKey::Chunk(source.manifest.segment().segment_id, index);
        let is_on_disk = shared.disk().is_some_and(|disk| disk.contains(&key));
        if is_on_disk && !claimed.of_store.is_empty() {
            break;
        }
        let Some(ticket) = shared.cache.claim_ahead(key) else {
            break;
        };
        let mut claim = Claim { index, ticket };
        if is_on_disk {
            let turn = Memory::needed_bytes(source, index).and_then(|bytes| shared.disk_reads.try_ahead(bytes));
            let Some(turn) = turn else { break };
            let Some(memory) = Memory::ahead(shared, source, index, &mut claim.ticket, run, share) else {
                break;
            };
            start_disk_load(shared, source, claim, memory, turn, run);
        } else {
            claimed.of_store.push_back(claim);
        }
        claimed.count += 1;
    }
    claimed
}
