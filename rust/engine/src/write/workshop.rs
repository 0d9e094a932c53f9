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

use std::{
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use alluvium_format::{Chunk, ChunkIndex, ChunkSize, Coding, Compressor, Uuid};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::SegmentFile;
use crate::{Error, Result, block::Block};

/// Benches beyond the threads: finished chunks that wait for their turn in a part.
const SPARE_BENCHES: usize = 2;

/// The pool.
#[derive(Debug)]
pub(crate) struct Workshop {
    queue: Mutex<Queue>,
    benches: Arc<Semaphore>,
    size: Size,
    level: i32,
    /// Of threads that have nothing to do. The last used is the next to be used: it is still in the processor's cache.
    tools: Mutex<Vec<Tools>>,
    /// Room for stored bytes, of benches that nobody holds.
    room: Mutex<Vec<Vec<u8>>>,
}

/// Chunks to be made, and how many threads are at it.
#[derive(Debug, Default)]
struct Queue {
    orders: VecDeque<Order>,
    threads_at_work: usize,
}

/// A chunk to be made, and who waits for it.
#[derive(Debug)]
struct Order {
    work: ChunkWork,
    bench: Bench,
    made: oneshot::Sender<Result<(Bench, Chunk)>>,
}

/// How many work at a time, and how many chunks can be under way or waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Size {
    threads: usize,
    benches: usize,
}

/// What a thread needs for a chunk; used again, since its memory is large.
#[derive(Debug)]
struct Tools {
    compressor: Compressor,
    plain: Block,
}

/// A place in the pool, with the stored bytes of the chunk that was made for it.
#[derive(Debug)]
pub(crate) struct Bench {
    stored: Vec<u8>,
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

impl Size {
    /// Bytes of all threads and benches.
    fn bytes(self, chunk_size: ChunkSize, level: i32) -> u64 {
        self.threads as u64 * tools_bytes(chunk_size, level) + self.benches as u64 * stored_bytes(chunk_size)
    }

    /// The largest that `memory` has room for, up to `threads` threads; at least one of each.
    fn within(threads: usize, memory: u64, chunk_size: ChunkSize, level: i32) -> Self {
        let mut size = Size {
            threads,
            benches: threads + SPARE_BENCHES,
        };
        while size.bytes(chunk_size, level) > memory && size != SMALLEST {
            // Of many threads one goes with its bench; the last one keeps its spare benches as long as there is room.
            size.threads = (size.threads - 1).max(1);
            size.benches = (size.benches - 1).max(1);
        }
        size
    }
}

const SMALLEST: Size = Size { threads: 1, benches: 1 };

/// Most bytes that a thread takes: a chunk, and zstd's tables, whose size grows with the level.
fn tools_bytes(chunk_size: ChunkSize, level: i32) -> u64 {
    let chunk = chunk_size.bytes();
    // Measured with zstd 1.5.7 on chunks of 64 KiB to 64 MiB, rounded up; a test measures again up to 4 MiB.
    let tables: u64 = match level {
        ..=3 => 2,
        4..=6 => 3,
        7 => 6,
        _ => 11,
    };
    chunk + (tables << 20).min((18 * chunk).max(2 << 20))
}

/// Most bytes that a bench takes: the stored bytes of a chunk.
fn stored_bytes(chunk_size: ChunkSize) -> u64 {
    chunk_size.bytes() + chunk_size.bytes() / 128
}

impl Workshop {
    /// A pool of at most `threads` threads, as far as `memory` bytes go.
    pub(crate) fn new(threads: usize, memory: u64, chunk_size: ChunkSize, level: i32) -> Arc<Self> {
        let size = Size::within(threads, memory, chunk_size, level);
        Arc::new(Workshop {
            queue: Mutex::default(),
            benches: Arc::new(Semaphore::new(size.benches)),
            size,
            level,
            tools: Mutex::default(),
            room: Mutex::default(),
        })
    }

