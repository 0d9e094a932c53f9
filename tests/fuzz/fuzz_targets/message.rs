//! A manifest that is right in every length, checksum and tag, except for the lies that the input tells: those get past the header to the
//! message, the payloads, the codecs and the encryption.
//!
//! # Invariants
//! * Without a lie the manifest is accepted, and its indexes come back: what is written by the document is read.

#![no_main]

use std::collections::BTreeMap;

use alluvium_format::{IndexType, Manifest, on_heap};
use alluvium_fuzz::{
    EncryptionMessage, FEATURE_ENCRYPTION, FEATURE_ZSTD, IndexMessage, Keys, LOST_KEY_ID, ManifestMessage,
    SegmentMessage, TAG_BYTES, check_accepted, check_error, compress, manifest_object, seal,
};
use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use prost::Message;

/// Most plain bytes of an index that is made here. What a frame can swell to has its own limit, and larger ones only take time.
const INDEX_BYTES: usize = 1 << 15;

/// An input of no bytes is an empty plain segment without a lie.
#[derive(Arbitrary, Debug)]
struct Plan {
    has_zstd: bool,
    is_encrypted: bool,
    lies: Vec<Lie>,
    segment: Segment,
    chunk_size_exponent: u8,
    last_chunk_length: u32,
    chunks: Vec<[u32; 3]>,
    indexes: Vec<Index>,
}

#[derive(Arbitrary, Debug)]
struct Segment {
    ids: [[u8; 16]; 2],
    topic: [u8; 3],
    partition: i32,
    start_offset: i64,
    records: u32,
    times: [i64; 2],
    broker_id: i32,
    leader_epochs: BTreeMap<i32, i64>,
    transaction_index_empty: bool,
}

#[derive(Arbitrary, Debug)]
struct Index {
    index_type: u8,
    is_compressed: bool,
    level: i8,
    times: u16,
    bytes: Vec<u8>,
    lie: Option<IndexLie>,
}

/// What is not as the document has it.
#[derive(Arbitrary, Debug)]
enum Lie {
    Features(u16),
    Codec(i32),
    Algorithm(u32),
    KeyId(String),
    LostKey,
    NoEncryption,
    NoSegment,
    NoIds(Vec<u8>),
    Topic(String),
    Partition(i32),
    Offsets(i64, i64),
    SegmentSize(u64),
    ChunkSize(u32),
    StoredLength(u8, u32),
    ChunksOf(u8, u8),
    ObjectCrc32(u32),
    Writer(String),
    MoreOfTheMessage(Vec<u8>),
    MorePayload(Vec<u8>),
    NoTag,
    FlippedBit(u16),
}

#[derive(Arbitrary, Debug)]
enum IndexLie {
    Type(u32),
    StoredLength(u32),
    StoredCrc32(u32),
    PlainLength(u32),
    PlainCrc32(u32),
    Codec(i32),
    SealedAs(u32),
    /// The bytes themselves are called a frame of so many bytes.
    Frame(u32),
    /// A frame that zstd skips is called one of no bytes.
    Skippable(Vec<u8>),
    /// A frame is changed before it is sealed.
    FrameChanged(u16, u8),
}

fuzz_target!(|plan: Plan| {
    let (message, features, payloads) = plan.build();
    let is_sealed = message.encryption.is_some() && !plan.lies.iter().any(|lie| matches!(lie, Lie::NoTag));
    let sealed_segment = is_sealed.then_some(plan.segment.ids[0]);
    let mut encoded = message.encode_to_vec();
    let mut payloads = payloads;
    for lie in &plan.lies {
        match lie {
            Lie::MoreOfTheMessage(bytes) => encoded.extend_from_slice(bytes),
            Lie::MorePayload(bytes) => payloads.extend_from_slice(bytes),
            _ => {}
        }
    }
    let mut object = manifest_object(&encoded, features, sealed_segment, &payloads);
    for lie in &plan.lies {
        if let Lie::FlippedBit(bit) = lie {
            let mut flipped = object.to_vec();
            let position = flipped.len() - 1 - usize::from(bit / 8) % flipped.len();
            flipped[position] ^= 1 << (bit % 8);
            object = flipped.into();
        }
    }
    match Manifest::decode(object.clone(), &Keys, on_heap) {
        Ok(manifest) => {
            check_accepted(&object, &manifest);
            if plan.lies.is_empty() {
                assert!(plan.is_possible(), "{plan:?}");
            }
            if plan.is_honest() {
                plan.compare(&manifest);
            }
        }
        Err(error) => {
            check_error(&error);
            assert!(!plan.is_honest(), "{error}: {plan:?}");
        }
    }
});

impl Plan {
    /// Whether every rule of the document is kept.
    fn is_honest(&self) -> bool {
        self.lies.is_empty() && self.has_each_index_once() && self.indexes.iter().all(|index| index.lie.is_none())
    }

    /// Whether it may be accepted, as far as its indexes go.
    fn is_possible(&self) -> bool {
        let moves_an_index = |index: &Index| matches!(index.lie, Some(IndexLie::Type(_)));
        self.indexes.iter().all(Index::is_possible)
            && (self.has_each_index_once() || self.indexes.iter().any(moves_an_index))
    }

