//! Purpose: the delay line of a lane: what has been read and is not due yet.
//!
//! Invariants: one side puts in, one takes out. What is put in is due no earlier than what was put in before it.

use bytes::BytesMut;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;
use tokio::time::Instant;

/// What travels on a lane.
pub(super) enum Load {
    Bytes(BytesMut),
    /// The sender has said everything.
    End,
    /// The sender's connection has broken.
    Broken,
}

impl Load {
    fn bytes(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::End | Self::Broken => 0,
        }
    }
}

#[derive(Default)]
struct Waiting {
    loads: VecDeque<(Instant, Load)>,
    bytes: u64,
}

#[derive(Default)]
pub(super) struct Line {
    waiting: Mutex<Waiting>,
    pushed: Notify,
    popped: Notify,
}

impl Line {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until fewer than `bytes_max` bytes are in the line.
    pub(super) async fn room(&self, bytes_max: u64) {
        while self.lock().bytes >= bytes_max {
            self.popped.notified().await;
        }
    }

    pub(super) fn push(&self, due: Instant, load: Load) {
        let mut waiting = self.lock();
        waiting.bytes += load.bytes();
        waiting.loads.push_back((due, load));
        drop(waiting);
        self.pushed.notify_one();
    }

    /// The next load, when it is due.
    pub(super) async fn pop(&self) -> Load {
        let due = loop {
            let first = self.lock().loads.front().map(|(due, _)| *due);
            match first {
                Some(due) => break due,
                None => self.pushed.notified().await,
            }
        };
        if due > Instant::now() {
            tokio::time::sleep_until(due).await;
        }
        let mut waiting = self.lock();
        let (_, load) = waiting
            .loads
            .pop_front()
            .expect("one side takes out, and it has seen a load");
        waiting.bytes -= load.bytes();
        drop(waiting);
        self.popped.notify_one();
        load
    }
}
