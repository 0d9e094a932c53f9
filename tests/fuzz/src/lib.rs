//! What the fuzz targets share: a writer of manifests that obeys `docs/FORMAT.md` only as far as it is told to, and what must be true of
//! everything that `rust/format` accepts.
//!
//! # Invariants
//! * The writer uses nothing of `rust/format`: it is made from the document, so that the two check each other.
//!
//! # Not here
//! The input of a target: each turns its bytes into what it tries by itself.

#![forbid(unsafe_code)]

mod accepted;
mod object;

pub use accepted::{check_accepted, check_error, check_keys};
pub use object::{
    EncryptionMessage, FEATURE_ENCRYPTION, FEATURE_ZSTD, HEADER_BYTES, IndexMessage, ManifestMessage, SegmentMessage,
    TAG_BYTES, compress, manifest_object, seal,
};

use alluvium_format::{DataKey, DataKeys, FormatError, WrappedKey};

/// The data key of every encrypted segment here.
pub const DATA_KEY: [u8; 32] = [0x5a; 32];

/// Name of a key pair that nobody has.
pub const LOST_KEY_ID: &str = "lost";

/// Gives [`DATA_KEY`] whatever the wrapped key is: RSA would stop every input here.
#[derive(Clone, Copy, Debug)]
pub struct Keys;

impl DataKeys for Keys {
    fn unwrap_key(&self, wrapped: &WrappedKey) -> Result<DataKey, FormatError> {
        if wrapped.key_id == LOST_KEY_ID {
            return Err(FormatError::NoDataKey {
                reason: LOST_KEY_ID.to_owned(),
            });
        }
        Ok(DataKey::new(DATA_KEY))
    }
}
