//! The manifest: the commit of a segment, and all that a fetch needs besides the chunks.
//!
//! # Flow
//! Header (24 bytes, big-endian): magic `ALVM`, format version (2), required features (2), length of the message (4), length of
//! what follows it (4), CRC-32 of the message (4), CRC-32 of the header's first 20 bytes (4). Then the protobuf message, with
//! encryption the tag that seals header and message (16), then the index payloads in the order of the message, to the end of the object.
//!
//! # Invariants
//! * The object has exactly the announced length, so a truncated or padded one is never taken.
//! * Unknown protobuf fields are ignored; an unknown version or required feature is an error that says so.

mod header;
mod message;

use bytes::Bytes;
use prost::Message;

use crate::{
    Chunk, ChunkIndex, ChunkTable, Codec, Coding, Compressor, Crc32, DataKey, Encryption, FormatError, IndexType,
    SegmentMetadata, Unverified, Verified, WrappedKey,
    coding::{FEATURE_ENCRYPTION, FEATURE_ZSTD, Room},
    error::quoted,
    proto::{CodecMessage, EncryptionMessage, IndexMessage, ManifestMessage},
    seal::{Sealed, TAG_BYTES},
};
use header::Header;

/// The version that this release writes, and the highest it reads.
pub const FORMAT_VERSION: u16 = 1;

/// Largest manifest object that is read: five indexes of a 2 GiB segment with room to spare, and a bound for hostile input.
pub const MANIFEST_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// Largest message: chunks for 40 GiB in the smallest chunks, while Kafka's segments end at 2 GiB. Decoded, a hostile one takes twelve times
/// as much.
const MESSAGE_BYTES_MAX: u64 = 8 * 1024 * 1024;

/// Largest index: Kafka's are 10 MiB by default (`segment.index.bytes`), and a manifest must hold five.
pub const INDEX_BYTES_MAX: u64 = 64 * 1024 * 1024;

const MAGIC: [u8; 4] = *b"ALVM";
const HEADER_BYTES: usize = 24;

/// Required-feature bits that this release can read.
const KNOWN_FEATURES: u16 = FEATURE_ZSTD | FEATURE_ENCRYPTION;

/// Below this many bytes an index is not compressed: nothing is gained.
const COMPRESSED_INDEX_BYTES_MIN: usize = 512;

/// Whoever can turn a wrapped data key back into the key.
pub trait DataKeys {
    /// The data key in `wrapped`.
    ///
    /// # Errors
    /// [`FormatError::NoDataKey`].
    fn unwrap_key(&self, wrapped: &WrappedKey) -> Result<DataKey, FormatError>;
}

/// Nobody: for readers that were given no key pair.
#[derive(Clone, Copy, Debug)]
pub struct NoKeys;

impl DataKeys for NoKeys {
    fn unwrap_key(&self, wrapped: &WrappedKey) -> Result<DataKey, FormatError> {
        Err(FormatError::NoDataKey {
            reason: format!("no key pair is known, and {} is needed", quoted(&wrapped.key_id)),
        })
    }
}

/// One index of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexPayload {
    /// Which index.
    pub index_type: IndexType,
    /// Kafka's bytes; may be none at all.
    pub bytes: Verified,
}

impl IndexPayload {
    /// An index as read from Kafka's file.
    pub fn new(index_type: IndexType, bytes: Bytes) -> Self {
        IndexPayload {
            index_type,
            bytes: Verified::proved(bytes),
        }
    }
}

/// A decoded manifest; every field was checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    segment: SegmentMetadata,
    chunks: ChunkTable,
    coding: Coding,
    indexes: [Option<Verified>; 5],
    writer: String,
}

/// The bytes of a manifest object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodedManifest {
    /// The bytes.
    pub object: Bytes,
    /// The required-feature bits in their header.
    pub features: u16,
}

impl Manifest {
    /// A manifest of a segment whose chunks and indexes are known. `writer` names the release, for people.
    ///
    /// # Errors
    /// [`FormatError::Malformed`] when the table covers another length than the segment has, an index comes twice or is over
    /// [`INDEX_BYTES_MAX`], or the metadata is impossible.
    pub fn new(
        segment: SegmentMetadata,
        chunks: ChunkTable,
        coding: Coding,
        indexes: Vec<IndexPayload>,
        writer: impl Into<String>,
    ) -> Result<Self, FormatError> {
        let mut by_type: [Option<Verified>; 5] = Default::default();
        for index in indexes {
            if index.bytes.bytes().len() as u64 > INDEX_BYTES_MAX {
                return Err(FormatError::malformed(
                    "index",
                    format!("{} is over {INDEX_BYTES_MAX} bytes", index.index_type.name()),
                ));
            }
            message::put_index(&mut by_type, index.index_type, index.bytes)?;
        }
        let manifest = Manifest {
            segment,
            chunks,
            coding,
            indexes: by_type,
            writer: writer.into(),
        };
        manifest.check()?;
        Ok(manifest)
    }

