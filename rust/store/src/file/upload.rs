//! Multipart uploads without copying.
//!
//! # Flow
//! An upload is the directory `.uploads/<hash of key>-<unique>` with the staged bytes. A part of n bytes goes into the file
//! `parts-n` at (number - 1) * n. All parts but the last have one size, so they lie in one file at their final places; the last, if
//! shorter, lies alone in another. Completing copies that last part to its place and renames the file. Parts of other sizes are
//! copied one after the other.
//!
//! # Invariants
//! * Where a part lies depends on its number and length only: no state in memory, and a part sent twice is written twice to the
//!   same place.
//! * Whose upload a directory is, its name alone says: it is found however little of it was made, or is left.
//! * The object appears by one rename of a file that was flushed.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Seek, SeekFrom},
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use super::{
    Cancelled, errors,
    paths::{Root, UPLOADS, hash, is_absent, sync_directory},
    write::{Temporary, Writing, given_up, in_directory},
};
use crate::{ErrorKind, Key, Operation, PART_NUMBER_MAX, Payload, StoreError, StoreResult, UploadId, UploadedPart};

/// How often a directory is removed again because a late part came into it.
const REMOVALS_MAX: usize = 100;

/// How often making the staging directory begins again because another upload's end removed it.
const ROUNDS_MAX: usize = 1000;

/// Bytes read at once when a checksum is computed.
const PIECE_BYTES: usize = 1 << 20;

fn failed(kind: ErrorKind, operation: Operation, key: &Key, detail: impl Into<String>) -> StoreError {
    StoreError::new(kind, operation, detail).with_key(key)
}

/// Begins an upload.
pub(super) fn create(root: &Root, key: &Key, cancelled: &Cancelled) -> StoreResult<UploadId> {
    let operation = Operation::CreateUpload;
    // Begun late, after a wait for a thread, it would leave a directory that nobody knows of.
    cancelled.check(operation)?;
    // A key that could not be written later is refused now.
    root.object(operation, key)?;
    root.check(operation)?;
    let uploads = root.path().join(UPLOADS);
    let id = format!("{}{}", id_prefix(key), root.unique());
    let directory = uploads.join(&id);
    let mut last = None;
    for _ in 0..ROUNDS_MAX {
        match root.make_directories(operation, &directory) {
            Ok(()) => return Ok(UploadId(id)),
            Err(error) if error.kind() == ErrorKind::NotFound => last = Some(error),
            Err(error) => {
                // It may have been made and not flushed; nobody will know its name.
                remove_staging(root, &directory);
                return Err(error.with_key(key));
            }
        }
    }
    let detail = last.map_or_else(String::new, |error| error.detail().to_owned());
    Err(failed(
        ErrorKind::Unavailable,
        operation,
        key,
        format!("the staging directory keeps disappearing: {detail}"),
    ))
}

/// Writes one part to its place.
pub(super) fn write_part(
    root: &Root,
    key: &Key,
    upload: &UploadId,
    number: u32,
    payload: &Payload,
    writing: &Writing<'_>,
) -> StoreResult<UploadedPart> {
    let operation = Operation::UploadPart;
    if !(1..=PART_NUMBER_MAX).contains(&number) {
        let detail = format!("part number {number} is not between 1 and {PART_NUMBER_MAX}");
        return Err(failed(ErrorKind::Invalid, operation, key, detail));
    }
    payload.check(operation, key)?;
    let directory = staging(root, operation, key, upload)?;
    let length = payload.length();
    let written = (|| {
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .custom_flags(libc::O_NOFOLLOW)
            .open(parts_file(&directory, length))?;
        let mut position = place(number, length);
        writing.pieces(payload.bytes(), |piece| {
            file.write_all_at(piece, position)?;
            position += piece.len() as u64;
            Ok(())
        })?;
        // Flushed here, so that the parts share the time it takes and an error names its part.
        file.sync_data()
    })();
    match written {
        Ok(()) => Ok(UploadedPart {
            number,
            etag: format!("{:08x}", payload.crc32()),
            length,
            crc32: payload.crc32(),
        }),
        Err(error) if is_absent(&error) => Err(gone(root, operation, key)),
        Err(error) => Err(errors::map(operation, &error, &format!("writing part {number}")).with_key(key)),
    }
}

