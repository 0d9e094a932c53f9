//! The directory that the cache marked as its own, and the files in it.
//!
//! # Purpose
//! In the directory that the operator names there are a marker, which is the lock as well, and one directory of ours, with a directory
//! for each segment and a file for each piece. Hundreds of thousands of names in one directory are nothing to ext4 and XFS, and no
//! directory is walked after the start, so there is no further level between.
//!
//! # Invariants
//! * A directory that holds something else and no marker is left alone.
//! * One instance at a time: the lock goes with the open file, so it ends with the process however that ends.
//! * Everything is reached from the open directory, one name at a time and never through a link: what is put into the directory leads
//!   nowhere, and what happens to its path changes nothing.
//! * A file is seen under its name whole, or not at all. Nothing is flushed to the disk: a file that a power cut tore is found by its
//!   checksums, and is fetched again.

use std::{
    ffi::{OsStr, OsString},
    fs::{DirBuilder, File, TryLockError},
    io::{self, Read, Seek, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::{
            ffi::OsStrExt,
            fs::{DirBuilderExt, FileExt},
        },
    },
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use alluvium_format::Uuid;
use rustix::{
    fs::{self as sys, AtFlags, Mode, OFlags},
    io::Errno,
};

use super::{header::HEADER_BYTES, piece::Piece};
use crate::{Error, Result};

/// The setting that names the directory.
const SETTING: &str = "cache.path";

/// The file that marks the directory and is locked.
const MARKER: &str = ".alluvium-cache";

const MARKER_TEXT: &str =
    "This directory belongs to the chunk cache of Alluvium. While no broker uses it, all of it may be deleted.\n";

/// Our directory.
const SEGMENTS: &str = "segments";

/// On the top of a file system of its own; it is not in our way.
const LOST_AND_FOUND: &str = "lost+found";

/// How the names of files begin that are not whole yet.
const TEMPORARY: &str = ".tmp-";

/// The file that is made and removed to see whether files can be made.
const PROBE: &str = ".tmp-probe";

const DIRECTORY_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;

/// How directories are opened below the one that the operator names.
const DIRECTORY_FLAGS: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// Directories in each other that may have to be removed: we make two.
const DEPTH_MAX: usize = 16;

/// Times that a segment's directory is made anew because another thread has just removed it as empty.
const MAKINGS_MAX: usize = 3;

/// The directory, open and locked.
#[derive(Debug)]
pub(super) struct Home {
    segments: OwnedFd,
    path: PathBuf,
    next_temporary: AtomicU64,
    lock: File,
}

/// A file that was found at the start.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) piece: Piece,
    /// Bytes of its payload, if it is whole.
    pub(super) length: u32,
    /// Seconds and nanoseconds of its last change.
    pub(super) modified: (i64, u64),
}

