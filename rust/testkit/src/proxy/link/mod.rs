//! Purpose: the network between client and server: it takes time, has a width, and breaks. Any protocol, bytes only.
//!
//! Flow: `lane` carries one direction of one connection: a read waits until the lane's width allows it (`pacer`), the
//! bytes lie in a delay line until they are due (`line`), and are written. What all connections share of their way is the
//! `trunk`. `fault` chooses the connections that break.
//! `socket` lets both directions, and who watches them, share one TCP connection.
//!
//! Invariants: bytes keep their order; a change of the shape is for all bytes read after it, on open connections too.
//! Delay does not cost throughput: as many bytes lie in the line as arrive in the time, up to a limit that bounds memory.
//!
//! Not here: TCP's own handshake, which the kernel answers without delay; loss and reordering, which TCP hides.

pub(super) mod fault;
pub(super) mod lane;
mod line;
mod pacer;
pub(super) mod socket;
pub(super) mod trunk;

use std::time::Duration;

/// The bytes that may wait in the delay line of a lane without latency: enough for reading and writing to overlap, and
/// little enough that the sender feels how slow the receiver is.
const LINE_BYTES_PLAIN: u64 = 512 * 1024;
/// And the most that latency adds to it; fills 16 ms at 2 GiB/s.
const LINE_BYTES_DELAYED: u64 = 32 * 1024 * 1024;

/// From where to where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server.
    Up,
    /// From the server to the client.
    Down,
}

/// What one direction of every connection is like. The default lets everything through at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneShape {
    /// Every byte arrives this much later. The timer's step is 1 ms, so that it may be 1 ms more.
    pub latency: Duration,
    /// Of one connection; `None` for no limit. 0 counts as 1.
    pub bytes_per_second: Option<u64>,
    /// Of all connections together, which have equal parts of it; `None` for no limit. 0 counts as 1.
    pub total_bytes_per_second: Option<u64>,
}

impl LaneShape {
    /// The bytes that may be under way at a time.
    fn line_bytes(self) -> u64 {
        if self.latency.is_zero() {
            return LINE_BYTES_PLAIN;
        }
        let millis = u64::try_from(self.latency.as_millis()).unwrap_or(u64::MAX);
        // Twice what arrives in the time, since bytes arrive in lumps.
        let fill = self
            .bytes_per_second
            .map_or(u64::MAX, |rate| (rate / 500).saturating_mul(millis));
        LINE_BYTES_PLAIN + fill.min(LINE_BYTES_DELAYED)
    }
}

/// What the way between client and server is like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkShape {
    pub up: LaneShape,
    pub down: LaneShape,
}

impl LinkShape {
    /// A way on which a request and its answer take `latency` longer together, half of it each, and on which each
    /// direction of each connection carries `bytes_per_second`.
    #[must_use]
    pub fn round_trip(latency: Duration, bytes_per_second: Option<u64>) -> Self {
        let lane = LaneShape {
            latency: latency / 2,
            bytes_per_second,
            total_bytes_per_second: None,
        };
        Self { up: lane, down: lane }
    }

    /// The same way, of which all connections together carry no more than `bytes_per_second` in each direction.
    #[must_use]
    pub fn shared_by_all(mut self, bytes_per_second: Option<u64>) -> Self {
        self.up.total_bytes_per_second = bytes_per_second;
        self.down.total_bytes_per_second = bytes_per_second;
        self
    }

    pub(super) fn lane(&self, direction: Direction) -> LaneShape {
        match direction {
            Direction::Up => self.up,
            Direction::Down => self.down,
        }
    }
}
