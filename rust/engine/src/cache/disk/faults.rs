//! What happens after something went wrong with a file: a pause, and a line in the log now and then.

use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use crate::clock::Clock;

/// At most one line of a kind in this time: a full disk fails every write.
const LOG_DISTANCE_MS: u64 = 60_000;

/// When there was no line yet.
const NEVER: u64 = u64::MAX;

/// The faults of one cache.
#[derive(Debug)]
pub(super) struct Faults {
    clock: Clock,
    pause_ms: u64,
    paused_until_ms: AtomicU64,
    hung_until_ms: AtomicU64,
    write_logged_ms: AtomicU64,
    read_logged_ms: AtomicU64,
}

impl Faults {
    /// After a failed write there is none for `pause`, and after a read that hung neither reads nor writes.
    pub(super) fn new(pause: Duration) -> Self {
        Faults {
            clock: Clock::start(),
            pause_ms: u64::try_from(pause.as_millis()).unwrap_or(u64::MAX),
            paused_until_ms: AtomicU64::new(0),
            hung_until_ms: AtomicU64::new(0),
            write_logged_ms: AtomicU64::new(NEVER),
            read_logged_ms: AtomicU64::new(NEVER),
        }
    }

    /// Whether writes pause.
    pub(super) fn is_paused(&self) -> bool {
        self.clock.now_ms() < self.paused_until_ms.load(Ordering::Relaxed)
    }

    /// Whether reads pause.
    pub(super) fn has_hung(&self) -> bool {
        self.clock.now_ms() < self.hung_until_ms.load(Ordering::Relaxed)
    }

    /// A read did not end within `limit`.
    pub(super) fn of_hang(&self, what: impl fmt::Display, limit: Duration) {
        let until = self.pause();
        self.hung_until_ms.fetch_max(until, Ordering::Relaxed);
        if self.is_due(&self.read_logged_ms) {
            tracing::warn!(%what, ?limit, pause_ms = self.pause_ms, "the disk of the cache does not answer, it is not used for a while; logged once a minute");
        }
    }

    /// Begins a pause of writes; when it ends.
    fn pause(&self) -> u64 {
        let until = self.clock.now_ms().saturating_add(self.pause_ms);
        self.paused_until_ms.fetch_max(until, Ordering::Relaxed);
        until
    }

    /// A write failed.
    pub(super) fn of_write(&self, what: impl fmt::Display, error: impl fmt::Display) {
        self.pause();
        if self.is_due(&self.write_logged_ms) {
            tracing::warn!(%what, %error, pause_ms = self.pause_ms, "the disk cache cannot write and goes on without; logged once a minute");
        }
    }

    /// A file could not be read, was not what it must be, or could not be removed.
    pub(super) fn of_file(&self, what: impl fmt::Display, error: impl fmt::Display) {
        if self.is_due(&self.read_logged_ms) {
            tracing::warn!(%what, %error, "a file of the disk cache is of no use, its bytes are fetched from the store; logged once a minute");
        }
    }

    /// Whether a write ever failed.
    #[cfg(test)]
    pub(super) fn has_paused(&self) -> bool {
        self.paused_until_ms.load(Ordering::Relaxed) > 0
    }

    /// The pause is over.
    #[cfg(test)]
    pub(super) fn end_pause(&self) {
        self.paused_until_ms.store(0, Ordering::Relaxed);
        self.hung_until_ms.store(0, Ordering::Relaxed);
    }

    fn is_due(&self, logged_ms: &AtomicU64) -> bool {
        let (now, last) = (self.clock.now_ms(), logged_ms.load(Ordering::Relaxed));
        if last != NEVER && now.saturating_sub(last) < LOG_DISTANCE_MS {
            return false;
        }
        // Of several threads one logs.
        logged_ms
            .compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_of_fault_is_logged_once_a_minute() {
        let faults = Faults::new(Duration::ZERO);
        assert!(faults.is_due(&faults.write_logged_ms));
        assert!(!faults.is_due(&faults.write_logged_ms));
        assert!(faults.is_due(&faults.read_logged_ms));
    }

    #[test]
    fn writes_pause_after_a_fault_and_go_on() {
        let faults = Faults::new(Duration::from_secs(1));
        assert!(!faults.is_paused());
        faults.of_write("a write", "no space");
        assert!(faults.is_paused());
        std::thread::sleep(Duration::from_millis(1100));
        assert!(!faults.is_paused());
    }
}