    fn check(&self) -> Result<(), FormatError> {
        self.segment.check()?;
        if self.chunks.plain_length() != self.segment.segment_size {
            return Err(FormatError::malformed(
                "manifest",
                format!(
                    "chunks of {} bytes for a segment of {}",
                    self.chunks.plain_length(),
                    self.segment.segment_size
                ),
            ));
        }
        Ok(())
    }

    /// The segment's metadata.
    pub fn segment(&self) -> &SegmentMetadata {
        &self.segment
    }

    /// The chunks.
    pub fn chunks(&self) -> &ChunkTable {
        &self.chunks
    }

    /// How the chunks are stored.
    pub fn coding(&self) -> &Coding {
        &self.coding
    }

    /// Kafka's bytes of an index; `None` when the segment has none of this type.
    pub fn index(&self, index_type: IndexType) -> Option<&Verified> {
        self.indexes.get(index_type.number()).and_then(Option::as_ref)
    }

    /// The release that wrote it.
    pub fn writer(&self) -> &str {
        &self.writer
    }

    /// Memory that indexes and the table of chunks take.
    pub fn memory_bytes(&self) -> u64 {
        let indexes: usize = self.indexes.iter().flatten().map(|index| index.bytes().len()).sum();
        let chunks = self.chunks.chunks().len() * (size_of::<Chunk>() + size_of::<u64>());
        (indexes + chunks) as u64
    }

    /// Kafka's bytes of a chunk out of its stored ones, which fill `stored`: in the same memory, or, where they are compressed, in as much as
    /// Kafka's bytes are, which `room` gives.
    ///
    /// # Errors
    /// Any [`FormatError`] when the stored bytes are not those that the segment was written with, or there is no room.
    pub fn restore_chunk<R: Room>(
        &self,
        index: ChunkIndex,
        stored: R,
        room: impl FnMut(usize) -> Option<R>,
    ) -> Result<Verified, FormatError> {
        let (Some(stored_crc32), Some(plain_crc32)) =
            (self.chunks.stored_crc32(index), self.chunks.plain_crc32_of(index))
        else {
            return Err(FormatError::malformed("chunk table", format!("no chunk {}", index.0)));
        };
        let what = || format!("chunk {} of segment {}", index.0, self.segment.segment_id);
        let length = stored.as_ref().len();
        self.coding.transform(self.segment.segment_id).restore_own(
            Sealed::Chunk(index.0),
            what,
            (stored, length),
            (stored_crc32, plain_crc32),
            room,
        )
    }

    /// The same without indexes: all that reading chunks needs, in little memory.
    pub fn without_indexes(&self) -> Self {
        Manifest {
            segment: self.segment.clone(),
            chunks: self.chunks.clone(),
            coding: self.coding.clone(),
            indexes: Default::default(),
            writer: self.writer.clone(),
        }
    }

    /// The bytes of the object. With a compressor, indexes that get smaller by it are stored as zstd frames.
    ///
    /// # Errors
    /// [`FormatError::Malformed`] when they would pass [`MANIFEST_BYTES_MAX`], or the message its own limit.
    pub fn encode(&self, compressor: Option<&mut Compressor>) -> Result<EncodedManifest, FormatError> {
        self.encode_into(vec![0; self.encoded_length_max()], compressor)
    }

    /// Most bytes that the object can have, whatever its indexes are compressed to.
    pub fn encoded_length_max(&self) -> usize {
        let indexes = self.indexes.iter().flatten();
        self.head_length_max() + indexes.map(|index| index.bytes().len() + TAG_BYTES).sum::<usize>()
    }

    /// Most bytes before the index payloads.
    fn head_length_max(&self) -> usize {
        // A number takes the more bytes the larger it is.
        let largest = IndexMessage {
            index_type: u32::MAX,
            stored_length: u32::MAX,
            stored_crc32: u32::MAX,
            plain_length: u32::MAX,
            plain_crc32: u32::MAX,
            codec: i32::MAX,
        };
        let indexes = self.indexes.iter().flatten().map(|_| largest.clone()).collect();
        HEADER_BYTES + self.message(indexes).encoded_len() + TAG_BYTES
    }

    fn message(&self, indexes: Vec<IndexMessage>) -> ManifestMessage {
        message::to_message(&self.segment, &self.chunks, &self.coding, indexes, &self.writer)
    }