impl Home {
    /// Makes the directory, or recognises it, and locks it.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Config`], with what is in the way.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let shown = path.display();
        let failed = |what: &str, error: io::Error| Error::config(SETTING, format!("cannot {what} {shown}: {error}"));
        // Only the last component: where a parent is missing, a mount is, or the path is misspelt.
        match DirBuilder::new().mode(DIRECTORY_MODE).create(path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(failed("make the directory", error));
            }
            _ => {}
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let top = sys::open(path, flags, Mode::empty()).map_err(|error| failed("open the directory", error.into()))?;
        let (mut is_marked, mut foreign) = (false, None);
        for entry in names(&top).map_err(|error| failed("list", error))? {
            match entry.to_str() {
                Some(MARKER) => is_marked = true,
                Some(LOST_AND_FOUND) => {}
                _ => foreign = Some(entry),
            }
        }
        if let (false, Some(name)) = (is_marked, foreign) {
            let reason = format!(
                "{shown} holds {name:?} and no mark of this cache, so nothing in it is touched; name an empty directory, or one that is not there yet"
            );
            return Err(Error::config(SETTING, reason));
        }
        let lock = lock(&top).map_err(|error| match error {
            LockError::Taken => Error::config(
                SETTING,
                format!("{shown} is used by another broker, or another instance in this one; give each a directory of its own"),
            ),
            LockError::Foreign => Error::config(
                SETTING,
                format!("{MARKER} in {shown} is something else than the mark of this cache; name another directory"),
            ),
            LockError::Io(error) => failed(&format!("lock {MARKER} in"), error),
        })?;
        make_directory(&top, SEGMENTS).map_err(|error| failed(&format!("make {SEGMENTS} in"), error))?;
        let segments = open_directory(&top, SEGMENTS).map_err(|error| failed(&format!("open {SEGMENTS} in"), error))?;
        let home = Home {
            segments,
            path: path.to_path_buf(),
            next_temporary: AtomicU64::new(0),
            lock,
        };
        home.probe().map_err(|error| failed("write in", error))?;
        Ok(home)
    }

    /// A full disk does not keep a broker from its start: there may be room later.
    fn probe(&self) -> io::Result<()> {
        let _ = sys::unlinkat(&self.segments, PROBE, AtFlags::empty());
        match create(&self.segments, PROBE) {
            Ok(_) => Ok(sys::unlinkat(&self.segments, PROBE, AtFlags::empty())?),
            Err(Errno::NOSPC | Errno::DQUOT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Where it is, for the log.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it has been deleted. It is not made again: its path may lead to another file system by now, and the lock is on a file
    /// that nobody else can find.
    pub(super) fn is_lost(&self) -> bool {
        sys::fstat(&self.segments).is_ok_and(|status| status.st_nlink == 0)
    }

    /// All pieces, the one that was changed longest ago first. Removes what is no piece, or cannot be a whole one. Reads no contents.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Config`], with what cannot be listed or removed.
    pub(super) fn recover(&self) -> Result<Vec<Found>> {
        let mut found = Vec::new();
        self.recover_into(&mut found).map_err(|(name, error)| {
            let reason = format!(
                "cannot find out what is in {}: {}: {error}; delete it, or name another directory",
                self.path.join(SEGMENTS).display(),
                name.display()
            );
            Error::config(SETTING, reason)
        })?;
        found.sort_unstable_by_key(|found: &Found| found.modified);
        Ok(found)
    }

    fn recover_into(&self, found: &mut Vec<Found>) -> std::result::Result<(), (OsString, io::Error)> {
        for name in names(&self.segments).map_err(|error| (OsString::from(SEGMENTS), error))? {
            let outcome = match segment_of(&name) {
                Some(segment_id) => self.recover_segment(segment_id, &name, found),
                None => remove_all(&self.segments, &name, DEPTH_MAX),
            };
            outcome.map_err(|error| (name, error))?;
        }
        Ok(())
    }

    fn recover_segment(&self, segment_id: Uuid, name: &OsStr, found: &mut Vec<Found>) -> io::Result<()> {
        let directory = match sys::openat(&self.segments, name, DIRECTORY_FLAGS, Mode::empty()) {
            Ok(directory) => directory,
            // Something else than a directory, or a link to one.
            Err(Errno::NOTDIR | Errno::LOOP) => return remove_all(&self.segments, name, DEPTH_MAX),
            Err(error) => return Err(error.into()),
        };
        let before = found.len();
        for file in names(&directory)? {
            match recover_file(&directory, segment_id, &file)? {
                Some(piece) => found.push(piece),
                None => remove_all(&directory, &file, DEPTH_MAX)?,
            }
        }
        if found.len() == before {
            self.remove_directory(name);
        }
        Ok(())
    }

    /// Opens the file of a piece.
    pub(super) fn open_piece(&self, piece: Piece) -> io::Result<File> {
        let directory = open_directory(&self.segments, &piece.directory_name())?;
        // Not to be held up by a pipe that somebody has put there.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        Ok(sys::openat(&directory, piece.file_name(), flags, Mode::empty())?.into())
    }

    /// Begins the file of a piece, under a name that no piece has.
    pub(super) fn create(&self, piece: Piece) -> io::Result<Temporary<'_>> {
        let name = format!("{TEMPORARY}{}", self.next_temporary.fetch_add(1, Ordering::Relaxed));
        let directory_name = piece.directory_name();
        let mut makings = 0;
        loop {
            makings += 1;
            let created = make_directory(&self.segments, &directory_name)
                .and_then(|()| open_directory(&self.segments, &directory_name))
                .and_then(|directory| Ok((File::from(create(&directory, &name)?), directory)));
            match created {
                Ok((file, directory)) => {
                    return Ok(Temporary {
                        home: self,
                        directory,
                        file,
                        name,
                        piece,
                        is_kept: false,
                    });
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound && makings < MAKINGS_MAX => {}
                Err(error) => {
                    self.remove_directory(&directory_name);
                    return Err(error);
                }
            }
        }
    }

    /// Removes the file of a piece; one that is not there is success.
    pub(super) fn remove(&self, piece: Piece) -> io::Result<()> {
        let removed = open_directory(&self.segments, &piece.directory_name())
            .and_then(|directory| remove_all(&directory, piece.file_name().as_ref(), DEPTH_MAX));
        match removed {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }

    /// Removes the directory of a segment, if it is empty.
    pub(super) fn remove_directory(&self, name: impl AsRef<OsStr>) {
        let _ = sys::unlinkat(&self.segments, name.as_ref(), AtFlags::REMOVEDIR);
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        // Said, not only closed: a process that is just being started may have the file open for a moment longer.
        let _ = self.lock.unlock();
    }
}

/// A file that is not whole yet. Dropped, it is removed.
#[derive(Debug)]
pub(super) struct Temporary<'home> {
    home: &'home Home,
    directory: OwnedFd,
    file: File,
    name: String,
    piece: Piece,
    is_kept: bool,
}

impl Temporary<'_> {
    pub(super) fn write(&mut self, header: &[u8], payload: &[u8]) -> io::Result<()> {
        self.file.write_all(header)?;
        self.file.write_all(payload)
    }

    /// Gives it the name of its piece.
    pub(super) fn keep(mut self) -> io::Result<()> {
        sys::renameat(&self.directory, &self.name, &self.directory, self.piece.file_name())?;
        self.is_kept = true;
        Ok(())
    }
}

impl Drop for Temporary<'_> {
    fn drop(&mut self) {
        if !self.is_kept {
            // Where even this fails, the next start removes it.
            let _ = sys::unlinkat(&self.directory, &self.name, AtFlags::empty());
            self.home.remove_directory(self.piece.directory_name());
        }
    }
}

