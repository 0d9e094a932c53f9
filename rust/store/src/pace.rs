//! Shapes what is sent to a rate.
//!
//! # Purpose
//! Uploads leave room on the line for what else the broker sends: not so many bytes a second on average, but in every short while.
//!
//! # Flow
//! A token bucket for all bodies of a store. A body asks for a slice at a time, and is told when it may send it.
//!
//! # Invariants
//! * In any window no more is sent than the rate allows for it, and [`Pace::burst`].
//! * Slices go in the order in which they were asked for. A body asks for its next one when it has sent the last, so all bodies
//!   under way get the same share.
//! * Nobody holds anything while waiting: a connection that does not take its slice keeps none from the others.
//!
//! # Cancel
//! A body that is dropped while it waits has used up its slice, which is not sent; no more than that.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// Bytes asked for at a time: what a socket's buffer takes at once.
pub(crate) const SLICE_BYTES: usize = 64 << 10;

/// What the bucket holds, as time at the rate: timers are a few milliseconds late, and what a late one missed must fit in. Never
/// less than a slice.
const BURST_MIN: Duration = Duration::from_millis(100);

/// A token bucket.
#[derive(Debug)]
pub(crate) struct Pace {
    bytes_per_second: u64,
    burst: Duration,
    /// When the bucket will be full again, if nothing more is taken. That it is empty is told by this being `burst` ahead.
    full: Mutex<Instant>,
}

impl Pace {
    /// A full bucket for `bytes_per_second`, at least 1.
    pub(crate) fn new(bytes_per_second: u64) -> Self {
        let bytes_per_second = bytes_per_second.max(1);
        Pace {
            bytes_per_second,
            burst: BURST_MIN.max(time_of(SLICE_BYTES, bytes_per_second)),
            full: Mutex::new(Instant::now()),
        }
    }

    /// Takes `bytes`, at most [`SLICE_BYTES`], out of the bucket; they may be sent at the moment given back.
    pub(crate) fn take(&self, bytes: usize) -> Instant {
        let now = Instant::now();
        let mut full = self.full.lock().unwrap_or_else(PoisonError::into_inner);
        let ahead = full.saturating_duration_since(now) + time_of(bytes, self.bytes_per_second);
        *full = now + ahead;
        now + ahead.saturating_sub(self.burst)
    }

    /// Waits until `due`.
    pub(crate) async fn until(due: Instant) {
        if due > Instant::now() {
            tokio::time::sleep_until(due).await;
        } else {
            // A timer takes a millisecond at least, which fast lines do not have for each slice. The others still get their turn.
            tokio::task::yield_now().await;
        }
    }
}

fn time_of(bytes: usize, bytes_per_second: u64) -> Duration {
    let nanoseconds = (bytes as u128 * 1_000_000_000).div_ceil(u128::from(bytes_per_second));
    Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// What was sent when, of bodies of `lengths` bytes at once.
    async fn sent(pace: &Arc<Pace>, lengths: &[usize]) -> Vec<(Duration, usize, usize)> {
        let begin = Instant::now();
        let log = Arc::new(Mutex::new(Vec::new()));
        let mut bodies = Vec::new();
        for (body, &length) in lengths.iter().enumerate() {
            let (pace, log) = (Arc::clone(pace), Arc::clone(&log));
            bodies.push(tokio::spawn(async move {
                let mut left = length;
                while left > 0 {
                    let slice = left.min(SLICE_BYTES);
                    Pace::until(pace.take(slice)).await;
                    log.lock().expect("no panic").push((begin.elapsed(), body, slice));
                    left -= slice;
                }
            }));
        }
        for body in bodies {
            body.await.expect("no panic");
        }
        std::mem::take(&mut log.lock().expect("no panic"))
    }

    #[tokio::test(start_paused = true)]
    async fn bodies_share_the_rate_in_every_window_and_none_starves() {
        for rate in [100_000_u32, 1 << 20, 50 << 20, 1 << 30] {
            let pace = Arc::new(Pace::new(u64::from(rate)));
            // Half a second of the whole rate for each: much more than the bucket holds.
            let length = (usize::try_from(rate).expect("64 bits") / 2).max(2 << 20);
            let log = sent(&pace, &[length; 8]).await;
            let rate = f64::from(rate);
            let total = (8 * length) as f64;
            let took = log.last().expect("slices").0.as_secs_f64();
            let burst = (rate / 10.0).max(SLICE_BYTES as f64);
            let ideal = (total - burst) / rate;
            assert!(
                (0.98..1.02).contains(&(took / ideal)),
                "{rate}: {took} s, not {ideal} s"
            );

            let window = Duration::from_millis(500);
            for (first, &(begin, ..)) in log.iter().enumerate().step_by(7) {
                let in_window = log[first..].iter().take_while(|slice| slice.0 <= begin + window);
                let passed: usize = in_window.map(|slice| slice.2).sum();
                // A timer of a millisecond's grain lets two moments fall together.
                let allowed = rate * 0.502 + burst + SLICE_BYTES as f64;
                assert!(passed as f64 <= allowed, "{rate}: {passed} bytes from {begin:?} on");
            }

            // Whoever comes first to a full bucket takes what is in it.
            let shared: Vec<_> = log.iter().filter(|slice| !slice.0.is_zero()).collect();
            let half = &shared[..shared.len() / 2];
            for body in 0..8 {
                let slices = half.iter().filter(|slice| slice.1 == body).count();
                let fair = half.len() / 8;
                assert!(
                    slices.abs_diff(fair) <= 1 + fair / 20,
                    "{rate}: body {body} got {slices}, not {fair}"
                );
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_time_earns_one_burst() {
        let pace = Arc::new(Pace::new(10 << 20));
        tokio::time::sleep(Duration::from_secs(3600)).await;
        let log = sent(&pace, &[4 << 20]).await;
        let at_once: usize = log.iter().filter(|slice| slice.0.is_zero()).map(|slice| slice.2).sum();
        assert_eq!(at_once, 1 << 20);
    }

    #[tokio::test(start_paused = true)]
    async fn one_who_leaves_takes_a_slice_with_him_and_no_more() {
        let pace = Arc::new(Pace::new(1 << 20));
        Pace::until(pace.take(SLICE_BYTES)).await;
        let begin = Instant::now();
        for _ in 0..16 {
            let waiting = Pace::until(pace.take(SLICE_BYTES));
            let _ = tokio::time::timeout(Duration::ZERO, waiting).await;
        }
        Pace::until(pace.take(SLICE_BYTES)).await;
        let waited = begin.elapsed();
        assert!(waited <= Duration::from_millis(17 * 64), "{waited:?}");
    }
}
