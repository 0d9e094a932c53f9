//! Kafka's files, read once from front to back.

use std::{
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
    sync::Arc,
};

use alluvium_format::{Chunk, ChunkSize, Crc32};
use alluvium_store::Payload;
use bytes::Bytes;

use crate::{
    Error, ErrorKind, Result,
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
}

impl SegmentFile {
    /// Opens the file, which must have at least the `announced` bytes.
    pub(crate) async fn open(path: &Path, announced: u64) -> Result<Self> {
        let path = path.to_owned();
        blocking(move || {
            let open = || -> io::Result<(File, u64)> {
                let file = File::open(&path)?;
                let length = file.metadata()?.len();
                Ok((file, length))
            };
            let (file, length) = open().map_err(|error| Error::file(&path, &error))?;
            if length < announced {
                return Err(shrunk(&path, length, announced));
            }
            Ok(SegmentFile { file, path })
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
            if crc32.length() != wanted {
                return Err(shrunk(&self.path, whole.length() + crc32.length(), length));
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

/// Reads an index whole.
pub(crate) async fn read_index(path: &Path) -> Result<Bytes> {
    let path = path.to_owned();
    blocking(move || {
        let mut bytes = Vec::new();
        File::open(&path)
            .and_then(|file| file.take(INDEX_BYTES_MAX + 1).read_to_end(&mut bytes))
            .map_err(|error| Error::file(&path, &error))?;
        if bytes.len() as u64 > INDEX_BYTES_MAX {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!("{} is over {INDEX_BYTES_MAX} bytes", path.display()),
            ));
        }
        Ok(Bytes::from(bytes))
    })
    .await
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