/// Reads the header, and what follows it when `room` has been made for all of it. `None`: there was no room.
///
/// # Errors
/// When the file is not an ordinary one, or not exactly as long as header and payload.
pub(super) fn read_file<Room: AsMut<[u8]>>(
    file: &File,
    length: u32,
    header: &mut [u8; HEADER_BYTES],
    room: impl FnOnce(usize) -> Option<Room>,
) -> io::Result<Option<Room>> {
    let metadata = file.metadata()?;
    if !metadata.is_file() || metadata.len() != HEADER_BYTES as u64 + u64::from(length) {
        return Err(io::Error::other("it is no file of the length it was written with"));
    }
    let length = length as usize;
    let Some(mut room) = room(length) else { return Ok(None) };
    let Some(payload) = room.as_mut().get_mut(..length) else {
        return Ok(None);
    };
    file.read_exact_at(header, 0)?;
    file.read_exact_at(payload, HEADER_BYTES as u64)?;
    Ok(Some(room))
}

enum LockError {
    Taken,
    Foreign,
    Io(io::Error),
}

impl From<io::Error> for LockError {
    fn from(error: io::Error) -> Self {
        LockError::Io(error)
    }
}

/// The marker, locked, and made where it is missing.
fn lock(top: &OwnedFd) -> std::result::Result<File, LockError> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let mut marker: File = match sys::openat(top, MARKER, flags, Mode::from_raw_mode(FILE_MODE)) {
        Ok(marker) => marker.into(),
        Err(Errno::LOOP | Errno::ISDIR) => return Err(LockError::Foreign),
        Err(error) => return Err(LockError::Io(error.into())),
    };
    if !marker.metadata()?.is_file() {
        return Err(LockError::Foreign);
    }
    match marker.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(LockError::Taken),
        Err(TryLockError::Error(error)) => return Err(LockError::Io(error)),
    }
    let mut text = Vec::new();
    (&marker).take(MARKER_TEXT.len() as u64 + 1).read_to_end(&mut text)?;
    // It is short where a crash, or a full disk, came between making and filling it.
    if !MARKER_TEXT.as_bytes().starts_with(&text) {
        return Err(LockError::Foreign);
    }
    if text.len() < MARKER_TEXT.len() {
        marker.rewind()?;
        marker.write_all(MARKER_TEXT.as_bytes())?;
    }
    Ok(marker)
}

/// The piece that a file in a segment's directory is, by its name and length.
fn recover_file(directory: &OwnedFd, segment_id: Uuid, name: &OsStr) -> io::Result<Option<Found>> {
    let Some(piece) = name.to_str().and_then(|name| Piece::parse(segment_id, name)) else {
        return Ok(None);
    };
    let status = sys::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
    let length = u64::try_from(status.st_size)
        .ok()
        .and_then(|size| size.checked_sub(HEADER_BYTES as u64))
        .and_then(|length| u32::try_from(length).ok());
    let is_file = sys::FileType::from_raw_mode(status.st_mode) == sys::FileType::RegularFile;
    Ok(length.filter(|_| is_file).map(|length| Found {
        piece,
        length,
        modified: (status.st_mtime, status.st_mtime_nsec),
    }))
}

/// The segment of a directory of this name.
fn segment_of(name: &OsStr) -> Option<Uuid> {
    let segment_id = Uuid::parse(name.to_str()?).ok()?;
    (name == segment_id.to_string().as_str()).then_some(segment_id)
}

/// The names in a directory.
fn names(directory: &OwnedFd) -> io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in sys::Dir::read_from(directory)? {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name != "." && name != ".." {
            names.push(name.to_owned());
        }
    }
    Ok(names)
}

/// Removes a file, a link, or a directory with what is in it.
fn remove_all(parent: &OwnedFd, name: &OsStr, depth: usize) -> io::Result<()> {
    match sys::unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        // Linux says EISDIR, POSIX EPERM.
        Err(Errno::ISDIR | Errno::PERM) if depth > 0 => {}
        Err(error) => return Err(error.into()),
    }
    let directory = sys::openat(parent, name, DIRECTORY_FLAGS, Mode::empty())?;
    for inner in names(&directory)? {
        remove_all(&directory, &inner, depth - 1)?;
    }
    Ok(sys::unlinkat(parent, name, AtFlags::REMOVEDIR)?)
}

fn make_directory(parent: impl AsFd, name: &str) -> io::Result<()> {
    match sys::mkdirat(parent, name, Mode::from_raw_mode(DIRECTORY_MODE)) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn open_directory(parent: impl AsFd, name: &str) -> io::Result<OwnedFd> {
    Ok(sys::openat(parent, name, DIRECTORY_FLAGS, Mode::empty())?)
}

fn create(directory: &OwnedFd, name: &str) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    sys::openat(directory, name, flags, Mode::from_raw_mode(FILE_MODE))
}
