//! From keys to paths, and the root they are below.

use std::{
    ffi::{OsStr, OsString},
    fs,
    hash::{BuildHasher, RandomState},
    io,
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use md5::{Digest, Md5};

use crate::{ErrorKind, Key, Operation, StoreError, StoreResult};

/// Longest name of a file (Linux `NAME_MAX`, and that of every common file system).
const NAME_BYTES_MAX: usize = 255;

/// Longest name that a temporary file can carry: what is left of [`NAME_BYTES_MAX`] by [`TEMPORARY`], a dash and a unique name.
const NAMED_BYTES_MAX: usize = NAME_BYTES_MAX - 5 - 1 - UNIQUE_BYTES_MAX;

/// Longest unique name: two numbers of 64 bits and a dash.
const UNIQUE_BYTES_MAX: usize = 33;

/// Begins the names of temporary files, which no key may use.
pub(super) const TEMPORARY: &str = ".tmp-";

/// The directory below the root where uploads are staged, whose name no key may begin with.
pub(super) const UPLOADS: &str = ".uploads";

/// The root directory of a store.
#[derive(Debug)]
pub(super) struct Root {
    path: PathBuf,
    /// A mount point without its mount is another directory: it has another inode. The device is no help, since NFS may be
    /// mounted again under another number.
    inode: u64,
    /// Makes names unique among all processes and hosts that share the directory.
    nonce: u64,
    counter: AtomicU64,
}

impl Root {
    pub(super) fn new(path: PathBuf, inode: u64) -> Self {
        // The standard library's hasher keys come from the operating system: all that a unique name needs.
        let nonce = RandomState::new().hash_one(std::process::id());
        Root {
            path,
            inode,
            nonce,
            counter: AtomicU64::new(0),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// A name that no other file has or had.
    pub(super) fn unique(&self) -> String {
        format!("{:016x}-{:x}", self.nonce, self.counter.fetch_add(1, Ordering::Relaxed))
    }

    /// A name for a temporary file that will be renamed to `name`.
    pub(super) fn temporary(&self, name: &OsStr) -> OsString {
        let mut temporary = temporary_prefix(name);
        temporary.push(self.unique());
        temporary
    }

    /// An error when the root is gone or is not the directory that was opened.
    pub(super) fn check(&self, operation: Operation) -> StoreResult<()> {
        let gone = |reason: &str| {
            let detail = format!("the root directory {} {reason}", self.path.display());
            Err(StoreError::new(ErrorKind::BucketNotFound, operation, detail))
        };
        match fs::metadata(&self.path) {
            Ok(metadata) if metadata.ino() == self.inode => Ok(()),
            Ok(_) => gone("is another directory than at the start: is its file system still mounted?"),
            Err(error) if is_absent(&error) => gone("is gone"),
            Err(error) => Err(super::errors::map(operation, &error, &self.path.display().to_string())),
        }
    }

    /// Where the object of `key` is.
    pub(super) fn object(&self, operation: Operation, key: &Key) -> StoreResult<PathBuf> {
        let invalid = |detail: String| Err(StoreError::new(ErrorKind::Invalid, operation, detail).with_key(key));
        let mut path = self.path.clone();
        for (depth, component) in key.as_str().split('/').enumerate() {
            if component.len() > NAME_BYTES_MAX {
                return invalid(format!(
                    "a key component of {} bytes is longer than a file name can be, {NAME_BYTES_MAX}",
                    component.len()
                ));
            }
            if component.starts_with(TEMPORARY) || (depth == 0 && component == UPLOADS) {
                return invalid(format!("the key component {component:?} is reserved in a file store"));
            }
            path.push(component);
        }
        Ok(path)
    }

    /// Makes the directory `path`, at or below the root, and what is missing between. Never the root.
    pub(super) fn make_directories(&self, operation: Operation, path: &Path) -> StoreResult<()> {
        let mut missing: Vec<&Path> = Vec::new();
        let mut present = path;
        while present != self.path {
            match fs::create_dir(present) {
                Ok(()) => {
                    missing.push(present);
                    break;
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => break,
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {
                    missing.push(present);
                    present = match present.parent() {
                        Some(parent) => parent,
                        None => break,
                    };
                }
                Err(error) => return Err(super::errors::map(operation, &error, &present.display().to_string())),
            }
        }
        if present == self.path {
            self.check(operation)?;
        }
        // From the top down; the first of them may have been made above.
        for directory in missing.iter().rev() {
            match fs::create_dir(directory) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                // Removed by a delete in between: the caller begins again.
                Err(error) => return Err(super::errors::map(operation, &error, &directory.display().to_string())),
            }
            if let Some(parent) = directory.parent() {
                sync_directory(operation, parent)?;
            }
        }
        Ok(())
    }

    /// Removes `directory` and those above it while they are empty, up to the root. Whether any is in use is for the file system
    /// to say.
    pub(super) fn prune(&self, directory: &Path) {
        let mut directory = directory;
        while directory != self.path && directory.starts_with(&self.path) {
            match fs::remove_dir(directory) {
                Ok(()) => {}
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
                Err(_) => return,
            }
            match directory.parent() {
                Some(parent) => directory = parent,
                None => return,
            }
        }
    }
}

/// 128 bits that stand for `text` in a name. Nobody gains from a collision: who can choose keys can write the directory.
pub(super) fn hash(text: &[u8]) -> String {
    format!("{:032x}", u128::from_be_bytes(Md5::digest(text).into()))
}

/// How the names of all temporary files for `name` begin.
pub(super) fn temporary_prefix(name: &OsStr) -> OsString {
    let mut prefix = OsString::from(TEMPORARY);
    if name.len() <= NAMED_BYTES_MAX {
        prefix.push(name);
    } else {
        prefix.push(hash(name.as_bytes()));
    }
    prefix.push("-");
    prefix
}

/// Whether `entry` is a temporary file whose name begins with `prefix` and goes on with a unique name, and not one for a longer
/// name.
pub(super) fn is_temporary_of(entry: &OsStr, prefix: &OsStr) -> bool {
    let Some(unique) = entry.as_bytes().strip_prefix(prefix.as_bytes()) else {
        return false;
    };
    let Some((nonce, counter)) = unique.split_at_checked(16) else {
        return false;
    };
    let hexadecimal = |digits: &[u8]| !digits.is_empty() && digits.iter().all(u8::is_ascii_hexdigit);
    hexadecimal(nonce) && counter.strip_prefix(b"-").is_some_and(hexadecimal)
}

/// Whether the error says that there is nothing at the path: no such file, or a file where a directory should be.
pub(super) fn is_absent(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR))
}

/// Makes the names in a directory durable. One that was removed in between needs no more.
pub(super) fn sync_directory(operation: Operation, path: &Path) -> StoreResult<()> {
    let synced = fs::File::open(path).and_then(|directory| directory.sync_all());
    match synced {
        Ok(()) => Ok(()),
        Err(error) if is_absent(&error) => Ok(()),
        // Some file systems cannot flush a directory; they say EINVAL.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(()),
        Err(error) => Err(super::errors::map(
            operation,
            &error,
            &format!("flushing {}", path.display()),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn temporaries_are_known_by_the_name_they_are_for() {
        let root = Root::new(PathBuf::from("/"), 0);
        let long = "x".repeat(NAME_BYTES_MAX);
        for name in ["a", "a-b", "a-0123456789abcdef-1", long.as_str()] {
            let name = OsStr::new(name);
            let temporary = root.temporary(name);
            assert!(temporary.len() <= NAME_BYTES_MAX, "{temporary:?}");
            assert!(is_temporary_of(&temporary, &temporary_prefix(name)), "{temporary:?}");
            for other in ["b", "a-", "a-b-c", "a-0123456789abcdef"] {
                assert!(
                    !is_temporary_of(&temporary, &temporary_prefix(OsStr::new(other))),
                    "{temporary:?} {other}"
                );
            }
        }
        assert!(!is_temporary_of(
            &root.temporary(OsStr::new("a-b")),
            &temporary_prefix(OsStr::new("a"))
        ));
    }
}
