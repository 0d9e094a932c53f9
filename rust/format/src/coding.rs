//! How the bytes of a segment become stored bytes and come back: compression, then encryption, each optional.
//!
//! # Invariants
//! * What comes back was checked twice: the stored bytes by their CRC-32 (and tag), the plain ones by theirs.
//! * Without codec and encryption, stored bytes are the plain ones, and nothing is copied.

use bytes::Bytes;

use crate::{
    Chunk, ChunkIndex, Codec, Compressor, Crc32, DataKey, FormatError, Unverified, Uuid, Verified, codec,
    seal::{Sealed, TAG_BYTES},
    verified,
};

/// Memory for bytes that are decoded: of the caller's choice, since it may be large.
pub trait Room: AsRef<[u8]> + AsMut<[u8]> + Send + 'static {}

impl<R: AsRef<[u8]> + AsMut<[u8]> + Send + 'static> Room for R {}

/// Room of the allocator's, for callers who need not count it.
pub fn on_heap(length: usize) -> Option<Vec<u8>> {
    Some(vec![0; length])
}

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

    /// Kafka's bytes out of stored ones that others may hold too; `what` names them in errors.
    pub(crate) fn restore<R: Room>(
        &self,
        piece: Sealed<'_>,
        what: impl Fn() -> String,
        stored: Unverified,
        (stored_crc32, plain_crc32): (Crc32, Crc32),
        mut room: impl FnMut(usize) -> Option<R>,
    ) -> Result<Verified, FormatError> {
        if self.is_plain() && stored_crc32 == plain_crc32 {
            return stored.verify(what, stored_crc32);
        }
        let stored = stored.into_bytes();
        let mut own = room(stored.len()).ok_or_else(|| no_room(stored.len()))?;
        let copied = own.as_mut().get_mut(..stored.len());
        copied.ok_or_else(|| no_room(stored.len()))?.copy_from_slice(&stored);
        self.restore_own(piece, what, (own, stored.len()), (stored_crc32, plain_crc32), room)
    }

    /// The same out of stored bytes that are the caller's alone, at the begin of a room: what is encrypted is decrypted in place.
    pub(crate) fn restore_own<R: Room>(
        &self,
        piece: Sealed<'_>,
        what: impl Fn() -> String,
        (mut stored, mut length): (R, usize),
        (stored_crc32, plain_crc32): (Crc32, Crc32),
        mut room: impl FnMut(usize) -> Option<R>,
    ) -> Result<Verified, FormatError> {
        let bytes = stored.as_mut().get_mut(..length).ok_or_else(|| no_room(length))?;
        verified::check(bytes, &what, stored_crc32)?;
        if let Some(key) = self.data_key {
            length = open(key, self.segment_id, piece, bytes)?;
        }
        let bytes = if self.codec == Codec::Zstd {
            let plain_length = usize::try_from(plain_crc32.length())
                .map_err(|_| FormatError::malformed("zstd frame", "over the address space"))?;
            let frame = stored.as_ref().get(..length).unwrap_or_default();
            filled(plain_length, &mut room, |plain| codec::decompress(frame, plain))?
        } else {
            Bytes::from_owner(stored).slice(..length)
        };
        if self.is_plain() && stored_crc32 == plain_crc32 {
            return Ok(Verified::proved(bytes));
        }
        Unverified::new(bytes).verify(|| format!("{} after decoding", what()), plain_crc32)
    }
}

/// Decrypts in place what stands before the tag; how many bytes that are.
fn open(key: &DataKey, segment_id: Uuid, piece: Sealed<'_>, sealed: &mut [u8]) -> Result<usize, FormatError> {
    let Some((bytes, tag)) = sealed.split_last_chunk_mut::<TAG_BYTES>() else {
        return Err(FormatError::malformed("sealed bytes", "shorter than a tag"));
    };
    key.open(segment_id, piece, bytes, *tag)?;
    Ok(bytes.len())
}

fn no_room(length: usize) -> FormatError {
    FormatError::NoRoom { bytes: length }
}

/// `length` bytes of a room that `fill` has written.
fn filled<R: Room>(
    length: usize,
    room: &mut impl FnMut(usize) -> Option<R>,
    fill: impl FnOnce(&mut [u8]) -> Result<(), FormatError>,
) -> Result<Bytes, FormatError> {
    let mut room = room(length).ok_or_else(|| no_room(length))?;
    fill(room.as_mut().get_mut(..length).ok_or_else(|| no_room(length))?)?;
    Ok(Bytes::from_owner(room).slice(..length))
}
