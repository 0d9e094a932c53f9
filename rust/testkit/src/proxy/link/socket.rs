//! Purpose: a TCP connection that both its directions, and whoever watches it, use through a shared reference.

use std::io;
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;

/// Between two looks whether a peer has left: one that still has bytes to read is not reported again.
const LEFT_POLL: Duration = Duration::from_millis(20);

/// Ends with the loan, not with the connection: dropping it closes nothing.
#[derive(Clone, Copy)]
pub(in crate::proxy) struct SharedSocket<'connection>(pub(in crate::proxy) &'connection TcpStream);

impl SharedSocket<'_> {
    /// Waits until the peer has closed its side, even while bytes of it wait unread.
    pub(in crate::proxy) async fn left(self) {
        loop {
            match self.0.ready(Interest::READABLE).await {
                Ok(ready) if !ready.is_read_closed() => tokio::time::sleep(LEFT_POLL).await,
                // An error means that there is no connection any more.
                _ => return,
            }
        }
    }
}

impl AsyncRead for SharedSocket<'_> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.0.poll_read_ready(context))?;
            match self.0.try_read_buf(buffer) {
                Ok(_) => return Poll::Ready(Ok(())),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for SharedSocket<'_> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.0.poll_write_ready(context))?;
            match self.0.try_write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => return Poll::Ready(written),
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Tokio wants the connection mutable for this; a second descriptor of it will do as well.
        let second = self.0.as_fd().try_clone_to_owned()?;
        Poll::Ready(std::net::TcpStream::from(second).shutdown(Shutdown::Write))
    }
}
