//! The cache of verified chunks and manifests in memory, with all memory of the read path; behind it, [`disk`] keeps stored bytes.
//!
//! # Purpose
//! Kafka opens a new stream for about every mebibyte it reads; the cache turns these into one load a chunk.
//!
//! # Flow
//! A lookup is a hit, joins the load under way for the same entry, or becomes the one who must load it and holds its [`Ticket`]. Who loads reserves
//! memory here first; what is evicted makes room for it, in the order of [`order`].
//!
//! # Invariants
//! * Entries, loads and what readers still hold of evicted entries are together within one budget: bytes come back when the last of them
//!   is dropped.
//! * An entry is whole and verified, and is found under the segment it belongs to only.
//! * One load an entry at a time; a failed load leaves nothing behind.
//! * A purge also keeps a load that is under way from leaving its result.
//! * Reading ahead never takes memory that somebody waits for.
//!
//! # Cancel
//! A load belongs to the cache: whoever gives up waiting leaves it running for the next one.
//!
//! # Not here
//! What an entry is loaded from, and when something is loaded ahead ([`crate::read`]).

mod disk;
mod entry;
mod order;
mod stock;
mod ticket;

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use alluvium_format::{Manifest, Uuid};
use tokio::{
    sync::{Notify, futures::Notified},
    time::Instant,
};

use crate::{
    Error, Result,
    budget::{Budget, BufferPool, PooledBuffer, Reservation},
    completion::Completion,
    metrics::Metrics,
};
pub(crate) use disk::{DiskCache, DiskMetrics, Moment};
pub(crate) use entry::{CachedManifest, Entry, EntryKey, Load, Lookup};
pub(crate) use order::Use;
use order::{Evicted, Order, Taken};
pub(crate) use stock::{Stock, Stocked};
pub(crate) use ticket::Ticket;

/// How long a corrupt entry is not asked for again.
const CORRUPT_REMEMBERED: Duration = Duration::from_secs(1);

/// Most corrupt entries remembered.
const CORRUPT_ENTRIES_MAX: usize = 1000;

/// How often a load that waits for memory looks again for what can go.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Whoever can be asked to let go of an entry that he holds and does not use.
pub(crate) trait Holder: Send + Sync + std::fmt::Debug {
    /// Lets go of it, unless it is in use.
    fn let_go(&self);
}

/// The cache of one instance.
#[derive(Debug)]
pub(crate) struct Cache {
    state: Mutex<State>,
    memory: Arc<BufferPool>,
    /// Most bytes of entries.
    capacity: u64,
    /// Loads that wait for memory.
    waiting: AtomicU64,
    /// What is loaded ahead for all.
    stock: Arc<Stock>,
    /// That something was used, has gone, or is waited for now: who waits to load ahead looks again.
    changed: Arc<Notify>,
    holders: Mutex<Vec<Weak<dyn Holder>>>,
    metrics: Arc<Metrics>,
}

#[derive(Debug)]
struct State {
    order: Order,
    loads: HashMap<EntryKey, Loading>,
    /// What was found corrupt a moment ago: a consumer asks for it again at once, and each time it would be fetched twice.
    corrupt: HashMap<EntryKey, (Instant, Error)>,
}

#[derive(Debug)]
struct Loading {
    load: Load,
    /// Where the first who wants it will read it; `None`: nobody does yet.
    place: Option<u64>,
}

impl Cache {
    /// A cache of at most `capacity` bytes, in a memory of `total` bytes for entries, loads and readers.
    pub(crate) fn new(capacity: u64, total: u64, metrics: Arc<Metrics>) -> Arc<Self> {
        let memory = BufferPool::new(Arc::new(Budget::new(total)));
        Arc::new(Cache {
            state: Mutex::new(State {
                order: Order::new(capacity),
                loads: HashMap::new(),
                corrupt: HashMap::new(),
            }),
            memory,
            capacity,
            waiting: AtomicU64::new(0),
            stock: Stock::new(),
            changed: Arc::default(),
            holders: Mutex::default(),
            metrics,
        })
    }

