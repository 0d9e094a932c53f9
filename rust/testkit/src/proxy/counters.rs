//! Purpose: what passed the proxy and what it did, counted so that a test can assert that faults really happened.
//!
//! Invariants: a fault is counted when it strikes, not when a rule chose it: a reset at a byte that never came is none.
//! Bytes are counted as delivered, on the client's connection, with everything in them (heads, TLS); those of bodies, which
//! only the HTTP level knows, when the proxy took them from the client (up) or handed them to its connection (down). The
//! gauge of open connections goes back to zero when nothing is open, and a reset does not touch it.

use super::link::Direction;
use crate::s3_server::Operation;
use serde_json::{Map, Value};
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
    body_bytes_up: AtomicU64,
    body_bytes_down: AtomicU64,
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

    /// Bytes of the bodies of requests (up) or answers (down); none at the link level.
    #[must_use]
    pub fn body_bytes(&self, direction: Direction) -> u64 {
        self.body_bytes_of(direction).load(Ordering::Relaxed)
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

    /// Sets all but the gauge to zero.
    pub fn reset(&self) {
        let single = [
            &self.connections,
            &self.bytes_up,
            &self.bytes_down,
            &self.body_bytes_up,
            &self.body_bytes_down,
        ];
        for counter in self.requests.iter().chain(&self.faults).chain(single) {
            counter.store(0, Ordering::Relaxed);
        }
    }

    /// A flat object of numbers: `"GetObject"`, …, `"fault.Error"`, …, `"connections"`, `"connections_open"`, `"bytes_up"`,
    /// `"bytes_down"`, `"body_bytes_up"`, `"body_bytes_down"`. Operations are always present, faults when not zero.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let mut object = Map::new();
        for operation in Operation::ALL {
            object.insert(operation.name().to_owned(), self.requests(operation).into());
        }
        for kind in FaultKind::ALL {
            let count = self.faults(kind);
            if count > 0 {
                object.insert(format!("fault.{kind:?}"), count.into());
            }
        }
        let others = [
            ("connections", self.connections()),
            ("connections_open", self.connections_open()),
            ("bytes_up", self.bytes(Direction::Up)),
            ("bytes_down", self.bytes(Direction::Down)),
            ("body_bytes_up", self.body_bytes(Direction::Up)),
            ("body_bytes_down", self.body_bytes(Direction::Down)),
        ];
        for (name, count) in others {
            object.insert(name.to_owned(), count.into());
        }
        Value::Object(object)
    }

    fn bytes_of(&self, direction: Direction) -> &AtomicU64 {
        match direction {
            Direction::Up => &self.bytes_up,
            Direction::Down => &self.bytes_down,
        }
    }

    fn body_bytes_of(&self, direction: Direction) -> &AtomicU64 {
        match direction {
            Direction::Up => &self.body_bytes_up,
            Direction::Down => &self.body_bytes_down,
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

    pub(super) fn carried(&self, direction: Direction, bytes: usize) {
        self.body_bytes_of(direction).fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn request(&self, operation: Operation) {
        self.requests[operation as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn struck(&self, kind: FaultKind) {
        self.faults[kind as usize].fetch_add(1, Ordering::Relaxed);
    }
}
