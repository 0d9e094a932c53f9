//! Purpose: buckets, objects and uploads: an index in memory, and the files that let it be rebuilt.
//!
//! Layout below the root:
//!
//! ```text
//! blobs/<sequence>                              bytes of an object or part; never changed
//! buckets/<bucket>/objects/<encoded key>.json   description of an object: names its blobs in order
//! buckets/<bucket>/uploads/<upload id>/upload.json, part-<number>.json
//! temporary/                                    descriptions being written
//! ```
//!
//! Invariants: every change happens under one lock, and on disk by one rename or unlink of a description, so it is
//! atomic for concurrent requests and after a crash; of several writers with `If-None-Match: *` exactly one wins.
//! Completing an upload copies no bytes: the description names the blobs of the parts. Blobs that no description names
//! are removed at the next start.
//!
//! Failure: nothing is synced to the device; the directory survives a crash of the process, not of the machine. One
//! process uses a directory at a time.

use super::blob::Blob;
use super::checksum::{Checksum, Kind};
use super::key::description_path;
use super::upload::{self, Upload};
use crate::s3_server::counters::Counters;
use s3s::dto::ETagCondition;
use s3s::{S3Error, S3Result, s3_error};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

/// What a writer may attach to an object, returned with it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Attributes {
    pub(super) metadata: BTreeMap<String, String>,
    pub(super) cache_control: Option<String>,
    pub(super) content_disposition: Option<String>,
    pub(super) content_encoding: Option<String>,
    pub(super) content_language: Option<String>,
    pub(super) content_type: Option<String>,
}

/// A blob's name and length, as descriptions hold them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Extent {
    pub(super) blob: String,
    pub(super) length: u64,
}

/// The description of an object.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct ObjectDescription {
    pub(super) key: String,
    pub(super) length: u64,
    pub(super) etag: String,
    pub(super) checksum: Checksum,
    pub(super) checksum_kind: Kind,
    pub(super) attributes: Attributes,
    pub(super) extents: Vec<Extent>,
}

/// A committed object. Holding one keeps its bytes readable.
#[derive(Debug)]
pub(super) struct Object {
    pub(super) description: ObjectDescription,
    pub(super) blobs: Vec<Arc<Blob>>,
    pub(super) modified: SystemTime,
}

#[derive(Debug, Default)]
pub(super) struct Bucket {
    pub(super) objects: BTreeMap<String, Arc<Object>>,
    /// By key, then by upload id; ids grow with time.
    pub(super) uploads: BTreeMap<(String, String), Upload>,
}

pub(super) type Buckets = BTreeMap<String, Bucket>;

/// What must hold for a write to happen.
#[derive(Clone, Debug, Default)]
pub(super) struct WriteCondition {
    pub(super) if_match: Option<ETagCondition>,
    pub(super) if_none_match: Option<ETagCondition>,
}

impl WriteCondition {
    pub(super) fn check(&self, existing: Option<&Object>) -> S3Result<()> {
        let failed = || {
            s3_error!(
                PreconditionFailed,
                "At least one of the pre-conditions you specified did not hold"
            )
        };
        let holds = |condition: &ETagCondition, object: &Object| match condition {
            ETagCondition::Any => true,
            ETagCondition::ETag(etag) => etag.value() == object.description.etag,
        };
        if let Some(condition) = &self.if_none_match {
            if !condition.is_any() {
                return Err(s3_error!(NotImplemented, "If-None-Match of a write takes only '*'"));
            }
            if existing.is_some() {
                return Err(failed());
            }
        }
        if let Some(condition) = &self.if_match {
            let object = existing.ok_or_else(|| s3_error!(NoSuchKey, "The specified key does not exist."))?;
            if !holds(condition, object) {
                return Err(failed());
            }
        }
        Ok(())
    }
}

#[derive(Debug)]
pub(super) struct Store {
    root: PathBuf,
    buckets: Mutex<Buckets>,
    sequence: AtomicU64,
    counters: Arc<Counters>,
}

