//! The work of the plugin, without Java and without S3.
//!
//! # Purpose
//! Copies segments to an object store, reads them and their indexes back through a cache, deletes them.
//!
//! # Flow
//! The boundary opens an [`Engine`] from text settings ([`config`]) and starts operations on it ([`ops`]); each gives a [`Task`]
//! that a Java thread waits for in slices. A copy goes through [`write`], a fetch through [`read`] and [`cache`].
//!
//! # Invariants
//! * Every wait has an end; every task ends with a result, also when it panics or the instance closes.
//! * All buffers come out of one memory budget per instance ([`budget`]), and all of it comes back.
//! * Only verified bytes leave.
//!
//! # Not here
//! JNI, Kafka's exception classes (`jni`, `java-shim`); object layout (`format`); requests, retries (`store`).

mod block;
pub mod budget;
mod cache;
mod clock;
mod completion;
pub mod config;
mod error;
mod instance;
mod keyring;
pub mod metrics;
mod ops;
mod probe;
mod read;
mod task;
mod write;

pub use error::{Error, ErrorKind, Result};
pub use instance::{Engine, VERSION};
pub use ops::{CopyRequest, SegmentFiles, SegmentRef};
pub use read::{Read, Reader};
pub use task::{Outcome, Task};
