//! What is written to the bucket, as bytes and nothing else.
//!
//! # Purpose
//! Names, encodes, decodes and verifies the two objects of a segment: `.log` and `.manifest`. `docs/FORMAT.md` is the exact
//! description; this crate is its first reader and writer.
//!
//! # Flow
//! A copy turns chunks into stored ones by its [`Coding`], builds a [`ChunkTable`] of them, wraps it in a [`Manifest`] and encodes that.
//! A fetch decodes the manifest, asks the table which stored range holds a plain range, and turns the bytes it gets into [`Verified`] ones.
//!
//! # Invariants
//! * Positions in Kafka's segment ([`PlainPosition`]) and in the stored object ([`StoredPosition`]) are different types.
//! * Only a checksum makes [`Verified`] bytes.
//! * Bytes from outside are checked before use: no panic, no unbounded allocation, whatever they hold.
//!
//! # Not here
//! Any I/O, clock, or knowledge of a store.

mod checksum;
mod chunk;
mod codec;
mod coding;
mod custom_metadata;
mod error;
mod index;
mod keys;
mod manifest;
mod proto;
mod seal;
mod segment;
mod uuid;
mod verified;

pub use checksum::Crc32;
pub use chunk::{
    CHUNK_SIZE_MAX, CHUNK_SIZE_MIN, Chunk, ChunkIndex, ChunkSize, ChunkTable, PlainPosition, StoredPosition,
};
pub use codec::{COMPRESSION_LEVELS, Codec, Compressor};
pub use coding::{Coding, Encryption, Room, WrappedKey, on_heap};
pub use custom_metadata::{CUSTOM_METADATA_BYTES_MAX, CustomMetadata};
pub use error::FormatError;
pub use index::IndexType;
pub use keys::{KEY_PREFIX_BYTES_MAX, KeyPrefix, SegmentKeys};
pub use manifest::{
    DataKeys, EncodedManifest, FORMAT_VERSION, INDEX_BYTES_MAX, IndexPayload, MANIFEST_BYTES_MAX, Manifest, NoKeys,
};
pub use seal::{DATA_KEY_BYTES, DataKey};
pub use segment::{LeaderEpoch, SegmentMetadata, TopicName};
pub use uuid::Uuid;
pub use verified::{Unverified, Verified};
