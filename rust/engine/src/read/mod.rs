//! The way of a segment's bytes down.
//!
//! # Flow
//! [`reader`] is a stream as Kafka reads it; [`load`] turns a miss of the cache into one bounded ranged GET, verified.
//!
//! # Invariants
//! * No stream holds a connection: it holds at most one chunk.
//! * Short data is an error, never an early end.
//!
//! # Not here
//! Read-ahead.

mod load;
mod reader;

pub(crate) use load::{lookup_chunk, lookup_manifest};
pub use reader::{Read, Reader};
