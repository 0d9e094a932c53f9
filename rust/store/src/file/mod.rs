//! A directory or NFS mount as a store.
//!
//! # Purpose
//! A key is a path below the root; an object is one plain file of exactly its bytes.
//!
//! # Flow
//! A write goes to a temporary file in the target directory, is flushed to disk, renamed over the key, and the directory flushed
//! (`write`). Parts of an upload go into one staging file below `.uploads` at their place, so that completing it is a rename
//! (`upload`). A body is read piece by piece from an open file (`read`). Listing walks the directories in key order (`walk`).
//!
//! # Invariants
//! * An object is seen whole or not at all; an open body keeps the bytes it began with.
//! * Nothing is created outside the root, and the root itself is never created: a mount that went away is an error, not a new
//!   directory on the disk below.
//! * No hard links, locks, memory maps or unnamed temporary files: they fail or differ on NFS.
//! * Every blocking call is on a blocking thread. Objects and parts are written no faster than allowed, on all threads together.
//! * What a killed process leaves (`.tmp-<name>-…` beside the object, `.uploads/<hash of key>-…`) is never listed as an object, is
//!   found by its key, and goes with the delete of the key and the abort of its uploads.
//!
//! # Cancel
//! A dropped write does not rename: its thread looks before the last step. A write whose thread hangs in the kernel may still end
//! later; what it then leaves is a whole object.

mod errors;
mod paths;
mod read;
mod upload;
mod walk;
mod write;

use std::{
    fs,
    ops::Range,
    os::unix::fs::MetadataExt,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;

use crate::{
    ErrorKind, GetObject, Key, ListPage, ObjectInfo, ObjectStore, Operation, Payload, StoreError, StoreResult,
    UploadId, UploadedPart, pace::Pace,
};
use paths::Root;
use write::Writing;

/// How long a directory may take to be looked at and probed: a dead NFS server answers never.
const OPEN_LIMIT: Duration = Duration::from_secs(10);

/// Where a file store keeps its objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileConfig {
    /// The root directory; must exist and be writable.
    pub root: PathBuf,
    /// Bytes of objects and parts that are written in a second, by all operations together; no limit when absent. The policies
    /// must fit: [`crate::layer::Policies::paced`].
    pub upload_bytes_per_second: Option<u64>,
}

/// A directory of objects.
#[derive(Debug)]
pub struct FileStore {
    root: Arc<Root>,
    pace: Option<Arc<Pace>>,
}

impl FileStore {
    /// Checks that the root is a directory that can be written, by creating and removing a file.
    ///
    /// # Errors
    /// [`ErrorKind::BucketNotFound`] when there is no such directory, [`ErrorKind::AccessDenied`] when it cannot be written; the
    /// detail names it.
    pub async fn open(config: FileConfig) -> StoreResult<FileStore> {
        let pace = config.upload_bytes_per_second.map(Pace::new).map(Arc::new);
        let opening = run(Operation::Open, move |_| {
            let path = config.root;
            let shown = path.display().to_string();
            let failed = |error| errors::map(Operation::Open, &error, &format!("directory {shown}"));
            let metadata = fs::metadata(&path).map_err(failed)?;
            if !metadata.is_dir() {
                let detail = format!("{shown} is not a directory");
                return Err(StoreError::new(ErrorKind::Invalid, Operation::Open, detail));
            }
            let path = fs::canonicalize(&path).map_err(failed)?;
            let root = Root::new(path, metadata.ino());
            write::probe(&root)?;
            Ok(root)
        });
        match tokio::time::timeout(OPEN_LIMIT, opening).await {
            Ok(root) => Ok(FileStore {
                root: Arc::new(root?),
                pace,
            }),
            Err(_) => {
                let detail = format!("the directory did not answer within {OPEN_LIMIT:?}");
                Err(StoreError::new(ErrorKind::Timeout, Operation::Open, detail))
            }
        }
    }

    async fn with_root<T: Send + 'static>(
        &self,
        operation: Operation,
        work: impl FnOnce(&Root, &Cancelled) -> StoreResult<T> + Send + 'static,
    ) -> StoreResult<T> {
        let root = Arc::clone(&self.root);
        run(operation, move |cancelled| work(&root, cancelled)).await
    }
}

/// Tells a blocking thread that nobody waits for it any more.
#[derive(Clone, Debug, Default)]
struct Cancelled(Arc<AtomicBool>);

