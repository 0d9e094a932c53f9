//! Purpose: the bodies of requests and answers on their way, counted, and spoiled where a fault says so.

use super::counters::Counters;
use super::faults::FaultAction;
use crate::control::Control;
use crate::spoil::{Spoil, SpoiledBody};
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

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

/// The body of an answer.
pub(super) struct ResponseBody {
    inner: SpoiledBody<s3s::Body>,
    counters: Arc<Counters>,
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
            inner: SpoiledBody::new(inner, control, spoil),
            counters,
        }
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = s3s::StdError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, s3s::StdError>>> {
        let polled = Pin::new(&mut self.inner).poll_frame(context);
        if let Poll::Ready(Some(Ok(frame))) = &polled {
            self.counters.sent(frame.data_ref().map_or(0, Bytes::len));
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
