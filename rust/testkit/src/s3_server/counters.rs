//! Purpose: what the server has been asked, counted so that a test can assert on it.
//!
//! Invariants: a request is counted when its head has arrived, its status when the head of the answer is known; one
//! that ends without an answer (a fault, a client that left) counts as `cut`. Bytes are those of bodies, as
//! transferred. Gauges go back to zero when nothing is open, and a reset does not touch them.

use super::operation::Operation;
use hyper::StatusCode;
use serde_json::{Map, Value};
use std::sync::atomic::{AtomicU64, Ordering};

const OPERATIONS: usize = Operation::ALL.len();
const OUTCOMES: usize = Outcome::ALL.len();

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// 1xx and 2xx.
    Success,
    /// 3xx.
    Redirect,
    /// 4xx.
    ClientError,
    /// 5xx.
    ServerError,
    /// No answer.
    Cut,
}

impl Outcome {
    pub const ALL: [Self; 5] = [
        Self::Success,
        Self::Redirect,
        Self::ClientError,
        Self::ServerError,
        Self::Cut,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Success => "2xx",
            Self::Redirect => "3xx",
            Self::ClientError => "4xx",
            Self::ServerError => "5xx",
            Self::Cut => "cut",
        }
    }
}

impl From<StatusCode> for Outcome {
    fn from(status: StatusCode) -> Self {
        match status.as_u16() {
            ..300 => Self::Success,
            300..400 => Self::Redirect,
            400..500 => Self::ClientError,
            500.. => Self::ServerError,
        }
    }
}

#[derive(Debug, Default)]
pub struct Counters {
    requests: [AtomicU64; OPERATIONS],
    outcomes: [[AtomicU64; OUTCOMES]; OPERATIONS],
    bytes_in: AtomicU64,
    bytes_out: AtomicU64,
    open_connections: AtomicU64,
    open_uploads: AtomicU64,
}

impl Counters {
    /// Requests of this operation, answered or not.
    #[must_use]
    pub fn requests(&self, operation: Operation) -> u64 {
        self.requests[operation as usize].load(Ordering::Relaxed)
    }

    /// Requests of all operations.
    #[must_use]
    pub fn all_requests(&self) -> u64 {
        Operation::ALL
            .into_iter()
            .map(|operation| self.requests(operation))
            .sum()
    }

    /// Requests of this operation that ended this way.
    #[must_use]
    pub fn outcomes(&self, operation: Operation, outcome: Outcome) -> u64 {
        self.outcomes[operation as usize][outcome as usize].load(Ordering::Relaxed)
    }

    /// Bytes of request bodies received.
    #[must_use]
    pub fn bytes_in(&self) -> u64 {
        self.bytes_in.load(Ordering::Relaxed)
    }

    /// Bytes of response bodies handed to the connection.
    #[must_use]
    pub fn bytes_out(&self) -> u64 {
        self.bytes_out.load(Ordering::Relaxed)
    }

    /// Connections open now.
    #[must_use]
    pub fn connections_open(&self) -> u64 {
        self.open_connections.load(Ordering::Relaxed)
    }

    /// Multipart uploads neither completed nor aborted, in all buckets.
    #[must_use]
    pub fn multipart_uploads_open(&self) -> u64 {
        self.open_uploads.load(Ordering::Relaxed)
    }

    /// Sets all but the gauges to zero.
    pub fn reset(&self) {
        let outcomes = self.outcomes.iter().flatten();
        for counter in self
            .requests
            .iter()
            .chain(outcomes)
            .chain([&self.bytes_in, &self.bytes_out])
        {
            counter.store(0, Ordering::Relaxed);
        }
    }

    /// A flat object of numbers: `"PutObject"`, `"PutObject.2xx"`, …, `"bytes_in"`, `"bytes_out"`,
    /// `"connections_open"`,
    /// `"multipart_uploads_open"`. Operations are always present, their outcomes when not zero.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let mut object = Map::new();
        for operation in Operation::ALL {
            object.insert(operation.name().to_owned(), self.requests(operation).into());
            for outcome in Outcome::ALL {
                let count = self.outcomes(operation, outcome);
                if count > 0 {
                    object.insert(format!("{operation}.{}", outcome.name()), count.into());
                }
            }
        }
        object.insert("bytes_in".to_owned(), self.bytes_in().into());
        object.insert("bytes_out".to_owned(), self.bytes_out().into());
        object.insert("connections_open".to_owned(), self.connections_open().into());
        object.insert(
            "multipart_uploads_open".to_owned(),
            self.multipart_uploads_open().into(),
        );
        Value::Object(object)
    }

    pub(super) fn request(&self, operation: Operation) {
        self.requests[operation as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn outcome(&self, operation: Operation, outcome: Outcome) {
        self.outcomes[operation as usize][outcome as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn received(&self, bytes: usize) {
        self.bytes_in.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn sent(&self, bytes: usize) {
        self.bytes_out.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn connection_opened(&self) {
        self.open_connections.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn connection_closed(&self) {
        self.open_connections.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn upload_opened(&self) {
        self.open_uploads.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn upload_closed(&self) {
        self.open_uploads.fetch_sub(1, Ordering::Relaxed);
    }
}
