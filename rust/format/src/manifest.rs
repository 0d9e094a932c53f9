//! The manifest: the commit of a segment, and all that a fetch needs besides the chunks.
//!
//! # Flow
//! Header (24 bytes, big-endian): magic `ALVM`, format version (2), required features (2), length of the message (4), length of
//! the index payloads (4), CRC-32 of the message (4), CRC-32 of the header's first 20 bytes (4). Then the protobuf message, then the index payloads in the order of the message, to the end of the object.
//!
//! # Invariants
//! * The object has exactly the announced length, so a truncated or padded one is never taken.
//! * Unknown protobuf fields are ignored; an unknown version or required feature is an error that says so.

use std::collections::BTreeMap;

use bytes::Bytes;
use prost::Message;

use crate::{
    Chunk, ChunkSize, ChunkTable, Crc32, FormatError, IndexType, LeaderEpoch, SegmentMetadata, TopicName, Unverified,
    Uuid, Verified,
    proto::{CodecMessage, IndexMessage, ManifestMessage, SegmentMessage},
};

/// The version that this release writes, and the highest it reads.
pub const FORMAT_VERSION: u16 = 1;

/// Largest manifest object that is read: five indexes of a 2 GiB segment with room to spare, and a bound for hostile input.
pub const MANIFEST_BYTES_MAX: u64 = 256 * 1024 * 1024;

const MAGIC: [u8; 4] = *b"ALVM";
const HEADER_BYTES: usize = 24;

/// Required-feature bits that this release can read: none yet. Bit 0 is kept for zstd, bit 1 for encryption.
const KNOWN_FEATURES: u16 = 0;

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
    indexes: [Option<Verified>; 5],
    writer: String,
}

