//! The four operations of a remote storage manager.
//!
//! # Flow
//! Each function is one call of Kafka's: it names the objects, does its work under its own deadline, counts, and says in its error what
//! was being done to which segment.
//!
//! # Not here
//! How bytes go up ([`crate::write`]) and come down ([`crate::read`], [`crate::cache`]).

mod copy;
mod delete;
mod fetch;

use std::{future::Future, path::PathBuf, time::Duration};

use alluvium_format::{CustomMetadata, FormatError, KeyPrefix, Manifest, SegmentKeys, SegmentMetadata};
use alluvium_store::Key;
use bytes::Bytes;
use tokio_util::sync::CancellationToken;

pub(crate) use copy::copy;
pub(crate) use delete::delete;
pub(crate) use fetch::{fetch, fetch_cached, fetch_index, fetch_index_cached};

use crate::{Error, ErrorKind, Result};

/// A segment, as Kafka names it in a call.
#[derive(Clone, Debug)]
pub struct SegmentRef {
    /// Its metadata.
    pub metadata: SegmentMetadata,
    /// What the copy returned, where Kafka still has it.
    pub custom_metadata: Option<Vec<u8>>,
}

/// The files of a segment to copy.
#[derive(Clone, Debug)]
pub struct SegmentFiles {
    /// `.log`.
    pub log: PathBuf,
    /// `.index`; may be empty.
    pub offset_index: PathBuf,
    /// `.timeindex`; may be empty.
    pub time_index: PathBuf,
    /// `.txnindex`; may be absent or empty.
    pub transaction_index: Option<PathBuf>,
    /// `.snapshot`.
    pub producer_snapshot: PathBuf,
    /// The leader epoch checkpoint, which Kafka hands over as bytes.
    pub leader_epochs: Bytes,
}

/// A segment to copy.
#[derive(Clone, Debug)]
pub struct CopyRequest {
    /// The segment.
    pub segment: SegmentRef,
    /// Its files.
    pub files: SegmentFiles,
}

/// The two objects of a segment.
#[derive(Clone, Debug)]
pub(crate) struct ObjectKeys {
    pub(crate) log: Key,
    pub(crate) manifest: Key,
}

impl ObjectKeys {
    pub(crate) fn new(prefix: &KeyPrefix, metadata: &SegmentMetadata) -> Result<Self> {
        let keys = SegmentKeys::new(prefix, metadata);
        let checked = |key: String| Key::new(key).map_err(|error| Error::new(ErrorKind::Invalid, error.to_string()));
        Ok(ObjectKeys {
            log: checked(keys.log)?,
            manifest: checked(keys.manifest)?,
        })
    }
}

impl SegmentRef {
    /// Refuses a manifest that is not encrypted where Kafka remembers that it was: whoever can write to the bucket could otherwise put a
    /// segment of his own in its place, without any key.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`].
    fn check(&self, manifest: &Manifest) -> Result<()> {
        let custom = self.custom_metadata.as_deref().map(CustomMetadata::decode);
        let was_encrypted = matches!(custom, Some(Ok(custom)) if custom.is_encrypted());
        if was_encrypted && manifest.coding().encryption.is_none() {
            let reason = "the segment was encrypted when it was copied, and what is in the bucket now is not";
            return Err(Error::new(ErrorKind::Corrupt, reason));
        }
        Ok(())
    }

    /// Bytes of the manifest, where Kafka still has what the copy returned.
    fn manifest_length(&self) -> Option<u64> {
        let custom = CustomMetadata::decode(self.custom_metadata.as_deref()?).ok()?;
        Some(u64::from(custom.manifest_length))
    }

    /// The keys of the segment: under the prefix it was written with where that is known, else under `configured`.
    fn keys(&self, configured: &KeyPrefix) -> Result<ObjectKeys> {
        let written = match &self.custom_metadata {
            Some(bytes) => match CustomMetadata::decode(bytes) {
                Ok(custom) => Some(custom.prefix),
                // Of a later release of ours: the prefix in it may be another one, so guessing could miss the objects.
                Err(error @ FormatError::UnknownVersion { .. }) => return Err(error.into()),
                Err(error) => {
                    // Keys follow from the ids, so foreign or damaged custom metadata loses nothing.
                    tracing::debug!(segment = %self.metadata, %error, "custom metadata ignored");
                    None
                }
            },
            None => None,
        };
        ObjectKeys::new(written.as_ref().unwrap_or(configured), &self.metadata)
    }
}

/// Runs `work` until its end, the caller's cancel, or the deadline, whichever comes first.
async fn bounded<T>(limit: Duration, cancel: &CancellationToken, work: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::select! {
        biased;
        () = cancel.cancelled() => Err(Error::new(ErrorKind::Cancelled, "cancelled by the caller or by closing")),
        outcome = tokio::time::timeout(limit, work) => outcome.unwrap_or_else(|_| {
            Err(Error::new(ErrorKind::Timeout, format!("not done within {limit:?}")))
        }),
    }
}
