//! Loading manifests and chunks from the store into the cache.
//!
//! # Flow
//! A miss becomes one ranged GET: of the chunk that is missed, and of those behind it that are loaded ahead ([`super::ahead`]). Each chunk is
//! verified and filled into the cache as soon as its last byte is here, while the rest is still on its way.
//!
//! # Invariants
//! * Memory for a chunk that is missed is reserved before the request: whoever waits for it holds no connection and no place among the requests. What is
//!   loaded ahead takes it later, and gives its place up when somebody waits for that.
//! * Nothing unverified gets into the cache.
//!
//! # Failure
//! A chunk that somebody waits for fails with the reason; those behind it are given up without a word, and loaded again by whoever needs them.

mod chunks;
mod disk_reads;
mod manifest;
mod pieces;
mod requests;

use std::{future::Future, time::Duration};

use bytes::Bytes;

pub(super) use chunks::Memory;
pub(crate) use disk_reads::DiskReads;
pub(super) use disk_reads::DiskTurn;
pub(crate) use manifest::{Identity, manifest};
pub(super) use requests::{Claim, start_ahead_load, start_chunk_load, start_disk_load};

use crate::{
    Error, ErrorKind, Result,
    cache::{EntryKey, Moment, Ticket},
    instance::Shared,
};

/// Times that bytes with a wrong checksum are asked for again: damage on the way is cured by it, damage in the store is not.
const REFETCHES_MAX: u32 = 1;

/// Keeps stored bytes, which are verified, on disk as well, unless their segment was dropped later than `since`; nobody waits for it.
pub(crate) fn keep_on_disk(shared: &Shared, key: EntryKey, stored: Bytes, since: Moment) {
    if let Some(disk) = shared.disk() {
        shared.spawn_blocking(move || disk.write(&key, &stored, since));
    }
}

/// Now, where what is loaded is to be kept on disk: not when its segment was deleted meanwhile.
fn kept_since(shared: &Shared, ticket: &Ticket) -> Option<Moment> {
    // First the moment: a segment is dropped from memory before it is from disk.
    let now = shared.disk()?.now();
    ticket.is_registered().then_some(now)
}

async fn limited<T>(limit: Duration, work: impl Future<Output = Result<T>>) -> Result<T> {
    match tokio::time::timeout(limit, work).await {
        Ok(outcome) => outcome,
        Err(_) => Err(Error::new(
            ErrorKind::Timeout,
            format!("nothing was loaded within {limit:?}"),
        )),
    }
}

async fn again_if_corrupt<T, Work: Future<Output = Result<T>>>(mut load: impl FnMut() -> Work) -> Result<T> {
    let mut refetches = 0;
    loop {
        match load().await {
            Err(error) if error.kind() == ErrorKind::Corrupt && refetches < REFETCHES_MAX => {
                tracing::warn!(%error, "bytes from the store are wrong, asking once more");
                refetches += 1;
            }
            outcome => return outcome,
        }
    }
}
