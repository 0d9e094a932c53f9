//! Which entry goes next.
//!
//! # Purpose
//! Entries are in one of three lists: loaded ahead and not used yet, in the order of loading; used once, and used again, in the order of use. A
//! consumer that reads a segment from end to end leaves all of it behind as used once, so it cannot push out what others come back to. What the
//! last of several has passed goes first, since by its use it would go last.
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

/// How long something that was loaded ahead waits for its reader before it goes first.
const AHEAD_KEPT: Duration = Duration::from_secs(10);

/// Within so long a time, one consumer on his way can ask for the same place twice.
const SAME_USE: Duration = Duration::from_secs(1);

/// The lists.
#[derive(Debug)]
pub(super) struct Order {
    ahead: List,
    once: List,
    again: List,
    again_max: u64,
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
}

impl Order {
    /// Lists for so many bytes.
    pub(super) fn new(limit: u64) -> Self {
        Order {
            ahead: List::new(),
            once: List::new(),
            again: List::new(),
            again_max: limit / 2,
        }
    }

    /// Takes an entry in. What it replaces is given back.
    pub(super) fn insert(&mut self, key: EntryKey, entry: Entry, bytes: u64, taken: Taken) -> Option<Evicted> {
        let replaced = self.remove(&key);
        let (list, place, stocked) = match taken {
            Taken::At(place) => (&mut self.once, place, None),
            Taken::Ahead(stocked) => (&mut self.ahead, 0, stocked),
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
        [&self.ahead, &self.once, &self.again]
            .iter()
            .any(|list| list.slots.contains(key))
    }

    /// Takes an entry out.
    pub(super) fn remove(&mut self, key: &EntryKey) -> Option<Evicted> {
        let unused = self.ahead.slots.contains(key);
        let slot = self
            .ahead
            .pop(key)
            .or_else(|| self.once.pop(key))
            .or_else(|| self.again.pop(key))?;
        Some(Evicted::of((*key, slot), unused))
    }

    /// Takes all entries of a segment out.
    pub(super) fn remove_segment(&mut self, segment_id: Uuid, removed: &mut Vec<Evicted>) {
        let lists = [&self.ahead, &self.once, &self.again];
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
            .or_else(|| self.ahead.pop_oldest().map(|slot| Evicted::of(slot, true)))
    }

    /// The same for something that nobody waits for: neither what is used again goes for it, nor what another reader is about to use.
    pub(super) fn evict_lightly(&mut self) -> Option<Evicted> {
        self.evict_forgotten()
            .or_else(|| self.once.pop_oldest().map(|slot| Evicted::of(slot, false)))
    }

    /// Takes out what was loaded ahead long ago.
    pub(super) fn evict_forgotten(&mut self) -> Option<Evicted> {
        let (_, oldest) = self.ahead.slots.peek_lru()?;
        if oldest.since.elapsed() <= AHEAD_KEPT {
            return None;
        }
        self.ahead.pop_oldest().map(|slot| Evicted::of(slot, true))
    }

    /// Bytes of all entries.
    pub(super) fn bytes(&self) -> u64 {
        self.ahead.bytes + self.once.bytes + self.again.bytes
    }

    /// Bytes that only a reader who waits can have.
    pub(super) fn kept_bytes(&self) -> u64 {
        self.again.bytes
    }

    /// Number of entries.
    pub(super) fn entries(&self) -> usize {
        self.ahead.slots.len() + self.once.slots.len() + self.again.slots.len()
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
