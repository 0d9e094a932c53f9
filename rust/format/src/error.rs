//! Why bytes or names are not what they should be.

/// A name that cannot be used, or stored bytes that are not what the format says.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// The object does not begin with the magic of a manifest.
    #[error("not a manifest: it starts with {found:02x?}")]
    BadMagic {
        /// The first bytes found.
        found: [u8; 4],
    },
    /// Written by a later release.
    #[error("format version {found} is not known to this release, which reads up to {known}")]
    UnknownVersion {
        /// Version in the object.
        found: u16,
        /// Highest version this release reads.
        known: u16,
    },
    /// Written with a feature that this release cannot read.
    #[error("the segment needs format features {unknown:#06x} that this release does not have")]
    UnknownFeatures {
        /// The unknown bits.
        unknown: u16,
    },
    /// Fewer or more bytes than announced.
    #[error("{what} has {found} bytes instead of {expected}")]
    WrongLength {
        /// What was measured.
        what: &'static str,
        /// Bytes announced.
        expected: u64,
        /// Bytes found.
        found: u64,
    },
    /// The checksum does not fit the bytes.
    #[error("{what} has CRC-32 {found:08x} instead of {expected:08x}")]
    WrongChecksum {
        /// What was checked.
        what: String,
        /// CRC-32 written down.
        expected: u32,
        /// CRC-32 of the bytes.
        found: u32,
    },
    /// Sealed bytes, or the place where they were found, are not what was sealed.
    #[error("{what} is not what was sealed: it was changed or moved, or another data key belongs to it")]
    NotAuthentic {
        /// What was opened.
        what: &'static str,
    },
    /// The data key of a segment cannot be had: its key pair is not configured, or another one has its name.
    #[error("no data key: {reason}")]
    NoDataKey {
        /// Which key pair, and why not.
        reason: String,
    },
    /// The caller had no memory for decoded bytes.
    #[error("no memory for {bytes} bytes")]
    NoRoom {
        /// How many were wanted.
        bytes: usize,
    },
    /// A field or a relation between fields is out of the format's rules.
    #[error("malformed {what}: {reason}")]
    Malformed {
        /// What was read.
        what: &'static str,
        /// Which rule it breaks.
        reason: String,
    },
}

impl FormatError {
    pub(crate) fn malformed(what: &'static str, reason: impl Into<String>) -> Self {
        FormatError::Malformed {
            what,
            reason: reason.into(),
        }
    }
}

/// Most characters of a name, and bytes of anything else, that an error quotes: what is quoted may come from a bucket, and goes to a log.
const QUOTED_MAX: usize = 96;

/// A name in quotes; a long one is cut.
pub(crate) fn quoted(name: &str) -> String {
    match name.char_indices().nth(QUOTED_MAX) {
        None => format!("{name:?}"),
        Some((end, _)) => format!("{:?}... ({} bytes)", name.get(..end).unwrap_or_default(), name.len()),
    }
}

/// Bytes in hexadecimal; long ones are cut.
pub(crate) fn quoted_bytes(bytes: &[u8]) -> String {
    match bytes.get(..QUOTED_MAX) {
        Some(beginning) if bytes.len() > QUOTED_MAX => format!("{beginning:02x?}... ({} bytes)", bytes.len()),
        _ => format!("{bytes:02x?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CustomMetadata, DataKeys, KeyPrefix, NoKeys, TopicName, Uuid, WrappedKey};

    #[test]
    fn errors_quote_names_and_only_the_beginning_of_what_is_none() {
        assert_eq!(quoted("a b"), "\"a b\"");
        assert_eq!(quoted_bytes(&[1, 0xab]), "[01, ab]");
        let long = "\u{1f}".repeat(1 << 20);
        let wrapped = WrappedKey {
            key_id: long.clone(),
            bytes: Vec::new(),
        };
        for error in [
            TopicName::new(long.as_str()).unwrap_err(),
            KeyPrefix::new(long.as_str()).unwrap_err(),
            Uuid::parse(&long).unwrap_err(),
            NoKeys.unwrap_key(&wrapped).unwrap_err(),
            CustomMetadata::decode(long.as_bytes()).unwrap_err(),
        ] {
            let text = error.to_string();
            assert!(text.len() < 1024 && text.contains("1048576 bytes"), "{text}");
        }
    }
}
