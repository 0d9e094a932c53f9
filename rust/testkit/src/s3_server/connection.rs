//! Purpose: one client connection: socket, TLS, HTTP/1.1.
//!
//! Flow: each request goes to the front; when that asks for a cut instead of an answer, HTTP ends the connection, and
//! the socket closes regularly (FIN) or, where the control says so, with a reset.
//!
//! Invariants: TCP_NODELAY on every connection: small answers must not wait for an acknowledgement.
//!
//! Cancel: dropping the future closes the socket and drops the request in progress.

use super::counters::Counters;
use super::front::Front;
use crate::control::Control;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tracing::debug;

/// The socket, closed as its control says.
struct Socket {
    stream: TcpStream,
    control: Arc<Control>,
    counters: Arc<Counters>,
}

impl Socket {
    fn new(stream: TcpStream, control: Arc<Control>, counters: Arc<Counters>) -> Self {
        counters.connection_opened();
        Self {
            stream,
            control,
            counters,
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if self.control.is_reset_at_end()
            && let Err(error) = self.stream.set_zero_linger()
        {
            debug!(%error, "the connection ends without a reset");
        }
        self.counters.connection_closed();
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_flush(context);
        if matches!(polled, Poll::Ready(Ok(()))) {
            self.control.flushed();
        }
        polled
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, buffers)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

pub(super) async fn serve(stream: TcpStream, tls: Option<TlsAcceptor>, front: Arc<Front>) {
    if let Err(error) = stream.set_nodelay(true) {
        debug!(%error, "the client has gone already");
        return;
    }
    let control = Arc::new(Control::default());
    let socket = Socket::new(stream, Arc::clone(&control), Arc::clone(front.counters()));
    match tls {
        None => serve_http(socket, control, front).await,
        Some(acceptor) => match acceptor.accept(socket).await {
            Ok(socket) => serve_http(socket, control, front).await,
            Err(error) => debug!(%error, "no TLS"),
        },
    }
}

async fn serve_http<Io: AsyncRead + AsyncWrite + Unpin>(io: Io, control: Arc<Control>, front: Arc<Front>) {
    let service = service_fn(move |request| Arc::clone(&front).handle(request, Arc::clone(&control)));
    if let Err(error) = hyper::server::conn::http1::Builder::new()
        .serve_connection(TokioIo::new(io), service)
        .await
    {
        debug!(%error, "connection ended");
    }
}
