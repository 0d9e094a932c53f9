//! The protobuf message inside a manifest. Field numbers are for ever; `docs/FORMAT.md` has the same as `.proto` text.

use std::collections::BTreeMap;

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ManifestMessage {
    #[prost(message, optional, tag = "1")]
    pub(crate) segment: Option<SegmentMessage>,
    #[prost(uint32, tag = "2")]
    pub(crate) chunk_size: u32,
    #[prost(uint32, repeated, tag = "3")]
    pub(crate) stored_lengths: Vec<u32>,
    #[prost(fixed32, repeated, tag = "4")]
    pub(crate) stored_crc32s: Vec<u32>,
    #[prost(fixed32, repeated, tag = "5")]
    pub(crate) plain_crc32s: Vec<u32>,
    #[prost(fixed32, tag = "6")]
    pub(crate) object_crc32: u32,
    #[prost(enumeration = "CodecMessage", tag = "7")]
    pub(crate) codec: i32,
    #[prost(message, optional, tag = "8")]
    pub(crate) encryption: Option<EncryptionMessage>,
    #[prost(message, repeated, tag = "9")]
    pub(crate) indexes: Vec<IndexMessage>,
    #[prost(string, tag = "10")]
    pub(crate) writer: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct SegmentMessage {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) topic_id: Vec<u8>,
    #[prost(string, tag = "2")]
    pub(crate) topic: String,
    #[prost(int32, tag = "3")]
    pub(crate) partition: i32,
    #[prost(bytes = "vec", tag = "4")]
    pub(crate) segment_id: Vec<u8>,
    #[prost(int64, tag = "5")]
    pub(crate) start_offset: i64,
    #[prost(int64, tag = "6")]
    pub(crate) end_offset: i64,
    #[prost(sint64, tag = "7")]
    pub(crate) max_timestamp_ms: i64,
    #[prost(sint32, tag = "8")]
    pub(crate) broker_id: i32,
    #[prost(sint64, tag = "9")]
    pub(crate) event_timestamp_ms: i64,
    #[prost(uint64, tag = "10")]
    pub(crate) segment_size: u64,
    #[prost(btree_map = "int32, int64", tag = "11")]
    pub(crate) leader_epochs: BTreeMap<i32, i64>,
    #[prost(bool, tag = "12")]
    pub(crate) transaction_index_empty: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub(crate) enum CodecMessage {
    None = 0,
    Zstd = 1,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct EncryptionMessage {
    #[prost(uint32, tag = "1")]
    pub(crate) algorithm: u32,
    #[prost(string, tag = "2")]
    pub(crate) key_id: String,
    #[prost(bytes = "vec", tag = "3")]
    pub(crate) wrapped_key: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct IndexMessage {
    #[prost(uint32, tag = "1")]
    pub(crate) index_type: u32,
    #[prost(uint32, tag = "2")]
    pub(crate) stored_length: u32,
    #[prost(fixed32, tag = "3")]
    pub(crate) stored_crc32: u32,
    #[prost(uint32, tag = "4")]
    pub(crate) plain_length: u32,
    #[prost(fixed32, tag = "5")]
    pub(crate) plain_crc32: u32,
    #[prost(enumeration = "CodecMessage", tag = "6")]
    pub(crate) codec: i32,
}