impl Manifest {
    /// A manifest of a segment whose chunks and indexes are known. `writer` names the release, for people.
    ///
    /// # Errors
    /// [`FormatError::Malformed`] when the table covers another length than the segment has, an index comes twice or is over
    /// 4 GiB, or the metadata is impossible.
    pub fn new(
        segment: SegmentMetadata,
        chunks: ChunkTable,
        indexes: Vec<IndexPayload>,
        writer: impl Into<String>,
    ) -> Result<Self, FormatError> {
        let mut by_type: [Option<Verified>; 5] = Default::default();
        for index in indexes {
            if u32::try_from(index.bytes.bytes().len()).is_err() {
                return Err(FormatError::malformed(
                    "index",
                    format!("{} is over 4 GiB", index.index_type.name()),
                ));
            }
            put_index(&mut by_type, index.index_type, index.bytes)?;
        }
        let manifest = Manifest {
            segment,
            chunks,
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

    /// Kafka's bytes of an index; `None` when the segment has none of this type.
    pub fn index(&self, index_type: IndexType) -> Option<&Verified> {
        self.indexes.get(index_type.number()).and_then(Option::as_ref)
    }

    /// The release that wrote it.
    pub fn writer(&self) -> &str {
        &self.writer
    }

    /// The required-feature bits.
    pub fn features(&self) -> u16 {
        KNOWN_FEATURES
    }

    /// The bytes of the object.
    ///
    /// # Errors
    /// [`FormatError::Malformed`] when they would pass [`MANIFEST_BYTES_MAX`].
    pub fn encode(&self) -> Result<Bytes, FormatError> {
        let message = self.to_message().encode_to_vec();
        let index_length: usize = self.indexes.iter().flatten().map(|index| index.bytes().len()).sum();
        let total = HEADER_BYTES + message.len() + index_length;
        let too_large = || FormatError::malformed("manifest", format!("{total} bytes are over {MANIFEST_BYTES_MAX}"));
        if total as u64 > MANIFEST_BYTES_MAX {
            return Err(too_large());
        }
        let message_length = u32::try_from(message.len()).map_err(|_| too_large())?;
        let index_length = u32::try_from(index_length).map_err(|_| too_large())?;
        let mut object = Vec::with_capacity(total);
        object.extend_from_slice(&MAGIC);
        object.extend_from_slice(&FORMAT_VERSION.to_be_bytes());
        object.extend_from_slice(&self.features().to_be_bytes());
        object.extend_from_slice(&message_length.to_be_bytes());
        object.extend_from_slice(&index_length.to_be_bytes());
        object.extend_from_slice(&Crc32::of(&message).value().to_be_bytes());
        let header_crc32 = Crc32::of(&object).value();
        object.extend_from_slice(&header_crc32.to_be_bytes());
        object.extend_from_slice(&message);
        for index in self.indexes.iter().flatten() {
            object.extend_from_slice(index.bytes());
        }
        Ok(Bytes::from(object))
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

    /// Reads and checks the bytes of an object. The indexes share the buffer of `object`.
    ///
    /// # Errors
    /// Any [`FormatError`]; nothing of a manifest that does not fit in every respect is given out.
    pub fn decode(object: Bytes) -> Result<Self, FormatError> {
        let header = Header::of_object(&object, object.len() as u64)?;
        let message_end = HEADER_BYTES as u64 + u64::from(header.message_length);
        let message_end = usize::try_from(message_end).expect("at most the length of a buffer");
        let message = Unverified::new(object.slice(HEADER_BYTES..message_end)).verify(
            || "message of the manifest".to_owned(),
            Crc32::recorded(header.message_crc32, u64::from(header.message_length)),
        )?;
        let message = ManifestMessage::decode(message.into_bytes())
            .map_err(|error| FormatError::malformed("manifest", error.to_string()))?;
        Self::from_message(message, &object.slice(message_end..))
    }

    fn to_message(&self) -> ManifestMessage {
        let segment = &self.segment;
        let chunks = self.chunks.chunks();
        let index_messages = IndexType::ALL
            .iter()
            .zip(&self.indexes)
            .filter_map(|(index_type, index)| {
                let crc32 = Crc32::of(index.as_ref()?.bytes());
                let length = u32::try_from(crc32.length()).expect("checked by Manifest::new, or decoded from a u32");
                Some(IndexMessage {
                    index_type: *index_type as u32,
                    stored_length: length,
                    stored_crc32: crc32.value(),
                    plain_length: length,
                    plain_crc32: crc32.value(),
                    codec: CodecMessage::None.into(),
                })
            });
        ManifestMessage {
            segment: Some(SegmentMessage {
                topic_id: segment.topic_id.as_bytes().to_vec(),
                topic: segment.topic.as_str().to_owned(),
                partition: segment.partition,
                segment_id: segment.segment_id.as_bytes().to_vec(),
                start_offset: segment.start_offset,
                end_offset: segment.end_offset,
                max_timestamp_ms: segment.max_timestamp_ms,
                broker_id: segment.broker_id,
                event_timestamp_ms: segment.event_timestamp_ms,
                segment_size: segment.segment_size,
                leader_epochs: segment
                    .leader_epochs
                    .iter()
                    .map(|entry| (entry.epoch, entry.start_offset))
                    .collect(),
                transaction_index_empty: segment.transaction_index_empty,
            }),
            chunk_size: u32::try_from(self.chunks.chunk_size().bytes()).expect("a chunk size is made of a u32"),
            stored_lengths: chunks.iter().map(|chunk| chunk.stored_length).collect(),
            stored_crc32s: chunks.iter().map(|chunk| chunk.stored_crc32).collect(),
            plain_crc32s: chunks.iter().map(|chunk| chunk.plain_crc32).collect(),
            object_crc32: self.chunks.object_crc32().value(),
            codec: CodecMessage::None.into(),
            encryption: None,
            indexes: index_messages.collect(),
            writer: self.writer.clone(),
        }
    }

    fn from_message(message: ManifestMessage, payloads: &Bytes) -> Result<Self, FormatError> {
        // The header's feature bits announce these; a manifest that uses them unannounced is refused all the same.
        if message.codec != i32::from(CodecMessage::None) || message.encryption.is_some() {
            return Err(FormatError::malformed(
                "manifest",
                "a codec or encryption that its features do not announce",
            ));
        }
        let segment = segment_from_message(message.segment)?;
        let chunks = chunks_from_message(
            segment.segment_size,
            message.chunk_size,
            &message.stored_lengths,
            &message.stored_crc32s,
            &message.plain_crc32s,
        )?;
        if chunks.object_crc32().value() != message.object_crc32 {
            return Err(FormatError::WrongChecksum {
                what: "the checksum of the whole object".to_owned(),
                expected: message.object_crc32,
                found: chunks.object_crc32().value(),
            });
        }
        let indexes = indexes_from_message(&message.indexes, payloads)?;
        let manifest = Manifest {
            segment,
            chunks,
            indexes,
            writer: message.writer,
        };
        manifest.check()?;
        Ok(manifest)
    }
}

fn put_index(indexes: &mut [Option<Verified>; 5], index_type: IndexType, bytes: Verified) -> Result<(), FormatError> {
    match indexes.get_mut(index_type.number()) {
        Some(slot @ None) => {
            *slot = Some(bytes);
            Ok(())
        }
        _ => Err(FormatError::malformed(
            "manifest",
            format!("index {} comes twice", index_type.name()),
        )),
    }
}

fn segment_from_message(message: Option<SegmentMessage>) -> Result<SegmentMetadata, FormatError> {
    let malformed = |reason: &str| FormatError::malformed("manifest", reason);
    let message = message.ok_or_else(|| malformed("no segment metadata"))?;
    let uuid = |bytes: Vec<u8>, what: &str| {
        <[u8; 16]>::try_from(bytes)
            .map(Uuid::from_bytes)
            .map_err(|_| malformed(&format!("{what} has not 16 bytes")))
    };
    Ok(SegmentMetadata {
        topic_id: uuid(message.topic_id, "topic id")?,
        topic: TopicName::new(message.topic)?,
        partition: message.partition,
        segment_id: uuid(message.segment_id, "segment id")?,
        start_offset: message.start_offset,
        end_offset: message.end_offset,
        max_timestamp_ms: message.max_timestamp_ms,
        broker_id: message.broker_id,
        event_timestamp_ms: message.event_timestamp_ms,
        segment_size: message.segment_size,
        leader_epochs: leader_epochs(message.leader_epochs),
        transaction_index_empty: message.transaction_index_empty,
    })
}

fn leader_epochs(epochs: BTreeMap<i32, i64>) -> Vec<LeaderEpoch> {
    epochs
        .into_iter()
        .map(|(epoch, start_offset)| LeaderEpoch { epoch, start_offset })
        .collect()
}

fn chunks_from_message(
    plain_length: u64,
    chunk_size: u32,
    stored_lengths: &[u32],
    stored_crc32s: &[u32],
    plain_crc32s: &[u32],
) -> Result<ChunkTable, FormatError> {
    let chunk_size = ChunkSize::new(chunk_size)?;
    if stored_lengths.len() != stored_crc32s.len() || stored_lengths.len() != plain_crc32s.len() {
        return Err(FormatError::malformed(
            "manifest",
            "lengths and checksums of chunks differ in number",
        ));
    }
    let chunks: Vec<Chunk> = stored_lengths
        .iter()
        .zip(stored_crc32s)
        .zip(plain_crc32s)
        .map(|((&stored_length, &stored_crc32), &plain_crc32)| Chunk {
            stored_length,
            stored_crc32,
            plain_crc32,
        })
        .collect();
    let table = ChunkTable::new(chunk_size, plain_length, chunks)?;
    // Without a codec a stored chunk is Kafka's bytes.
    if table.stored_length() != plain_length || stored_crc32s != plain_crc32s {
        return Err(FormatError::malformed(
            "manifest",
            "stored chunks differ from plain ones without a codec",
        ));
    }
    let full = chunk_size.bytes();
    let all_but_last = stored_lengths.split_last().map_or(&[][..], |(_, head)| head);
    if all_but_last.iter().any(|&length| u64::from(length) != full) {
        return Err(FormatError::malformed(
            "manifest",
            "a chunk before the last is not full",
        ));
    }
    Ok(table)
}

fn indexes_from_message(messages: &[IndexMessage], payloads: &Bytes) -> Result<[Option<Verified>; 5], FormatError> {
    let mut indexes: [Option<Verified>; 5] = Default::default();
    let mut rest = payloads.clone();
    for message in messages {
        let index_type = i32::try_from(message.index_type).ok().and_then(IndexType::from_number);
        let length = usize::try_from(message.stored_length)
            .ok()
            .filter(|&length| length <= rest.len());
        let length = length.ok_or(FormatError::WrongLength {
            what: "index payloads",
            expected: u64::from(message.stored_length),
            found: rest.len() as u64,
        })?;
        let stored = Unverified::new(rest.split_to(length));
        // An index type of a later release is skipped, like an unknown field.
        let Some(index_type) = index_type else { continue };
        if message.codec != i32::from(CodecMessage::None)
            || message.plain_length != message.stored_length
            || message.plain_crc32 != message.stored_crc32
        {
            return Err(FormatError::malformed(
                "index",
                format!("{} is stored with a codec", index_type.name()),
            ));
        }
        let crc32 = Crc32::recorded(message.stored_crc32, u64::from(message.stored_length));
        let verified = stored.verify(|| format!("index {}", index_type.name()), crc32)?;
        put_index(&mut indexes, index_type, verified)?;
    }
    if !rest.is_empty() {
        return Err(FormatError::WrongLength {
            what: "index payloads",
            expected: (payloads.len() - rest.len()) as u64,
            found: payloads.len() as u64,
        });
    }
    Ok(indexes)
}

struct Header {
    message_length: u32,
    index_length: u32,
    message_crc32: u32,
}

impl Header {
    /// The header of an object of `length` bytes that begins with `head`.
    fn of_object(head: &[u8], length: u64) -> Result<Self, FormatError> {
        let header = Header::decode(head)?;
        let expected = HEADER_BYTES as u64 + u64::from(header.message_length) + u64::from(header.index_length);
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
        let (index_length, rest) = rest.split_first_chunk().ok_or_else(short)?;
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
        let unknown = u16::from_be_bytes(*features) & !KNOWN_FEATURES;
        if unknown != 0 {
            return Err(FormatError::UnknownFeatures { unknown });
        }
        Ok(Header {
            message_length: u32::from_be_bytes(*message_length),
            index_length: u32::from_be_bytes(*index_length),
            message_crc32: u32::from_be_bytes(*message_crc32),
        })
    }
}

#[cfg(test)]
mod tests;
