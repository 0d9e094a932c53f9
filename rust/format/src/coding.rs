//! How the bytes of a segment become stored bytes and come back: compression, then encryption, each optional.
//!
//! # Invariants
//! * What comes back was checked twice: the stored bytes by their CRC-32 (and tag), the plain ones by theirs.
//! * Without codec and encryption, stored bytes are the plain ones, and nothing is copied.

use bytes::{Bytes, BytesMut};

use crate::{
    Chunk, ChunkIndex, Codec, Compressor, Crc32, DataKey, FormatError, Unverified, Uuid, Verified, codec,
    seal::{Sealed, TAG_BYTES},
};

/// Required-feature bits of the manifest's header.
pub(crate) const FEATURE_ZSTD: u16 = 1 << 0;
pub(crate) const FEATURE_ENCRYPTION: u16 = 1 << 1;

/// How a segment's data key is sealed, and the key itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encryption {
    /// The wrapped key, as the manifest holds it.
    pub wrapped: WrappedKey,
    /// The key.
    pub data_key: DataKey,
}

/// A data key that only the owner of a private key can read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrappedKey {
    /// Name of the key pair.
    pub key_id: String,
    /// The data key under RSA-OAEP with SHA-256.
    pub bytes: Vec<u8>,
}

/// How the chunks of a segment are stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coding {
    /// Compression.
    pub codec: Codec,
    /// Encryption, after compression.
    pub encryption: Option<Encryption>,
}

impl Coding {
    /// Whether stored bytes are Kafka's own.
    pub fn is_plain(&self) -> bool {
        self.codec == Codec::None && self.encryption.is_none()
    }

    /// The required-feature bits of segments stored like this.
    pub fn features(&self) -> u16 {
        let zstd = if self.codec == Codec::Zstd { FEATURE_ZSTD } else { 0 };
        let encryption = if self.encryption.is_some() {
            FEATURE_ENCRYPTION
        } else {
            0
        };
        zstd | encryption
    }

    /// Most stored bytes of a chunk of `plain_length` bytes.
    pub fn stored_length_max(&self, plain_length: u64) -> u64 {
        self.codec.bound(plain_length) + self.tag_length()
    }

    /// Bytes that encryption adds to a piece.
    pub(crate) fn tag_length(&self) -> u64 {
        self.encryption.as_ref().map_or(0, |_| TAG_BYTES as u64)
    }

    /// Replaces `stored` by the stored bytes of a chunk.
    ///
    /// # Errors
    /// [`FormatError::Malformed`] when the machine has no memory for it, or the chunk is over 4 GiB.
    pub fn store_chunk(
        &self,
        segment_id: Uuid,
        index: ChunkIndex,
        plain: &[u8],
        compressor: &mut Compressor,
        stored: &mut Vec<u8>,
    ) -> Result<Chunk, FormatError> {
        let transform = self.transform(segment_id);
        transform.store(Sealed::Chunk(index.0), plain, compressor, stored)?;
        let stored_length =
            u32::try_from(stored.len()).map_err(|_| FormatError::malformed("chunk", "4 GiB or more"))?;
        Ok(Chunk {
            stored_length,
            stored_crc32: Crc32::of(stored).value(),
            plain_crc32: Crc32::of(plain).value(),
        })
    }

    pub(crate) fn transform(&self, segment_id: Uuid) -> Transform<'_> {
        Transform {
            codec: self.codec,
            data_key: self.encryption.as_ref().map(|encryption| &encryption.data_key),
            segment_id,
        }
    }
}

/// What happens to one piece of a segment.
#[derive(Clone, Copy)]
pub(crate) struct Transform<'key> {
    pub(crate) codec: Codec,
    pub(crate) data_key: Option<&'key DataKey>,
    pub(crate) segment_id: Uuid,
}

impl Transform<'_> {
    pub(crate) fn is_plain(&self) -> bool {
        self.codec == Codec::None && self.data_key.is_none()
    }

    /// Replaces `stored` by the stored bytes of a piece.
    pub(crate) fn store(
        &self,
        piece: Sealed<'_>,
        plain: &[u8],
        compressor: &mut Compressor,
        stored: &mut Vec<u8>,
    ) -> Result<(), FormatError> {
        match self.codec {
            Codec::Zstd => compressor.compress(plain, stored)?,
            Codec::None => {
                stored.clear();
                stored.reserve_exact(plain.len() + TAG_BYTES);
                stored.extend_from_slice(plain);
            }
        }
        self.seal_in_place(piece, stored)
    }

    fn seal_in_place(&self, piece: Sealed<'_>, bytes: &mut Vec<u8>) -> Result<(), FormatError> {
        let length = bytes.len();
        if self.data_key.is_some() {
            bytes.resize(length + TAG_BYTES, 0);
        }
        self.seal_within(piece, bytes, length).map(drop)
    }

    /// Seals the first `length` bytes, which are compressed already or not to be, in a room that has place for a tag behind them.
    pub(crate) fn seal_within<'room>(
        &self,
        piece: Sealed<'_>,
        room: &'room mut [u8],
        length: usize,
    ) -> Result<&'room [u8], FormatError> {
        let Some(key) = self.data_key else {
            return Ok(room.split_at(length).0);
        };
        let (stored, _) = room.split_at_mut(length + TAG_BYTES);
        let (bytes, tag) = stored.split_at_mut(length);
        tag.copy_from_slice(&key.seal(self.segment_id, piece, bytes)?);
        Ok(stored)
    }

    /// Kafka's bytes out of stored ones; `what` names them in errors.
    pub(crate) fn restore(
        &self,
        piece: Sealed<'_>,
        what: impl Fn() -> String,
        stored: Unverified,
        stored_crc32: Crc32,
        plain_crc32: Crc32,
    ) -> Result<Verified, FormatError> {
        let stored = stored.verify(&what, stored_crc32)?;
        if self.is_plain() && stored_crc32 == plain_crc32 {
            return Ok(stored);
        }
        let mut bytes = stored.into_bytes();
        if let Some(key) = self.data_key {
            bytes = open(key, self.segment_id, piece, bytes)?;
        }
        if self.codec == Codec::Zstd {
            let plain_length = usize::try_from(plain_crc32.length())
                .map_err(|_| FormatError::malformed("zstd frame", "over the address space"))?;
            bytes = Bytes::from(codec::decompress(&bytes, plain_length)?);
        }
        Unverified::new(bytes).verify(|| format!("{} after decoding", what()), plain_crc32)
    }
}

/// Splits off the tag and decrypts; in place when nobody else holds the bytes.
fn open(key: &DataKey, segment_id: Uuid, piece: Sealed<'_>, sealed: Bytes) -> Result<Bytes, FormatError> {
    let mut bytes = sealed
        .try_into_mut()
        .unwrap_or_else(|shared| BytesMut::from(&shared[..]));
    let Some(length) = bytes.len().checked_sub(TAG_BYTES) else {
        return Err(FormatError::malformed("sealed bytes", "shorter than a tag"));
    };
    let tag = bytes.split_off(length);
    let tag = tag[..].try_into().expect("split off with this length");
    key.open(segment_id, piece, &mut bytes, tag)?;
    Ok(bytes.freeze())
}
