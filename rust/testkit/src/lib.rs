//! Purpose: what tests, the demo and benchmarks need around the product, and the product never.
//!
//! [`conformance`] is the suite that every object store must pass.
//! [`s3_server`] is an S3 server for tests: in process, or as `alluvium-testkit s3-server`.
//! [`proxy`] is a network that breaks, between a client and any S3 server: in process, or as `alluvium-testkit fault-proxy`.
//!
//! [`ranged_get`] is the raw limit of reading an object, beside which a plugin's reads are measured.
//!
//! [`segment`] writes segments to copy, [`broker`] calls the plugin's engine as Kafka would.
//! [`process`] runs the tools in processes of their own.
//!
//! Invariants: neither the broker's library nor the command-line tool depends on this crate; a layering check proves it. Nothing
//! here enables tokio's `signal` or `process` features, since features are unified over the workspace.

mod accept;
mod admin;
pub mod broker;
pub mod conformance;
mod control;
pub mod process;
pub mod proxy;
pub mod ranged_get;
pub mod s3_server;
pub mod segment;
mod service;
mod spoil;
