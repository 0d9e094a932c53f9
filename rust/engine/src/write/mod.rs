//! The way of a segment's bytes up.
//!
//! # Flow
//! [`source`] reads Kafka's file part by part into pooled buffers and computes the chunk checksums in the same pass;
//! [`upload`] sends parts in parallel while the next is read, and puts the object together; [`janitor`] comes back to where that failed.
//!
//! # Invariants
//! * A part holds whole chunks; its checksum and the object's are combined from theirs, no byte is summed twice.
//! * A buffer is in the memory budget from before it is filled until its last request is over.
//!
//! # Failure
//! A failed upload is abandoned by its owner, which removes all of it.

mod janitor;
mod source;
mod upload;

pub(crate) use janitor::Janitor;
pub(crate) use source::{IndexFiles, SegmentFile};
pub(crate) use upload::{Upload, abort_uploads};
