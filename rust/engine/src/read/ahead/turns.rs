//! Turns among the requests of a run that wait for memory: what is read first gets it first.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
};

use alluvium_format::ChunkIndex;

use super::lock;
use crate::read::Source;

/// The requests of a run that wait for memory.
#[derive(Debug, Default)]
pub(in crate::read) struct Turns(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    places: BTreeSet<Place>,
    /// Those that have ever waited.
    count: u64,
}

/// The chunk that memory is wanted for, in the order of reading: its segment's start offset, and its index. A number tells those apart that wait
/// for the same.
type Place = (i64, u32, u64);

/// A turn, until it is dropped.
#[derive(Debug)]
pub(in crate::read) struct Turn {
    turns: Arc<Turns>,
    place: Place,
}

impl Turns {
    /// Waits for memory for a chunk.
    pub(in crate::read) fn take(self: &Arc<Self>, source: &Source, chunk: ChunkIndex) -> Turn {
        let mut waiting = lock(&self.0);
        waiting.count += 1;
        let place = (source.manifest.segment().start_offset, chunk.0, waiting.count);
        waiting.places.insert(place);
        Turn {
            turns: Arc::clone(self),
            place,
        }
    }

    /// Whether nobody waits.
    pub(super) fn are_free(&self) -> bool {
        lock(&self.0).places.is_empty()
    }
}

impl Turn {
    /// Whether no earlier one waits.
    pub(in crate::read) fn is_first(&self) -> bool {
        lock(&self.turns.0).places.first() == Some(&self.place)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        lock(&self.turns.0).places.remove(&self.place);
    }
}
