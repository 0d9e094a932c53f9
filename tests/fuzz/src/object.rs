//! A second writer, made from `docs/FORMAT.md`.

use std::{cell::RefCell, collections::BTreeMap};

use bytes::Bytes;
use prost::Message;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};

use crate::DATA_KEY;

/// Bytes of the header.
pub const HEADER_BYTES: usize = 24;

/// Bytes that sealing adds.
pub const TAG_BYTES: usize = 16;

/// Feature bit 0.
pub const FEATURE_ZSTD: u16 = 1;

/// Feature bit 1.
pub const FEATURE_ENCRYPTION: u16 = 2;

#[derive(Clone, PartialEq, Message)]
pub struct ManifestMessage {
    #[prost(message, optional, tag = "1")]
    pub segment: Option<SegmentMessage>,
    #[prost(uint32, tag = "2")]
    pub chunk_size: u32,
    #[prost(uint32, repeated, tag = "3")]
    pub stored_lengths: Vec<u32>,
    #[prost(fixed32, repeated, tag = "4")]
    pub stored_crc32s: Vec<u32>,
    #[prost(fixed32, repeated, tag = "5")]
    pub plain_crc32s: Vec<u32>,
    #[prost(fixed32, tag = "6")]
    pub object_crc32: u32,
    #[prost(int32, tag = "7")]
    pub codec: i32,
    #[prost(message, optional, tag = "8")]
    pub encryption: Option<EncryptionMessage>,
    #[prost(message, repeated, tag = "9")]
    pub indexes: Vec<IndexMessage>,
    #[prost(string, tag = "10")]
    pub writer: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct SegmentMessage {
    #[prost(bytes = "vec", tag = "1")]
    pub topic_id: Vec<u8>,
    #[prost(string, tag = "2")]
    pub topic: String,
    #[prost(int32, tag = "3")]
    pub partition: i32,
    #[prost(bytes = "vec", tag = "4")]
    pub segment_id: Vec<u8>,
    #[prost(int64, tag = "5")]
    pub start_offset: i64,
    #[prost(int64, tag = "6")]
    pub end_offset: i64,
    #[prost(sint64, tag = "7")]
    pub max_timestamp_ms: i64,
    #[prost(sint32, tag = "8")]
    pub broker_id: i32,
    #[prost(sint64, tag = "9")]
    pub event_timestamp_ms: i64,
    #[prost(uint64, tag = "10")]
    pub segment_size: u64,
    #[prost(btree_map = "int32, int64", tag = "11")]
    pub leader_epochs: BTreeMap<i32, i64>,
    #[prost(bool, tag = "12")]
    pub transaction_index_empty: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct EncryptionMessage {
    #[prost(uint32, tag = "1")]
    pub algorithm: u32,
    #[prost(string, tag = "2")]
    pub key_id: String,
    #[prost(bytes = "vec", tag = "3")]
    pub wrapped_key: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub struct IndexMessage {
    #[prost(uint32, tag = "1")]
    pub index_type: u32,
    #[prost(uint32, tag = "2")]
    pub stored_length: u32,
    #[prost(fixed32, tag = "3")]
    pub stored_crc32: u32,
    #[prost(uint32, tag = "4")]
    pub plain_length: u32,
    #[prost(fixed32, tag = "5")]
    pub plain_crc32: u32,
    #[prost(int32, tag = "6")]
    pub codec: i32,
}

/// The object around a message, with all lengths, checksums and (for a `sealed_segment`) the tag right.
pub fn manifest_object(message: &[u8], features: u16, sealed_segment: Option<[u8; 16]>, payloads: &[u8]) -> Bytes {
    let tag_length = sealed_segment.map_or(0, |_| TAG_BYTES);
    let length = |bytes: usize| {
        u32::try_from(bytes)
            .expect("an input of libFuzzer is short")
            .to_be_bytes()
    };
    let mut object = b"ALVM\x00\x01".to_vec();
    object.extend_from_slice(&features.to_be_bytes());
    object.extend_from_slice(&length(message.len()));
    object.extend_from_slice(&length(tag_length + payloads.len()));
    object.extend_from_slice(&crc32fast::hash(message).to_be_bytes());
    object.extend_from_slice(&crc32fast::hash(&object).to_be_bytes());
    object.extend_from_slice(message);
    if let Some(segment_id) = sealed_segment {
        let mut tag = Vec::new();
        seal(segment_id, 2, 0, &object, &mut tag);
        object.extend_from_slice(&tag);
    }
    object.extend_from_slice(payloads);
    Bytes::from(object)
}

/// Encrypts a piece under [`DATA_KEY`] in place and appends the tag.
pub fn seal(segment_id: [u8; 16], kind: u8, number: u32, head: &[u8], bytes: &mut Vec<u8>) {
    let mut nonce = [0; 12];
    nonce[0] = kind;
    nonce[8..].copy_from_slice(&number.to_be_bytes());
    let additional = [b"ALVM\x00\x01", &segment_id[..], &[kind], &number.to_be_bytes(), head].concat();
    let key = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &DATA_KEY).expect("32 bytes"));
    key.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::from(additional), bytes)
        .expect("far below the limit of the cipher");
}

/// One zstd frame with its content size.
pub fn compress(plain: &[u8], level: i32) -> Vec<u8> {
    thread_local! {
        // Making the tables takes longer than most inputs.
        static COMPRESSOR: RefCell<zstd::bulk::Compressor<'static>> = RefCell::new(zstd::bulk::Compressor::default());
    }
    COMPRESSOR.with_borrow_mut(|compressor| {
        compressor.set_compression_level(level).expect("a level of zstd");
        compressor.compress(plain).expect("memory for an input of libFuzzer")
    })
}
