//! Purpose: what those inside an HTTP connection may know and change of the socket below it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// One connection's.
#[derive(Debug, Default)]
pub(crate) struct Control {
    reset: AtomicBool,
    flushes: AtomicU64,
}

impl Control {
    /// The connection is to end with a reset.
    pub(crate) fn reset_at_end(&self) {
        self.reset.store(true, Ordering::Release);
    }

    /// Whether the connection is to end with a reset.
    pub(crate) fn is_reset_at_end(&self) -> bool {
        self.reset.load(Ordering::Acquire)
    }

    /// How often everything handed to the socket had been written.
    pub(crate) fn flushes(&self) -> u64 {
        self.flushes.load(Ordering::Acquire)
    }

    /// Everything handed to the socket has been written.
    pub(crate) fn flushed(&self) {
        self.flushes.fetch_add(1, Ordering::AcqRel);
    }
}
