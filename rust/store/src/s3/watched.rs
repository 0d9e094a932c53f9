//! Notices that a file was replaced, by what `stat` says of it.

use std::{fs, os::unix::fs::MetadataExt, path::Path};

/// What identifies one state of a file. A file that cannot be looked at is a state too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileStamp(Option<(u64, u64, u64, i64, i64)>);

impl FileStamp {
    /// The present state of `path`, following links: mounted secrets are links that are switched.
    pub(super) fn of(path: &Path) -> Self {
        FileStamp(fs::metadata(path).ok().map(|metadata| {
            (
                metadata.dev(),
                metadata.ino(),
                metadata.len(),
                metadata.mtime(),
                metadata.mtime_nsec(),
            )
        }))
    }
}
