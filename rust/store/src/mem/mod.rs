//! A store in memory.
//!
//! # Purpose
//! Tests and benchmarks without a disk or a server; keeps every rule of the trait.
//!
//! # Invariants
//! * A body holds the bytes it began with: later writes and deletes do not reach it.

use std::{
    collections::{BTreeMap, HashMap},
    ops::{Bound, Range},
    sync::{Mutex, MutexGuard, PoisonError},
};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures::stream;

use crate::{
    ErrorKind, GetObject, Key, ListPage, ObjectInfo, ObjectStore, Operation, PART_NUMBER_MAX, Payload, StoreError,
    StoreResult, UploadId, UploadedPart, boxed_body,
};

/// Objects in memory.
#[derive(Debug, Default)]
pub struct MemStore {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    objects: BTreeMap<String, Object>,
    uploads: HashMap<String, Upload>,
    /// Names uploads and contents, each once.
    counter: u64,
}

#[derive(Clone, Debug)]
struct Object {
    bytes: Bytes,
    crc32: u32,
    tag: String,
}

#[derive(Debug)]
struct Upload {
    key: String,
    parts: BTreeMap<u32, Payload>,
}

impl State {
    fn name(&mut self) -> String {
        self.counter += 1;
        self.counter.to_string()
    }

    fn store(&mut self, key: &Key, bytes: Bytes, crc32: u32) {
        let tag = self.name();
        self.objects
            .insert(key.as_str().to_owned(), Object { bytes, crc32, tag });
    }
}

