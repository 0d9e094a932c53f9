//! The cache of verified chunks and manifests, in memory.
//!
//! # Purpose
//! Kafka opens a new stream for about every mebibyte it reads; the cache turns these into one load a chunk.
//!
//! # Flow
//! A lookup is a hit, joins the load under way for the same entry, or starts one ([`Cache::get_or_load`]).
//!
//! # Invariants
//! * An entry is whole and verified, and is found under the segment it belongs to only.
//! * One load an entry at a time; a failed load leaves nothing behind.
//! * A purge also keeps a load that is under way from leaving its result.
//! * Least recently used entries go first: with a frequency filter, a chunk that is read once from end to end in four streams would be
//!   turned away and loaded four times.
//!
//! # Cancel
//! A load belongs to the cache: whoever gives up waiting leaves it running for the next one.
//!
//! # Not here
//! The disk tier and read-ahead; what an entry is loaded from ([`crate::read`]).

use std::{
    collections::{HashMap, hash_map},
    future::Future,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use alluvium_format::{CHUNK_SIZE_MIN, ChunkIndex, Manifest, Uuid, Verified};
use moka::policy::EvictionPolicy;

use crate::{Error, ErrorKind, Result, completion::Completion, metrics::Metrics};

/// What an entry costs beside its bytes: key, value, and the cache's own links; rounded up.
const ENTRY_OVERHEAD_BYTES: usize = 512;

/// How long a corrupt entry is not asked for again.
const CORRUPT_REMEMBERED: Duration = Duration::from_secs(1);

/// Most corrupt entries remembered.
const CORRUPT_ENTRIES_MAX: u64 = 1000;

/// What is cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum EntryKey {
    /// The manifest of a segment, with its indexes.
    Manifest(Uuid),
    /// A chunk of a segment.
    Chunk(Uuid, ChunkIndex),
}

/// A cached value.
#[derive(Clone, Debug)]
pub(crate) enum Entry {
    /// A manifest, and how many bytes its object had.
    Manifest(Arc<Manifest>, usize),
    /// A chunk.
    Chunk(Verified),
}

impl Entry {
    fn weight(&self) -> u32 {
        let bytes = match self {
            Entry::Manifest(_, bytes) => *bytes,
            Entry::Chunk(chunk) => chunk.bytes().len(),
        };
        u32::try_from(bytes + ENTRY_OVERHEAD_BYTES).unwrap_or(u32::MAX)
    }

    /// The manifest in it.
    pub(crate) fn manifest(self) -> Result<Arc<Manifest>> {
        match self {
            Entry::Manifest(manifest, _) => Ok(manifest),
            Entry::Chunk(_) => Err(Error::new(
                ErrorKind::Internal,
                "a chunk is cached in the place of a manifest",
            )),
        }
    }

    /// The chunk in it.
    pub(crate) fn chunk(self) -> Result<Verified> {
        match self {
            Entry::Chunk(chunk) => Ok(chunk),
            Entry::Manifest(..) => Err(Error::new(
                ErrorKind::Internal,
                "a manifest is cached in the place of a chunk",
            )),
        }
    }
}

/// A load under way.
pub(crate) type Load = Arc<Completion<Entry>>;

/// What a lookup found.
pub(crate) enum Lookup {
    /// The entry.
    Hit(Entry),
    /// A load of it.
    Loading(Load),
}

/// The cache of one instance.
#[derive(Debug)]
pub(crate) struct Cache {
    memory: moka::sync::Cache<EntryKey, Entry>,
    loads: Mutex<HashMap<EntryKey, Load>>,
    /// What was found corrupt a moment ago: a consumer asks for it again at once, and each time it would be fetched twice.
    corrupt: moka::sync::Cache<EntryKey, Error>,
    metrics: Arc<Metrics>,
    capacity: u64,
}

impl Cache {
    /// A cache of at most `capacity` bytes.
    pub(crate) fn new(capacity: u64, metrics: Arc<Metrics>) -> Arc<Self> {
        let memory = moka::sync::Cache::builder()
            .max_capacity(capacity)
            .weigher(|_, entry: &Entry| entry.weight())
            .eviction_policy(EvictionPolicy::lru())
            .build();
        let corrupt = moka::sync::Cache::builder()
            .max_capacity(CORRUPT_ENTRIES_MAX)
            .time_to_live(CORRUPT_REMEMBERED)
            .build();
        Arc::new(Cache {
            corrupt,
            memory,
            loads: Mutex::new(HashMap::new()),
            metrics,
            capacity,
        })
    }