impl Store {
    /// Opens or creates the directory and makes sure that `buckets` exist.
    pub(super) fn open(root: &Path, buckets: &[String], counters: Arc<Counters>) -> io::Result<Self> {
        for directory in ["blobs", "buckets"] {
            fs::create_dir_all(root.join(directory))?;
        }
        let temporary = root.join("temporary");
        match fs::remove_dir_all(&temporary) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => fs::create_dir(&temporary)?,
        }
        let store = Self {
            root: root.to_path_buf(),
            buckets: Mutex::new(Buckets::new()),
            sequence: AtomicU64::new(1),
            counters,
        };
        store.load()?;
        for bucket in buckets {
            if !store.lock().contains_key(bucket) {
                store.create_bucket(bucket)?;
            }
        }
        Ok(store)
    }

    fn load(&self) -> io::Result<()> {
        let mut loaded = Buckets::new();
        let mut used = HashSet::new();
        for bucket_directory in entries(&self.root.join("buckets"))? {
            let mut bucket = Bucket::default();
            let mut directories = vec![bucket_directory.join("objects")];
            while let Some(directory) = directories.pop() {
                for path in entries(&directory)? {
                    if path.is_dir() {
                        directories.push(path);
                        continue;
                    }
                    let (description, modified): (ObjectDescription, _) = read_description(&path)?;
                    let blobs = description
                        .extents
                        .iter()
                        .map(|extent| self.named_blob(extent, &mut used))
                        .collect();
                    let key = description.key.clone();
                    bucket.objects.insert(
                        key,
                        Arc::new(Object {
                            description,
                            blobs,
                            modified,
                        }),
                    );
                }
            }
            for directory in entries(&bucket_directory.join("uploads"))? {
                if let Some((key, upload)) = upload::load(self, &directory, &mut used)? {
                    bucket.uploads.insert(key, upload);
                    self.counters.upload_opened();
                }
            }
            let name = bucket_directory
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            loaded.insert(name, bucket);
        }
        for path in entries(&self.root.join("blobs"))? {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if let Ok(number) = u64::from_str_radix(&name, 16) {
                self.sequence.fetch_max(number + 1, Ordering::Relaxed);
            }
            if !used.contains(&name) {
                fs::remove_file(&path)?;
            }
        }
        *self.lock() = loaded;
        Ok(())
    }

    pub(super) fn named_blob(&self, extent: &Extent, used: &mut HashSet<String>) -> Arc<Blob> {
        used.insert(extent.blob.clone());
        Blob::existing(self.root.join("blobs").join(&extent.blob))
    }

    /// A number never given before in this directory.
    pub(super) fn next_number(&self) -> u64 {
        self.sequence.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn new_blob(&self) -> Arc<Blob> {
        Blob::fresh(self.root.join("blobs").join(format!("{:016x}", self.next_number())))
    }

    pub(super) fn counters(&self) -> &Counters {
        &self.counters
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Buckets> {
        // A panic under the lock can only have left a complete state: every change is one insert or remove.
        self.buckets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn bucket_directory(&self, bucket: &str) -> PathBuf {
        self.root.join("buckets").join(bucket)
    }

    pub(super) fn uploads_directory(&self, bucket: &str) -> PathBuf {
        self.bucket_directory(bucket).join("uploads")
    }

    /// Creates the bucket; `false` when it exists.
    pub(super) fn create_bucket(&self, bucket: &str) -> io::Result<bool> {
        let mut buckets = self.lock();
        if buckets.contains_key(bucket) {
            return Ok(false);
        }
        fs::create_dir_all(self.bucket_directory(bucket).join("objects"))?;
        fs::create_dir_all(self.uploads_directory(bucket))?;
        buckets.insert(bucket.to_owned(), Bucket::default());
        Ok(true)
    }

    pub(super) fn check_bucket(&self, bucket: &str) -> S3Result<()> {
        self.lock().get(bucket).map(|_| ()).ok_or_else(no_such_bucket)
    }

    pub(super) fn object(&self, bucket: &str, key: &str) -> S3Result<Arc<Object>> {
        let buckets = self.lock();
        let object = buckets.get(bucket).ok_or_else(no_such_bucket)?.objects.get(key);
        object
            .map(Arc::clone)
            .ok_or_else(|| s3_error!(NoSuchKey, "The specified key does not exist."))
    }

    pub(super) fn commit(
        &self,
        bucket: &str,
        description: ObjectDescription,
        blobs: Vec<Arc<Blob>>,
        condition: &WriteCondition,
    ) -> S3Result<()> {
        let mut buckets = self.lock();
        let objects = &mut buckets.get_mut(bucket).ok_or_else(no_such_bucket)?.objects;
        self.commit_locked(bucket, objects, description, blobs, condition)
    }

    /// Makes the object visible, in place of an older one. Under the lock, so that condition and effect are one step.
    pub(super) fn commit_locked(
        &self,
        bucket: &str,
        objects: &mut BTreeMap<String, Arc<Object>>,
        description: ObjectDescription,
        blobs: Vec<Arc<Blob>>,
        condition: &WriteCondition,
    ) -> S3Result<()> {
        let key = description.key.clone();
        condition.check(objects.get(&key).map(Arc::as_ref))?;
        let path = description_path(&self.bucket_directory(bucket).join("objects"), &key);
        let modified = self
            .write_description(&path, &description)
            .map_err(S3Error::internal_error)?;
        for blob in &blobs {
            blob.keep();
        }
        if let Some(old) = objects.insert(
            key,
            Arc::new(Object {
                description,
                blobs,
                modified,
            }),
        ) {
            discard_all(&old.blobs);
        }
        Ok(())
    }

    /// Removes the object; an absent one is fine, as in S3.
    pub(super) fn delete(&self, bucket: &str, key: &str) -> S3Result<()> {
        let mut buckets = self.lock();
        let objects = &mut buckets.get_mut(bucket).ok_or_else(no_such_bucket)?.objects;
        if !objects.contains_key(key) {
            return Ok(());
        }
        let directory = self.bucket_directory(bucket).join("objects");
        let path = description_path(&directory, key);
        fs::remove_file(&path).map_err(S3Error::internal_error)?;
        // Long keys have parents of their own; one that still holds another key refuses to go.
        for parent in path.ancestors().skip(1).take_while(|parent| *parent != directory) {
            if fs::remove_dir(parent).is_err() {
                break;
            }
        }
        if let Some(object) = objects.remove(key) {
            discard_all(&object.blobs);
        }
        Ok(())
    }

    /// Writes a description atomically and returns the time the file system gave it.
    pub(super) fn write_description(&self, path: &Path, description: &impl Serialize) -> io::Result<SystemTime> {
        let temporary = self.root.join("temporary").join(format!("{:016x}", self.next_number()));
        fs::write(&temporary, serde_json::to_vec(description)?)?;
        let renamed = path
            .parent()
            .map_or(Ok(()), fs::create_dir_all)
            .and_then(|()| fs::metadata(&temporary)?.modified())
            .and_then(|modified| fs::rename(&temporary, path).map(|()| modified));
        if renamed.is_err() {
            // The first error is the one to report.
            let _ = fs::remove_file(&temporary);
        }
        renamed
    }
}

pub(super) fn no_such_bucket() -> S3Error {
    s3_error!(NoSuchBucket, "The specified bucket does not exist")
}

fn discard_all(blobs: &[Arc<Blob>]) {
    for blob in blobs {
        blob.discard();
    }
}

/// The paths in a directory; none when it does not exist.
pub(super) fn entries(directory: &Path) -> io::Result<Vec<PathBuf>> {
    match fs::read_dir(directory) {
        Ok(entries) => entries.map(|entry| entry.map(|entry| entry.path())).collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

pub(super) fn read_description<D: DeserializeOwned>(path: &Path) -> io::Result<(D, SystemTime)> {
    let description = serde_json::from_slice(&fs::read(path)?)?;
    Ok((description, fs::metadata(path)?.modified()?))
}