    fn has_each_index_once(&self) -> bool {
        let count = |known| self.indexes.iter().filter(|index| index.known() == Some(known)).count();
        IndexType::ALL.iter().all(|&known| count(known) <= 1)
    }

    fn build(&self) -> (ManifestMessage, u16, Vec<u8>) {
        let mut features = 0;
        let mut payloads = Vec::new();
        let mut indexes = Vec::new();
        for index in &self.indexes {
            let (message, payload) = index.build(self.segment.ids[0], self.is_encrypted);
            if message.codec == 1 {
                features |= FEATURE_ZSTD;
            }
            payloads.extend_from_slice(&payload);
            indexes.push(message);
        }
        let mut message = ManifestMessage {
            segment: Some(self.segment.message()),
            codec: i32::from(self.has_zstd),
            indexes,
            writer: "fuzz".to_owned(),
            ..Default::default()
        };
        if self.has_zstd {
            features |= FEATURE_ZSTD;
        }
        if self.is_encrypted {
            features |= FEATURE_ENCRYPTION;
            message.encryption = Some(EncryptionMessage {
                algorithm: 1,
                key_id: "fuzz".to_owned(),
                wrapped_key: vec![7; 3],
            });
        }
        self.add_chunks(&mut message);
        for lie in &self.lies {
            lie.tell(&mut message, &mut features);
        }
        (message, features, payloads)
    }

    fn add_chunks(&self, message: &mut ManifestMessage) {
        let chunk_size = 65_536 << (self.chunk_size_exponent % 11);
        message.chunk_size = chunk_size;
        let tag = if self.is_encrypted { TAG_BYTES as u32 } else { 0 };
        let mut whole = crc32fast::Hasher::new();
        let mut segment_size = 0;
        for (position, &[length, stored_crc32, plain_crc32]) in self.chunks.iter().enumerate() {
            let plain = if position + 1 == self.chunks.len() {
                1 + self.last_chunk_length % chunk_size
            } else {
                chunk_size
            };
            let stored = if self.has_zstd {
                tag + 1 + length % (plain + plain / 256 + 128)
            } else {
                plain + tag
            };
            let is_plain = !self.has_zstd && !self.is_encrypted;
            message.stored_lengths.push(stored);
            message.stored_crc32s.push(stored_crc32);
            message
                .plain_crc32s
                .push(if is_plain { stored_crc32 } else { plain_crc32 });
            whole.combine(&crc32fast::Hasher::new_with_initial_len(
                stored_crc32,
                u64::from(stored),
            ));
            segment_size += u64::from(plain);
        }
        message.object_crc32 = whole.finalize();
        if let Some(segment) = &mut message.segment {
            segment.segment_size = segment_size;
        }
    }

    fn compare(&self, manifest: &Manifest) {
        for index in &self.indexes {
            if let Some(known) = index.known() {
                let found = manifest.index(known).expect("an index that was written");
                assert!(found.bytes() == &index.plain(), "{plan:?}", plan = self);
            }
        }
        assert_eq!(manifest.chunks().chunks().len(), self.chunks.len());
        assert_eq!(manifest.segment().leader_epochs.len(), self.segment.leader_epochs.len());
        assert_eq!(manifest.segment().segment_id.as_bytes(), &self.segment.ids[0]);
        assert_eq!(manifest.segment().broker_id, self.segment.broker_id);
        assert_eq!(manifest.segment().max_timestamp_ms, self.segment.times[0]);
    }
}

impl Segment {
    fn message(&self) -> SegmentMessage {
        let start_offset = self.start_offset & i64::MAX;
        let letter = |byte: u8| char::from(b"abcXYZ019._-"[usize::from(byte) % 12]);
        SegmentMessage {
            topic_id: self.ids[1].to_vec(),
            topic: self.topic.map(letter).iter().chain(&['t']).collect(),
            partition: self.partition & i32::MAX,
            segment_id: self.ids[0].to_vec(),
            start_offset,
            end_offset: start_offset.saturating_add(i64::from(self.records)),
            max_timestamp_ms: self.times[0],
            broker_id: self.broker_id,
            event_timestamp_ms: self.times[1],
            segment_size: 0,
            leader_epochs: self.leader_epochs.clone(),
            transaction_index_empty: self.transaction_index_empty,
        }
    }
}

impl Index {
    /// Two types in seven are of later releases.
    fn index_type(&self) -> u32 {
        u32::from(self.index_type % 7)
    }

    fn known(&self) -> Option<IndexType> {
        IndexType::from_number(i32::from(self.index_type % 7))
    }

    /// Whether it may occur in a manifest that is accepted: what is called a frame is one.
    fn is_possible(&self) -> bool {
        match &self.lie {
            Some(IndexLie::Skippable(_)) => self.known().is_none(),
            Some(IndexLie::Frame(_)) => self.known().is_none() || self.bytes.starts_with(b"\x28\xb5\x2f\xfd"),
            _ => true,
        }
    }

