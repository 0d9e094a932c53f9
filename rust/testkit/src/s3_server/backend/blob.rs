//! Purpose: the bytes of objects and parts on disk, one immutable file each.
//!
//! Flow: a request body is gathered into batches, each written and digested on a blocking thread while the next is
//! received; reading hands out pieces the same way.
//!
//! Invariants: a blob's file lives exactly as long as somebody may read it: it is removed when the last holder is gone,
//! unless it has been marked as belonging to a committed object or part. So an upload that fails or whose client leaves
//! keeps nothing, and a download that runs while its object is replaced still reads the old bytes to the end.
//!
//! Failure: a file that is shorter than recorded is an error, never a short answer.

use super::checksum::{DigestValues, Digests};
use bytes::Bytes;
use futures::StreamExt;
use s3s::dto::StreamingBlob;
use s3s::{S3Error, S3ErrorCode, S3Result};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::task::JoinHandle;

/// Bytes gathered before a write, and bytes read at once: large enough that the hop to a blocking thread costs nothing.
const PIECE_BYTES: usize = 1024 * 1024;

/// A file of bytes that removes itself when nobody needs it.
#[derive(Debug)]
pub(super) struct Blob {
    path: PathBuf,
    kept: AtomicBool,
}

impl Blob {
    /// A blob still to be written: gone again if nobody calls [`Blob::keep`].
    pub(super) fn fresh(path: PathBuf) -> Arc<Self> {
        Arc::new(Self {
            path,
            kept: AtomicBool::new(false),
        })
    }

    /// A blob found on disk that a description names.
    pub(super) fn existing(path: PathBuf) -> Arc<Self> {
        Arc::new(Self {
            path,
            kept: AtomicBool::new(true),
        })
    }

    pub(super) fn keep(&self) {
        self.kept.store(true, Ordering::Release);
    }

    /// Remove the file once the last reader is done.
    pub(super) fn discard(&self) {
        self.kept.store(false, Ordering::Release);
    }

    /// The name by which descriptions refer to this blob.
    pub(super) fn name(&self) -> String {
        self.path
            .file_name()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default()
    }
}

impl Drop for Blob {
    fn drop(&mut self) {
        if !*self.kept.get_mut() {
            // Nothing to do about a failure: a blob that no description names is swept at the next start.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// What a blocking thread needs to go on writing. It holds the blob, so that the file cannot be created after its
/// removal.
struct Writer {
    blob: Arc<Blob>,
    file: Option<File>,
    digests: Digests,
}

impl Writer {
    fn write(mut self, batch: Vec<Bytes>) -> io::Result<Self> {
        let mut file = match self.file.take() {
            Some(file) => file,
            None => File::create_new(&self.blob.path)?,
        };
        for piece in batch {
            self.digests.update(&piece);
            file.write_all(&piece)?;
        }
        self.file = Some(file);
        Ok(self)
    }
}

/// Writes a request body into `blob` and returns the digests of what was written.
pub(super) async fn write_body(
    blob: &Arc<Blob>,
    body: Option<StreamingBlob>,
    digests: Digests,
) -> S3Result<DigestValues> {
    let writer = Writer {
        blob: Arc::clone(blob),
        file: None,
        digests,
    };
    let mut running = spawn_write(writer, Vec::new());
    if let Some(mut body) = body {
        let mut batch = Vec::new();
        let mut batch_bytes = 0;
        while let Some(piece) = body.next().await {
            let piece = piece.map_err(|error| body_error(error.as_ref()))?;
            batch_bytes += piece.len();
            batch.push(piece);
            if batch_bytes >= PIECE_BYTES {
                let writer = finish_write(running).await?;
                running = spawn_write(writer, std::mem::take(&mut batch));
                batch_bytes = 0;
            }
        }
        let writer = finish_write(running).await?;
        running = spawn_write(writer, batch);
    }
    let writer = finish_write(running).await?;
    Ok(writer.digests.finish())
}

fn spawn_write(writer: Writer, batch: Vec<Bytes>) -> JoinHandle<io::Result<Writer>> {
    tokio::task::spawn_blocking(move || writer.write(batch))
}

async fn finish_write(running: JoinHandle<io::Result<Writer>>) -> S3Result<Writer> {
    running
        .await
        .map_err(S3Error::internal_error)?
        .map_err(S3Error::internal_error)
}

/// The error types of s3s' body streams are private; their text is what tells them apart.
fn body_error(error: &(dyn std::error::Error + Send + Sync)) -> S3Error {
    let text = error.to_string();
    if text.contains("Sha256Mismatch") {
        let message = "The provided 'x-amz-content-sha256' header does not match what was computed.";
        let mut mismatch = S3Error::with_message(S3ErrorCode::Custom("XAmzContentSHA256Mismatch".into()), message);
        mismatch.set_status_code(hyper::StatusCode::BAD_REQUEST);
        return mismatch;
    }
    if text.contains("SignatureMismatch") {
        return S3Error::new(S3ErrorCode::SignatureDoesNotMatch);
    }
    S3Error::with_message(S3ErrorCode::IncompleteBody, text)
}

/// A run of bytes inside one blob.
#[derive(Debug)]
pub(super) struct Slice {
    pub(super) blob: Arc<Blob>,
    pub(super) offset: u64,
    pub(super) length: u64,
}

/// Reads slices one after the other, a piece at a time.
#[derive(Debug)]
pub(super) struct Reader {
    slices: VecDeque<Slice>,
    file: Option<File>,
}

impl Reader {
    pub(super) fn new(slices: VecDeque<Slice>) -> Self {
        Self { slices, file: None }
    }

    /// The next piece, or `None` at the end. Blocks.
    pub(super) fn next_piece(&mut self) -> io::Result<Option<Bytes>> {
        let Some(slice) = self.slices.front_mut() else {
            return Ok(None);
        };
        let mut file = match self.file.take() {
            Some(file) => file,
            None => {
                let mut file = File::open(&slice.blob.path)?;
                file.seek(SeekFrom::Start(slice.offset))?;
                file
            }
        };
        let wanted = usize::try_from(slice.length).unwrap_or(usize::MAX).min(PIECE_BYTES);
        let mut piece = Vec::with_capacity(wanted);
        (&mut file).take(wanted as u64).read_to_end(&mut piece)?;
        if piece.len() != wanted {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "a stored object is shorter than its description says",
            ));
        }
        slice.length -= wanted as u64;
        if slice.length == 0 {
            self.slices.pop_front();
        } else {
            self.file = Some(file);
        }
        Ok(Some(Bytes::from(piece)))
    }

    /// The rest of the slices as a response body. The first piece is read at once, so that a small answer costs one hop
    /// to a blocking thread.
    pub(super) async fn into_body(self) -> S3Result<StreamingBlob> {
        let (reader, first) = read_on(self).await.map_err(S3Error::internal_error)?;
        let first = first.unwrap_or_default();
        if reader.slices.is_empty() {
            return Ok(StreamingBlob::from(s3s::Body::from(first)));
        }
        let rest = futures::stream::try_unfold(reader, |reader| async move {
            let (reader, piece) = read_on(reader).await?;
            Ok::<_, io::Error>(piece.map(|piece| (piece, reader)))
        });
        let first = futures::stream::once(std::future::ready(Ok(first)));
        Ok(StreamingBlob::wrap(first.chain(rest)))
    }
}

async fn read_on(mut reader: Reader) -> io::Result<(Reader, Option<Bytes>)> {
    tokio::task::spawn_blocking(move || {
        let piece = reader.next_piece()?;
        Ok((reader, piece))
    })
    .await
    .map_err(io::Error::other)?
}
