//! Whole objects: written by rename, deleted with the directories that become empty.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::time::Instant;

use super::{
    Cancelled, errors,
    paths::{Root, is_absent, is_temporary_of, sync_directory, temporary_prefix},
};
use crate::{
    ErrorKind, Key, Operation, Payload, StoreError, StoreResult,
    pace::{Pace, SLICE_BYTES},
};

/// How much is written between two looks at whether anybody still waits.
const PIECE_BYTES: usize = 1 << 20;

/// How long a thread sleeps between two such looks when it is early.
const NAP_MAX: Duration = Duration::from_millis(50);

/// How often a write begins again because its directory was removed by a delete. Every round means that another operation made
/// progress, so this many in a row mean that something else is wrong.
const ROUNDS_MAX: usize = 1000;

/// Proves that the root can be written.
pub(super) fn probe(root: &Root) -> StoreResult<()> {
    let path = root.path().join(root.temporary("probe".as_ref()));
    let shown = root.path().display();
    let failed = |error| errors::map(Operation::Open, &error, &format!("writing to directory {shown}"));
    let mut file = create_new(&path).map_err(failed)?;
    let written = file.write_all(b"probe").and_then(|()| file.sync_all());
    fs::remove_file(&path).map_err(failed)?;
    written.map_err(failed)
}

/// Creates a file that must not exist yet.
pub(super) fn create_new(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .custom_flags(libc::O_NOFOLLOW)
        .open(path)
}

/// How the bytes of an object or part are written: piece by piece, as fast as allowed, as long as anybody waits.
pub(super) struct Writing<'write> {
    pace: Option<&'write Pace>,
    cancelled: &'write Cancelled,
}

impl<'write> Writing<'write> {
    pub(super) fn new(pace: Option<&'write Pace>, cancelled: &'write Cancelled) -> Self {
        Writing { pace, cancelled }
    }

    pub(super) fn pieces(&self, bytes: &[u8], mut write: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        let length = if self.pace.is_some() { SLICE_BYTES } else { PIECE_BYTES };
        for piece in bytes.chunks(length) {
            self.wait(piece.len())?;
            write(piece)?;
        }
        Ok(())
    }

    fn wait(&self, bytes: usize) -> io::Result<()> {
        self.check()?;
        let Some(pace) = self.pace else {
            return Ok(());
        };
        let due = pace.take(bytes);
        loop {
            let early = due.saturating_duration_since(Instant::now());
            if early.is_zero() {
                return Ok(());
            }
            std::thread::sleep(early.min(NAP_MAX));
            self.check()?;
        }
    }

    fn check(&self) -> io::Result<()> {
        given_up(self.cancelled)
    }
}

/// An error when nobody waits.
pub(super) fn given_up(cancelled: &Cancelled) -> io::Result<()> {
    // Nobody hears of it, so the operation does not matter.
    cancelled
        .check(Operation::Put)
        .map_err(|_| io::ErrorKind::Interrupted.into())
}

/// Writes an object.
pub(super) fn put(root: &Root, key: &Key, payload: &Payload, writing: &Writing<'_>) -> StoreResult<()> {
    payload.check(Operation::Put, key)?;
    let target = root.object(Operation::Put, key)?;
    in_directory(root, Operation::Put, key, &target, |directory| {
        let temporary = Temporary::create(root, directory, &target)?;
        let mut file = &temporary.file;
        writing.pieces(payload.bytes(), |piece| file.write_all(piece))?;
        file.sync_all()?;
        writing.check()?;
        temporary.rename(&target)
    })
}

