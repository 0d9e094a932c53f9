//! Purpose: the part of the way that all connections share in one direction.
//!
//! Flow: a lane that has read a piece waits until the pieces before it have passed; each lane has one piece here at most, so that
//! those who have something to carry get equal parts.
//!
//! Invariants: as those of `pacer`.

use super::Direction;
use super::pacer::{LATE_MAX, piece_bytes};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Those of both directions.
#[derive(Debug, Default)]
pub(in crate::proxy) struct Trunks {
    up: Trunk,
    down: Trunk,
}

impl Trunks {
    pub(in crate::proxy) fn of(&self, direction: Direction) -> &Trunk {
        match direction {
            Direction::Up => &self.up,
            Direction::Down => &self.down,
        }
    }
}

#[derive(Debug, Default)]
pub(in crate::proxy) struct Trunk {
    /// When the pieces taken so far will have passed.
    free_at: Mutex<Option<Instant>>,
}

impl Trunk {
    /// The largest piece that may be read for it.
    pub(super) fn piece_bytes(bytes_per_second: Option<u64>) -> usize {
        bytes_per_second.map_or(usize::MAX, piece_bytes)
    }

    /// Waits until so many bytes have passed.
    pub(super) async fn pass(&self, bytes: usize, bytes_per_second: Option<u64>) {
        let Some(rate) = bytes_per_second else { return };
        let nanos = (bytes as u64).saturating_mul(1_000_000_000) / rate.max(1);
        let passed = {
            let mut free_at = self.free_at.lock().unwrap_or_else(PoisonError::into_inner);
            let now = Instant::now();
            // One that is free was idle, or those who take it were late.
            let late = now.checked_sub(LATE_MAX).unwrap_or(now);
            let start = free_at.map_or(now, |free_at| free_at.max(late));
            let passed = start + Duration::from_nanos(nanos);
            *free_at = Some(passed);
            passed
        };
        if passed > Instant::now() {
            tokio::time::sleep_until(passed).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn those_who_share_it_pass_one_behind_the_other() {
        let (trunk, begin) = (Trunk::default(), Instant::now());
        tokio::join!(trunk.pass(5000, Some(1_000_000)), trunk.pass(5000, Some(1_000_000)));
        assert_eq!(begin.elapsed(), Duration::from_millis(10));
        trunk.pass(5000, None).await;
        assert_eq!(begin.elapsed(), Duration::from_millis(10));
    }
}
