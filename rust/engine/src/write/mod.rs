//! The way of a segment's bytes up.
//!
//! # Flow
//! [`source`] opens Kafka's files; [`sample`] decides whether compressing the segment pays; [`parts`] makes the object's parts of it, by way of
//! the [`workshop`]'s threads where chunks are compressed or encrypted; [`upload`] sends parts in parallel while the next is made, and puts
//! the object together; [`janitor`] comes back to where that failed.
//!
//! # Invariants
//! * No byte is summed twice: the checksums of parts and of the object are combined from those of the chunks.
//! * A buffer is in the memory budget from before it is filled until its last request is over.
//!
//! # Failure
//! A failed upload is abandoned by its owner, which removes all of it.

mod janitor;
mod parts;
mod sample;
mod source;
mod upload;
mod workshop;

pub(crate) use janitor::Janitor;
pub(crate) use parts::{Part, Parts};
pub(crate) use sample::choose_codec;
pub(crate) use source::{IndexFiles, SegmentFile};
pub(crate) use upload::{Upload, abort_uploads};
pub(crate) use workshop::Workshop;
