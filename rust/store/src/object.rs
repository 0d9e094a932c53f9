//! The trait that every store implements, and the words it speaks: key, payload, part, upload, body.

use std::{fmt, ops::Range};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures::{Stream, StreamExt, stream::BoxStream};

use crate::{ErrorKind, Operation, StoreError, StoreResult};

/// Highest part number of a multipart upload (S3: "Amazon S3 multipart upload limits").
pub const PART_NUMBER_MAX: u32 = 10_000;

/// Longest key in bytes of UTF-8 (S3: "Object key naming guidelines").
const KEY_BYTES_MAX: usize = 1024;

/// An object key that every store can hold: relative, without empty, `.` or `..` components, at most 1024 bytes.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(String);

/// Why a text is no [`Key`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// Nothing at all.
    #[error("an object key cannot be empty")]
    Empty,
    /// Over 1024 bytes.
    #[error("an object key has at most 1024 bytes of UTF-8, this one has {0}")]
    TooLong(usize),
    /// An empty component, `.` or `..`: MinIO refuses them, and a directory would be left.
    #[error("an object key cannot have the path component {0:?}")]
    Component(String),
    /// A control character.
    #[error("an object key cannot have control characters")]
    Control,
}

impl Key {
    /// Checks and wraps a key.
    ///
    /// # Errors
    /// [`KeyError`] names the rule that `key` breaks.
    pub fn new(key: impl Into<String>) -> Result<Self, KeyError> {
        let key = key.into();
        if key.is_empty() {
            return Err(KeyError::Empty);
        }
        if key.len() > KEY_BYTES_MAX {
            return Err(KeyError::TooLong(key.len()));
        }
        // U+FFFE and U+FFFF cannot be written in XML, in which keys are deleted.
        if key
            .chars()
            .any(|letter| letter.is_control() || matches!(letter, '\u{fffe}' | '\u{ffff}'))
        {
            return Err(KeyError::Control);
        }
        for component in key.split('/') {
            if matches!(component, "" | "." | "..") {
                return Err(KeyError::Component(component.to_owned()));
            }
        }
        Ok(Key(key))
    }

    /// The key as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, formatter)
    }
}

/// Bytes to send, with their CRC-32, computed once by the owner of the bytes. Cheap to clone, so every attempt can replay it.
#[derive(Clone, Debug)]
pub struct Payload {
    bytes: Bytes,
    crc32: u32,
}

impl Payload {
    /// Bytes whose CRC-32 (IEEE) the caller has already computed.
    pub fn with_crc32(bytes: Bytes, crc32: u32) -> Self {
        Payload { bytes, crc32 }
    }

    /// Bytes, whose CRC-32 is computed here.
    pub fn new(bytes: Bytes) -> Self {
        let crc32 = crc32fast::hash(&bytes);
        Payload { bytes, crc32 }
    }

    /// The bytes.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// CRC-32 (IEEE) of the bytes.
    pub fn crc32(&self) -> u32 {
        self.crc32
    }

    /// Number of bytes.
    pub fn length(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Whether the bytes have the checksum that came with them: what a backend without a server of its own checks.
    pub(crate) fn check(&self, operation: Operation, key: &Key) -> StoreResult<()> {
        let found = crc32fast::hash(&self.bytes);
        if found == self.crc32 {
            return Ok(());
        }
        let detail = format!(
            "the bytes have CRC-32 {found:08x}, {:08x} was sent with them",
            self.crc32
        );
        Err(StoreError::new(ErrorKind::ChecksumMismatch, operation, detail).with_key(key))
    }
}

/// Identity of a multipart upload, given by the store.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct UploadId(pub String);

/// What the store returned for a part; handed back at completion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UploadedPart {
    /// 1 to [`PART_NUMBER_MAX`].
    pub number: u32,
    /// The store's tag of the part.
    pub etag: String,
    /// Bytes in the part.
    pub length: u64,
    /// CRC-32 of the part, as sent.
    pub crc32: u32,
}

/// What a store knows of an object without its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectInfo {
    /// The key.
    pub key: String,
    /// Bytes in the object.
    pub length: u64,
    /// CRC-32 of the whole object, where the store kept one and the operation returns it.
    pub crc32: Option<u32>,
}

/// One page of a listing, in byte order of keys.
#[derive(Clone, Debug, Default)]
pub struct ListPage {
    /// The objects.
    pub objects: Vec<ObjectInfo>,
    /// Whether there are more after the last one: list again with `start_after` set to its key.
    pub has_more: bool,
}

/// A body under way. Asking it again after its end, or after an error, gives the end.
pub type Body = BoxStream<'static, StoreResult<Bytes>>;

/// Boxes a body so that it keeps the promise of [`Body`].
pub(crate) fn boxed_body(stream: impl Stream<Item = StoreResult<Bytes>> + Send + 'static) -> Body {
    stream.fuse().boxed()
}

