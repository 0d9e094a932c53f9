//! Turns at reading from the disk tier.
//!
//! # Purpose
//! A disk that hangs keeps what its readers brought along, their threads and their memory, although nobody waits for them any more. So it gets
//! a part of both only, and is let alone for a while.

use std::{sync::Arc, time::Duration};

use crate::{
    budget::{Budget, Reservation},
    cache::DiskCache,
    completion::blocking,
};

/// Limit of a wait for a turn, and of a read, besides the time that the bytes take; after it, the store is asked.
const TIMEOUT: Duration = Duration::from_secs(2);

/// What the slowest disk reads in a millisecond that is of any use as a cache.
const BYTES_PER_MS_MIN: u64 = 8 << 10;

/// The part of the read path's memory that reads may have with them.
const MEMORY_SHARE: u64 = 4;

/// Most reads at a time: a third of the threads for blocking work.
const READS_MAX: u64 = 32;

/// Reads of the disk tier under way, counted by the memory that they have with them.
#[derive(Debug)]
pub(crate) struct DiskReads(Arc<Budget>);

/// The right to one read.
#[derive(Debug)]
pub(in crate::read) struct DiskTurn {
    _cost: Reservation,
    limit: Duration,
}

impl DiskReads {
    /// For a read path that has so many bytes of memory.
    pub(crate) fn new(memory: u64) -> Self {
        DiskReads(Arc::new(Budget::new((memory / MEMORY_SHARE).max(1))))
    }

    /// Waits for a turn of a read that has so many bytes with it. `None`: there was none in time.
    pub(super) async fn turn(&self, disk: &DiskCache, bytes: u64) -> Option<DiskTurn> {
        let Ok(cost) = tokio::time::timeout(TIMEOUT, self.0.reserve(self.cost(bytes))).await else {
            // Those that have them all end too late, if at all.
            disk.hangs(TIMEOUT);
            return None;
        };
        cost.ok().map(|cost| DiskTurn::new(cost, bytes))
    }

    /// A turn for something that nobody waits for: half of them are for others.
    pub(in crate::read) fn try_ahead(&self, bytes: u64) -> Option<DiskTurn> {
        let cost = self.cost(bytes);
        let in_use = self.0.in_use();
        let is_free = in_use == 0 || in_use + cost <= self.0.total() / 2;
        let cost = is_free.then(|| self.0.try_reserve(cost)).flatten()?;
        Some(DiskTurn::new(cost, bytes))
    }

    fn cost(&self, bytes: u64) -> u64 {
        bytes.max(self.0.total() / READS_MAX)
    }
}

impl DiskTurn {
    fn new(cost: Reservation, bytes: u64) -> Self {
        DiskTurn {
            _cost: cost,
            limit: TIMEOUT + Duration::from_millis(bytes / BYTES_PER_MS_MIN),
        }
    }

    /// Reads; `None`: nothing, or not in time.
    pub(super) async fn read<T, Work>(self, disk: &DiskCache, work: Work) -> Option<T>
    where
        T: Send + 'static,
        Work: FnOnce() -> Option<T> + Send + 'static,
    {
        let limit = self.limit;
        let read = blocking(move || {
            let read = work();
            drop(self);
            Ok(read)
        });
        match tokio::time::timeout(limit, read).await {
            Ok(outcome) => outcome.ok().flatten(),
            Err(_) => {
                disk.hangs(TIMEOUT);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        atomic::{AtomicU64, Ordering},
        mpsc,
    };

    use super::*;
    use crate::cache::EntryKey;
    use crate::config::DiskCacheConfig;
    use alluvium_format::{ChunkIndex, Uuid};

    const MIB: u64 = 1 << 20;

    #[tokio::test]
    async fn a_disk_that_hangs_gets_a_part_of_memory_and_threads_and_is_let_alone() {
        let directory = tempfile::tempdir().unwrap();
        let config = DiskCacheConfig {
            path: directory.path().join("cache"),
            size: 64 * MIB,
            fault_pause: Duration::from_secs(3600),
        };
        let disk = DiskCache::open(&config, Arc::default()).unwrap();
        let key = EntryKey::Chunk(Uuid::from_u64_pair(1, 1), ChunkIndex(0));
        disk.write(&key, b"bytes", disk.now());
        assert!(disk.contains(&key));

        let reads = DiskReads::new(128 * MIB);
        let (running, (release, hung)) = (Arc::new(AtomicU64::new(0)), mpsc::channel::<()>());
        let hung = Arc::new(std::sync::Mutex::new(hung));
        let reading = (0..40).map(|_| async {
            let turn = reads.turn(&disk, 4 * MIB).await?;
            let (running, hung) = (Arc::clone(&running), Arc::clone(&hung));
            turn.read(&disk, move || {
                running.fetch_add(1, Ordering::Relaxed);
                // Until the sender is gone.
                let _ = hung.lock().unwrap().recv();
                Some(())
            })
            .await
        });
        let read = futures::future::join_all(reading).await;
        assert!(read.iter().all(Option::is_none), "none ends in time");
        assert_eq!(running.load(Ordering::Relaxed), 32 / 4);
        assert!(reads.try_ahead(MIB).is_none());
        assert!(!disk.contains(&key), "it is not to be read now");
        // It goes on hanging after the pause, and no read begins any more.
        disk.end_pause();
        assert!(disk.contains(&key) && reads.turn(&disk, MIB).await.is_none());
        assert!(!disk.contains(&key), "nobody waits for a turn in vain a second time");
        drop(release);
        assert!(reads.turn(&disk, 32 * MIB).await.is_some(), "all have ended");
    }

    #[tokio::test]
    async fn half_of_the_turns_are_for_what_is_waited_for() {
        let reads = DiskReads::new(64 * MIB);
        let ahead: Vec<DiskTurn> = (0..100).map_while(|_| reads.try_ahead(1)).collect();
        assert_eq!(ahead.len(), 16);
        assert!(reads.0.try_reserve(8 * MIB).is_some());
        drop(ahead);
        assert!(reads.try_ahead(8 * MIB).is_some());
    }
}
