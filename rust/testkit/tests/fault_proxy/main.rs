//! Purpose: the fault proxy in front of bare sockets and of the embedded S3 server: every fault as it is on the wire.
//!
//! Upper bounds of times have slack for a loaded machine; lower bounds hold on any.

#![expect(clippy::unwrap_used, reason = "a test ends where it fails, helpers included")]

mod broken_links;
mod chaos;
mod life;
mod links;
mod replies;
mod requests;
#[path = "../s3_server/support.rs"]
#[expect(dead_code, reason = "shared with the tests of the server")]
mod support;
mod wire;
