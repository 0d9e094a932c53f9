//! Kafka's files, read once from front to back.

use std::{
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
    sync::Arc,
};

use alluvium_format::{Chunk, ChunkSize, Crc32, IndexPayload, IndexType};
use alluvium_store::Payload;
use bytes::Bytes;

use crate::{
    Error, ErrorKind, Result, SegmentFiles,
    budget::{BufferPool, PooledBuffer, Reservation},
};

/// Largest index that is read: Kafka's are 10 MiB by default (`segment.index.bytes`), and a manifest must hold five.
const INDEX_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// A part of a segment, read and summed.
pub(crate) struct Part {
    pub(crate) payload: Payload,
    pub(crate) chunks: Vec<Chunk>,
}

/// The `.log` file of a segment. An open file survives that Kafka renames or deletes it.
pub(crate) struct SegmentFile {
    file: File,
    path: PathBuf,
    /// Bytes read so far, and bytes that Kafka announced.
    position: u64,
    announced: u64,
}

impl SegmentFile {
    /// Opens the file, which must have at least the `announced` bytes.
    pub(crate) async fn open(path: &Path, announced: u64) -> Result<Self> {
        let path = path.to_owned();
        blocking(move || {
            let (file, length) = open_file(&path)?;
            if length < announced {
                return Err(shrunk(&path, length, announced));
            }
            Ok(SegmentFile {
                file,
                path,
                position: 0,
                announced,
            })
        })
        .await
    }

    /// Reads the next `length` bytes into a pooled buffer and sums each chunk while it is warm.
    pub(crate) async fn read_part(
        mut self,
        length: u64,
        chunk_size: ChunkSize,
        buffers: Arc<BufferPool>,
        reservation: Reservation,
    ) -> Result<(Self, Part)> {
        blocking(move || {
            let capacity = usize::try_from(length)
                .map_err(|_| Error::new(ErrorKind::Internal, "a part over the address space"))?;
            let mut buffer = buffers.take(capacity, reservation);
            let part = self.fill(&mut buffer, length, chunk_size)?;
            let payload = Payload::with_crc32(buffer.share(), part.0.value());
            Ok((
                self,
                Part {
                    payload,
                    chunks: part.1,
                },
            ))
        })
        .await
    }

    fn fill(&mut self, buffer: &mut PooledBuffer, length: u64, chunk_size: ChunkSize) -> Result<(Crc32, Vec<Chunk>)> {
        let mut whole = Crc32::default();
        let mut chunks = Vec::new();
        while whole.length() < length {
            let wanted = chunk_size.bytes().min(length - whole.length());
            let begin = buffer.bytes.len();
            (&mut self.file)
                .take(wanted)
                .read_to_end(&mut buffer.bytes)
                .map_err(|error| Error::file(&self.path, &error))?;
            let crc32 = Crc32::of(buffer.bytes.get(begin..).unwrap_or_default());
            self.position += crc32.length();
            if crc32.length() != wanted {
                return Err(shrunk(&self.path, self.position, self.announced));
            }
            let stored_length = u32::try_from(wanted).expect("a chunk size is a u32");
            chunks.push(Chunk {
                stored_length,
                stored_crc32: crc32.value(),
                plain_crc32: crc32.value(),
            });
            whole = whole.then(crc32);
        }
        Ok((whole, chunks))
    }
}

fn shrunk(path: &Path, found: u64, announced: u64) -> Error {
    let path = path.display();
    Error::new(
        ErrorKind::Internal,
        format!("{path} ends after {found} bytes instead of {announced}; nothing was copied"),
    )
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
        let leader_epochs = IndexPayload::new(IndexType::LeaderEpoch, leader_epochs.clone());
        blocking(move || {
            let mut indexes = vec![leader_epochs];
            for (index_type, path, file) in self.files {
                let mut bytes = Vec::new();
                file.take(INDEX_BYTES_MAX)
                    .read_to_end(&mut bytes)
                    .map_err(|error| Error::file(&path, &error))?;
                indexes.push(IndexPayload::new(index_type, Bytes::from(bytes)));
            }
            Ok(indexes)
        })
        .await
    }
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

/// Runs file I/O where it may block; a panic in it is an error.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(outcome) => outcome,
        Err(error) => match error.try_into_panic() {
            Ok(payload) => Err(Error::panic(payload.as_ref())),
            Err(_) => Err(Error::closed()),
        },
    }
}
