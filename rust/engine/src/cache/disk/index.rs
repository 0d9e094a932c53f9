//! What is on disk, in memory: which pieces, how long, and which goes first.
//!
//! # Invariants
//! * Every byte of a file is counted from before it is written until after it is removed, in whole blocks.
//! * A piece has at most one thread that writes or removes its file.
//! * A piece begins on probation, and is protected once it is read a second time. The least recently used one on probation goes first,
//!   so what is read once from end to end pushes out only what was read as seldom.
//!
//! # Not here
//! Files: nothing in here blocks.

use std::{collections::BTreeMap, num::NonZeroUsize, sync::Arc};

use alluvium_format::Uuid;
use lru::LruCache;

use super::{header::HEADER_BYTES, metrics::DiskMetrics, piece::Piece};

/// What a file system gives at a time: the block of ext4, XFS and tmpfs.
const BLOCK_BYTES: u64 = 4096;

/// Share of the limit that protected pieces may have; the rest is for those on probation.
const PROTECTED_PERCENT: u64 = 80;

/// Segments taken out that are remembered: what was on its way when they went comes soon after, or not at all.
const GONE_REMEMBERED: NonZeroUsize = NonZeroUsize::new(4096).expect("it is not zero");

/// A point in the order in which segments are taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(u64);

/// What a file with a payload of so many bytes takes on disk.
pub(super) fn cost_of(length: u32) -> u64 {
    (HEADER_BYTES as u64 + u64::from(length)).next_multiple_of(BLOCK_BYTES)
}

/// A piece that is on disk.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    /// Bytes of its payload.
    pub(super) length: u32,
    /// Tells this file from an earlier and a later one of the same piece.
    pub(super) born: u64,
    /// Its place among those of its standing.
    turn: u64,
    standing: Standing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// On probation, not read yet.
    Fresh,
    /// On probation, read once.
    Read,
    Protected,
}

/// What a thread does with the file of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Busy {
    Writing,
    /// Being written, and unwanted by now.
    Revoked,
    Leaving,
}

/// A piece that is no longer to be found, and whose file is to be removed next.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub(super) struct Leaving {
    pub(super) piece: Piece,
    /// Bytes of its payload.
    pub(super) length: u32,
    /// Bytes that are counted for it.
    pub(super) cost: u64,
}

/// What [`Index::reserve`] came to.
#[derive(Debug)]
pub(super) enum Room {
    /// The bytes are counted.
    Reserved,
    /// Once the file of this piece is removed, it is to be asked again.
    AfterRemoving(Leaving),
    /// There is not so much.
    None,
}

/// The index of one cache.
#[derive(Debug)]
pub(super) struct Index {
    capacity: u64,
    entries: BTreeMap<Piece, Held>,
    busy: BTreeMap<Piece, Busy>,
    probation: BTreeMap<u64, Piece>,
    protected: BTreeMap<u64, Piece>,
    protected_bytes: u64,
    /// Bytes of all entries.
    held: u64,
    /// Bytes of all entries, of files being written, and of those not removed yet.
    taken: u64,
    next_turn: u64,
    now: Moment,
    gone: LruCache<Uuid, Moment>,
    metrics: Arc<DiskMetrics>,
}

impl Index {
    pub(super) fn new(capacity: u64, metrics: Arc<DiskMetrics>) -> Self {
        metrics.capacity.set(capacity);
        Index {
            capacity,
            entries: BTreeMap::new(),
            busy: BTreeMap::new(),
            probation: BTreeMap::new(),
            protected: BTreeMap::new(),
            protected_bytes: 0,
            held: 0,
            taken: 0,
            next_turn: 0,
            now: Moment(0),
            gone: LruCache::new(GONE_REMEMBERED),
            metrics,
        }
    }

    pub(super) fn contains(&self, piece: Piece) -> bool {
        self.entries.contains_key(&piece)
    }

    /// Bytes that files take, and those about to be written.
    pub(super) fn bytes(&self) -> u64 {
        self.taken
    }

    pub(super) fn entries(&self) -> u64 {
        self.entries.len() as u64
    }

    /// The piece, if it is here, which counts as a read of it.
    pub(super) fn read(&mut self, piece: Piece) -> Option<Held> {
        let standing = self.entries.get(&piece)?.standing;
        let risen = match standing {
            Standing::Fresh => Standing::Read,
            Standing::Read | Standing::Protected => Standing::Protected,
        };
        self.place(piece, risen);
        // The place of one that has just been protected is made by those that were not read for the longest time.
        while self.protected_bytes > self.capacity / 100 * PROTECTED_PERCENT
            && let Some(oldest) = self.protected.values().next().copied()
        {
            self.place(oldest, Standing::Fresh);
        }
        self.entries.get(&piece).copied()
    }

    /// Begins a write of `piece`, unless it is here or somebody is at its file.
    pub(super) fn begin(&mut self, piece: Piece, since: Moment) -> bool {
        let is_gone = self.gone.peek(&piece.segment_id).is_some_and(|gone| *gone > since);
        if is_gone || self.contains(piece) || self.busy.contains_key(&piece) {
            return false;
        }
        self.busy.insert(piece, Busy::Writing);
        true
    }