    /// Looks `key` up. On a miss nobody is loading, `start` is given the future that loads it and must run it to its end.
    pub(crate) fn get_or_load<Work>(
        self: &Arc<Self>,
        key: EntryKey,
        work: impl FnOnce() -> Work,
        start: impl FnOnce(std::pin::Pin<Box<dyn Future<Output = ()> + Send>>),
    ) -> Lookup
    where
        Work: Future<Output = Result<Entry>> + Send + 'static,
    {
        if let Some(entry) = self.memory.get(&key) {
            self.metrics.cache_hits.add(1);
            return Lookup::Hit(entry);
        }
        let mut loads = self.lock();
        if let Some(load) = loads.get(&key) {
            // Joined: no request of its own, so it counts as a hit.
            self.metrics.cache_hits.add(1);
            return Lookup::Loading(Arc::clone(load));
        }
        // A load may have ended between the first look and the lock.
        if let Some(entry) = self.memory.get(&key) {
            self.metrics.cache_hits.add(1);
            return Lookup::Hit(entry);
        }
        if let Some(error) = self.corrupt.get(&key) {
            return Lookup::Loading(Completion::done(Err(error)));
        }
        self.metrics.cache_misses.add(1);
        let (load, filled) = Completion::of(work());
        loads.insert(key, Arc::clone(&load));
        drop(loads);
        let registered = Registered {
            cache: Arc::clone(self),
            key,
            load: Arc::clone(&load),
        };
        start(Box::pin(async move {
            filled.await;
            drop(registered);
        }));
        Lookup::Loading(load)
    }

    /// A manifest that is here, without a load.
    pub(crate) fn manifest(&self, segment_id: Uuid) -> Option<Arc<Manifest>> {
        match self.memory.get(&EntryKey::Manifest(segment_id)) {
            Some(Entry::Manifest(manifest, _)) => {
                self.metrics.cache_hits.add(1);
                Some(manifest)
            }
            _ => None,
        }
    }

    /// Drops all of a segment; `segment_size` bounds how many chunks it can have.
    pub(crate) fn purge(&self, segment_id: Uuid, segment_size: u64) {
        let manifest_key = EntryKey::Manifest(segment_id);
        let chunks = match self.memory.get(&manifest_key) {
            Some(Entry::Manifest(manifest, _)) => manifest.chunks().chunks().len() as u64,
            _ => segment_size.div_ceil(u64::from(CHUNK_SIZE_MIN)),
        };
        // Loads first: one that ends later finds itself unregistered and leaves nothing.
        self.lock().retain(|key, _| match key {
            EntryKey::Manifest(id) | EntryKey::Chunk(id, _) => *id != segment_id,
        });
        self.memory.invalidate(&manifest_key);
        self.corrupt.invalidate_all();
        for index in 0..u32::try_from(chunks).unwrap_or(u32::MAX) {
            self.memory.invalidate(&EntryKey::Chunk(segment_id, ChunkIndex(index)));
        }
        self.enforce_limit();
    }

    /// Evicts at once what is over the limit, which would otherwise wait for many more writes.
    fn enforce_limit(&self) {
        self.memory.run_pending_tasks();
    }

    /// Loads under way.
    pub(crate) fn loads_running(&self) -> u64 {
        self.lock().len() as u64
    }

    /// Bytes held, as far as the cache's housekeeping has come.
    pub(crate) fn bytes(&self) -> u64 {
        self.memory.weighted_size()
    }

    /// Entries held.
    pub(crate) fn entries(&self) -> u64 {
        self.memory.entry_count()
    }

    /// Most bytes that may be held.
    pub(crate) fn capacity(&self) -> u64 {
        self.capacity
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<EntryKey, Load>> {
        // Every change of the map is one call, so a panic elsewhere leaves it whole.
        self.loads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A load's place in the map; leaves it when the load is over, however it ends.
struct Registered {
    cache: Arc<Cache>,
    key: EntryKey,
    load: Load,
}

impl Drop for Registered {
    fn drop(&mut self) {
        let result = self.load.peek();
        if let Some(Err(error)) = &result {
            self.cache.metrics.cache_load_failures.add(1);
            if error.kind() == ErrorKind::Corrupt {
                self.cache.corrupt.insert(self.key, error.clone());
            }
        }
        let mut loads = self.cache.lock();
        // After a purge the place may be gone, or be that of a later load.
        if let hash_map::Entry::Occupied(place) = loads.entry(self.key)
            && Arc::ptr_eq(place.get(), &self.load)
        {
            if let Some(Ok(entry)) = result {
                self.cache.memory.insert(self.key, entry);
                self.cache.enforce_limit();
            }
            place.remove();
        }
    }
}

#[cfg(test)]
mod tests;
