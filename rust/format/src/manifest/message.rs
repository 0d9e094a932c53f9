//! Between the protobuf message and checked types.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::{INDEX_BYTES_MAX, MANIFEST_BYTES_MAX};
use crate::{
    Chunk, ChunkSize, ChunkTable, Codec, Coding, Crc32, FormatError, IndexType, LeaderEpoch, SegmentMetadata,
    TopicName, Unverified, Uuid, Verified,
    coding::{Room, Transform},
    proto::{CodecMessage, EncryptionMessage, IndexMessage, ManifestMessage, SegmentMessage},
    seal::Sealed,
};

/// `algorithm` of the encryption message: AES-256-GCM pieces, the data key under RSA-OAEP with SHA-256.
pub(super) const ALGORITHM_AES_GCM_RSA_OAEP: u32 = 1;

impl From<Codec> for CodecMessage {
    fn from(codec: Codec) -> Self {
        match codec {
            Codec::None => CodecMessage::None,
            Codec::Zstd => CodecMessage::Zstd,
        }
    }
}

pub(super) fn codec_from_number(number: i32) -> Result<Codec, FormatError> {
    match CodecMessage::try_from(number) {
        Ok(CodecMessage::None) => Ok(Codec::None),
        Ok(CodecMessage::Zstd) => Ok(Codec::Zstd),
        Err(_) => Err(FormatError::malformed("manifest", format!("codec {number}"))),
    }
}

/// The message of a manifest; `indexes` describes the payloads.
pub(super) fn to_message(
    segment: &SegmentMetadata,
    chunks: &ChunkTable,
    coding: &Coding,
    indexes: Vec<IndexMessage>,
    writer: &str,
) -> ManifestMessage {
    let of_chunks = chunks.chunks();
    ManifestMessage {
        segment: Some(segment_to_message(segment)),
        chunk_size: u32::try_from(chunks.chunk_size().bytes()).expect("a chunk size is made of a u32"),
        stored_lengths: of_chunks.iter().map(|chunk| chunk.stored_length).collect(),
        stored_crc32s: of_chunks.iter().map(|chunk| chunk.stored_crc32).collect(),
        plain_crc32s: of_chunks.iter().map(|chunk| chunk.plain_crc32).collect(),
        object_crc32: chunks.object_crc32().value(),
        codec: CodecMessage::from(coding.codec).into(),
        encryption: coding.encryption.as_ref().map(|encryption| EncryptionMessage {
            algorithm: ALGORITHM_AES_GCM_RSA_OAEP,
            key_id: encryption.wrapped.key_id.clone(),
            wrapped_key: encryption.wrapped.bytes.clone(),
        }),
        indexes,
        writer: writer.to_owned(),
    }
}

fn segment_to_message(segment: &SegmentMetadata) -> SegmentMessage {
    SegmentMessage {
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
    }
}