    /// As [`Manifest::encode`], in memory of the caller's: at least [`Manifest::encoded_length_max`] bytes.
    ///
    /// # Errors
    /// As [`Manifest::encode`], and when the room is too small.
    pub fn encode_into<R: Room>(
        &self,
        mut room: R,
        mut compressor: Option<&mut Compressor>,
    ) -> Result<EncodedManifest, FormatError> {
        let head_max = self.head_length_max();
        let (head, mut payloads) = room.as_mut().split_at_mut_checked(head_max).ok_or_else(no_room)?;
        let mut features = self.coding.features();
        let mut messages = Vec::new();
        let mut payload_length = 0;
        for (index_type, index) in IndexType::ALL.into_iter().zip(&self.indexes) {
            let Some(index) = index else { continue };
            let message = self.encode_index(index_type, index.bytes(), compressor.as_deref_mut(), payloads)?;
            if message.codec == i32::from(CodecMessage::Zstd) {
                features |= FEATURE_ZSTD;
            }
            let stored = message.stored_length as usize;
            payloads = payloads.split_at_mut(stored).1;
            payload_length += stored;
            messages.push(message);
        }
        let head = self.encode_head(head, features, messages, payload_length)?;
        Ok(EncodedManifest {
            object: Bytes::from_owner(room).slice(head_max - head..head_max + payload_length),
            features,
        })
    }

    /// Writes header, message and tag to the end of `room`; how many bytes that are.
    fn encode_head(
        &self,
        room: &mut [u8],
        features: u16,
        indexes: Vec<IndexMessage>,
        payload_length: usize,
    ) -> Result<usize, FormatError> {
        let message = self.message(indexes).encode_to_vec();
        let encryption = self.coding.encryption.as_ref();
        let tag_length = encryption.map_or(0, |_| TAG_BYTES);
        let length = HEADER_BYTES + message.len() + tag_length;
        let total = length + payload_length;
        let too_large = || FormatError::malformed("manifest", format!("{total} bytes are over {MANIFEST_BYTES_MAX}"));
        if total as u64 > MANIFEST_BYTES_MAX {
            return Err(too_large());
        }
        if message.len() as u64 > MESSAGE_BYTES_MAX {
            let reason = format!("its message has {} bytes, over {MESSAGE_BYTES_MAX}", message.len());
            return Err(FormatError::malformed("manifest", reason));
        }
        let header = Header {
            features,
            message_length: u32::try_from(message.len()).map_err(|_| too_large())?,
            payload_length: u32::try_from(tag_length + payload_length).map_err(|_| too_large())?,
            message_crc32: Crc32::of(&message).value(),
        };
        let mut head = Vec::with_capacity(length);
        head.extend_from_slice(&header.encode());
        head.extend_from_slice(&message);
        if let Some(encryption) = encryption {
            let tag = encryption
                .data_key
                .seal(self.segment.segment_id, Sealed::Message(&head), &mut [])?;
            head.extend_from_slice(&tag);
        }
        let start = room.len().checked_sub(length).ok_or_else(no_room)?;
        room.split_at_mut(start).1.copy_from_slice(&head);
        Ok(length)
    }

    /// Writes the stored bytes of an index to the begin of `room`.
    fn encode_index(
        &self,
        index_type: IndexType,
        plain: &Bytes,
        compressor: Option<&mut Compressor>,
        room: &mut [u8],
    ) -> Result<IndexMessage, FormatError> {
        // A frame is worth its while when it saves an eighth.
        let frame = room.get_mut(..plain.len() / 8 * 7).ok_or_else(no_room)?;
        let frame_length = compressor
            .filter(|_| plain.len() >= COMPRESSED_INDEX_BYTES_MIN)
            .and_then(|compressor| compressor.compress_within(plain, frame));
        let (codec, length) = match frame_length {
            Some(length) => (Codec::Zstd, length),
            None => {
                room.get_mut(..plain.len()).ok_or_else(no_room)?.copy_from_slice(plain);
                (Codec::None, plain.len())
            }
        };
        let transform = self.coding.transform(self.segment.segment_id);
        let stored = transform.seal_within(Sealed::Index(index_type as u32), room, length)?;
        let (stored_crc32, plain_crc32) = (Crc32::of(stored), Crc32::of(plain));
        let length =
            |crc32: Crc32| u32::try_from(crc32.length()).map_err(|_| FormatError::malformed("index", "4 GiB or more"));
        Ok(IndexMessage {
            index_type: index_type as u32,
            stored_length: length(stored_crc32)?,
            stored_crc32: stored_crc32.value(),
            plain_length: length(plain_crc32)?,
            plain_crc32: plain_crc32.value(),
            codec: CodecMessage::from(codec).into(),
        })
    }

