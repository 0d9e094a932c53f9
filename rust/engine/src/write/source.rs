//! Kafka's files.

use std::{
    fs::File,
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use alluvium_format::{INDEX_BYTES_MAX, IndexPayload, IndexType};
use bytes::Bytes;

use crate::{Error, ErrorKind, Result, SegmentFiles, block::Block, completion::blocking};

/// The `.log` file of a segment. An open file survives that Kafka renames or deletes it.
#[derive(Debug)]
pub(crate) struct SegmentFile {
    file: File,
    path: PathBuf,
    /// Bytes that Kafka announced.
    length: u64,
}

impl SegmentFile {
    /// Opens the file, which must have at least the announced `length` in bytes.
    pub(crate) async fn open(path: &Path, length: u64) -> Result<Self> {
        let path = path.to_owned();
        blocking(move || {
            let (file, found) = open_file(&path)?;
            let file = SegmentFile { file, path, length };
            if found < length {
                Err(file.shrunk(found))
            } else {
                Ok(file)
            }
        })
        .await
    }

    /// Bytes that Kafka announced: what is copied.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// Fills `room` with the bytes from `position`. Blocks on the disk.
    pub(crate) fn read_at(&self, position: u64, room: &mut [u8]) -> Result<()> {
        let filled = fill(&self.file, position, room).map_err(|error| Error::file(&self.path, &error))?;
        if filled < room.len() {
            return Err(self.shrunk(position + filled as u64));
        }
        Ok(())
    }

    fn shrunk(&self, found: u64) -> Error {
        let (path, length) = (self.path.display(), self.length);
        Error::new(
            ErrorKind::Internal,
            format!("{path} ends after {found} bytes instead of {length}; nothing was copied"),
        )
    }
}

/// The index files of a segment, open, so that they survive that Kafka renames or deletes them.
pub(crate) struct IndexFiles {
    files: Vec<(IndexType, PathBuf, File)>,
    length: u64,
}

impl IndexFiles {
    /// Opens all that the segment has.
    pub(crate) async fn open(files: &SegmentFiles) -> Result<Self> {
        let mut paths = vec![
            (IndexType::Offset, files.offset_index.clone()),
            (IndexType::Timestamp, files.time_index.clone()),
            (IndexType::ProducerSnapshot, files.producer_snapshot.clone()),
        ];
        paths.extend(
            files
                .transaction_index
                .clone()
                .map(|path| (IndexType::Transaction, path)),
        );
        blocking(move || {
            let mut opened = IndexFiles {
                files: Vec::new(),
                length: 0,
            };
            for (index_type, path) in paths {
                let (file, length) = open_file(&path)?;
                if length > INDEX_BYTES_MAX {
                    let reason = format!("{} has {length} bytes, over {INDEX_BYTES_MAX}", path.display());
                    return Err(Error::new(ErrorKind::Invalid, reason));
                }
                opened.length += length;
                opened.files.push((index_type, path, file));
            }
            Ok(opened)
        })
        .await
    }

    /// Bytes of all together.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// Reads them, and adds the one that Kafka hands over as bytes.
    pub(crate) async fn read(self, leader_epochs: &Bytes) -> Result<Vec<IndexPayload>> {
        // Of our own: the indexes outlive the copy, in the cache.
        let leader_epochs = IndexPayload::new(IndexType::LeaderEpoch, Bytes::copy_from_slice(leader_epochs));
        blocking(move || {
            let mut indexes = vec![leader_epochs];
            for (index_type, path, file) in self.files {
                let failed = |error: &io::Error| Error::file(&path, error);
                let length = file.metadata().map_err(|error| failed(&error))?.len();
                let mut block = Block::new(usize::try_from(length.min(INDEX_BYTES_MAX)).unwrap_or_default())?;
                let filled = fill(&file, 0, &mut block).map_err(|error| failed(&error))?;
                let bytes = Bytes::from_owner(block).slice(..filled);
                indexes.push(IndexPayload::new(index_type, bytes));
            }
            Ok(indexes)
        })
        .await
    }
}

/// Reads from `position` until the room is filled or the file is at its end; how many bytes that were.
fn fill(file: &File, position: u64, room: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while let Some(rest) = room.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, position + filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// Opens a regular file; anything else, such as a pipe, could block for ever.
fn open_file(path: &Path) -> Result<(File, u64)> {
    let open = || -> io::Result<(File, u64)> {
        // Looked at before it is opened, since opening a pipe waits for its other end.
        if !std::fs::metadata(path)?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        let file = File::open(path)?;
        let length = file.metadata()?.len();
        Ok((file, length))
    };
    open().map_err(|error| Error::file(path, &error))
}
