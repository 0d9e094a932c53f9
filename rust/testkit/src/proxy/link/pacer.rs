//! Purpose: lets a lane carry so many bytes a second, smoothly.
//!
//! Flow: wait until the lane is free, read a piece, occupy the lane for as long as the piece takes.
//!
//! Invariants: a lane that wakes up late catches up, a lane that had nothing to carry does not: what it did not carry
//! then is lost to it, as on a wire.

use std::time::Duration;
use tokio::time::Instant;

/// The largest read: fewer calls for more bytes stop paying here.
pub(super) const PIECE_BYTES_MAX: usize = 256 * 1024;
/// A piece takes at most this long, so that the flow is smooth at any rate.
const PIECES_PER_SECOND: u64 = 200;
/// A read that waited longer than this found the lane idle. The timer's step is 1 ms.
const IDLE: Duration = Duration::from_millis(2);
/// The most that is caught up: how late a loaded machine may wake the lane.
pub(super) const LATE_MAX: Duration = Duration::from_millis(100);

/// The largest read at a rate.
pub(super) fn piece_bytes(bytes_per_second: u64) -> usize {
    usize::try_from(bytes_per_second / PIECES_PER_SECOND)
        .unwrap_or(usize::MAX)
        .clamp(1, PIECE_BYTES_MAX)
}

pub(super) struct Pacer {
    /// When the bytes taken so far will have passed.
    free_at: Instant,
}

impl Pacer {
    pub(super) fn new(now: Instant) -> Self {
        Self { free_at: now }
    }

    /// Waits until the lane is free. Says how many bytes may be taken at most.
    pub(super) async fn free(&self, bytes_per_second: Option<u64>) -> usize {
        let Some(rate) = bytes_per_second else {
            return PIECE_BYTES_MAX;
        };
        if self.free_at > Instant::now() {
            tokio::time::sleep_until(self.free_at).await;
        }
        piece_bytes(rate)
    }

    /// That many bytes, asked for at `asked`, came at `now`.
    pub(super) fn take(&mut self, bytes: usize, bytes_per_second: Option<u64>, asked: Instant, now: Instant) {
        let Some(rate) = bytes_per_second else {
            self.free_at = now;
            return;
        };
        let start = if now - asked > IDLE {
            now
        } else {
            self.free_at.max(now - LATE_MAX)
        };
        let nanos = (bytes as u64).saturating_mul(1_000_000_000) / rate.max(1);
        self.free_at = start + Duration::from_nanos(nanos);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: Option<u64> = Some(1_000_000);

    #[tokio::test(start_paused = true)]
    async fn late_is_caught_up_and_idle_is_not() {
        let begin = Instant::now();
        let mut pacer = Pacer::new(begin);
        assert_eq!(pacer.free(RATE).await, 5000);
        pacer.take(5000, RATE, begin, begin);
        pacer.free(RATE).await;
        assert_eq!(begin.elapsed(), Duration::from_millis(5));

        // Ten milliseconds late: the next two pieces go at once.
        tokio::time::advance(Duration::from_millis(10)).await;
        for _ in 0..2 {
            let now = Instant::now();
            pacer.free(RATE).await;
            pacer.take(5000, RATE, now, now);
        }
        assert_eq!(begin.elapsed(), Duration::from_millis(15));
        pacer.free(RATE).await;

        // The same ten with nothing to carry: only one does.
        let asked = Instant::now();
        tokio::time::advance(Duration::from_millis(10)).await;
        pacer.take(5000, RATE, asked, Instant::now());
        let before = Instant::now();
        pacer.free(RATE).await;
        assert_eq!(before.elapsed(), Duration::from_millis(5));
    }

    #[tokio::test(start_paused = true)]
    async fn no_rate_no_wait() {
        let begin = Instant::now();
        let mut pacer = Pacer::new(begin);
        for _ in 0..10 {
            assert_eq!(pacer.free(None).await, PIECE_BYTES_MAX);
            pacer.take(PIECE_BYTES_MAX, None, begin, begin);
        }
        assert_eq!(begin.elapsed(), Duration::ZERO);
    }
}
