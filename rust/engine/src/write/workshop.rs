//! The bounded pool in which chunks are compressed and encrypted.
//!
//! # Purpose
//! However many copies run, no more than `upload.threads` threads compute for them, and no more than the benches' memory is used.
//!
//! # Invariants
//! * Turns are given in order of asking, so that copies share the pool fairly.
//! * Whoever holds a bench waits for nothing but the pool itself: never for memory or the store.
//!
//! # Cancel
//! A chunk that is being worked on when its copy ends is finished and dropped; its bench comes back.

use std::sync::{Arc, Mutex, PoisonError};

use alluvium_format::{Chunk, ChunkIndex, ChunkSize, Coding, Compressor, Uuid};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::SegmentFile;
use crate::{Error, Result, completion::blocking};

/// Benches beyond the threads: finished chunks that wait for their turn in a part.
const SPARE_BENCHES: usize = 2;

/// The pool.
#[derive(Debug)]
pub(crate) struct Workshop {
    threads: Arc<Semaphore>,
    benches: Arc<Semaphore>,
    benches_total: usize,
    idle: Mutex<Vec<Tools>>,
    level: i32,
}

/// What a thread needs for a chunk; used again, since its memory is large.
#[derive(Debug)]
struct Tools {
    compressor: Compressor,
    plain: Vec<u8>,
    stored: Vec<u8>,
}

/// A place in the pool, with the chunk that was made there.
#[derive(Debug)]
pub(crate) struct Bench {
    tools: Option<Tools>,
    workshop: Arc<Workshop>,
    _permit: OwnedSemaphorePermit,
}

/// Which chunk of which segment.
#[derive(Debug)]
pub(crate) struct ChunkWork {
    pub(crate) file: Arc<SegmentFile>,
    pub(crate) coding: Arc<Coding>,
    pub(crate) segment_id: Uuid,
    pub(crate) index: ChunkIndex,
    pub(crate) position: u64,
    pub(crate) length: usize,
}

impl Workshop {
    /// A pool of `threads` threads, and of as many benches as fit into `memory` bytes, but at least one.
    pub(crate) fn new(threads: usize, memory: u64, chunk_size: ChunkSize, level: i32) -> Arc<Self> {
        let affordable = usize::try_from(memory / Self::bench_bytes(chunk_size, level)).unwrap_or(usize::MAX);
        let benches_total = affordable.clamp(1, threads + SPARE_BENCHES);
        Arc::new(Workshop {
            threads: Arc::new(Semaphore::new(threads)),
            benches: Arc::new(Semaphore::new(benches_total)),
            benches_total,
            idle: Mutex::default(),
            level,
        })
    }

    /// Most bytes that a bench takes: a chunk, its stored bytes, and zstd's tables, whose size grows with the level.
    pub(crate) fn bench_bytes(chunk_size: ChunkSize, level: i32) -> u64 {
        let chunk = chunk_size.bytes();
        // Measured with zstd 1.5.7 on chunks of 64 KiB to 64 MiB, rounded up; a test measures again up to 4 MiB.
        let tables: u64 = match level {
            ..=3 => 2,
            4..=6 => 3,
            7 => 6,
            _ => 11,
        };
        let tables = (tables << 20).min((18 * chunk).max(2 << 20));
        2 * chunk + chunk / 128 + tables
    }

    /// Chunks that can be under way or waiting at once.
    pub(crate) fn benches(&self) -> usize {
        self.benches_total
    }

    /// Bytes for a pool of `threads` threads: at most `most`, but at least one bench.
    pub(crate) fn memory_for(threads: usize, most: u64, chunk_size: ChunkSize, level: i32) -> u64 {
        let bench = Self::bench_bytes(chunk_size, level);
        let wanted = bench * (threads + SPARE_BENCHES) as u64;
        wanted.min(most).max(bench)
    }

