//! What is cached.

use std::{
    ops::Deref,
    sync::{Arc, Mutex},
    time::Duration,
};

use alluvium_format::{ChunkIndex, Manifest, Uuid, Verified};
use tokio::time::Instant;

use super::{Ticket, lock};
use crate::{Error, ErrorKind, Result, budget::Reservation, completion::Completion};

/// Bytes that have come within so long a time say that more will.
const ARRIVED_LATELY: Duration = Duration::from_secs(5);

/// What is cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum EntryKey {
    /// The manifest of a segment, with its indexes.
    Manifest(Uuid),
    /// A chunk of a segment.
    Chunk(Uuid, ChunkIndex),
}

impl EntryKey {
    pub(super) fn segment_id(self) -> Uuid {
        match self {
            EntryKey::Manifest(segment_id) | EntryKey::Chunk(segment_id, _) => segment_id,
        }
    }
}

/// A manifest, and the memory it takes.
#[derive(Debug)]
pub(crate) struct CachedManifest {
    manifest: Manifest,
    /// What streams hold: they are there for long, and its few kilobytes are not counted.
    without_indexes: Arc<Manifest>,
    reservation: Reservation,
}

impl CachedManifest {
    /// A manifest whose bytes `reservation` covers.
    pub(crate) fn new(manifest: Manifest, reservation: Reservation) -> Arc<Self> {
        Arc::new(CachedManifest {
            without_indexes: Arc::new(manifest.without_indexes()),
            manifest,
            reservation,
        })
    }
}

impl CachedManifest {
    /// The manifest without its indexes.
    pub(crate) fn without_indexes(&self) -> Arc<Manifest> {
        Arc::clone(&self.without_indexes)
    }
}

impl Deref for CachedManifest {
    type Target = Manifest;

    fn deref(&self) -> &Manifest {
        &self.manifest
    }
}

/// A cached value. It holds its memory for as long as anybody holds the value.
#[derive(Clone, Debug)]
pub(crate) enum Entry {
    /// A manifest.
    Manifest(Arc<CachedManifest>),
    /// A chunk, and the bytes that were reserved for it.
    Chunk(Verified, u64),
}

impl Entry {
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Entry::Manifest(manifest) => manifest.reservation.bytes(),
            Entry::Chunk(_, bytes) => *bytes,
        }
    }

    /// The manifest in it.
    pub(crate) fn manifest(self) -> Result<Arc<CachedManifest>> {
        match self {
            Entry::Manifest(manifest) => Ok(manifest),
            Entry::Chunk(..) => Err(Error::new(
                ErrorKind::Internal,
                "a chunk is cached in the place of a manifest",
            )),
        }
    }

    /// The chunk in it.
    pub(crate) fn chunk(self) -> Result<Verified> {
        match self {
            Entry::Chunk(chunk, _) => Ok(chunk),
            Entry::Manifest(..) => Err(Error::new(
                ErrorKind::Internal,
                "a manifest is cached in the place of a chunk",
            )),
        }
    }
}

/// A load under way.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    pub(crate) completion: Arc<Completion<Entry>>,
    /// Whether it was begun for nobody in particular: its failure says nothing to who has joined it.
    pub(crate) is_ahead: bool,
    arrived: Arc<Mutex<Option<Instant>>>,
}

impl Load {
    pub(super) fn of(completion: Arc<Completion<Entry>>, is_ahead: bool) -> Self {
        Load {
            completion,
            is_ahead,
            arrived: Arc::default(),
        }
    }

    /// Notes that bytes have come.
    pub(super) fn note_arrival(&self) {
        *lock(&self.arrived) = Some(Instant::now());
    }

    /// Whether its bytes are coming, however slowly.
    pub(crate) fn gets_on(&self) -> bool {
        lock(&self.arrived).is_some_and(|arrived| arrived.elapsed() < ARRIVED_LATELY)
    }
}

/// What a lookup found.
#[derive(Debug)]
pub(crate) enum Lookup {
    /// The entry.
    Hit(Entry),
    /// A load of it that somebody else has begun.
    Loading(Load),
    /// Nothing: whoever asked must load it.
    Missing(Ticket, Load),
}
