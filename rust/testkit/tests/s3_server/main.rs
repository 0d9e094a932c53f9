//! Purpose: the embedded S3 server, seen through aws-sdk-s3 and, where that hides too much, through a bare socket.

#![expect(clippy::unwrap_used, reason = "a test ends where it fails, helpers included")]
#![expect(clippy::cast_possible_truncation, reason = "tests choose small numbers")]

mod access;
mod admin;
mod checksums;
mod faults;
mod listing;
mod multipart;
mod objects;
mod support;