/// Makes the object of its parts.
pub(super) fn complete(
    root: &Root,
    key: &Key,
    upload: &UploadId,
    parts: &[UploadedPart],
    crc32: u32,
    cancelled: &Cancelled,
) -> StoreResult<()> {
    let operation = Operation::CompleteUpload;
    let (Some(first), Some(last)) = (parts.first(), parts.last()) else {
        return Err(failed(ErrorKind::Invalid, operation, key, "an upload without parts"));
    };
    if !parts.is_sorted_by(|left, right| left.number < right.number) {
        return Err(failed(
            ErrorKind::Invalid,
            operation,
            key,
            "the parts are not in order of their numbers",
        ));
    }
    let combined = combined_crc32(parts);
    if combined != crc32 {
        let detail = format!("the parts have CRC-32 {combined:08x} together, {crc32:08x} was expected");
        return Err(failed(ErrorKind::ChecksumMismatch, operation, key, detail).with_retryable(false));
    }
    let length: u64 = parts.iter().map(|part| part.length).sum();
    let target = root.object(operation, key)?;
    let directory = match staging(root, operation, key, upload) {
        Ok(directory) => directory,
        Err(error) if error.kind() == ErrorKind::UploadNotFound => {
            return proven(&target, length, crc32).then_some(()).ok_or(error);
        }
        Err(error) => return Err(error),
    };
    let consecutive = parts.iter().zip(1..).all(|(part, number)| part.number == number);
    let equal = parts
        .iter()
        .all(|part| part.length == first.length || part.number == last.number);
    let in_place = consecutive && equal && last.length <= first.length && first.length > 0;
    let outcome = in_directory(root, operation, key, &target, |target_directory| {
        if in_place {
            let staged = fill_in_place(&directory, first.length, last, length)?;
            given_up(cancelled)?;
            fs::rename(staged, &target)
        } else {
            let temporary = Temporary::create(root, target_directory, &target)?;
            concatenate(&directory, parts, &temporary.file)?;
            given_up(cancelled)?;
            temporary.rename(&target)
        }
    });
    match outcome {
        Ok(()) => {
            remove_staging(root, &directory);
            Ok(())
        }
        // Its staged file is not there: an earlier attempt that nobody waited for has renamed it, or it was aborted.
        Err(_) if !staged_exists(&directory, first.length) => {
            if proven(&target, length, crc32) {
                remove_staging(root, &directory);
                Ok(())
            } else {
                Err(gone(root, operation, key))
            }
        }
        Err(error) => Err(error),
    }
}

