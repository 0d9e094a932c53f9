//! The way of a segment's bytes down.
//!
//! # Flow
//! [`reader`] is a stream as Kafka reads it; [`load`] turns misses of the cache into bounded ranged GETs, verified; [`ahead`] begins them before
//! a consumer who reads in sequence asks.
//!
//! # Invariants
//! * No stream holds a connection: it holds at most one chunk.
//! * Short data is an error, never an early end.

mod ahead;
mod load;
mod reader;

use std::sync::Arc;

use alluvium_format::{ChunkIndex, Manifest};
use alluvium_store::Key;

pub(crate) use ahead::Ahead;
pub(crate) use load::{DiskReads, Identity, keep_on_disk, manifest};
pub use reader::{Read, Reader};

use crate::cache::EntryKey;

/// A segment that is read.
#[derive(Debug)]
pub(crate) struct Source {
    /// Of its chunks.
    pub(crate) key: Key,
    /// Without indexes.
    pub(crate) manifest: Arc<Manifest>,
}

impl Source {
    fn chunk_size(&self) -> u64 {
        self.manifest.chunks().chunk_size().bytes()
    }

    fn chunk_key(&self, index: ChunkIndex) -> EntryKey {
        EntryKey::Chunk(self.manifest.segment().segment_id, index)
    }
}