/// The answer to a GET.
pub struct GetObject {
    /// The bytes of the object that the body will yield (half-open).
    pub range: Range<u64>,
    /// Length of the whole object.
    pub object_length: u64,
    /// The store's name for this content of the object: two answers with the same tag are of the same bytes. Lets a broken
    /// body be resumed without mixing an object with the one that replaced it.
    pub tag: Option<String>,
    /// Pieces of any size, together exactly `range`, or an error: a body never ends early without one.
    pub body: Body,
}

impl GetObject {
    /// Bytes that the body will yield.
    pub fn length(&self) -> u64 {
        self.range.end - self.range.start
    }
}

impl fmt::Debug for GetObject {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("GetObject")
            .field("range", &self.range)
            .field("object_length", &self.object_length)
            .finish_non_exhaustive()
    }
}

impl GetObject {
    /// Reads the whole body into one buffer.
    ///
    /// # Errors
    /// What the body ended with; [`ErrorKind::Truncated`] when it is shorter or longer than announced.
    pub async fn collect(mut self) -> StoreResult<Bytes> {
        let mismatch = |detail: String| StoreError::new(ErrorKind::Truncated, Operation::Get, detail);
        let announced = self.range.end - self.range.start;
        let length = usize::try_from(announced).map_err(|_| mismatch(format!("a body of {announced} bytes")))?;
        // A body of one piece, as the in-memory store gives it, is not copied.
        let first = match self.body.next().await {
            Some(piece) => piece?,
            None if length == 0 => return Ok(Bytes::new()),
            None => return Err(mismatch(format!("an empty body instead of {length} bytes"))),
        };
        if first.len() == length {
            return match self.body.next().await {
                None => Ok(first),
                Some(Err(error)) => Err(error),
                Some(Ok(_)) => Err(mismatch(format!("a body longer than its {length} bytes"))),
            };
        }
        let mut buffer = BytesMut::with_capacity(length);
        let mut piece = first;
        loop {
            if buffer.len() + piece.len() > length {
                return Err(mismatch(format!("a body longer than its {length} bytes")));
            }
            buffer.extend_from_slice(&piece);
            piece = match self.body.next().await {
                Some(next) => next?,
                None => break,
            };
        }
        if buffer.len() < length {
            return Err(mismatch(format!(
                "a body of {} bytes instead of {length}",
                buffer.len()
            )));
        }
        Ok(buffer.freeze())
    }
}

/// A place for objects. Backends and layers implement it alike.
///
/// # Cancel safety
/// Dropping a future ends the request as far as the client goes; whether the store carried it out is then unknown. Every
/// operation can be repeated.
#[async_trait]
pub trait ObjectStore: Send + Sync + fmt::Debug {
    /// Writes a whole object, replacing one of the same key. Seen whole or not at all.
    async fn put(&self, key: &Key, payload: Payload) -> StoreResult<()>;

    /// Begins a multipart upload. Not repeated when its answer is lost: see [`ObjectStore::list_uploads`] to find what it left.
    async fn create_upload(&self, key: &Key) -> StoreResult<UploadId>;

    /// Sends one part. All parts but the last must have at least 5 MiB (S3's limit).
    async fn upload_part(
        &self,
        key: &Key,
        upload: &UploadId,
        number: u32,
        payload: Payload,
    ) -> StoreResult<UploadedPart>;

    /// Makes the object of its parts, which must be in order of their numbers. `crc32` is that of the whole object.
    ///
    /// An upload that is gone is not an error when the object is there with the length and checksum of the parts: the
    /// answer to an earlier attempt was lost.
    async fn complete_upload(
        &self,
        key: &Key,
        upload: &UploadId,
        parts: &[UploadedPart],
        crc32: u32,
    ) -> StoreResult<()>;

    /// Gives up a multipart upload and frees its parts. One that is gone is success. Call it after all parts in flight ended.
    async fn abort_upload(&self, key: &Key, upload: &UploadId) -> StoreResult<()>;

    /// The multipart uploads under way for exactly this key.
    async fn list_uploads(&self, key: &Key) -> StoreResult<Vec<UploadId>>;

    /// Reads an object, whole or a range of it. A range that passes the end is clipped; one that starts at or after the end, or
    /// is empty, is [`ErrorKind::Invalid`].
    async fn get(&self, key: &Key, range: Option<Range<u64>>) -> StoreResult<GetObject>;

    /// Looks an object up without its bytes.
    async fn head(&self, key: &Key) -> StoreResult<ObjectInfo>;

    /// Deletes objects (at most 1,000 keys), in one request where the store can. Absent ones are success. Tries all and then
    /// reports the first failure.
    async fn delete(&self, keys: &[Key]) -> StoreResult<()>;

    /// Lists up to `max_keys` (1 to 1,000) objects whose key starts with `prefix` and is greater than `start_after`.
    async fn list(&self, prefix: &str, start_after: Option<&str>, max_keys: u32) -> StoreResult<ListPage>;
}