    /// Looks `key` up for somebody who uses it so.
    pub(crate) fn look_up(self: &Arc<Self>, key: EntryKey, used: impl Into<Use>) -> Lookup {
        let used = used.into();
        let place = used.place;
        let mut state = self.lock();
        if let Some(entry) = state.order.get(&key, used) {
            self.metrics.cache_hits.add(1);
            return Lookup::Hit(entry);
        }
        if let Some(loading) = state.loads.get_mut(&key) {
            // Joined: no request of its own, so it counts as a hit.
            self.metrics.cache_hits.add(1);
            if loading.place.is_none() {
                loading.place = Some(place);
                self.changed.notify_waiters();
            }
            return Lookup::Loading(loading.load.clone());
        }
        if let Some(error) = state.known_corrupt(&key) {
            return Lookup::Loading(Load::of(Completion::done(Err(error)), false));
        }
        self.metrics.cache_misses.add(1);
        let ticket = self.register(&mut state, key, Some(place));
        let load = ticket.load.clone();
        Lookup::Missing(ticket, load)
    }

    /// Becomes the one who loads `key` ahead, unless it is here, under way, or known to be corrupt.
    pub(crate) fn claim_ahead(self: &Arc<Self>, key: EntryKey) -> Option<Ticket> {
        let mut state = self.lock();
        let is_here = state.order.contains(&key) || state.loads.contains_key(&key);
        if is_here || state.known_corrupt(&key).is_some() {
            return None;
        }
        Some(self.register(&mut state, key, None))
    }

    fn register(self: &Arc<Self>, state: &mut State, key: EntryKey, place: Option<u64>) -> Ticket {
        let load = Load::of(Completion::running(), place.is_none());
        let loading = Loading {
            load: load.clone(),
            place,
        };
        state.loads.insert(key, loading);
        Ticket {
            cache: Arc::clone(self),
            key,
            load,
            stocked: None,
        }
    }

    /// Notes that the last of its readers has passed a chunk.
    pub(crate) fn passed(&self, key: &EntryKey) {
        self.lock().order.demote(key);
    }

    /// Whether it is here or under way.
    pub(crate) fn has(&self, key: &EntryKey) -> bool {
        let state = self.lock();
        state.order.contains(key) || state.loads.contains_key(key)
    }

    /// A manifest that is here, without a load. Not counted: what follows a reader looks it up again and again.
    pub(crate) fn manifest(&self, segment_id: Uuid) -> Option<Arc<CachedManifest>> {
        match self.lock().order.get(&EntryKey::Manifest(segment_id), Use::from(0)) {
            Some(Entry::Manifest(manifest)) => Some(manifest),
            _ => None,
        }
    }

    /// Keeps a manifest that somebody has at hand, if there is room for it.
    pub(crate) fn keep(&self, manifest: Manifest) {
        let key = EntryKey::Manifest(manifest.segment().segment_id);
        let bytes = manifest.memory_bytes();
        let Some(reservation) = self.try_reserve_idle(bytes) else {
            return;
        };
        self.memory.fit();
        let entry = Entry::Manifest(CachedManifest::new(manifest, reservation));
        let dropped = {
            let mut state = self.lock();
            // A load under way may be of what was there before.
            state.loads.remove(&key);
            // As what is loaded ahead, it pushes nothing out that is used again.
            self.insert(&mut state, key, entry, Taken::Ahead(None))
        };
        drop(dropped);
    }

    /// Takes a load's place away, so that the next who asks begins another one.
    pub(crate) fn give_up(&self, key: &EntryKey, load: &Load) {
        let mut state = self.lock();
        let is_it = |loading: &Loading| Arc::ptr_eq(&loading.load.completion, &load.completion);
        if state.loads.get(key).is_some_and(is_it) {
            state.loads.remove(key);
        }
    }

    /// Drops all of a segment.
    pub(crate) fn purge(&self, segment_id: Uuid) {
        let mut dropped = Vec::new();
        {
            let mut state = self.lock();
            // Loads as well: one that ends later finds itself unregistered and leaves nothing.
            state.loads.retain(|key, _| key.segment_id() != segment_id);
            state.corrupt.retain(|key, _| key.segment_id() != segment_id);
            state.order.remove_segment(segment_id, &mut dropped);
        }
        drop(dropped);
    }