    /// Least bytes that a pool can do with.
    pub(crate) fn memory_min(chunk_size: ChunkSize, level: i32) -> u64 {
        SMALLEST.bytes(chunk_size, level)
    }

    /// Bytes for a pool of `threads` threads: at most `most`, but no less than the least.
    pub(crate) fn memory_for(threads: usize, most: u64, chunk_size: ChunkSize, level: i32) -> u64 {
        Size::within(threads, most, chunk_size, level).bytes(chunk_size, level)
    }

    /// Chunks that can be under way or waiting at once.
    pub(crate) fn benches(&self) -> usize {
        self.size.benches
    }

    /// Frees what nobody uses.
    pub(crate) fn clear(&self) {
        lock(&self.tools).clear();
        lock(&self.room).clear();
    }

    /// Lets go of everything: nobody waits any more, and no thread may come to what is left to be made.
    pub(crate) fn close(&self) {
        let left = std::mem::take(&mut lock(&self.queue).orders);
        drop(left);
        self.clear();
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
        let bench = Bench {
            stored: lock(&self.room).pop().unwrap_or_default(),
            workshop: Arc::clone(&self),
            _permit: permit,
        };
        let (made, waiting) = oneshot::channel();
        let needs_thread = {
            let mut queue = lock(&self.queue);
            queue.orders.push_back(Order { work, bench, made });
            let needs_thread = queue.threads_at_work < self.size.threads;
            queue.threads_at_work += usize::from(needs_thread);
            needs_thread
        };
        if needs_thread {
            tokio::task::spawn_blocking(move || self.work_off());
        }
        waiting.await.unwrap_or_else(|_| Err(Error::closed()))
    }

    /// Makes chunks until none is left to be made: a thread goes from one to the next without waiting for a task to be woken.
    fn work_off(&self) {
        loop {
            let order = {
                let mut queue = lock(&self.queue);
                let Some(order) = queue.orders.pop_front() else {
                    queue.threads_at_work -= 1;
                    return;
                };
                order
            };
            let Order { work, mut bench, made } = order;
            // Nobody waits any more.
            if made.is_closed() {
                continue;
            }
            let chunk = catch_unwind(AssertUnwindSafe(|| self.work(&work, &mut bench.stored)))
                .unwrap_or_else(|payload| Err(Error::panic(payload.as_ref())));
            // Whoever is gone by now gets nothing, and the bench comes back.
            let _ = made.send(chunk.map(|chunk| (bench, chunk)));
        }
    }

    fn work(&self, work: &ChunkWork, stored: &mut Vec<u8>) -> Result<Chunk> {
        let idle = lock(&self.tools).pop();
        let mut tools = idle.unwrap_or_else(|| Tools {
            compressor: Compressor::new(self.level),
            plain: Block::default(),
        });
        let chunk = tools.work(work, stored)?;
        lock(&self.tools).push(tools);
        Ok(chunk)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing under the lock panics half way.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Tools {
    fn work(&mut self, work: &ChunkWork, stored: &mut Vec<u8>) -> Result<Chunk> {
        if self.plain.len() < work.length {
            self.plain = Block::new(work.length)?;
        }
        let plain = self.plain.get_mut(..work.length).unwrap_or_default();
        work.file.read_at(work.position, plain)?;
        Ok(work
            .coding
            .store_chunk(work.segment_id, work.index, plain, &mut self.compressor, stored)?)
    }
}

impl Bench {
    /// The stored bytes of the chunk made here.
    pub(crate) fn stored(&self) -> &[u8] {
        &self.stored
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        lock(&self.workshop.room).push(std::mem::take(&mut self.stored));
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
            assert!(lock(&workshop.queue).threads_at_work <= 1);
        }
        // Those whose turn had not come are passed over, and everything comes back.
        while workshop.benches.available_permits() < workshop.size.benches {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    #[test]
    fn the_memory_of_a_thread_and_a_bench_is_what_zstd_takes() {
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
                let told = Workshop::memory_min(size, level);
                assert!(taken <= told, "{chunk} bytes at level {level}: {taken} over {told}");
            }
        }
    }
}
