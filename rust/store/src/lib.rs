//! Object stores behind one trait.
//!
//! # Purpose
//! Puts, gets and deletes objects of a bucket. Knows nothing of Kafka, segments or manifests.
//!
//! # Flow
//! `engine` calls an [`ObjectStore`] that [`layer::guarded`] built: a limit over retries over a breaker over metrics over deadlines
//! over one backend: [`s3`] (aws-sdk-s3), [`file`] (a directory or NFS mount) or [`mem`] (tests and benchmarks).
//!
//! # Invariants
//! * An object is seen whole or not at all; a body yields exactly the announced bytes or ends in an error, never early.
//! * Every policy has one owner: retries, deadlines and counting are layers, the SDK's own are off. The rate of uploads is shaped in
//!   the backends, which alone see bytes go out (`pace`).
//! * Every backend passes the one conformance suite of the testkit.
//!
//! # Not here
//! Chunk checksums and object layout (`format`), caching and memory budgets (`engine`).

mod error;
pub mod file;
pub mod layer;
pub mod mem;
mod object;
mod pace;
pub mod s3;

pub use error::{ErrorKind, Operation, StoreError, StoreResult};
use object::boxed_body;
pub use object::{
    Body, GetObject, Key, KeyError, ListPage, ObjectInfo, ObjectStore, PART_NUMBER_MAX, Payload, UploadId, UploadedPart,
};
