//! Purpose: rules that break connections, whatever they carry.
//!
//! Flow: a new connection is compared with the rules in order; the first that has let its `skip` connections pass and
//! has `times` left decides what becomes of it. A rule that is still skipping, or is used up, leaves it to those behind.
//!
//! Not here: faults of requests, see [`HttpFault`](crate::proxy::HttpFault).

use super::Direction;
use crate::proxy::counters::FaultKind;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What becomes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkFault {
    /// Accepted, and reset (RST) at once.
    Refuse,
    /// Accepted, and never answered: what the client sends is read and forgotten, the server hears of nothing.
    BlackHole,
    /// Both sides are reset when so many bytes have been delivered in the direction; at 0, instead of the first one.
    ResetAt { direction: Direction, bytes: u64 },
    /// Nothing more is delivered in the direction behind so many bytes, and nothing more taken from its sender once the
    /// buffers on the way are full. Ends when the client is seen to leave, which it is not while bytes that nobody takes
    /// lie before its end. With TLS, and 0 bytes down: a handshake that hangs.
    StallAt { direction: Direction, bytes: u64 },
    /// The first bytes of the server, and so all that follow, come so much later. With TLS: a slow handshake.
    SlowStart { delay: Duration },
}

impl LinkFault {
    #[must_use]
    pub fn kind(self) -> FaultKind {
        match self {
            Self::Refuse => FaultKind::Refuse,
            Self::BlackHole => FaultKind::BlackHole,
            Self::ResetAt { .. } => FaultKind::ResetAt,
            Self::StallAt { .. } => FaultKind::StallAt,
            Self::SlowStart { .. } => FaultKind::SlowStart,
        }
    }
}

/// Which connections a fault is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkRule {
    /// Connections to leave alone first.
    pub skip: u64,
    /// Connections to hit; `None` for all.
    pub times: Option<u64>,
    pub fault: LinkFault,
}

impl LinkRule {
    /// Hits every new connection, until narrowed.
    #[must_use]
    pub fn new(fault: LinkFault) -> Self {
        Self {
            skip: 0,
            times: None,
            fault,
        }
    }

    #[must_use]
    pub fn skip(mut self, skip: u64) -> Self {
        self.skip = skip;
        self
    }

    #[must_use]
    pub fn times(mut self, times: u64) -> Self {
        self.times = Some(times);
        self
    }
}

#[derive(Debug)]
struct Armed {
    rule: LinkRule,
    seen: u64,
    hits: u64,
}

/// The rules in force. Shared with the proxy; changes are for new connections.
#[derive(Debug, Default)]
pub struct LinkFaults {
    rules: Mutex<Vec<Armed>>,
}

impl LinkFaults {
    fn lock(&self) -> MutexGuard<'_, Vec<Armed>> {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a rule behind the others.
    pub fn add(&self, rule: LinkRule) {
        self.lock().push(Armed { rule, seen: 0, hits: 0 });
    }

    /// Removes all rules. Connections that are broken stay so.
    pub fn clear(&self) {
        self.lock().clear();
    }

    /// The fault for this connection, if any.
    pub(in crate::proxy) fn take(&self) -> Option<LinkFault> {
        for armed in self.lock().iter_mut() {
            armed.seen += 1;
            let left = armed.rule.times.is_none_or(|times| armed.hits < times);
            if armed.seen > armed.rule.skip && left {
                armed.hits += 1;
                return Some(armed.rule.fault);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skip_and_times_are_counted_per_rule() {
        let faults = LinkFaults::default();
        faults.add(LinkRule::new(LinkFault::Refuse).skip(1).times(2));
        faults.add(LinkRule::new(LinkFault::BlackHole).skip(1));
        let taken: Vec<_> = (0..5).map(|_| faults.take()).collect();
        let (refuse, black_hole) = (Some(LinkFault::Refuse), Some(LinkFault::BlackHole));
        assert_eq!(taken, [None, refuse, refuse, black_hole, black_hole]);
        faults.clear();
        assert_eq!(faults.take(), None);
    }
}
