//! Encryption of chunks, indexes and the manifest's message: AES-256-GCM under one random data key a segment.
//!
//! # Invariants
//! * A nonce is used once under a key: it is made of what is sealed ([`Sealed`]), and every copy of a segment has a key of its own.
//! * The additional data names format version, segment and piece, so that a piece can be neither moved nor taken from another segment.
//! * A key cannot be printed, and its bytes are wiped when it is dropped.
//!
//! # Not here
//! How the data key is wrapped and by whose key: that is the engine's, which knows files.

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, Tag, UnboundKey};
use zeroize::Zeroizing;

use crate::{FormatError, Uuid, manifest::FORMAT_VERSION};

/// Bytes of a data key.
pub const DATA_KEY_BYTES: usize = 32;

/// Bytes that sealing adds.
pub(crate) const TAG_BYTES: usize = 16;

/// The key of one segment's bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct DataKey(Zeroizing<[u8; DATA_KEY_BYTES]>);

impl DataKey {
    /// A key of these bytes, which must be random.
    pub fn new(bytes: [u8; DATA_KEY_BYTES]) -> Self {
        DataKey(Zeroizing::new(bytes))
    }

    /// The bytes: only for wrapping them.
    pub fn reveal(&self) -> &[u8; DATA_KEY_BYTES] {
        &self.0
    }

    fn cipher(&self) -> LessSafeKey {
        LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &self.0[..]).expect("a key of 32 bytes"))
    }

    /// Encrypts `bytes` in place and gives the tag.
    pub(crate) fn seal(
        &self,
        segment_id: Uuid,
        piece: Sealed<'_>,
        bytes: &mut [u8],
    ) -> Result<[u8; TAG_BYTES], FormatError> {
        let tag = self
            .cipher()
            .seal_in_place_separate_tag(piece.nonce(), Aad::from(piece.additional_data(segment_id)), bytes)
            .map_err(|_| FormatError::malformed(piece.what(), "too long to be sealed"))?;
        let mut copy = [0; TAG_BYTES];
        copy.copy_from_slice(tag.as_ref());
        Ok(copy)
    }

    /// Decrypts `bytes` in place after proving that they, and where they were found, are what was sealed.
    pub(crate) fn open(
        &self,
        segment_id: Uuid,
        piece: Sealed<'_>,
        bytes: &mut [u8],
        tag: [u8; TAG_BYTES],
    ) -> Result<(), FormatError> {
        self.cipher()
            .open_in_place_separate_tag(
                piece.nonce(),
                Aad::from(piece.additional_data(segment_id)),
                Tag::from(tag),
                bytes,
                0..,
            )
            .map(drop)
            .map_err(|_| FormatError::NotAuthentic { what: piece.what() })
    }
}

impl std::fmt::Debug for DataKey {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("[hidden]")
    }
}

/// What is sealed, so that no piece is taken for another.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sealed<'bytes> {
    /// A chunk, by its number.
    Chunk(u32),
    /// An index, by the number of its type.
    Index(u32),
    /// Nothing but the tag over these bytes: header and message of the manifest.
    Message(&'bytes [u8]),
}

impl Sealed<'_> {
    fn domain_and_number(self) -> (u8, u32) {
        match self {
            Sealed::Chunk(index) => (0, index),
            Sealed::Index(index_type) => (1, index_type),
            Sealed::Message(_) => (2, 0),
        }
    }

    fn what(self) -> &'static str {
        match self {
            Sealed::Chunk(_) => "chunk",
            Sealed::Index(_) => "index",
            Sealed::Message(_) => "manifest",
        }
    }

    fn nonce(self) -> Nonce {
        let (domain, number) = self.domain_and_number();
        let mut nonce = [0; NONCE_LEN];
        nonce[0] = domain;
        nonce[NONCE_LEN - 4..].copy_from_slice(&number.to_be_bytes());
        Nonce::assume_unique_for_key(nonce)
    }

    fn additional_data(self, segment_id: Uuid) -> Vec<u8> {
        let (domain, number) = self.domain_and_number();
        let mut data = Vec::with_capacity(32);
        data.extend_from_slice(b"ALVM");
        data.extend_from_slice(&FORMAT_VERSION.to_be_bytes());
        data.extend_from_slice(&segment_id.as_bytes()[..]);
        data.push(domain);
        data.extend_from_slice(&number.to_be_bytes());
        if let Sealed::Message(bytes) = self {
            data.extend_from_slice(bytes);
        }
        data
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_piece_of_the_same_segment_under_the_same_key_opens() {
        let key = DataKey::new([7; DATA_KEY_BYTES]);
        let id = Uuid::from_u64_pair(1, 2);
        let mut bytes = *b"sixteen bytes...and some";
        let tag = key.seal(id, Sealed::Chunk(3), &mut bytes).unwrap();
        assert_ne!(&bytes, b"sixteen bytes...and some");
        let sealed = bytes;

        let opens = |key: &DataKey, id, piece, bytes: &[u8], tag| {
            let mut bytes = bytes.to_vec();
            key.open(id, piece, &mut bytes, tag).map(|()| bytes)
        };
        assert_eq!(
            opens(&key, id, Sealed::Chunk(3), &sealed, tag).unwrap(),
            b"sixteen bytes...and some"
        );
        assert!(opens(&key, id, Sealed::Chunk(4), &sealed, tag).is_err(), "moved");
        assert!(
            opens(&key, id, Sealed::Index(3), &sealed, tag).is_err(),
            "taken for an index"
        );
        assert!(
            opens(&key, Uuid::from_u64_pair(1, 3), Sealed::Chunk(3), &sealed, tag).is_err(),
            "another segment"
        );
        assert!(
            opens(&DataKey::new([8; 32]), id, Sealed::Chunk(3), &sealed, tag).is_err(),
            "another key"
        );
        assert!(
            opens(&key, id, Sealed::Chunk(3), &sealed[1..], tag).is_err(),
            "truncated"
        );
        let mut changed = sealed;
        changed[0] ^= 1;
        assert!(opens(&key, id, Sealed::Chunk(3), &changed, tag).is_err(), "changed");
        assert_eq!(format!("{key:?}"), "[hidden]");
    }
}
