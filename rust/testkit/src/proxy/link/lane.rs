//! Purpose: one direction of one connection, from a source to a sink.
//!
//! Flow: collect (pace, read, pass the trunk, put into the line) and deliver (take out when due, write) run side by side in the
//! connection's task.
//!
//! Failure: whatever ends a lane, what was read before is delivered first, unless the sink is what failed.
//!
//! Cancel: dropping the future drops what is in the line.

use super::line::{Line, Load};
use super::pacer::{PIECE_BYTES_MAX, Pacer};
use super::trunk::Trunk;
use super::{Direction, LinkShape, fault::LinkFault};
use crate::control::Control;
use crate::proxy::counters::ProxyCounters;
use bytes::{BufMut as _, BytesMut};
use std::convert::Infallible;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

/// A buffer with less room than this is left for a new one, so that reads stay large.
const READ_BYTES_MIN: usize = 64 * 1024;
/// What was written before a reset is given this long to arrive: a reset drops what the kernel has not sent yet.
const RESET_PAUSE: Duration = Duration::from_millis(10);

/// How a lane ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::proxy) enum LaneEnd {
    /// The source has said everything, and the sink has been told.
    Complete,
    /// The source's connection is broken.
    SourceBroken,
    /// The sink's connection is broken.
    SinkBroken,
    /// By a fault, or because the source wanted it to end so: both sides are to be reset.
    Reset,
}

pub(in crate::proxy) struct Lane<'connection> {
    direction: Direction,
    shape: watch::Receiver<LinkShape>,
    trunk: &'connection Trunk,
    counters: &'connection ProxyCounters,
    control: &'connection Control,
    fault: Option<LinkFault>,
    stalled: Notify,
}

impl<'connection> Lane<'connection> {
    pub(in crate::proxy) fn new(
        direction: Direction,
        shape: watch::Receiver<LinkShape>,
        trunk: &'connection Trunk,
        fault: Option<LinkFault>,
        counters: &'connection ProxyCounters,
        control: &'connection Control,
    ) -> Self {
        Self {
            direction,
            shape,
            trunk,
            counters,
            control,
            fault,
            stalled: Notify::new(),
        }
    }

    /// Waits until the lane has stalled, on purpose and for good.
    pub(in crate::proxy) async fn stalled(&self) {
        self.stalled.notified().await;
    }

    pub(in crate::proxy) async fn carry<Source, Sink>(&self, source: &mut Source, sink: &mut Sink) -> LaneEnd
    where
        Source: AsyncRead + Unpin,
        Sink: AsyncWrite + Unpin,
    {
        let line = Line::default();
        tokio::select! {
            biased;
            end = self.deliver(&line, sink) => end,
            never = self.collect(source, &line) => match never {},
        }
    }

    async fn collect<Source: AsyncRead + Unpin>(&self, source: &mut Source, line: &Line) -> Infallible {
        let mut pacer = Pacer::new(Instant::now());
        let mut buffer = BytesMut::new();
        let mut due = Instant::now();
        let mut first = true;
        loop {
            let shape = self.shape.borrow().lane(self.direction);
            line.room(shape.line_bytes()).await;
            let own_max = pacer.free(shape.bytes_per_second).await;
            let bytes_max = own_max.min(Trunk::piece_bytes(shape.total_bytes_per_second));
            if buffer.capacity() - buffer.len() < READ_BYTES_MIN {
                buffer.reserve(PIECE_BYTES_MAX);
            }
            let asked = Instant::now();
            let read = source.read_buf(&mut (&mut buffer).limit(bytes_max)).await;
            let now = Instant::now();
            // It may have changed while nothing came.
            let shape = self.shape.borrow().lane(self.direction);
            if let Ok(count) = read {
                pacer.take(count, shape.bytes_per_second, asked, now);
                self.trunk.pass(count, shape.total_bytes_per_second).await;
            }
            due = due.max(Instant::now() + shape.latency);
            if first && let Some(delay) = self.slow_start() {
                due += delay;
            }
            first = false;
            match read {
                Ok(0) => line.push(due, Load::End),
                Ok(_) => {
                    line.push(due, Load::Bytes(buffer.split()));
                    continue;
                }
                Err(_) => line.push(due, Load::Broken),
            }
            return std::future::pending().await;
        }
    }

    async fn deliver<Sink: AsyncWrite + Unpin>(&self, line: &Line, sink: &mut Sink) -> LaneEnd {
        let (fault, mut left) = match self.fault {
            Some(fault @ (LinkFault::ResetAt { direction, bytes } | LinkFault::StallAt { direction, bytes }))
                if direction == self.direction =>
            {
                (Some(fault), bytes)
            }
            _ => (None, u64::MAX),
        };
        loop {
            let mut bytes = match line.pop().await {
                Load::Bytes(bytes) => bytes,
                Load::Broken => return LaneEnd::SourceBroken,
                Load::End if self.control.is_reset_at_end() => {
                    tokio::time::sleep(RESET_PAUSE).await;
                    return LaneEnd::Reset;
                }
                Load::End => {
                    return match sink.shutdown().await {
                        Ok(()) => LaneEnd::Complete,
                        Err(_) => LaneEnd::SinkBroken,
                    };
                }
            };
            bytes.truncate(usize::try_from(left).unwrap_or(usize::MAX));
            if sink.write_all(&bytes).await.is_err() {
                return LaneEnd::SinkBroken;
            }
            self.counters.delivered(self.direction, bytes.len());
            left -= bytes.len() as u64;
            if left > 0 {
                continue;
            }
            if let Some(fault) = fault {
                // In memory, a sink may hold bytes back.
                let _ = sink.flush().await;
                self.counters.struck(fault.kind());
            }
            if let Some(LinkFault::ResetAt { .. }) = fault {
                tokio::time::sleep(RESET_PAUSE).await;
                return LaneEnd::Reset;
            }
            self.stalled.notify_one();
            return std::future::pending().await;
        }
    }

    /// How much later the first bytes are to come; counted as done.
    fn slow_start(&self) -> Option<Duration> {
        match self.fault {
            Some(fault @ LinkFault::SlowStart { delay }) if self.direction == Direction::Down => {
                self.counters.struck(fault.kind());
                Some(delay)
            }
            _ => None,
        }
    }
}
