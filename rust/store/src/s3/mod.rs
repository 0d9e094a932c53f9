//! S3 and everything that speaks its protocol, through aws-sdk-s3.
//!
//! # Purpose
//! The one place that knows AWS types.
//!
//! # Flow
//! [`S3Store::open`] reads the files that the settings name, finds credentials, builds the client (`client`) and makes no request.
//! `store` maps each operation to one request; `errors` maps each failure to a [`crate::ErrorKind`]; `body` keeps a body to its
//! announced bytes, `limit` keeps all other answers small, `sending` paces and watches what is sent, and `attributes` says how objects are kept.
//!
//! # Invariants
//! * Bodies are replayable buffers with an exact `Content-Length`; `aws-chunked` is never sent: too many servers get it wrong.
//! * Every body carries its CRC-32, computed once by its owner and checked by the server.
//! * The SDK neither retries nor guards streams; its connect limit is the only deadline it keeps.
//! * No secret reaches an error or a log line.
//!
//! # Failure
//! A refused certificate or key makes the store look whether the file it came from has changed; then the error is retryable.
//!
//! # Not here
//! Retries, attempt deadlines and counts: [`crate::layer`].

mod attributes;
mod body;
mod bucket;
mod client;
mod config;
mod credentials;
mod delete;
mod errors;
mod limit;
mod names;
mod sending;
mod store;
mod upload;
mod watched;

pub use bucket::Deletes;
pub use config::{CredentialsSource, S3Config, Secret, ServerSideEncryption};
pub use names::Names;
pub use store::S3Store;