    /// Waits for memory; entries make room for it, and readers who hold one without using it.
    ///
    /// # Cancel safety
    /// Dropping it takes nothing.
    ///
    /// # Errors
    /// As [`Budget::reserve`].
    pub(crate) async fn reserve(&self, bytes: u64) -> Result<Reservation> {
        if let Some(reservation) = self.try_reserve_wanted(bytes) {
            return Ok(reservation);
        }
        let _waiting = Waiting::new(&self.waiting);
        let reserving = self.memory.budget().reserve(bytes);
        tokio::pin!(reserving);
        loop {
            if let Ok(outcome) = tokio::time::timeout(LOOK_AGAIN, reserving.as_mut()).await {
                return outcome;
            }
            self.evict_one(Order::evict);
            self.let_go();
        }
    }

    /// The same for memory that is no buffer of this one's.
    ///
    /// # Errors
    /// As [`Cache::reserve`].
    pub(crate) async fn reserve_apart(&self, bytes: u64) -> Result<Reservation> {
        let reservation = self.reserve(bytes).await?;
        self.memory.fit();
        Ok(reservation)
    }

    /// Takes memory for something that somebody waits for, if it can be had at once.
    pub(crate) fn try_reserve_wanted(&self, bytes: u64) -> Option<Reservation> {
        self.try_reserve(bytes, Order::evict)
    }

    /// Takes memory for something that nobody waits for, if there is any: as a part of `stock`, which may have `own_max` bytes, and of all that is
    /// loaded ahead, which may have `all_max`.
    pub(crate) fn try_reserve_ahead(
        &self,
        bytes: u64,
        stock: &Arc<Stock>,
        (own_max, all_max): (u64, u64),
    ) -> Option<(Reservation, Stocked)> {
        loop {
            let all = (&self.stock, all_max);
            if let Some(stocked) = Stocked::new((stock, own_max), all, bytes, &self.changed) {
                return match self.try_reserve(bytes, Order::evict_lightly) {
                    Some(reservation) => Some((reservation, stocked)),
                    None => {
                        stocked.withdraw();
                        None
                    }
                };
            }
            if !self.evict_one(Order::evict_forgotten) {
                return None;
            }
        }
    }

    /// Takes memory for something that nobody waits for or comes back to soon, if there is any.
    pub(crate) fn try_reserve_idle(&self, bytes: u64) -> Option<Reservation> {
        self.try_reserve(bytes, Order::evict_lightly)
    }

    fn try_reserve(&self, bytes: u64, choose: fn(&mut Order) -> Option<Evicted>) -> Option<Reservation> {
        loop {
            // What is evicted is for those who wait.
            if self.waiting.load(Ordering::Relaxed) > 0 {
                return None;
            }
            if let Some(reservation) = self.memory.budget().try_reserve(bytes) {
                return Some(reservation);
            }
            if !self.evict_one(choose) {
                return None;
            }
        }
    }