    /// Bytes of the header.
    pub const HEADER_BYTES: usize = HEADER_BYTES;

    /// Whether an object of `length` bytes that begins with `head` can be a manifest: its header is right and announces just that length.
    ///
    /// # Errors
    /// As [`Manifest::decode`].
    pub fn check_header(head: &[u8], length: u64) -> Result<(), FormatError> {
        Header::of_object(head, length).map(drop)
    }

    /// Bytes that the indexes in an object announce to be once they are decoded: what [`Manifest::decode`] will take besides the object.
    ///
    /// # Errors
    /// As [`Manifest::decode`].
    pub fn announced_index_bytes(object: &Bytes) -> Result<u64, FormatError> {
        let (_, message, _) = split(object)?;
        message::plain_index_bytes(&message.indexes)
    }

    /// Reads and checks the bytes of an object; `keys` opens an encrypted one. Indexes that are stored plain share the buffer of `object`,
    /// others are in memory that `room` gives.
    ///
    /// # Errors
    /// Any [`FormatError`]; nothing of a manifest that does not fit in every respect is given out.
    pub fn decode<R: Room>(
        object: Bytes,
        keys: &dyn DataKeys,
        mut room: impl FnMut(usize) -> Option<R>,
    ) -> Result<Self, FormatError> {
        let (header, mut message, message_end) = split(&object)?;
        let mut payloads = object.slice(message_end..);
        let segment = message::segment_from_message(message.segment.take())?;
        let coding = Coding {
            codec: message::codec_from_number(message.codec)?,
            encryption: message
                .encryption
                .take()
                .map(|encryption| unwrap_key(encryption, keys))
                .transpose()?,
        };
        if let Some(encryption) = &coding.encryption {
            if payloads.len() < TAG_BYTES {
                return Err(FormatError::malformed("manifest", "no room for its tag"));
            }
            let tag = payloads.split_to(TAG_BYTES)[..]
                .try_into()
                .expect("split off with this length");
            let head = object.slice(..message_end);
            encryption
                .data_key
                .open(segment.segment_id, Sealed::Message(&head), &mut [], tag)?;
        }
        // A manifest that uses what it does not announce would be misread by an older release: nobody writes such a one.
        if coding.features() & !header.features != 0 {
            return Err(FormatError::malformed(
                "manifest",
                "a codec or encryption that its features do not announce",
            ));
        }
        let chunks = message::chunks_from_message(&message, segment.segment_size, &coding)?;
        let transform = coding.transform(segment.segment_id);
        let zstd_announced = header.features & FEATURE_ZSTD != 0;
        let indexes = message::indexes_from_message(&message.indexes, &payloads, transform, zstd_announced, &mut room)?;
        let manifest = Manifest {
            segment,
            chunks,
            coding,
            indexes,
            writer: message.writer,
        };
        manifest.check()?;
        Ok(manifest)
    }
}

/// Header, message, and where in the object the message ends. Of it only the checksum was checked.
fn split(object: &Bytes) -> Result<(Header, ManifestMessage, usize), FormatError> {
    let header = Header::of_object(object, object.len() as u64)?;
    let message_end = HEADER_BYTES as u64 + u64::from(header.message_length);
    let message_end = usize::try_from(message_end).expect("at most the length of a buffer");
    let message = Unverified::new(object.slice(HEADER_BYTES..message_end)).verify(
        || "message of the manifest".to_owned(),
        Crc32::recorded(header.message_crc32, u64::from(header.message_length)),
    )?;
    let message = ManifestMessage::decode(message.into_bytes())
        .map_err(|error| FormatError::malformed("manifest", error.to_string()))?;
    Ok((header, message, message_end))
}

/// The caller gave less room than [`Manifest::encoded_length_max`].
fn no_room() -> FormatError {
    FormatError::malformed("manifest", "no room to encode it in")
}

fn unwrap_key(message: EncryptionMessage, keys: &dyn DataKeys) -> Result<Encryption, FormatError> {
    if message.algorithm != message::ALGORITHM_AES_GCM_RSA_OAEP {
        let reason = format!("encryption by algorithm {}", message.algorithm);
        return Err(FormatError::malformed("manifest", reason));
    }
    let wrapped = WrappedKey {
        key_id: message.key_id,
        bytes: message.wrapped_key,
    };
    let data_key = keys.unwrap_key(&wrapped)?;
    Ok(Encryption { wrapped, data_key })
}

#[cfg(test)]
mod tests;
