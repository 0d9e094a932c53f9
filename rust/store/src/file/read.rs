//! Reading: an open file keeps its bytes, whatever happens to its name.

use std::{
    fs::{self, File, Metadata, OpenOptions},
    io,
    ops::Range,
    os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt},
    sync::Arc,
};

use bytes::{Bytes, BytesMut};
use futures::stream;

use super::{
    errors,
    paths::{Root, is_absent},
    run,
};
use crate::{ErrorKind, GetObject, Key, ObjectInfo, Operation, StoreError, StoreResult, boxed_body};

/// Bytes read at once.
const PIECE_BYTES: u64 = 1 << 20;

/// An object that is open.
pub(super) struct Opened {
    file: File,
    range: Range<u64>,
    length: u64,
    tag: String,
}

/// Opens an object and fixes the range.
pub(super) fn open(root: &Root, key: &Key, range: Option<Range<u64>>) -> StoreResult<Opened> {
    let path = root.object(Operation::Get, key)?;
    // Opening a named pipe must not wait for a writer.
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(&path);
    let file = opened.map_err(|error| missing_or(root, Operation::Get, key, &error))?;
    let metadata = file
        .metadata()
        .map_err(|error| missing_or(root, Operation::Get, key, &error))?;
    if !metadata.is_file() {
        return Err(not_found(Operation::Get, key));
    }
    let length = metadata.len();
    let range = match range {
        None => 0..length,
        Some(range) if range.is_empty() || range.start >= length => {
            let detail = format!("the range {range:?} is empty or past the end, {length} bytes");
            return Err(StoreError::new(ErrorKind::Invalid, Operation::Get, detail).with_key(key));
        }
        Some(range) => range.start..range.end.min(length),
    };
    Ok(Opened {
        file,
        range,
        length,
        tag: tag(&metadata),
    })
}

/// Looks an object up.
pub(super) fn head(root: &Root, key: &Key) -> StoreResult<ObjectInfo> {
    let path = root.object(Operation::Head, key)?;
    match fs::symlink_metadata(&path) {
        Ok(metadata) if metadata.is_file() => Ok(ObjectInfo {
            key: key.as_str().to_owned(),
            length: metadata.len(),
            crc32: None,
        }),
        Ok(_) => Err(not_found(Operation::Head, key)),
        Err(error) => Err(missing_or(root, Operation::Head, key, &error)),
    }
}

/// A file is never written again once it has its name, so its identity is that of its bytes.
fn tag(metadata: &Metadata) -> String {
    format!(
        "{:x}-{:x}-{:x}.{:x}",
        metadata.ino(),
        metadata.len(),
        metadata.mtime(),
        metadata.mtime_nsec()
    )
}

fn not_found(operation: Operation, key: &Key) -> StoreError {
    StoreError::new(ErrorKind::NotFound, operation, "no such object").with_key(key)
}

/// Absent is `NotFound`, unless the whole root is. A symbolic link (ELOOP) is no object.
fn missing_or(root: &Root, operation: Operation, key: &Key, error: &io::Error) -> StoreError {
    if is_absent(error) || matches!(error.raw_os_error(), Some(libc::ELOOP | libc::ENXIO)) {
        return match root.check(operation) {
            Ok(()) => not_found(operation, key),
            Err(gone) => gone.with_key(key),
        };
    }
    errors::map(operation, error, "reading").with_key(key)
}

impl Opened {
    /// The answer, whose body reads piece by piece.
    pub(super) fn into_answer(self, key: Key) -> GetObject {
        let range = self.range.clone();
        let file = Arc::new(self.file);
        let state = Some((file, range.clone(), key));
        let body = stream::unfold(state, |state| async move {
            let (file, left, key) = state?;
            if left.is_empty() {
                return None;
            }
            let piece = left.start..left.end.min(left.start + PIECE_BYTES);
            let read = {
                let (file, piece) = (Arc::clone(&file), piece.clone());
                run(Operation::Get, move |_| read_piece(&file, piece)).await
            };
            match read {
                Ok(bytes) => Some((Ok(bytes), Some((file, piece.end..left.end, key)))),
                Err(error) => Some((Err(error.with_key(&key)), None)),
            }
        });
        GetObject {
            range,
            object_length: self.length,
            tag: Some(self.tag),
            body: boxed_body(body),
        }
    }
}

fn read_piece(file: &File, piece: Range<u64>) -> StoreResult<Bytes> {
    let length = usize::try_from(piece.end - piece.start)
        .map_err(|_| StoreError::new(ErrorKind::Invalid, Operation::Get, "a piece too large for memory"))?;
    let mut buffer = BytesMut::zeroed(length);
    match file.read_exact_at(&mut buffer, piece.start) {
        Ok(()) => Ok(buffer.freeze()),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            let detail = format!("the file is shorter than when it was opened, at {piece:?}");
            Err(StoreError::new(ErrorKind::Truncated, Operation::Get, detail))
        }
        Err(error) => Err(errors::map(Operation::Get, &error, &format!("reading {piece:?}"))),
    }
}