    /// Frees what idle benches hold.
    pub(crate) fn clear(&self) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Reads a chunk and makes its stored bytes.
    ///
    /// # Cancel safety
    /// Dropping it gives the bench back, at once or when the thread at work has finished.
    pub(crate) async fn make(self: Arc<Self>, work: ChunkWork) -> Result<(Bench, Chunk)> {
        let permit = Arc::clone(&self.benches)
            .acquire_owned()
            .await
            .map_err(|_| Error::closed())?;
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let tools = idle.unwrap_or_else(|| Tools {
            compressor: Compressor::new(self.level),
            plain: Vec::new(),
            stored: Vec::new(),
        });
        let mut bench = Bench {
            tools: Some(tools),
            workshop: Arc::clone(&self),
            _permit: permit,
        };
        let thread = Arc::clone(&self.threads)
            .acquire_owned()
            .await
            .map_err(|_| Error::closed())?;
        blocking(move || {
            // Given back by the thread itself: it goes on when nobody waits for its chunk any more.
            let _thread = thread;
            let chunk = bench.work(&work)?;
            Ok((bench, chunk))
        })
        .await
    }
}

impl Bench {
    fn work(&mut self, work: &ChunkWork) -> Result<Chunk> {
        let tools = self.tools.as_mut().ok_or_else(Error::closed)?;
        // Zeroed once: later chunks overwrite.
        if tools.plain.len() < work.length {
            tools.plain.resize(work.length, 0);
        }
        let plain = tools.plain.get_mut(..work.length).unwrap_or_default();
        work.file.read_at(work.position, plain)?;
        let Tools { compressor, stored, .. } = tools;
        Ok(work
            .coding
            .store_chunk(work.segment_id, work.index, plain, compressor, stored)?)
    }

    /// The stored bytes of the chunk made here.
    pub(crate) fn stored(&self) -> &[u8] {
        self.tools.as_ref().map_or(&[], |tools| &tools.stored)
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if let Some(tools) = self.tools.take() {
            self.workshop
                .idle
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(tools);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use alluvium_format::{COMPRESSION_LEVELS, Codec};

    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn chunks_that_nobody_waits_for_any_more_still_count_as_work() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("segment.log");
        let noise: Vec<u8> = (0..8u32 << 20)
            .map(|number| (number.wrapping_mul(2_654_435_761) >> 27) as u8)
            .collect();
        std::fs::write(&path, &noise).unwrap();
        let file = Arc::new(SegmentFile::open(&path, noise.len() as u64).await.unwrap());
        let workshop = Workshop::new(1, 1 << 30, ChunkSize::new(8 << 20).unwrap(), 9);
        for index in 0..3 {
            let work = ChunkWork {
                file: Arc::clone(&file),
                coding: Arc::new(Coding {
                    codec: Codec::Zstd,
                    encryption: None,
                }),
                segment_id: Uuid::from_u64_pair(1, 1),
                index: ChunkIndex(index),
                position: 0,
                length: noise.len(),
            };
            let _ = tokio::time::timeout(Duration::from_millis(20), Arc::clone(&workshop).make(work)).await;
            // Whoever works has a bench; who has given up before his turn gave his back.
            let busy = workshop.benches_total - workshop.benches.available_permits();
            assert!(busy <= 1, "{busy} chunks are being made on one thread");
        }
    }

    #[test]
    fn the_memory_of_a_bench_is_what_zstd_takes() {
        let noise: Vec<u8> = (0..4u32 << 20)
            .map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8)
            .collect();
        for chunk in [64 << 10, 1 << 20, 4 << 20] {
            for level in COMPRESSION_LEVELS {
                let mut compressor = Compressor::new(level);
                let mut stored = Vec::new();
                compressor.compress(&noise[..chunk], &mut stored).unwrap();
                let taken =
                    2 * chunk as u64 + compressor.memory_bytes() + (stored.capacity().saturating_sub(chunk)) as u64;
                let size = ChunkSize::new(u32::try_from(chunk).unwrap()).unwrap();
                let told = Workshop::bench_bytes(size, level);
                assert!(taken <= told, "{chunk} bytes at level {level}: {taken} over {told}");
            }
        }
    }
}
