//! The disk tier of the cache: stored bytes of chunks and manifests, a file each.
//!
//! # Purpose
//! What was read from the store once is read from a local disk the next time, also after a restart. A file holds the bytes as they are
//! in the bucket: what is compressed or encrypted there is so here.
//!
//! # Flow
//! At the start the directory is recognised and locked (`home`) and its files are taken into the `index`. A read looks the piece up
//! there, reads its file into the caller's memory and believes it by its `header`. A write has its bytes counted first, for which the
//! least wanted files go, fills a temporary file and renames it. After a fault, writes pause (`faults`).
//!
//! # Invariants
//! * Files never take more than the limit, in blocks, those being written included; a directory for each segment comes on top. A file
//!   that goes while somebody reads it takes its space until he has read it.
//! * Bytes are handed out only from a whole file that names the piece. Whether they are those of the segment is for the caller to
//!   verify, as with bytes from the store.
//! * Only files below our own directory are touched; no link is followed.
//! * No lock is held over a file operation but the one that orders evictions.
//!
//! # Failure
//! None after the start: what goes wrong is counted, and is a miss or a write that was skipped. A file that is damaged is removed. Where
//! the disk is full or broken, writes pause and are tried again later. Where the directory was deleted, the tier is empty until the
//! next start: its path may be on another file system by now.
//!
//! # Cancel
//! All calls block and end with their file operation. A process that is killed leaves temporary files, which the next start removes.
//!
//! # Not here
//! When to ask for a piece and when to keep one; memory; verification against the manifest.

mod faults;
mod header;
mod home;
mod index;
mod metrics;
mod piece;

