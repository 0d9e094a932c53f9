//! The first bytes of a manifest.

use super::{FORMAT_VERSION, HEADER_BYTES, KNOWN_FEATURES, MAGIC, MANIFEST_BYTES_MAX, MESSAGE_BYTES_MAX};
use crate::{Crc32, FormatError};

pub(super) struct Header {
    pub(super) features: u16,
    pub(super) message_length: u32,
    /// Bytes after the message.
    pub(super) payload_length: u32,
    pub(super) message_crc32: u32,
}

impl Header {
    pub(super) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&FORMAT_VERSION.to_be_bytes());
        bytes[6..8].copy_from_slice(&self.features.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.message_length.to_be_bytes());
        bytes[12..16].copy_from_slice(&self.payload_length.to_be_bytes());
        bytes[16..20].copy_from_slice(&self.message_crc32.to_be_bytes());
        let crc32 = Crc32::of(&bytes[..20]).value();
        bytes[20..].copy_from_slice(&crc32.to_be_bytes());
        bytes
    }

    /// The header of an object of `length` bytes that begins with `head`.
    pub(super) fn of_object(head: &[u8], length: u64) -> Result<Self, FormatError> {
        let header = Header::decode(head)?;
        let expected = HEADER_BYTES as u64 + u64::from(header.message_length) + u64::from(header.payload_length);
        let message_length = u64::from(header.message_length);
        if message_length > MESSAGE_BYTES_MAX {
            let reason = format!("its message has {message_length} bytes, over {MESSAGE_BYTES_MAX}");
            return Err(FormatError::malformed("manifest", reason));
        }
        if length != expected || expected > MANIFEST_BYTES_MAX {
            return Err(FormatError::WrongLength {
                what: "manifest",
                expected,
                found: length,
            });
        }
        Ok(header)
    }

    fn decode(object: &[u8]) -> Result<Self, FormatError> {
        let short = || FormatError::WrongLength {
            what: "manifest header",
            expected: HEADER_BYTES as u64,
            found: object.len() as u64,
        };
        let (magic, rest) = object.split_first_chunk::<4>().ok_or_else(short)?;
        if *magic != MAGIC {
            return Err(FormatError::BadMagic { found: *magic });
        }
        let (version, rest) = rest.split_first_chunk().ok_or_else(short)?;
        let version = u16::from_be_bytes(*version);
        // The version is told before the checksum is trusted: a later version may well have another header.
        if version != FORMAT_VERSION {
            return Err(FormatError::UnknownVersion {
                found: version,
                known: FORMAT_VERSION,
            });
        }
        let (features, rest) = rest.split_first_chunk().ok_or_else(short)?;
        let (message_length, rest) = rest.split_first_chunk().ok_or_else(short)?;
        let (payload_length, rest) = rest.split_first_chunk().ok_or_else(short)?;
        let (message_crc32, rest) = rest.split_first_chunk().ok_or_else(short)?;
        let (header_crc32, _) = rest.split_first_chunk().ok_or_else(short)?;
        let found = Crc32::of(object.get(..HEADER_BYTES - 4).ok_or_else(short)?).value();
        let expected = u32::from_be_bytes(*header_crc32);
        if found != expected {
            return Err(FormatError::WrongChecksum {
                what: "manifest header".to_owned(),
                expected,
                found,
            });
        }
        let features = u16::from_be_bytes(*features);
        let unknown = features & !KNOWN_FEATURES;
        if unknown != 0 {
            return Err(FormatError::UnknownFeatures { unknown });
        }
        Ok(Header {
            features,
            message_length: u32::from_be_bytes(*message_length),
            payload_length: u32::from_be_bytes(*payload_length),
            message_crc32: u32::from_be_bytes(*message_crc32),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Small messages inside the message take twelve times their bytes in memory, so its limit is far below that of the object.
    #[test]
    fn a_message_that_would_swell_is_refused_by_its_header() {
        let longest = u32::try_from(MESSAGE_BYTES_MAX).unwrap();
        for (message_length, fits) in [(longest, true), (longest + 1, false)] {
            let header = Header {
                features: 0,
                message_length,
                payload_length: 7,
                message_crc32: 0,
            };
            let length = HEADER_BYTES as u64 + u64::from(message_length) + 7;
            assert_eq!(Header::of_object(&header.encode(), length).is_ok(), fits);
        }
    }
}