pub(super) fn segment_from_message(message: Option<SegmentMessage>) -> Result<SegmentMetadata, FormatError> {
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

pub(super) fn chunks_from_message(
    message: &ManifestMessage,
    plain_length: u64,
    coding: &Coding,
) -> Result<ChunkTable, FormatError> {
    let malformed = |reason: &str| FormatError::malformed("manifest", reason);
    let chunk_size = ChunkSize::new(message.chunk_size)?;
    let lengths = &message.stored_lengths;
    if lengths.len() != message.stored_crc32s.len() || lengths.len() != message.plain_crc32s.len() {
        return Err(malformed("lengths and checksums of chunks differ in number"));
    }
    let chunks: Vec<Chunk> = lengths
        .iter()
        .zip(&message.stored_crc32s)
        .zip(&message.plain_crc32s)
        .map(|((&stored_length, &stored_crc32), &plain_crc32)| Chunk {
            stored_length,
            stored_crc32,
            plain_crc32,
        })
        .collect();
    let table = ChunkTable::new(chunk_size, plain_length, chunks)?;
    if coding.is_plain() && message.stored_crc32s != message.plain_crc32s {
        return Err(malformed("stored chunks differ from plain ones without a codec"));
    }
    for (index, &stored) in (0u64..).zip(lengths) {
        let plain = chunk_size.bytes().min(plain_length - index * chunk_size.bytes());
        let most = coding.stored_length_max(plain);
        let possible = match coding.codec {
            Codec::None => u64::from(stored) == most,
            // No frame is empty.
            Codec::Zstd => u64::from(stored) > coding.tag_length() && u64::from(stored) <= most,
        };
        if !possible {
            return Err(malformed(&format!(
                "chunk {index} of {plain} bytes is stored in {stored}"
            )));
        }
    }
    let object_crc32 = table.object_crc32().value();
    if object_crc32 != message.object_crc32 {
        return Err(FormatError::WrongChecksum {
            what: "the checksum of the whole object".to_owned(),
            expected: message.object_crc32,
            found: object_crc32,
        });
    }
    Ok(table)
}

/// Bytes of all indexes once they are decoded.
pub(super) fn plain_index_bytes(messages: &[IndexMessage]) -> Result<u64, FormatError> {
    let total = messages.iter().map(|message| u64::from(message.plain_length)).sum();
    if total > MANIFEST_BYTES_MAX {
        return Err(FormatError::malformed("index", format!("{total} bytes of indexes")));
    }
    Ok(total)
}

/// Takes the indexes out of the payloads, which must hold nothing else.
pub(super) fn indexes_from_message<R: Room>(
    messages: &[IndexMessage],
    payloads: &Bytes,
    transform: Transform<'_>,
    zstd_announced: bool,
    room: &mut impl FnMut(usize) -> Option<R>,
) -> Result<[Option<Verified>; 5], FormatError> {
    plain_index_bytes(messages)?;
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
        let verified = index_from_message(message, index_type, stored, transform, zstd_announced, &mut *room)?;
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

fn index_from_message<R: Room>(
    message: &IndexMessage,
    index_type: IndexType,
    stored: Unverified,
    transform: Transform<'_>,
    zstd_announced: bool,
    room: impl FnMut(usize) -> Option<R>,
) -> Result<Verified, FormatError> {
    let malformed = |reason: &str| FormatError::malformed("index", format!("{}: {reason}", index_type.name()));
    let transform = Transform {
        codec: codec_from_number(message.codec)?,
        ..transform
    };
    let stored_crc32 = Crc32::recorded(message.stored_crc32, u64::from(message.stored_length));
    let plain_crc32 = Crc32::recorded(message.plain_crc32, u64::from(message.plain_length));
    if plain_crc32.length() > INDEX_BYTES_MAX {
        return Err(malformed(&format!(
            "{} bytes, over {INDEX_BYTES_MAX}",
            plain_crc32.length()
        )));
    }
    if transform.codec == Codec::Zstd && !zstd_announced {
        return Err(malformed("a codec that the features do not announce"));
    }
    if transform.is_plain() && stored_crc32 != plain_crc32 {
        return Err(malformed("stored bytes differ from plain ones without a codec"));
    }
    let what = || format!("index {}", index_type.name());
    let piece = Sealed::Index(message.index_type);
    transform.restore(piece, what, stored, (stored_crc32, plain_crc32), room)
}

pub(super) fn put_index(
    indexes: &mut [Option<Verified>; 5],
    index_type: IndexType,
    bytes: Verified,
) -> Result<(), FormatError> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DataKey, Encryption, WrappedKey};

    #[test]
    fn a_chunk_that_cannot_hold_a_frame_and_its_tag_is_refused() {
        let encryption = Encryption {
            wrapped: WrappedKey {
                key_id: String::new(),
                bytes: Vec::new(),
            },
            data_key: DataKey::new([1; 32]),
        };
        for (encryption, least) in [(None, 1), (Some(encryption), 17)] {
            let coding = Coding {
                codec: Codec::Zstd,
                encryption,
            };
            let stored_in = |stored_length: u32| {
                let message = ManifestMessage {
                    chunk_size: crate::CHUNK_SIZE_MIN,
                    stored_lengths: vec![stored_length],
                    stored_crc32s: vec![1],
                    plain_crc32s: vec![2],
                    object_crc32: 1,
                    ..Default::default()
                };
                chunks_from_message(&message, 100, &coding)
            };
            assert!(stored_in(least).is_ok());
            assert!(stored_in(least - 1).is_err(), "{least}");
        }
    }
}
