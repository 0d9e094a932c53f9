//! What Kafka keeps for us with a segment's metadata and hands back on every fetch and delete.
//!
//! Kafka takes at most `remote.log.metadata.custom.metadata.max.bytes` (128 by default) and stops tiering a partition for good when
//! there are more, so the worst case is fixed here and tested.

use crate::{FormatError, KeyPrefix, coding::FEATURE_ENCRYPTION, error::quoted_bytes, keys::KEY_PREFIX_BYTES_MAX};

/// First byte: our mark in the high half, the version of the encoding in the low one. Other plugins' metadata begin differently.
const MARK: u8 = 0xa0;
const VERSION: u8 = 1;

/// mark and version, features, manifest length, log length, length of the prefix
const FIXED_BYTES: usize = 1 + 2 + 4 + 8 + 1;

/// The longest encoding in bytes.
pub const CUSTOM_METADATA_BYTES_MAX: usize = FIXED_BYTES + KEY_PREFIX_BYTES_MAX;

/// The prefix that the segment was written with, so that a change of `key.prefix` loses nothing; hints that save requests; and that it was
/// encrypted, which Kafka remembers whatever somebody does to the bucket. Delete works without them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CustomMetadata {
    /// Format features of the segment (the bits in the manifest's header).
    pub features: u16,
    /// Bytes of the manifest object.
    pub manifest_length: u32,
    /// Bytes of the `.log` object.
    pub log_length: u64,
    /// Prefix of the segment's keys.
    pub prefix: KeyPrefix,
}

impl CustomMetadata {
    /// Mark and version (1), then big-endian: features (2), manifest length (4), log length (8), prefix length (1), prefix.
    pub fn encode(&self) -> Vec<u8> {
        let prefix = self.prefix.as_str().as_bytes();
        let prefix_length = u8::try_from(prefix.len()).expect("a prefix has at most 96 bytes");
        let mut bytes = Vec::with_capacity(FIXED_BYTES + prefix.len());
        bytes.push(MARK | VERSION);
        bytes.extend_from_slice(&self.features.to_be_bytes());
        bytes.extend_from_slice(&self.manifest_length.to_be_bytes());
        bytes.extend_from_slice(&self.log_length.to_be_bytes());
        bytes.push(prefix_length);
        bytes.extend_from_slice(prefix);
        bytes
    }

    /// Whether the segment was encrypted when it was copied.
    pub fn is_encrypted(&self) -> bool {
        self.features & FEATURE_ENCRYPTION != 0
    }

    /// Reads what [`CustomMetadata::encode`] wrote.
    ///
    /// # Errors
    /// [`FormatError::UnknownVersion`] for a later encoding, [`FormatError::Malformed`] for anything else.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let malformed =
            |reason: &str| FormatError::malformed("custom metadata", format!("{reason}: {}", quoted_bytes(bytes)));
        let (&first, rest) = bytes.split_first().ok_or_else(|| malformed("empty"))?;
        if first & 0xf0 != MARK {
            return Err(malformed("not ours"));
        }
        let version = first & 0x0f;
        if version != VERSION {
            return Err(FormatError::UnknownVersion {
                found: u16::from(version),
                known: u16::from(VERSION),
            });
        }
        let short = || malformed("too short");
        let (features, rest) = rest.split_first_chunk().ok_or_else(short)?;
        let (manifest_length, rest) = rest.split_first_chunk().ok_or_else(short)?;
        let (log_length, rest) = rest.split_first_chunk().ok_or_else(short)?;
        let (&prefix_length, prefix) = rest.split_first().ok_or_else(short)?;
        if prefix.len() != usize::from(prefix_length) {
            return Err(malformed("length of the prefix is wrong"));
        }
        let prefix = std::str::from_utf8(prefix).map_err(|_| malformed("prefix is not UTF-8"))?;
        Ok(CustomMetadata {
            features: u16::from_be_bytes(*features),
            manifest_length: u32::from_be_bytes(*manifest_length),
            log_length: u64::from_be_bytes(*log_length),
            prefix: KeyPrefix::new(prefix)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_worst_case_fits_into_kafkas_limit() {
        let worst = CustomMetadata {
            features: u16::MAX,
            manifest_length: u32::MAX,
            log_length: u64::MAX,
            prefix: KeyPrefix::new("p".repeat(KEY_PREFIX_BYTES_MAX)).unwrap(),
        };
        let bytes = worst.encode();
        assert_eq!(bytes.len(), CUSTOM_METADATA_BYTES_MAX);
        assert!(bytes.len() < 128, "{}", bytes.len());
        assert_eq!(CustomMetadata::decode(&bytes), Ok(worst));
    }

    #[test]
    fn every_truncation_is_an_error() {
        let bytes = CustomMetadata {
            features: 0,
            manifest_length: 1,
            log_length: 2,
            prefix: KeyPrefix::new("a/").unwrap(),
        }
        .encode();
        for length in 0..bytes.len() {
            assert!(CustomMetadata::decode(&bytes[..length]).is_err(), "{length}");
        }
        assert!(CustomMetadata::decode(&[&bytes[..], &[0]].concat()).is_err());
    }

    #[test]
    fn a_later_version_is_told_from_foreign_bytes() {
        assert!(matches!(
            CustomMetadata::decode(&[0xa2, 0]),
            Err(FormatError::UnknownVersion { found: 2, known: 1 })
        ));
        // A section of tagged fields, as another plugin writes it.
        assert!(matches!(
            CustomMetadata::decode(b"\x01\x00\x04\xcc\xab\xfa\x0f"),
            Err(FormatError::Malformed { .. })
        ));
    }

    proptest! {
        #[test]
        fn foreign_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = CustomMetadata::decode(&bytes);
        }
    }
}
