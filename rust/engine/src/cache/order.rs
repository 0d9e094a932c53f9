//! Which entry goes next.
//!
//! # Purpose
//! Chunks are in one of three lists: loaded ahead and not used yet, in the order of loading; used once, and used again, in the order of use. A
//! consumer that reads a segment from end to end leaves all of it behind as used once, so it cannot push out what others come back to. What the
//! last of several has passed goes first, since by its use it would go last. What was loaded ahead stays for a reader who is on his way, however
//! long that is. Manifests are in a list of their own.
//!
//! # Invariants
//! * Those used again take at most half of the limit; the least recently used of them are then counted as used once.
//! * A chunk is used again when it is asked for later and not behind the last place: Kafka opens a stream for about every mebibyte, so each
//!   chunk is asked for several times on the way of one consumer, soon and at growing places, and now and then at a batch before the last.
//!
//! # Not here
//! Locks, limits of memory, loads.

use std::time::Duration;

use alluvium_format::Uuid;
use lru::LruCache;
use tokio::time::Instant;

use super::{Entry, EntryKey, Stocked};

/// What was loaded ahead goes first when no reader was there for it for so long.
const AHEAD_KEPT: Duration = Duration::from_secs(10);

/// How often it is looked for.
const LOOK_FOR_FORGOTTEN: Duration = Duration::from_millis(100);

/// The part of the limit within which manifests go last: each is small, and each chunk that is missed needs one.
const MANIFESTS_KEPT: u64 = 8;

/// Within so long a time, one consumer on his way can ask for the same place twice.
const SAME_USE: Duration = Duration::from_secs(1);

/// The lists.
#[derive(Debug)]
pub(super) struct Order {
    ahead: List,
    once: List,
    again: List,
    manifests: List,
    again_max: u64,
    manifests_kept: u64,
    /// When nothing was found that nobody comes for.
    none_forgotten: Option<Instant>,
}

#[derive(Debug)]
struct List {
    slots: LruCache<EntryKey, Slot>,
    bytes: u64,
}

#[derive(Debug)]
struct Slot {
    entry: Entry,
    bytes: u64,
    /// Since when it is in its list, or last used in it.
    since: Instant,
    /// Where in the segment it was last asked for.
    place: u64,
    /// In the list of those loaded ahead: whose it is.
    stocked: Option<Stocked>,
}

/// How an entry is used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Use {
    /// The place in the segment from which on it is read.
    pub(crate) place: u64,
    /// Whether by somebody who follows others through the segment, which says nothing of its being used again.
    pub(crate) follows: bool,
}

impl From<u64> for Use {
    fn from(place: u64) -> Self {
        Use { place, follows: false }
    }
}

/// How an entry comes in.
#[derive(Debug)]
pub(super) enum Taken {
    /// Used at this place.
    At(u64),
    /// Loaded ahead.
    Ahead(Option<Stocked>),
}

impl List {
    fn new() -> Self {
        List {
            slots: LruCache::unbounded(),
            bytes: 0,
        }
    }

    fn put(&mut self, key: EntryKey, slot: Slot) -> Option<Slot> {
        self.bytes += slot.bytes;
        let replaced = self.slots.put(key, slot);
        self.bytes -= replaced.as_ref().map_or(0, |slot| slot.bytes);
        replaced
    }

    fn pop(&mut self, key: &EntryKey) -> Option<Slot> {
        let slot = self.slots.pop(key)?;
        self.bytes -= slot.bytes;
        Some(slot)
    }

    fn pop_oldest(&mut self) -> Option<(EntryKey, Slot)> {
        let (key, slot) = self.slots.pop_lru()?;
        self.bytes -= slot.bytes;
        Some((key, slot))
    }

    /// When the oldest came, or was last used.
    fn oldest(&self) -> Option<Instant> {
        self.slots.peek_lru().map(|(_, slot)| slot.since)
    }

    fn pop_newest(&mut self) -> Option<(EntryKey, Slot)> {
        let (key, slot) = self.slots.pop_mru()?;
        self.bytes -= slot.bytes;
        Some((key, slot))
    }
}

impl Slot {
    /// Whether it was loaded ahead for a reader who has not come for long.
    fn is_forgotten(&self) -> bool {
        let rested = self.stocked.as_ref().map(Stocked::rested);
        self.since.elapsed().min(rested.unwrap_or(Duration::MAX)) > AHEAD_KEPT
    }
}

impl Order {
    /// Lists for so many bytes.
    pub(super) fn new(limit: u64) -> Self {
        Order {
            ahead: List::new(),
            once: List::new(),
            again: List::new(),
            manifests: List::new(),
            again_max: limit / 2,
            manifests_kept: limit / MANIFESTS_KEPT,
            none_forgotten: None,
        }
    }

    /// Takes an entry in. What it replaces is given back.
    pub(super) fn insert(&mut self, key: EntryKey, entry: Entry, bytes: u64, taken: Taken) -> Option<Evicted> {
        let replaced = self.remove(&key);
        let (list, place, stocked) = match (&entry, taken) {
            (Entry::Manifest(_), _) => (&mut self.manifests, 0, None),
            (Entry::Chunk(..), Taken::At(place)) => (&mut self.once, place, None),
            (Entry::Chunk(..), Taken::Ahead(stocked)) => (&mut self.ahead, 0, stocked),
        };
        let slot = Slot {
            entry,
            bytes,
            since: Instant::now(),
            place,
            stocked,
        };
        list.put(key, slot);
        replaced
    }