/// Gives an upload up.
pub(super) fn abort(root: &Root, key: &Key, upload: &UploadId) -> StoreResult<()> {
    let directory = match staging(root, Operation::AbortUpload, key, upload) {
        Ok(directory) => directory,
        Err(error) if error.kind() == ErrorKind::UploadNotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    let what = format!("removing {}", directory.display());
    for _ in 0..REMOVALS_MAX {
        match fs::remove_dir_all(&directory) {
            Ok(()) => {}
            // Another one removes it too.
            Err(error) if is_absent(&error) => {}
            // A part that is being written brought a new file.
            Err(error) if error.raw_os_error() == Some(libc::ENOTEMPTY) => {}
            Err(error) => return Err(errors::map(Operation::AbortUpload, &error, &what).with_key(key)),
        }
        if !directory.is_dir() {
            remove_staging(root, &directory);
            return Ok(());
        }
    }
    let detail = format!("{what}: parts are still being written");
    Err(failed(ErrorKind::Unavailable, Operation::AbortUpload, key, detail))
}

/// The uploads under way for `key`.
pub(super) fn list(root: &Root, key: &Key) -> StoreResult<Vec<UploadId>> {
    let operation = Operation::ListUploads;
    root.check(operation)?;
    let uploads = root.path().join(UPLOADS);
    let failure = |error: io::Error| errors::map(operation, &error, &uploads.display().to_string()).with_key(key);
    let entries = match fs::read_dir(&uploads) {
        Ok(entries) => entries,
        Err(error) if is_absent(&error) => return Ok(Vec::new()),
        Err(error) => return Err(failure(error)),
    };
    let prefix = id_prefix(key);
    let mut found = Vec::new();
    for entry in entries {
        let Ok(name) = entry.map_err(failure)?.file_name().into_string() else {
            continue;
        };
        if name.starts_with(&prefix) {
            found.push(UploadId(name));
        }
    }
    found.sort_by(|left, right| left.0.cmp(&right.0));
    Ok(found)
}

/// Names of a key's uploads begin with its hash.
fn id_prefix(key: &Key) -> String {
    format!("{}-", hash(key.as_str().as_bytes()))
}

/// The directory of an upload that is under way for `key`.
fn staging(root: &Root, operation: Operation, key: &Key, upload: &UploadId) -> StoreResult<PathBuf> {
    let id = upload.0.as_str();
    // What is not of our making names no directory.
    let ours = id.starts_with(&id_prefix(key)) && id.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    let directory = root.path().join(UPLOADS).join(id);
    if ours && directory.is_dir() {
        return Ok(directory);
    }
    Err(gone(root, operation, key))
}

fn gone(root: &Root, operation: Operation, key: &Key) -> StoreError {
    match root.check(operation) {
        Ok(()) => failed(ErrorKind::UploadNotFound, operation, key, "no such upload"),
        Err(error) => error.with_key(key),
    }
}

fn parts_file(directory: &Path, length: u64) -> PathBuf {
    directory.join(format!("parts-{length}"))
}

fn staged_exists(directory: &Path, length: u64) -> bool {
    parts_file(directory, length).is_file()
}

/// At most 10,000 times the length of a buffer: no overflow.
fn place(number: u32, length: u64) -> u64 {
    u64::from(number.saturating_sub(1)).saturating_mul(length)
}

fn combined_crc32(parts: &[UploadedPart]) -> u32 {
    let mut whole = crc32fast::Hasher::new();
    for part in parts {
        whole.combine(&crc32fast::Hasher::new_with_initial_len(part.crc32, part.length));
    }
    whole.finalize()
}

/// Brings the last part to its place in the file of the others. Can be repeated.
fn fill_in_place(directory: &Path, size: u64, last: &UploadedPart, length: u64) -> io::Result<PathBuf> {
    let path = parts_file(directory, size);
    let opened = OpenOptions::new()
        .write(true)
        .custom_flags(libc::O_NOFOLLOW)
        .open(&path);
    let mut file = opened.map_err(|error| if is_absent(&error) { not_sent(1) } else { error })?;
    if last.length > 0 && last.length != size {
        file.seek(SeekFrom::Start(place(last.number, size)))?;
        copy_part(directory, last, &file)?;
    }
    let written = file.metadata()?.len();
    if written < length {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{written} of {length} bytes were sent"),
        ));
    }
    // A higher part was sent and then left out.
    if written > length {
        file.set_len(length)?;
    }
    file.sync_all()?;
    Ok(path)
}

fn concatenate(directory: &Path, parts: &[UploadedPart], file: &File) -> io::Result<()> {
    for part in parts {
        if part.length > 0 {
            copy_part(directory, part, file)?;
        }
    }
    file.sync_all()
}

/// The kernel copies, where it can without the bytes passing through here.
fn copy_part(directory: &Path, part: &UploadedPart, mut into: &File) -> io::Result<()> {
    let path = parts_file(directory, part.length);
    let mut from = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW)
        .open(path)
        .map_err(|error| {
            if is_absent(&error) {
                not_sent(part.number)
            } else {
                error
            }
        })?;
    from.seek(SeekFrom::Start(place(part.number, part.length)))?;
    let copied = io::copy(&mut from.take(part.length), &mut into)?;
    if copied == part.length {
        Ok(())
    } else {
        Err(not_sent(part.number))
    }
}

/// Not the operating system's "no such file", which would mean that the object's directory was removed.
fn not_sent(number: u32) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("part {number} was not sent"))
}

/// Whether the object is there with these bytes.
fn proven(target: &Path, length: u64, crc32: u32) -> bool {
    let computed = (|| -> io::Result<Option<u32>> {
        let mut file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NOFOLLOW)
            .open(target)?;
        if file.metadata()?.len() != length {
            return Ok(None);
        }
        let mut hasher = crc32fast::Hasher::new();
        let mut buffer = vec![0; PIECE_BYTES];
        loop {
            match file.read(&mut buffer)? {
                0 => return Ok(Some(hasher.finalize())),
                count => hasher.update(&buffer[..count]),
            }
        }
    })();
    matches!(computed, Ok(Some(computed)) if computed == crc32)
}

/// Removes what is left of an upload, and the directory of all uploads when it was the last.
fn remove_staging(root: &Root, directory: &Path) {
    // A failure leaves files that are never listed as objects; the upload itself has ended.
    let _ = fs::remove_dir_all(directory);
    if let Some(uploads) = directory.parent() {
        root.prune(uploads);
        let _ = sync_directory(Operation::AbortUpload, uploads);
    }
}
