//! Purpose: what passed the proxy and what it did, counted so that a test can assert that faults really happened.
//!
//! Invariants: a fault is counted when it strikes, not when a rule chose it: a reset at a byte that never came is none.
//! Bytes are counted as delivered, on the client's connection, with everything in them (heads, TLS). The gauge of open
//! connections goes back to zero when nothing is open.

use super::link::Direction;
use crate::s3_server::Operation;
use std::sync::atomic::{AtomicU64, Ordering};

/// What the proxy can do, link and HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    // Of connections.
    Refuse,
    BlackHole,
    ResetAt,
    StallAt,
    SlowStart,
    // Of requests.
    Error,
    OkWithError,
    Delay,
    Late,
    SlowReply,
    Stall,
    DropRequest,
    DropReply,
    TruncateBody,
    StallBody,
    CorruptBody,
}

impl FaultKind {
    pub const ALL: [Self; 16] = [
        Self::Refuse,
        Self::BlackHole,
        Self::ResetAt,
        Self::StallAt,
        Self::SlowStart,
        Self::Error,
        Self::OkWithError,
        Self::Delay,
        Self::Late,
        Self::SlowReply,
        Self::Stall,
        Self::DropRequest,
        Self::DropReply,
        Self::TruncateBody,
        Self::StallBody,
        Self::CorruptBody,
    ];
}

#[derive(Debug, Default)]
pub struct ProxyCounters {
    connections: AtomicU64,
    connections_open: AtomicU64,
    bytes_up: AtomicU64,
    bytes_down: AtomicU64,
    requests: [AtomicU64; Operation::ALL.len()],
    faults: [AtomicU64; FaultKind::ALL.len()],
}

impl ProxyCounters {
    /// Connections accepted, those refused by a reset included.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }

    /// Connections open now.
    #[must_use]
    pub fn connections_open(&self) -> u64 {
        self.connections_open.load(Ordering::Relaxed)
    }

    /// Bytes that reached the other side of the link in the direction.
    #[must_use]
    pub fn bytes(&self, direction: Direction) -> u64 {
        self.bytes_of(direction).load(Ordering::Relaxed)
    }

    /// Requests of this operation, whatever became of them; none at the link level.
    #[must_use]
    pub fn requests(&self, operation: Operation) -> u64 {
        self.requests[operation as usize].load(Ordering::Relaxed)
    }

    /// Requests of all operations.
    #[must_use]
    pub fn all_requests(&self) -> u64 {
        self.requests.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    /// How often this fault struck, by a rule or by chance.
    #[must_use]
    pub fn faults(&self, kind: FaultKind) -> u64 {
        self.faults[kind as usize].load(Ordering::Relaxed)
    }

    /// How often any fault struck.
    #[must_use]
    pub fn all_faults(&self) -> u64 {
        self.faults.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    fn bytes_of(&self, direction: Direction) -> &AtomicU64 {
        match direction {
            Direction::Up => &self.bytes_up,
            Direction::Down => &self.bytes_down,
        }
    }

    pub(super) fn opened(&self) {
        self.connections.fetch_add(1, Ordering::Relaxed);
        self.connections_open.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn closed(&self) {
        self.connections_open.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn delivered(&self, direction: Direction, bytes: usize) {
        self.bytes_of(direction).fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn request(&self, operation: Operation) {
        self.requests[operation as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn struck(&self, kind: FaultKind) {
        self.faults[kind as usize].fetch_add(1, Ordering::Relaxed);
    }
}
