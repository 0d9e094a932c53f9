//! Purpose: the bodies of requests and answers on their way, counted, and spoiled where a fault says so.

use super::connection::Control;
use super::counters::Counters;
use super::faults::FaultAction;
use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

/// Between two looks whether what was handed to the connection has left it.
const FLUSH_POLL: Duration = Duration::from_millis(2);

/// A request body that can be had back: whoever is given it may drop it unread, and the rest still be drained, so that
/// the client hears the answer instead of a broken connection.
pub(super) struct RequestBody {
    incoming: Option<Incoming>,
    rest: Arc<RestOfBody>,
    counters: Arc<Counters>,
}

/// Where a dropped [`RequestBody`] leaves what it has not read.
#[derive(Default)]
pub(super) struct RestOfBody(Mutex<Option<Incoming>>);

impl RequestBody {
    pub(super) fn new(incoming: Incoming, counters: Arc<Counters>) -> (Self, Arc<RestOfBody>) {
        let rest = Arc::new(RestOfBody::default());
        (
            Self {
                incoming: Some(incoming),
                rest: Arc::clone(&rest),
                counters,
            },
            rest,
        )
    }

    /// Reads to the end; an error ends it too, as there is nothing more to come then.
    pub(super) async fn drain(mut self) {
        if let Some(incoming) = self.incoming.take() {
            drain(incoming, &self.counters).await;
        }
    }
}

impl RestOfBody {
    pub(super) async fn drain(&self, counters: &Counters) {
        let incoming = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(incoming) = incoming {
            drain(incoming, counters).await;
        }
    }
}

async fn drain(mut incoming: Incoming, counters: &Counters) {
    while let Some(Ok(frame)) = incoming.frame().await {
        counters.received(frame.data_ref().map_or(0, Bytes::len));
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Some(incoming) = &mut self.incoming else {
            return Poll::Ready(None);
        };
        let polled = Pin::new(incoming).poll_frame(context);
        if let Poll::Ready(Some(Ok(frame))) = &polled {
            self.counters.received(frame.data_ref().map_or(0, Bytes::len));
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.as_ref().is_none_or(Incoming::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming
            .as_ref()
            .map_or_else(|| SizeHint::with_exact(0), Incoming::size_hint)
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        *self.rest.0.lock().unwrap_or_else(PoisonError::into_inner) = self.incoming.take();
    }
}

/// What happens to the body of an answer.
enum Spoil {
    Nothing,
    /// End the connection behind this many bytes, once they have left.
    Truncate(u64),
    /// Fall silent behind this many bytes.
    Stall(u64),
    /// Invert the byte at this position.
    Corrupt(u64),
}

/// The body of an answer.
pub(super) struct ResponseBody {
    inner: s3s::Body,
    counters: Arc<Counters>,
    control: Arc<Control>,
    spoil: Spoil,
    position: u64,
    /// Set while a truncated body waits for its bytes to leave: the flushes seen before, and a timer.
    leaving: Option<(u64, Pin<Box<tokio::time::Sleep>>)>,
}

impl ResponseBody {
    pub(super) fn new(
        inner: s3s::Body,
        counters: Arc<Counters>,
        control: Arc<Control>,
        fault: Option<&FaultAction>,
    ) -> Self {
        let spoil = match fault {
            Some(FaultAction::TruncateBody { bytes }) => Spoil::Truncate(*bytes),
            Some(FaultAction::StallBody { bytes }) => Spoil::Stall(*bytes),
            Some(FaultAction::CorruptBody { at }) => Spoil::Corrupt(*at),
            _ => Spoil::Nothing,
        };
        Self {
            inner,
            counters,
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
    fn poll_cut(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, s3s::StdError>>> {
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

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = s3s::StdError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, s3s::StdError>>> {
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
            other => return Poll::Ready(other),
        };
        Poll::Ready(Some(Ok(match frame.into_data() {
            Ok(data) => {
                let data = this.spoiled(data);
                this.counters.sent(data.len());
                Frame::data(data)
            }
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