    /// Ends when there may be memory for something to be loaded ahead, or somebody waits for it.
    pub(crate) fn changed(&self) -> Notified<'_> {
        self.changed.notified()
    }

    /// A buffer for what `reservation` covers.
    ///
    /// # Errors
    /// As [`BufferPool::take`].
    pub(crate) fn buffer(&self, bytes: usize, reservation: Reservation) -> Result<PooledBuffer> {
        self.memory.take(bytes, reservation)
    }

    /// Most bytes that can be loaded ahead at a time: what is used again stays, and so does a part for what readers wait for and have just read.
    pub(crate) fn ahead_max(&self) -> u64 {
        let kept = self.lock().order.kept_bytes();
        let most = self.capacity.min(self.memory.budget().total());
        (most - most / 16).saturating_sub(kept)
    }

    /// Asks `holder` from now on to let go when memory is short.
    pub(crate) fn watch(&self, holder: Weak<dyn Holder>) {
        let mut holders = lock(&self.holders);
        // Those that are gone are removed when they are half of all.
        if holders.len() == holders.capacity() {
            holders.retain(|holder| holder.strong_count() > 0);
            let living = holders.len();
            holders.reserve(living.max(16));
        }
        holders.push(holder);
    }

    fn let_go(&self) {
        let holders: Vec<Arc<dyn Holder>> = lock(&self.holders).iter().filter_map(Weak::upgrade).collect();
        for holder in holders {
            holder.let_go();
        }
    }

    /// Whether there was one.
    fn evict_one(&self, choose: impl FnOnce(&mut Order) -> Option<Evicted>) -> bool {
        let evicted = choose(&mut self.lock().order);
        self.count_evicted(evicted.as_slice());
        evicted.is_some()
    }

    fn count_evicted(&self, evicted: &[Evicted]) {
        self.metrics.cache_evictions.add(evicted.len() as u64);
        let unused = evicted.iter().filter(|evicted| evicted.unused).count();
        self.metrics.cache_unused_evictions.add(unused as u64);
    }

    /// Takes an entry in; what had to go for it is to be dropped after the lock.
    fn insert(&self, state: &mut State, key: EntryKey, entry: Entry, taken: Taken) -> Vec<Evicted> {
        let (bytes, is_used) = (entry.bytes(), matches!(taken, Taken::At(_)));
        let mut evicted = Vec::new();
        if bytes <= self.capacity {
            // What was loaded ahead takes no more than what a load ahead may.
            let choose = if is_used { Order::evict } else { Order::evict_lightly };
            evicted.extend(state.order.insert(key, entry, bytes, taken));
            while state.order.bytes() > self.capacity {
                match choose(&mut state.order).or_else(|| state.order.remove(&key)) {
                    Some(next) => evicted.push(next),
                    None => break,
                }
            }
        }
        self.count_evicted(&evicted);
        if is_used {
            // It can be evicted for something that is loaded ahead.
            self.changed.notify_waiters();
        }
        evicted
    }

    /// Frees memory that is kept only to be used again.
    pub(crate) fn free_idle_memory(&self) {
        self.memory.clear();
    }

    /// Lets go of everything.
    pub(crate) fn close(&self) {
        let state = {
            let mut state = self.lock();
            state.loads.clear();
            std::mem::replace(&mut state.order, Order::new(0))
        };
        drop(state);
        self.memory.clear();
    }

    /// Loads under way.
    pub(crate) fn loads_running(&self) -> u64 {
        self.lock().loads.len() as u64
    }

    /// Bytes of entries.
    pub(crate) fn bytes(&self) -> u64 {
        self.lock().order.bytes()
    }

    /// Bytes loaded ahead, or being loaded, that nobody has used.
    pub(crate) fn ahead_bytes(&self) -> u64 {
        self.stock.bytes()
    }

    /// Number of entries.
    pub(crate) fn entries(&self) -> u64 {
        self.lock().order.entries() as u64
    }

    /// Most bytes of entries.
    pub(crate) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Bytes that are reserved and not those of entries: of loads, and of what readers hold besides.
    pub(crate) fn load_bytes(&self) -> u64 {
        let entries = self.bytes();
        self.memory.budget().in_use().saturating_sub(entries)
    }

    /// Most bytes of entries, loads and readers together.
    pub(crate) fn memory_bytes_max(&self) -> u64 {
        self.memory.budget().total()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl State {
    fn known_corrupt(&mut self, key: &EntryKey) -> Option<Error> {
        let (since, error) = self.corrupt.get(key)?;
        if since.elapsed() < CORRUPT_REMEMBERED {
            return Some(error.clone());
        }
        self.corrupt.remove(key);
        None
    }

    fn remember_corrupt(&mut self, key: EntryKey, error: &Error) {
        if self.corrupt.len() >= CORRUPT_ENTRIES_MAX {
            self.corrupt
                .retain(|_, (since, _)| since.elapsed() < CORRUPT_REMEMBERED);
        }
        if self.corrupt.len() < CORRUPT_ENTRIES_MAX {
            self.corrupt.insert(key, (Instant::now(), error.clone()));
        }
    }
}

/// Counts a load that waits.
struct Waiting<'cache>(&'cache AtomicU64);

impl<'cache> Waiting<'cache> {
    fn new(count: &'cache AtomicU64) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Waiting(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every change under a lock is a few calls that do not panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