use std::{
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use alluvium_format::{Crc32, Uuid};
use rustix::io::Errno;

use super::EntryKey;
use crate::{Result, config::DiskCacheConfig};
use faults::Faults;
use header::HEADER_BYTES;
use home::Home;
pub(crate) use index::Moment;
use index::{Held, Index, Leaving, Room, cost_of};
pub(crate) use metrics::DiskMetrics;
use piece::Piece;

/// Writes at the same time; more are skipped. A disk gains nothing from more, and whoever waits to write holds memory.
const WRITES_MAX: usize = 4;

/// Where chunks and manifests are kept on disk.
#[derive(Debug)]
pub(crate) struct DiskCache {
    home: Home,
    index: Mutex<Index>,
    /// Held from choosing what goes to counting what comes: otherwise the space of one file could be promised twice.
    making_room: Mutex<()>,
    writes_running: AtomicUsize,
    faults: Faults,
    capacity: u64,
    metrics: Arc<DiskMetrics>,
}

/// What became of a write that did not fail.
enum Written {
    Kept,
    Skipped,
    /// It is here, or somebody is at its file.
    Known,
}

impl DiskCache {
    /// Marks or recognises the directory as its own, locks it against a second instance, removes what a crash left, and finds what is
    /// there. Blocks on the disk.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Config`], naming `cache.path`.
    pub(crate) fn open(config: &DiskCacheConfig, metrics: Arc<DiskMetrics>) -> Result<Arc<Self>> {
        let home = Home::open(&config.path)?;
        let mut index = Index::new(config.size, Arc::clone(&metrics));
        for found in home.recover()? {
            index.recover(found.piece, found.length);
        }
        let cache = DiskCache {
            home,
            index: Mutex::new(index),
            making_room: Mutex::new(()),
            writes_running: AtomicUsize::new(0),
            faults: Faults::new(config.fault_pause),
            capacity: config.size,
            metrics,
        };
        if let Err(error) = cache.evict_surplus() {
            cache.metrics.faults.add(1);
            cache.faults.of_file(config.path.display(), error);
        }
        tracing::info!(
            path = %cache.home.path().display(), capacity = cache.capacity, bytes = cache.bytes(), entries = cache.entries(),
            "disk cache open"
        );
        Ok(Arc::new(cache))
    }

    /// The stored bytes of a piece, read into memory of the caller's, and how many they are. `room` is asked for exactly that many bytes
    /// and may refuse. `None`: it is not here, is not `expected_length` bytes long, or cannot be read. Blocks on the disk.
    pub(crate) fn read<Room: AsMut<[u8]>>(
        &self,
        key: &EntryKey,
        expected_length: Option<u64>,
        room: impl FnOnce(usize) -> Option<Room>,
    ) -> Option<(Room, usize)> {
        let read = self.try_read(Piece::from(key), expected_length, room);
        match &read {
            Some(_) => self.metrics.hits.add(1),
            None => self.metrics.misses.add(1),
        }
        read
    }

    /// A point in the order of segments dropped, for [`DiskCache::write`].
    pub(crate) fn now(&self) -> Moment {
        self.lock().now()
    }

    /// Whether a piece could be kept at this moment, as far as is known without a look at the disk.
    pub(crate) fn takes(&self, key: &EntryKey) -> bool {
        let is_free = self.writes_running.load(Ordering::Relaxed) < WRITES_MAX && !self.faults.is_paused();
        is_free && !self.lock().contains(Piece::from(key))
    }

    /// Keeps a piece, if it can, and its segment was not dropped later than `since`. Blocks on the disk.
    pub(crate) fn write(&self, key: &EntryKey, bytes: &[u8], since: Moment) {
        let piece = Piece::from(key);
        match self.try_write(piece, bytes, since) {
            Ok(Written::Kept) => self.metrics.writes.add(1),
            Ok(Written::Skipped) => self.metrics.skipped_writes.add(1),
            Ok(Written::Known) => {}
            Err(error) => {
                self.metrics.faults.add(1);
                self.faults.of_write(self.home.path().display(), &error);
            }
        }
    }

    /// Whether a piece is here and can be read now, as far as is known without a look at the disk.
    pub(crate) fn contains(&self, key: &EntryKey) -> bool {
        !self.faults.has_hung() && self.lock().contains(Piece::from(key))
    }

    /// A read has taken longer than `limit`: for a while, nothing is read and nothing is written.
    pub(crate) fn hangs(&self, limit: Duration) {
        self.metrics.faults.add(1);
        self.faults.of_hang(self.home.path().display(), limit);
    }

    /// Drops a piece whose bytes turned out wrong, which counts as a fault.
    pub(crate) fn remove(&self, key: &EntryKey) {
        let leaving = self.lock().take(Piece::from(key));
        if let Some(leaving) = leaving {
            self.drop_useless(leaving, "its bytes are not those of the segment");
        }
    }

    /// Drops all of a segment: it is not here any more when this returns, and writes of it that are under way leave nothing. What is
    /// returned removes the files, and blocks on the disk.
    pub(crate) fn remove_segment(self: &Arc<Self>, segment_id: Uuid) -> impl FnOnce() + Send + 'static {
        let all = self.lock().take_segment(segment_id);
        let cache = Arc::clone(self);
        move || all.into_iter().for_each(|leaving| cache.remove_file(leaving))
    }

    /// Bytes that files take, and those about to be written.
    pub(crate) fn bytes(&self) -> u64 {
        self.lock().bytes()
    }

    /// Pieces held.
    pub(crate) fn entries(&self) -> u64 {
        self.lock().entries()
    }

    /// Most bytes that files may take.
    #[cfg(test)]
    pub(crate) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// The pause after a fault is over.
    #[cfg(test)]
    pub(crate) fn end_pause(&self) {
        self.faults.end_pause();
    }

    fn try_read<Room: AsMut<[u8]>>(
        &self,
        piece: Piece,
        expected_length: Option<u64>,
        room: impl FnOnce(usize) -> Option<Room>,
    ) -> Option<(Room, usize)> {
        let held = self.lock().read(piece)?;
        if expected_length.is_some_and(|expected| expected != u64::from(held.length)) {
            self.useless(piece, held, "it is not as long as its manifest says");
            return None;
        }
        let mut header = [0; HEADER_BYTES];
        let read = self
            .home
            .open_piece(piece)
            .and_then(|file| home::read_file(&file, held.length, &mut header, room));
        let mut bytes = match read {
            Ok(bytes) => bytes?,
            // Not the fault of the file, which may be good.
            Err(error) if is_shortage(&error) => {
                self.metrics.faults.add(1);
                self.faults.of_file(self.home.path().display(), &error);
                return None;
            }
            Err(error) => {
                self.useless(piece, held, error);
                return None;
            }
        };
        let length = held.length as usize;
        let payload = bytes.as_mut().get(..length)?;
        match header::check(&header, piece, u64::from(held.length)) {
            Ok(crc32) if crc32 == Crc32::of(payload) => Some((bytes, length)),
            Ok(_) => {
                self.useless(piece, held, "its bytes are damaged");
                None
            }
            Err(reason) => {
                self.useless(piece, held, reason);
                None
            }
        }
    }

    fn try_write(&self, piece: Piece, bytes: &[u8], since: Moment) -> io::Result<Written> {
        let Ok(length) = u32::try_from(bytes.len()) else {
            return Ok(Written::Skipped);
        };
        if self.lock().contains(piece) {
            return Ok(Written::Known);
        }
        if self.faults.is_paused() || self.is_lost() {
            return Ok(Written::Skipped);
        }
        let Some(_turn) = Turn::take(&self.writes_running) else {
            return Ok(Written::Skipped);
        };
        if !self.lock().begin(piece, since) {
            return Ok(Written::Known);
        }
        let mut place = Place {
            cache: self,
            leaving: Leaving { piece, length, cost: 0 },
            is_open: true,
        };
        let cost = cost_of(length);
        if !self.make_room(cost)? {
            return Ok(Written::Skipped);
        }
        place.leaving.cost = cost;
        let mut file = self.home.create(piece)?;
        file.write(&header::encode(piece, bytes), bytes)?;
        file.keep()?;
        let is_wanted = self.lock().commit(piece, length);
        place.is_open = false;
        if is_wanted {
            return Ok(Written::Kept);
        }
        self.remove_file(place.leaving);
        Ok(Written::Skipped)
    }

    /// Counts `cost` bytes, after removing what has to go for them. False: there is not so much.
    fn make_room(&self, cost: u64) -> io::Result<bool> {
        let _order = self.making_room.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let room = self.lock().reserve(cost);
            match room {
                Room::Reserved => return Ok(true),
                Room::None => return Ok(false),
                Room::AfterRemoving(leaving) => self.evict(leaving)?,
            }
        }
    }

    /// Removes what is over the limit, which may have been lowered.
    fn evict_surplus(&self) -> io::Result<()> {
        loop {
            let surplus = self.lock().take_surplus();
            match surplus {
                Some(leaving) => self.evict(leaving)?,
                None => return Ok(()),
            }
        }
    }

    /// Removes the file of a good piece. Where that fails it goes on being served: a disk that has become read-only still helps.
    fn evict(&self, leaving: Leaving) -> io::Result<()> {
        match self.home.remove(leaving.piece) {
            Ok(()) => {
                self.metrics.evictions.add(1);
                self.removed(leaving);
                Ok(())
            }
            Err(error) => {
                self.lock().put_back(leaving);
                Err(error)
            }
        }
    }

    /// Drops the file of a piece that could not be read or was not what it must be; one that has been replaced or evicted since is let
    /// alone.
    fn useless(&self, piece: Piece, held: Held, reason: impl std::fmt::Display) {
        let leaving = self.lock().take_same(piece, held.born);
        if let Some(leaving) = leaving {
            self.drop_useless(leaving, reason);
        }
    }

    fn drop_useless(&self, leaving: Leaving, reason: impl std::fmt::Display) {
        self.metrics.faults.add(1);
        let Piece { segment_id, .. } = leaving.piece;
        self.faults
            .of_file(format_args!("{} of {segment_id}", leaving.piece.file_name()), reason);
        self.remove_file(leaving);
        self.is_lost();
    }

    /// Removes the file of a piece that is not to be served any more. One that cannot be removed stays counted, and its piece out.
    fn remove_file(&self, leaving: Leaving) {
        match self.home.remove(leaving.piece) {
            Ok(()) => self.removed(leaving),
            Err(error) => {
                self.metrics.faults.add(1);
                self.faults.of_file(self.home.path().display(), error);
            }
        }
    }

    fn removed(&self, leaving: Leaving) {
        let was_last = self.lock().removed(leaving.piece, leaving.cost);
        if was_last {
            self.home.remove_directory(leaving.piece.directory_name());
        }
    }

    /// Whether the directory was deleted; if so, nothing is remembered of what was in it.
    fn is_lost(&self) -> bool {
        if !self.home.is_lost() {
            return false;
        }
        if self.entries() > 0 {
            self.metrics.faults.add(1);
            self.lock().forget_all();
            tracing::warn!(path = %self.home.path().display(), "the directory of the disk cache was deleted; it is used again after a restart");
        }
        true
    }

    fn lock(&self) -> MutexGuard<'_, Index> {
        // A panic inside would be a fault of this module; going on with the index as it is costs misses at worst.
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether the machine is short of something that has to do with no file: descriptors or memory.
fn is_shortage(error: &io::Error) -> bool {
    let shortages = [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::AGAIN];
    error
        .raw_os_error()
        .is_some_and(|code| shortages.contains(&Errno::from_raw_os_error(code)))
}

/// One of the few writes at a time.
struct Turn<'cache>(&'cache AtomicUsize);

impl<'cache> Turn<'cache> {
    fn take(running: &'cache AtomicUsize) -> Option<Self> {
        let turn = Turn(running);
        (running.fetch_add(1, Ordering::Relaxed) < WRITES_MAX).then_some(turn)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The place in the index of a piece that is being written; given back unless the write came to its end.
struct Place<'cache> {
    cache: &'cache DiskCache,
    leaving: Leaving,
    is_open: bool,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if self.is_open {
            self.cache.removed(self.leaving);
        }
    }
}

#[cfg(test)]
mod tests;
