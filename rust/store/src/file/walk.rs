//! Listing: a walk over the directories in byte order of keys.

use std::{fs, io, path::Path};

use super::{
    errors,
    paths::{Root, TEMPORARY, UPLOADS, is_absent},
};
use crate::{ListPage, ObjectInfo, Operation, StoreResult};

/// Lists objects.
pub(super) fn list(root: &Root, prefix: &str, start_after: Option<&str>, max_keys: u32) -> StoreResult<ListPage> {
    root.check(Operation::List)?;
    let mut walk = Walk {
        prefix,
        start_after: start_after.unwrap_or(""),
        wanted: max_keys as usize + 1,
        found: Vec::new(),
    };
    walk.directory(root.path(), "")
        .map_err(|error| errors::map(Operation::List, &error, &format!("listing {}", root.path().display())))?;
    let has_more = walk.found.len() > max_keys as usize;
    walk.found.truncate(max_keys as usize);
    Ok(ListPage {
        objects: walk.found,
        has_more,
    })
}

struct Walk<'request> {
    prefix: &'request str,
    start_after: &'request str,
    wanted: usize,
    found: Vec<ObjectInfo>,
}

impl Walk<'_> {
    /// Walks `path`, whose objects' keys begin with `parent` (empty, or ending in a slash). Depth is bounded by the length of a
    /// key.
    fn directory(&mut self, path: &Path, parent: &str) -> io::Result<()> {
        let entries = match fs::read_dir(path) {
            Ok(entries) => entries,
            // Removed since its parent was read.
            Err(error) if is_absent(&error) => return Ok(()),
            Err(error) => return Err(error),
        };
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry?;
            // A name that is not UTF-8 is no key.
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            if name.starts_with(TEMPORARY) || (parent.is_empty() && name == UPLOADS) {
                continue;
            }
            let kind = entry.file_type()?;
            if kind.is_dir() {
                // Sorted with its slash, as its keys are: `a-b` comes before `a/b`.
                let key = format!("{parent}{name}/");
                if self.may_hold(&key) {
                    names.push((key, entry.path(), true));
                }
            } else if kind.is_file() {
                let key = format!("{parent}{name}");
                if key.starts_with(self.prefix) && key.as_str() > self.start_after {
                    names.push((key, entry.path(), false));
                }
            }
        }
        names.sort_unstable();
        for (key, path, is_directory) in names {
            if self.found.len() >= self.wanted {
                return Ok(());
            }
            if is_directory {
                self.directory(&path, &key)?;
                continue;
            }
            match fs::symlink_metadata(&path) {
                Ok(metadata) => self.found.push(ObjectInfo {
                    key,
                    length: metadata.len(),
                    crc32: None,
                }),
                Err(error) if is_absent(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Whether keys below the directory `key` (with its slash) can be wanted.
    fn may_hold(&self, key: &str) -> bool {
        let by_prefix = key.starts_with(self.prefix) || self.prefix.starts_with(key);
        let by_start = key > self.start_after || self.start_after.starts_with(key);
        by_prefix && by_start
    }
}
