//! Purpose: the listeners of the tools, from a bound port to the connections that are open on it.

use crate::service::Stopping;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tracing::warn;

/// After a failed accept (out of descriptors, say), so that the loop does not spin.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// A listener at the address, fit for a runtime that begins later, and where it really listens.
pub(crate) fn bind(address: SocketAddr) -> io::Result<(std::net::TcpListener, SocketAddr)> {
    let socket = std::net::TcpListener::bind(address)?;
    socket.set_nonblocking(true)?;
    let address = socket.local_addr()?;
    Ok((socket, address))
}

/// Serves every connection until told to stop; then ends those that are open.
pub(crate) async fn accept_all<Serve, Served>(listener: TcpListener, serve: Serve, mut stopping: Stopping)
where
    Serve: Fn(TcpStream) -> Served,
    Served: Future<Output = ()> + Send + 'static,
{
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            // An error means that the service has been dropped.
            _ = stopping.wait_for(|stop| *stop) => break,
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(serve(stream));
                }
                Err(error) => {
                    warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    drop(listener);
    connections.shutdown().await;
}
