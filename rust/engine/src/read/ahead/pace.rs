//! How far a run goes ahead: the more, the more its reader has read and the more he has had to wait.

use std::time::Duration;

use tokio::time::Instant;

use super::flow::REQUEST_BYTES;

/// The window that a sequential run begins with.
const WINDOW_FIRST: u64 = REQUEST_BYTES;

/// Up to this the window grows without anybody having waited, so that requests get their full size.
const WINDOW_GROWN: u64 = 2 * REQUEST_BYTES;

/// Bytes in front of a reader, as a multiple of what he has read in sequence: whoever stops soon has not cost much.
const AHEAD_OF_READ: u64 = 8;

/// What is asked for in front of a fast reader, as a multiple of what he may have in memory: while he takes what comes first, what comes later
/// is in the middle of its way.
const ASKED_FOR: u64 = 2;

/// For so long, those who have slowed down are not made faster by others.
const SLOW: Duration = Duration::from_secs(10);

/// How far a run goes ahead.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// Bytes that were read in sequence.
    read: u64,
    /// Bytes to be in front of the reader.
    window: u64,
    /// Whether a reader has waited since the last request.
    waited: bool,
    /// When its readers were found to be slower than was thought.
    slowed: Option<Instant>,
}

impl Pace {
    /// Of a run that begins.
    pub(super) fn first() -> Self {
        Pace {
            read: 0,
            window: WINDOW_FIRST,
            waited: false,
            slowed: None,
        }
    }

    /// The faster of each, for those who read the same; the slower window where one of them has found his too large.
    pub(super) fn max(self, other: Pace) -> Pace {
        Pace {
            read: self.read.max(other.read),
            window: if self.is_slow() || other.is_slow() {
                self.window.min(other.window)
            } else {
                self.window.max(other.window)
            },
            waited: self.waited,
            slowed: self.slowed.max(other.slowed),
        }
    }

    /// Bytes to be asked for in front of a reader who may have so many in memory.
    pub(super) fn within(&self, share: u64) -> u64 {
        let is_waited_for = self.window > WINDOW_GROWN;
        let most = if is_waited_for { ASKED_FOR * share } else { share };
        self.window.min(most).min(self.read * AHEAD_OF_READ)
    }

    pub(super) fn has_read(&mut self, bytes: u64) {
        self.read += bytes;
    }

    pub(super) fn has_waited(&mut self) {
        self.waited = true;
    }

    /// Notes that a request has begun.
    pub(super) fn grow(&mut self) {
        if self.window < WINDOW_GROWN || self.waited {
            self.window = self.window.saturating_mul(2);
        }
        self.waited = false;
    }

    pub(super) fn grow_if_waited(&mut self) {
        if self.waited {
            self.grow();
        }
    }

    /// The readers are slower than was thought.
    pub(super) fn slow_down(&mut self) {
        self.window = self.window.min(WINDOW_GROWN);
        self.slowed = Some(Instant::now());
    }

    fn is_slow(&self) -> bool {
        self.slowed.is_some_and(|slowed| slowed.elapsed() < SLOW)
    }
}
