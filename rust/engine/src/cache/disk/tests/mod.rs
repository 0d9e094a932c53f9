//! The disk tier on real files.

mod crowd;
mod damage;
mod full;
mod kept;
mod killed;
mod start;

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use alluvium_format::ChunkIndex;
use tempfile::{TempDir, tempdir};

use super::*;
use crate::{Error, ErrorKind};

const MIB: u64 = 1 << 20;

impl DiskCache {
    /// Keeps a piece whose segment was not dropped.
    fn put(&self, key: &EntryKey, bytes: &[u8]) {
        self.write(key, bytes, self.now());
    }
}

fn config(path: &Path, size: u64) -> DiskCacheConfig {
    DiskCacheConfig {
        path: path.to_path_buf(),
        size,
        // Ended by hand.
        fault_pause: Duration::from_secs(3600),
    }
}

fn open_with(path: &Path, size: u64) -> Arc<DiskCache> {
    try_open(path, size).unwrap()
}

fn open(path: &Path) -> Arc<DiskCache> {
    open_with(path, 64 * MIB)
}

fn try_open(path: &Path, size: u64) -> Result<Arc<DiskCache>> {
    DiskCache::open(&config(path, size), Arc::default())
}

fn segment(number: u64) -> Uuid {
    Uuid::from_u64_pair(0x0123_4567_89ab_cdef, number)
}

fn chunk(number: u64, index: u32) -> EntryKey {
    EntryKey::Chunk(segment(number), ChunkIndex(index))
}

/// Bytes that are those of `key` and of no other.
fn bytes_of(key: &EntryKey, length: usize) -> Vec<u8> {
    let (segment_id, index) = match *key {
        EntryKey::Manifest(segment_id) => (segment_id, u32::MAX),
        EntryKey::Chunk(segment_id, index) => (segment_id, index.0),
    };
    let mut state = u64::from(Crc32::of(segment_id.as_bytes()).value()) << 32 | u64::from(index);
    let mut bytes = Vec::with_capacity(length);
    while bytes.len() < length {
        state = next(state);
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// The next of a row of numbers that look random (a linear congruence and a mix of its bits).
fn next(state: u64) -> u64 {
    let state = state
        .wrapping_mul(0x5851_f42d_4c95_7f2d)
        .wrapping_add(0x1405_7b7e_f767_814f);
    state ^ (state >> 29)
}

fn read(cache: &DiskCache, key: &EntryKey) -> Option<Vec<u8>> {
    let (bytes, length) = cache.read(key, None, |length| Some(vec![0; length]))?;
    assert_eq!(bytes.len(), length);
    Some(bytes)
}

/// The directory of a segment, and the file of a piece in it.
fn file_of(root: &Path, key: &EntryKey) -> PathBuf {
    let piece = Piece::from(key);
    root.join("segments")
        .join(piece.directory_name())
        .join(piece.file_name())
}

/// All files below our directory, with what they take.
fn files(root: &Path) -> Vec<(PathBuf, u64)> {
    let mut files = Vec::new();
    for directory in fs::read_dir(root.join("segments")).unwrap() {
        for file in fs::read_dir(directory.unwrap().path()).unwrap() {
            let file = file.unwrap();
            files.push((file.path(), file.metadata().unwrap().len().next_multiple_of(4096)));
        }
    }
    files
}

fn taken(root: &Path) -> u64 {
    files(root).iter().map(|(_, cost)| cost).sum()
}

fn directories(root: &Path) -> usize {
    fs::read_dir(root.join("segments")).unwrap().count()
}

fn refusal(outcome: Result<Arc<DiskCache>>) -> Error {
    let error = outcome.map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(error.message().starts_with("cache.path: "), "{error}");
    error
}