impl MemStore {
    /// An empty store.
    pub fn new() -> Self {
        MemStore::default()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing under the lock panics half way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn failed(kind: ErrorKind, operation: Operation, key: &Key, detail: impl Into<String>) -> StoreError {
    StoreError::new(kind, operation, detail).with_key(key)
}

#[async_trait]
impl ObjectStore for MemStore {
    async fn put(&self, key: &Key, payload: Payload) -> StoreResult<()> {
        payload.check(Operation::Put, key)?;
        self.state().store(key, payload.bytes().clone(), payload.crc32());
        Ok(())
    }

    async fn create_upload(&self, key: &Key) -> StoreResult<UploadId> {
        let mut state = self.state();
        let id = state.name();
        state.uploads.insert(
            id.clone(),
            Upload {
                key: key.as_str().to_owned(),
                parts: BTreeMap::new(),
            },
        );
        Ok(UploadId(id))
    }

    async fn upload_part(
        &self,
        key: &Key,
        upload: &UploadId,
        number: u32,
        payload: Payload,
    ) -> StoreResult<UploadedPart> {
        if !(1..=PART_NUMBER_MAX).contains(&number) {
            let detail = format!("part number {number} is not between 1 and {PART_NUMBER_MAX}");
            return Err(failed(ErrorKind::Invalid, Operation::UploadPart, key, detail));
        }
        payload.check(Operation::UploadPart, key)?;
        let mut state = self.state();
        let Some(upload) = state
            .uploads
            .get_mut(&upload.0)
            .filter(|upload| upload.key == key.as_str())
        else {
            return Err(failed(
                ErrorKind::UploadNotFound,
                Operation::UploadPart,
                key,
                "no such upload",
            ));
        };
        let part = UploadedPart {
            number,
            etag: format!("{:08x}", payload.crc32()),
            length: payload.length(),
            crc32: payload.crc32(),
        };
        upload.parts.insert(number, payload);
        Ok(part)
    }

    async fn complete_upload(
        &self,
        key: &Key,
        upload: &UploadId,
        parts: &[UploadedPart],
        crc32: u32,
    ) -> StoreResult<()> {
        let operation = Operation::CompleteUpload;
        let length: u64 = parts.iter().map(|part| part.length).sum();
        let mut state = self.state();
        let Some(stored) = state.uploads.get(&upload.0).filter(|upload| upload.key == key.as_str()) else {
            return match state.objects.get(key.as_str()) {
                Some(object) if object.bytes.len() as u64 == length && object.crc32 == crc32 => Ok(()),
                _ => Err(failed(ErrorKind::UploadNotFound, operation, key, "no such upload")),
            };
        };
        if parts.is_empty() || !parts.is_sorted_by(|left, right| left.number < right.number) {
            return Err(failed(
                ErrorKind::Invalid,
                operation,
                key,
                "the parts are not in order of their numbers",
            ));
        }
        let mut whole = BytesMut::with_capacity(usize::try_from(length).unwrap_or_default());
        for part in parts {
            match stored.parts.get(&part.number) {
                Some(payload) if payload.crc32() == part.crc32 && payload.length() == part.length => {
                    whole.extend_from_slice(payload.bytes());
                }
                _ => {
                    let detail = format!("part {} was not sent", part.number);
                    return Err(failed(ErrorKind::Invalid, operation, key, detail));
                }
            }
        }
        let computed = crc32fast::hash(&whole);
        if computed != crc32 {
            let detail = format!("the object has CRC-32 {computed:08x}, {crc32:08x} was expected");
            return Err(failed(ErrorKind::ChecksumMismatch, operation, key, detail));
        }
        state.uploads.remove(&upload.0);
        state.store(key, whole.freeze(), crc32);
        Ok(())
    }

    async fn abort_upload(&self, key: &Key, upload: &UploadId) -> StoreResult<()> {
        let mut state = self.state();
        if state
            .uploads
            .get(&upload.0)
            .is_some_and(|upload| upload.key == key.as_str())
        {
            state.uploads.remove(&upload.0);
        }
        Ok(())
    }

    async fn list_uploads(&self, key: &Key) -> StoreResult<Vec<UploadId>> {
        let state = self.state();
        let of_key = state.uploads.iter().filter(|(_, upload)| upload.key == key.as_str());
        Ok(of_key.map(|(id, _)| UploadId(id.clone())).collect())
    }

    async fn get(&self, key: &Key, range: Option<Range<u64>>) -> StoreResult<GetObject> {
        let object = self.state().objects.get(key.as_str()).cloned();
        let object = object.ok_or_else(|| failed(ErrorKind::NotFound, Operation::Get, key, "no such object"))?;
        let length = object.bytes.len();
        let given = match range {
            None => 0..length,
            Some(range) if range.is_empty() || range.start >= length as u64 => {
                let detail = format!("the range {range:?} is empty or past the end, {length} bytes");
                return Err(failed(ErrorKind::Invalid, Operation::Get, key, detail));
            }
            // Both fit: the start is below the length and the end is at most the length.
            Some(range) => {
                let start = usize::try_from(range.start).unwrap_or(length);
                start..usize::try_from(range.end).unwrap_or(length).min(length)
            }
        };
        let piece = object.bytes.slice(given.clone());
        Ok(GetObject {
            range: given.start as u64..given.end as u64,
            object_length: length as u64,
            tag: Some(object.tag),
            body: boxed_body(stream::iter((!piece.is_empty()).then_some(Ok(piece)))),
        })
    }

    async fn head(&self, key: &Key) -> StoreResult<ObjectInfo> {
        match self.state().objects.get(key.as_str()) {
            Some(object) => Ok(info(key.as_str(), object)),
            None => Err(failed(ErrorKind::NotFound, Operation::Head, key, "no such object")),
        }
    }

    async fn delete(&self, keys: &[Key]) -> StoreResult<()> {
        let mut state = self.state();
        for key in keys {
            state.objects.remove(key.as_str());
        }
        Ok(())
    }

    async fn list(&self, prefix: &str, start_after: Option<&str>, max_keys: u32) -> StoreResult<ListPage> {
        let from = match start_after {
            Some(after) if after >= prefix => Bound::Excluded(after),
            _ => Bound::Included(prefix),
        };
        let state = self.state();
        let mut found = state
            .objects
            .range::<str, _>((from, Bound::Unbounded))
            .take_while(|(key, _)| key.starts_with(prefix))
            .map(|(key, object)| info(key, object));
        let objects: Vec<ObjectInfo> = found.by_ref().take(max_keys as usize).collect();
        Ok(ListPage {
            has_more: found.next().is_some(),
            objects,
        })
    }
}

fn info(key: &str, object: &Object) -> ObjectInfo {
    ObjectInfo {
        key: key.to_owned(),
        length: object.bytes.len() as u64,
        crc32: Some(object.crc32),
    }
}