    fn plain(&self) -> Vec<u8> {
        let most = INDEX_BYTES / self.bytes.len().max(1);
        self.bytes.repeat((1 + usize::from(self.times)).min(most))
    }

    fn build(&self, segment_id: [u8; 16], is_encrypted: bool) -> (IndexMessage, Vec<u8>) {
        let plain = self.plain();
        let mut message = IndexMessage {
            index_type: self.index_type(),
            plain_length: plain.len() as u32,
            plain_crc32: crc32fast::hash(&plain),
            codec: i32::from(self.is_compressed),
            ..Default::default()
        };
        let mut payload = match self.is_compressed {
            true => compress(&plain, 1 + i32::from(self.level & 3)),
            false => plain,
        };
        let mut sealed_as = message.index_type;
        match &self.lie {
            Some(IndexLie::Skippable(bytes)) => {
                payload = [b"\x50\x2a\x4d\x18", &(bytes.len() as u32).to_le_bytes(), &bytes[..]].concat();
                message.codec = 1;
                message.plain_length = 0;
            }
            &Some(IndexLie::Frame(plain_length)) => {
                payload = self.bytes.clone();
                message.codec = 1;
                message.plain_length = plain_length;
            }
            &Some(IndexLie::FrameChanged(position, bits)) => {
                let position = usize::from(position) % payload.len().max(1);
                if let Some(byte) = payload.get_mut(position) {
                    *byte ^= bits;
                }
            }
            &Some(IndexLie::SealedAs(number)) => sealed_as = number,
            _ => {}
        }
        if message.codec == 1 {
            // The right checksum of whatever it holds.
            let most = usize::try_from(message.plain_length).map_or(INDEX_BYTES, |length| length.min(INDEX_BYTES));
            message.plain_crc32 = zstd::bulk::decompress(&payload, most).map_or(0, |plain| crc32fast::hash(&plain));
        }
        if is_encrypted {
            seal(segment_id, 1, sealed_as, &[], &mut payload);
        }
        message.stored_length = payload.len() as u32;
        message.stored_crc32 = crc32fast::hash(&payload);
        match self.lie {
            Some(IndexLie::Type(number)) => message.index_type = number,
            Some(IndexLie::StoredLength(length)) => message.stored_length = length,
            Some(IndexLie::StoredCrc32(value)) => message.stored_crc32 = value,
            Some(IndexLie::PlainLength(length)) => message.plain_length = length,
            Some(IndexLie::PlainCrc32(value)) => message.plain_crc32 = value,
            Some(IndexLie::Codec(codec)) => message.codec = codec,
            _ => {}
        }
        (message, payload)
    }
}

impl Lie {
    fn tell(&self, message: &mut ManifestMessage, features: &mut u16) {
        let mut discarded = SegmentMessage::default();
        let at = |position: u8, length: usize| usize::from(position) % length.max(1);
        match self {
            Lie::NoSegment => message.segment = None,
            Lie::Features(bits) => *features = *bits,
            Lie::Codec(codec) => message.codec = *codec,
            Lie::NoEncryption => message.encryption = None,
            Lie::ChunkSize(bytes) => message.chunk_size = *bytes,
            Lie::ObjectCrc32(value) => message.object_crc32 = *value,
            Lie::Writer(writer) => message.writer.clone_from(writer),
            Lie::StoredLength(position, bytes) => {
                let position = at(*position, message.stored_lengths.len());
                if let Some(length) = message.stored_lengths.get_mut(position) {
                    *length = *bytes;
                }
            }
            Lie::ChunksOf(which, count) => {
                let list = match which % 3 {
                    0 => &mut message.stored_lengths,
                    1 => &mut message.stored_crc32s,
                    _ => &mut message.plain_crc32s,
                };
                list.resize(usize::from(*count), 1);
            }
            Lie::Algorithm(_) | Lie::KeyId(_) | Lie::LostKey => {
                let encryption = message.encryption.get_or_insert_default();
                match self {
                    Lie::Algorithm(number) => encryption.algorithm = *number,
                    Lie::KeyId(id) => encryption.key_id.clone_from(id),
                    _ => {
                        encryption.algorithm = 1;
                        encryption.key_id = LOST_KEY_ID.to_owned();
                    }
                }
            }
            Lie::NoIds(_) | Lie::Topic(_) | Lie::Partition(_) | Lie::Offsets(..) | Lie::SegmentSize(_) => {
                let segment = message.segment.as_mut().unwrap_or(&mut discarded);
                match self {
                    Lie::NoIds(bytes) => segment.topic_id.clone_from(bytes),
                    Lie::Topic(topic) => segment.topic.clone_from(topic),
                    Lie::Partition(number) => segment.partition = *number,
                    Lie::Offsets(start, end) => (segment.start_offset, segment.end_offset) = (*start, *end),
                    Lie::SegmentSize(bytes) => segment.segment_size = *bytes,
                    _ => {}
                }
            }
            // Told to the bytes, not to the message.
            Lie::MoreOfTheMessage(_) | Lie::MorePayload(_) | Lie::NoTag | Lie::FlippedBit(_) => {}
        }
    }
}