    /// Counts bytes that are about to be written, as far as the limit allows.
    pub(super) fn reserve(&mut self, cost: u64) -> Room {
        if self.taken + cost <= self.capacity {
            self.taken += cost;
            self.publish();
            return Room::Reserved;
        }
        // Nothing is evicted for a write that would not fit even then.
        if self.taken.saturating_sub(self.held) + cost > self.capacity {
            return Room::None;
        }
        match self.least_wanted().and_then(|piece| self.take(piece)) {
            Some(leaving) => Room::AfterRemoving(leaving),
            None => Room::None,
        }
    }

    /// Ends the write of a file whose bytes are reserved. False: it is unwanted by now, and is to be removed.
    pub(super) fn commit(&mut self, piece: Piece, length: u32) -> bool {
        if self.busy.get(&piece) != Some(&Busy::Writing) {
            return false;
        }
        self.busy.remove(&piece);
        self.insert(piece, length);
        true
    }

    /// Takes in a file that was found on disk, as the most recent so far, whatever the limit.
    pub(super) fn recover(&mut self, piece: Piece, length: u32) {
        self.taken += cost_of(length);
        self.insert(piece, length);
    }

    /// Of too many files found on disk, the next that has to go.
    pub(super) fn take_surplus(&mut self) -> Option<Leaving> {
        if self.taken <= self.capacity {
            return None;
        }
        self.least_wanted().and_then(|piece| self.take(piece))
    }

    /// Takes a piece out; its bytes stay counted until [`Index::removed`].
    pub(super) fn take(&mut self, piece: Piece) -> Option<Leaving> {
        let held = self.entries.remove(&piece)?;
        self.unplace(held);
        let cost = cost_of(held.length);
        self.held -= cost;
        self.busy.insert(piece, Busy::Leaving);
        self.publish();
        Some(Leaving {
            piece,
            length: held.length,
            cost,
        })
    }

    /// Takes a piece out, if it still is the file of that time.
    pub(super) fn take_same(&mut self, piece: Piece, born: u64) -> Option<Leaving> {
        let is_same = self.entries.get(&piece).is_some_and(|held| held.born == born);
        if is_same { self.take(piece) } else { None }
    }

    /// Now.
    pub(super) fn now(&self) -> Moment {
        self.now
    }

    /// Takes all pieces of a segment out, and keeps those being written from being taken in.
    pub(super) fn take_segment(&mut self, segment_id: Uuid) -> Vec<Leaving> {
        self.now = Moment(self.now.0 + 1);
        self.gone.put(segment_id, self.now);
        let of_segment = Piece {
            segment_id,
            chunk: None,
        }..=Piece {
            segment_id,
            chunk: Some(u32::MAX),
        };
        for (_, busy) in self.busy.range_mut(of_segment.clone()) {
            if *busy == Busy::Writing {
                *busy = Busy::Revoked;
            }
        }
        let pieces: Vec<Piece> = self.entries.range(of_segment).map(|(piece, _)| *piece).collect();
        pieces.into_iter().filter_map(|piece| self.take(piece)).collect()
    }

    /// Takes a piece in again whose file could not be removed; as the most recent one, so that the next time another one goes.
    pub(super) fn put_back(&mut self, leaving: Leaving) {
        self.busy.remove(&leaving.piece);
        self.insert(leaving.piece, leaving.length);
    }

    /// No file of `piece` is there any more, and `cost` bytes are free. True: nor is anything else of its segment.
    pub(super) fn removed(&mut self, piece: Piece, cost: u64) -> bool {
        self.busy.remove(&piece);
        self.taken = self.taken.saturating_sub(cost);
        self.publish();
        let first = Piece { chunk: None, ..piece };
        let next = self.entries.range(first..).next();
        let next_busy = self.busy.range(first..).next();
        next.is_none_or(|(next, _)| next.segment_id != piece.segment_id)
            && next_busy.is_none_or(|(next, _)| next.segment_id != piece.segment_id)
    }

    /// All files are gone.
    pub(super) fn forget_all(&mut self) {
        self.entries.clear();
        self.probation.clear();
        self.protected.clear();
        (self.protected_bytes, self.held, self.taken) = (0, 0, 0);
        self.publish();
    }

    fn insert(&mut self, piece: Piece, length: u32) {
        let held = Held {
            length,
            born: self.next_turn,
            turn: self.next_turn,
            standing: Standing::Fresh,
        };
        self.next_turn += 1;
        self.held += cost_of(length);
        self.probation.insert(held.turn, piece);
        self.entries.insert(piece, held);
        self.publish();
    }

    fn least_wanted(&self) -> Option<Piece> {
        self.probation.values().chain(self.protected.values()).next().copied()
    }

    /// Makes `piece` the most recent of `standing`.
    fn place(&mut self, piece: Piece, standing: Standing) {
        let turn = self.next_turn;
        let Some(held) = self.entries.get_mut(&piece) else {
            return;
        };
        let before = *held;
        (held.turn, held.standing) = (turn, standing);
        self.next_turn += 1;
        self.unplace(before);
        if standing == Standing::Protected {
            self.protected_bytes += cost_of(before.length);
            self.protected.insert(turn, piece);
        } else {
            self.probation.insert(turn, piece);
        }
    }

    fn unplace(&mut self, held: Held) {
        if held.standing == Standing::Protected {
            self.protected_bytes -= cost_of(held.length);
            self.protected.remove(&held.turn);
        } else {
            self.probation.remove(&held.turn);
        }
    }

    fn publish(&self) {
        self.metrics.bytes.set(self.taken);
        self.metrics.entries.set(self.entries());
    }
}
