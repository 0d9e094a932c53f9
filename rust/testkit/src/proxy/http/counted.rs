//! Purpose: a body on its way through the proxy, its bytes counted.

use crate::proxy::Shared;
use crate::proxy::link::Direction;
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

pub(super) struct CountedBody<Inner> {
    inner: Inner,
    direction: Direction,
    shared: Arc<Shared>,
}

impl<Inner> CountedBody<Inner> {
    pub(super) fn new(inner: Inner, direction: Direction, shared: Arc<Shared>) -> Self {
        Self {
            inner,
            direction,
            shared,
        }
    }
}

impl<Inner: Body<Data = Bytes> + Unpin> Body for CountedBody<Inner> {
    type Data = Bytes;
    type Error = Inner::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Inner::Error>>> {
        let polled = Pin::new(&mut self.inner).poll_frame(context);
        if let Poll::Ready(Some(Ok(frame))) = &polled {
            let bytes = frame.data_ref().map_or(0, Bytes::len);
            self.shared.counters.carried(self.direction, bytes);
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