impl Cancelled {
    /// An error when nobody waits.
    fn check(&self, operation: Operation) -> StoreResult<()> {
        if self.0.load(Ordering::Acquire) {
            return Err(StoreError::new(
                ErrorKind::Timeout,
                operation,
                "the operation was given up",
            ));
        }
        Ok(())
    }
}

/// Sets the mark when the waiting future is dropped.
struct CancelOnDrop(Cancelled);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.0.store(true, Ordering::Release);
    }
}

/// Runs blocking work on a blocking thread.
async fn run<T: Send + 'static>(
    operation: Operation,
    work: impl FnOnce(&Cancelled) -> StoreResult<T> + Send + 'static,
) -> StoreResult<T> {
    let cancelled = Cancelled::default();
    let guard = CancelOnDrop(cancelled.clone());
    let outcome = tokio::task::spawn_blocking(move || work(&cancelled)).await;
    drop(guard);
    outcome.unwrap_or_else(|error| {
        Err(StoreError::new(
            ErrorKind::Unexpected,
            operation,
            format!("the blocking work ended badly: {error}"),
        ))
    })
}

#[async_trait]
impl ObjectStore for FileStore {
    async fn put(&self, key: &Key, payload: Payload) -> StoreResult<()> {
        let (key, pace) = (key.clone(), self.pace.clone());
        self.with_root(Operation::Put, move |root, cancelled| {
            write::put(root, &key, &payload, &Writing::new(pace.as_deref(), cancelled))
        })
        .await
    }

    async fn create_upload(&self, key: &Key) -> StoreResult<UploadId> {
        let key = key.clone();
        self.with_root(Operation::CreateUpload, move |root, cancelled| {
            upload::create(root, &key, cancelled)
        })
        .await
    }

    async fn upload_part(
        &self,
        key: &Key,
        upload: &UploadId,
        number: u32,
        payload: Payload,
    ) -> StoreResult<UploadedPart> {
        let (key, upload, pace) = (key.clone(), upload.clone(), self.pace.clone());
        self.with_root(Operation::UploadPart, move |root, cancelled| {
            let writing = Writing::new(pace.as_deref(), cancelled);
            upload::write_part(root, &key, &upload, number, &payload, &writing)
        })
        .await
    }

    async fn complete_upload(
        &self,
        key: &Key,
        upload: &UploadId,
        parts: &[UploadedPart],
        crc32: u32,
    ) -> StoreResult<()> {
        let (key, upload, parts) = (key.clone(), upload.clone(), parts.to_vec());
        self.with_root(Operation::CompleteUpload, move |root, cancelled| {
            upload::complete(root, &key, &upload, &parts, crc32, cancelled)
        })
        .await
    }

    async fn abort_upload(&self, key: &Key, upload: &UploadId) -> StoreResult<()> {
        let (key, upload) = (key.clone(), upload.clone());
        self.with_root(Operation::AbortUpload, move |root, _| {
            upload::abort(root, &key, &upload)
        })
        .await
    }

    async fn list_uploads(&self, key: &Key) -> StoreResult<Vec<UploadId>> {
        let key = key.clone();
        self.with_root(Operation::ListUploads, move |root, _| upload::list(root, &key))
            .await
    }

    async fn get(&self, key: &Key, range: Option<Range<u64>>) -> StoreResult<GetObject> {
        let opened = {
            let (key, range) = (key.clone(), range);
            self.with_root(Operation::Get, move |root, _| read::open(root, &key, range))
                .await?
        };
        Ok(opened.into_answer(key.clone()))
    }

    async fn head(&self, key: &Key) -> StoreResult<ObjectInfo> {
        let key = key.clone();
        self.with_root(Operation::Head, move |root, _| read::head(root, &key))
            .await
    }

    async fn delete(&self, keys: &[Key]) -> StoreResult<()> {
        let keys = keys.to_vec();
        self.with_root(Operation::Delete, move |root, _| write::delete(root, &keys))
            .await
    }

    async fn list(&self, prefix: &str, start_after: Option<&str>, max_keys: u32) -> StoreResult<ListPage> {
        let (prefix, start_after) = (prefix.to_owned(), start_after.map(str::to_owned));
        self.with_root(Operation::List, move |root, _| {
            walk::list(root, &prefix, start_after.as_deref(), max_keys)
        })
        .await
    }
}