/// Runs `place`, which puts a file at `target`, in its directory, which is made first and again when a delete removed it.
pub(super) fn in_directory(
    root: &Root,
    operation: Operation,
    key: &Key,
    target: &Path,
    place: impl Fn(&Path) -> io::Result<()>,
) -> StoreResult<()> {
    let directory = target.parent().unwrap_or(root.path());
    let mut last = None;
    for _ in 0..ROUNDS_MAX {
        root.check(operation)?;
        match root.make_directories(operation, directory) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => {
                last = Some(error);
                continue;
            }
            Err(error) if error.kind() == ErrorKind::Invalid => return Err(collision(operation, key, &error)),
            Err(error) => return Err(error.with_key(key)),
        }
        match place(directory) {
            Ok(()) => return sync_directory(operation, directory).map_err(|error| error.with_key(key)),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {
                last = Some(errors::map(operation, &error, &target.display().to_string()));
            }
            // An empty directory that a delete is about to remove is no object's: out of the way with it.
            Err(error) if is_directory(&error) && fs::remove_dir(target).is_ok() => {}
            Err(error) if is_directory(&error) || error.raw_os_error() == Some(libc::ENOTDIR) => {
                let error = errors::map(operation, &error, &target.display().to_string());
                return Err(collision(operation, key, &error));
            }
            Err(error) => return Err(errors::map(operation, &error, &target.display().to_string()).with_key(key)),
        }
    }
    let detail = match last {
        Some(error) => format!("the directory keeps disappearing: {}", error.detail()),
        None => "the directory keeps disappearing".to_owned(),
    };
    Err(StoreError::new(ErrorKind::Unavailable, operation, detail).with_key(key))
}

fn is_directory(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EISDIR | libc::ENOTEMPTY | libc::EEXIST)
    )
}

fn collision(operation: Operation, key: &Key, error: &StoreError) -> StoreError {
    let detail = format!(
        "a file store cannot hold an object whose key is a directory of another object's key: {}",
        error.detail()
    );
    StoreError::new(ErrorKind::Invalid, operation, detail).with_key(key)
}

/// A file on its way to its name; removed when it does not get there.
pub(super) struct Temporary {
    pub(super) file: File,
    path: PathBuf,
    renamed: bool,
}

impl Temporary {
    /// A file in `directory`, named after the object that it is for: a delete of that object finds it when this process is killed.
    pub(super) fn create(root: &Root, directory: &Path, target: &Path) -> io::Result<Self> {
        let path = directory.join(root.temporary(target.file_name().unwrap_or_default()));
        Ok(Temporary {
            file: create_new(&path)?,
            path,
            renamed: false,
        })
    }

    pub(super) fn rename(mut self, target: &Path) -> io::Result<()> {
        fs::rename(&self.path, target)?;
        self.renamed = true;
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.renamed {
            // A leftover is never listed; the failure that brought us here is the one to report.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Deletes objects with what killed processes left of them, and directories that become empty. A put of the same key that is under
/// way loses its temporary file, finds nothing to rename and begins again.
pub(super) fn delete(root: &Root, keys: &[Key]) -> StoreResult<()> {
    root.check(Operation::Delete)?;
    let mut first_failure = None;
    let mut directories: BTreeMap<PathBuf, Vec<OsString>> = BTreeMap::new();
    for key in keys {
        let removed = root.object(Operation::Delete, key).and_then(|path| {
            remove(&path)
                .map_err(|error| errors::map(Operation::Delete, &error, &path.display().to_string()).with_key(key))?;
            if let (Some(directory), Some(name)) = (path.parent(), path.file_name()) {
                let prefixes = directories.entry(directory.to_path_buf()).or_default();
                prefixes.push(temporary_prefix(name));
            }
            Ok(())
        });
        if let Err(error) = removed {
            first_failure.get_or_insert(error);
        }
    }
    for (directory, prefixes) in directories.iter().rev() {
        if let Err(error) = remove_temporaries(directory, prefixes) {
            let what = format!("removing temporary files in {}", directory.display());
            first_failure.get_or_insert(errors::map(Operation::Delete, &error, &what));
        }
        root.prune(directory);
        if let Err(error) = sync_directory(Operation::Delete, directory) {
            first_failure.get_or_insert(error);
        }
    }
    match first_failure {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

fn remove_temporaries(directory: &Path, prefixes: &[OsString]) -> io::Result<()> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if is_absent(&error) => return Ok(()),
        Err(error) => return Err(error),
    };
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        if prefixes.iter().any(|prefix| is_temporary_of(&name, prefix)) {
            remove(&entry.path())?;
        }
    }
    Ok(())
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Ok(()) => Ok(()),
        Err(error) if is_absent(&error) => Ok(()),
        // A directory is no object, so there is nothing to delete. Linux says EISDIR, POSIX EPERM.
        Err(error) if matches!(error.raw_os_error(), Some(libc::EISDIR | libc::EPERM)) && path.is_dir() => Ok(()),
        Err(error) => Err(error),
    }
}