    /// An entry that is used so.
    pub(super) fn get(&mut self, key: &EntryKey, Use { place, follows }: Use) -> Option<Entry> {
        if let EntryKey::Manifest(_) = key {
            let slot = self.manifests.slots.get_mut(key)?;
            slot.since = Instant::now();
            return Some(slot.entry.clone());
        }
        if let Some(slot) = self.again.slots.get_mut(key) {
            slot.place = place;
            return Some(slot.entry.clone());
        }
        if let Some(slot) = self.once.slots.get_mut(key) {
            let is_again = place <= slot.place && slot.since.elapsed() >= SAME_USE && !follows;
            slot.place = place;
            slot.since = Instant::now();
            let entry = slot.entry.clone();
            if is_again {
                self.promote(key);
            }
            return Some(entry);
        }
        let mut slot = self.ahead.pop(key)?;
        slot.place = place;
        slot.since = Instant::now();
        slot.stocked = None;
        let entry = slot.entry.clone();
        self.once.put(*key, slot);
        Some(entry)
    }

    fn promote(&mut self, key: &EntryKey) {
        if let Some(slot) = self.once.pop(key) {
            self.again.put(*key, slot);
        }
        while self.again.bytes > self.again_max
            && let Some((key, slot)) = self.again.pop_oldest()
        {
            self.once.put(key, slot);
        }
    }

    /// Lets an entry that was used once go first.
    pub(super) fn demote(&mut self, key: &EntryKey) {
        self.once.slots.demote(key);
    }

    /// Whether it is there; that is no use of it.
    pub(super) fn contains(&self, key: &EntryKey) -> bool {
        self.lists().iter().any(|list| list.slots.contains(key))
    }

    /// Takes an entry out.
    pub(super) fn remove(&mut self, key: &EntryKey) -> Option<Evicted> {
        let unused = self.ahead.slots.contains(key);
        let slot = self
            .ahead
            .pop(key)
            .or_else(|| self.once.pop(key))
            .or_else(|| self.again.pop(key))
            .or_else(|| self.manifests.pop(key))?;
        Some(Evicted::of((*key, slot), unused))
    }

    /// Takes all entries of a segment out.
    pub(super) fn remove_segment(&mut self, segment_id: Uuid, removed: &mut Vec<Evicted>) {
        let lists = self.lists();
        let keys: Vec<EntryKey> = lists
            .iter()
            .flat_map(|list| list.slots.iter())
            .map(|(key, _)| *key)
            .filter(|key| key.segment_id() == segment_id)
            .collect();
        removed.extend(keys.iter().filter_map(|key| self.remove(key)));
    }

    /// Takes out what goes next, for something that a reader waits for.
    pub(super) fn evict(&mut self) -> Option<Evicted> {
        self.evict_lightly()
            .or_else(|| self.again.pop_oldest().map(|slot| Evicted::of(slot, false)))
            // The newest is the furthest ahead.
            .or_else(|| self.ahead.pop_newest().map(|slot| Evicted::of(slot, true)))
            .or_else(|| self.manifests.pop_oldest().map(|slot| Evicted::of(slot, false)))
    }

    /// The same for something that nobody waits for: neither what is used again goes for it, nor what another reader is about to use.
    pub(super) fn evict_lightly(&mut self) -> Option<Evicted> {
        self.evict_forgotten().or_else(|| {
            let list = if self.manifest_is_next() {
                &mut self.manifests
            } else {
                &mut self.once
            };
            list.pop_oldest().map(|slot| Evicted::of(slot, false))
        })
    }

    /// Whether a manifest goes before what was used once: beyond what is kept of them, the oldest of both is next.
    fn manifest_is_next(&self) -> bool {
        let chunk_is_older = match (self.once.oldest(), self.manifests.oldest()) {
            (Some(chunk), Some(manifest)) => chunk < manifest,
            _ => false,
        };
        self.manifests.bytes > self.manifests_kept && !chunk_is_older
    }

    /// Takes out what was loaded ahead for a reader who has not come for long.
    pub(super) fn evict_forgotten(&mut self) -> Option<Evicted> {
        if self
            .none_forgotten
            .is_some_and(|looked| looked.elapsed() < LOOK_FOR_FORGOTTEN)
        {
            return None;
        }
        let mut oldest_first = self.ahead.slots.iter().rev();
        let forgotten = oldest_first.find(|(_, slot)| slot.is_forgotten()).map(|(key, _)| *key);
        self.none_forgotten = forgotten.is_none().then(Instant::now);
        let key = forgotten?;
        self.ahead.pop(&key).map(|slot| Evicted::of((key, slot), true))
    }

    /// Bytes of all entries.
    pub(super) fn bytes(&self) -> u64 {
        self.lists().iter().map(|list| list.bytes).sum()
    }

    /// Bytes that only a reader who waits can have.
    pub(super) fn kept_bytes(&self) -> u64 {
        self.again.bytes + self.manifests.bytes.min(self.manifests_kept)
    }

    /// Number of entries.
    pub(super) fn entries(&self) -> usize {
        self.lists().iter().map(|list| list.slots.len()).sum()
    }

    fn lists(&self) -> [&List; 4] {
        [&self.ahead, &self.once, &self.again, &self.manifests]
    }
}

/// What had to go.
#[derive(Debug)]
pub(super) struct Evicted {
    /// Dropping it may free megabytes: not under a lock.
    pub(super) _entry: Entry,
    /// Whether nobody has used it.
    pub(super) unused: bool,
}

impl Evicted {
    fn of((_, slot): (EntryKey, Slot), unused: bool) -> Self {
        Evicted {
            _entry: slot.entry,
            unused,
        }
    }
}
