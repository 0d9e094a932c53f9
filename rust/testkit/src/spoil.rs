//! Purpose: the body of an answer on its way to the client, cut short, silenced or changed where a fault says so.
//!
//! Invariants: the length announced is that of the whole body.

use crate::control::Control;
use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use std::error::Error;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// Between two looks whether what was handed to the connection has left it.
const FLUSH_POLL: Duration = Duration::from_millis(2);

/// What happens to the body of an answer.
pub(crate) enum Spoil {
    Nothing,
    /// End the connection behind this many bytes, once they have left.
    Truncate(u64),
    /// Fall silent behind this many bytes.
    Stall(u64),
    /// Invert the byte at this position.
    Corrupt(u64),
}

/// A body that is spoiled.
pub(crate) struct SpoiledBody<Inner> {
    inner: Inner,
    control: Arc<Control>,
    spoil: Spoil,
    position: u64,
    /// Set while a truncated body waits for its bytes to leave: the flushes seen before, and a timer.
    leaving: Option<(u64, Pin<Box<tokio::time::Sleep>>)>,
}

impl<Inner> SpoiledBody<Inner> {
    /// `control` is that of the connection, and is told of its flushes.
    pub(crate) fn new(inner: Inner, control: Arc<Control>, spoil: Spoil) -> Self {
        Self {
            inner,
            control,
            spoil,
            position: 0,
            leaving: None,
        }
    }

    /// Bytes that may still be sent.
    fn allowance(&self) -> u64 {
        match self.spoil {
            Spoil::Truncate(bytes) | Spoil::Stall(bytes) => bytes.saturating_sub(self.position),
            Spoil::Nothing | Spoil::Corrupt(_) => u64::MAX,
        }
    }

    /// Ends the connection when the bytes handed out have been written to the socket: an error returned at once would
    /// take them along.
    fn poll_cut<Data, Failure: From<&'static str>>(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Data>, Failure>>> {
        let flushes = self.control.flushes();
        let (before, timer) = self
            .leaving
            .get_or_insert_with(|| (flushes, Box::pin(tokio::time::sleep(FLUSH_POLL))));
        while timer.as_mut().poll(context).is_ready() {
            if flushes > *before {
                return Poll::Ready(Some(Err("the answer is cut short on purpose".into())));
            }
            timer.set(tokio::time::sleep(FLUSH_POLL));
        }
        Poll::Pending
    }

    fn spoiled(&mut self, mut data: Bytes) -> Bytes {
        let allowance = usize::try_from(self.allowance()).unwrap_or(usize::MAX);
        data.truncate(allowance);
        if let Spoil::Corrupt(at) = self.spoil
            && let Some(index) = at
                .checked_sub(self.position)
                .and_then(|index| usize::try_from(index).ok())
            && index < data.len()
        {
            let mut changed = BytesMut::from(&data[..]);
            changed[index] = !changed[index];
            data = changed.freeze();
        }
        self.position += data.len() as u64;
        data
    }
}

impl<Inner> Body for SpoiledBody<Inner>
where
    Inner: Body<Data = Bytes> + Unpin,
    Inner::Error: Into<Box<dyn Error + Send + Sync>>,
{
    type Data = Bytes;
    type Error = Box<dyn Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = &mut *self;
        if this.allowance() == 0 {
            return match this.spoil {
                Spoil::Truncate(_) => this.poll_cut(context),
                // Nobody wakes this body again: it ends with its connection.
                _ => Poll::Pending,
            };
        }
        let frame = match std::task::ready!(Pin::new(&mut this.inner).poll_frame(context)) {
            Some(Ok(frame)) => frame,
            Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
            None => return Poll::Ready(None),
        };
        Poll::Ready(Some(Ok(match frame.into_data() {
            Ok(data) => Frame::data(this.spoiled(data)),
            Err(frame) => frame,
        })))
    }

    fn is_end_stream(&self) -> bool {
        self.allowance() > 0 && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
