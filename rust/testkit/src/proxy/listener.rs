//! Purpose: where clients connect, and whether they can.
//!
//! Invariants: the port is held while nothing listens on it, so that it can be opened again.
//!
//! Cancel: ends when told to stop, with all connections.

use super::counters::FaultKind;
use super::{Shared, connection};
use crate::accept::ACCEPT_PAUSE;
use crate::service::Stopping;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tracing::{debug, warn};

/// Connections that may wait to be accepted.
const BACKLOG: u32 = 1024;

/// What becomes of clients that connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Availability {
    /// They are accepted.
    Up,
    /// Nobody listens: connection refused.
    Down,
    /// They are accepted, and reset (RST) at once.
    Resetting,
}

/// A wish, and where to say that it has been fulfilled.
pub(super) type Wish = (Availability, oneshot::Sender<io::Result<()>>);

enum Door {
    Open(TcpListener),
    /// Bound, not listening.
    Shut(TcpSocket),
    /// Neither: it could not be bound again.
    Lost,
}

impl Door {
    fn set(&mut self, address: SocketAddr, open: bool) -> io::Result<()> {
        *self = match (std::mem::replace(self, Self::Lost), open) {
            (Self::Open(listener), false) => {
                drop(listener);
                Self::Shut(bind(address)?)
            }
            (Self::Shut(socket), true) => Self::Open(socket.listen(BACKLOG)?),
            (Self::Lost, true) => Self::Open(bind(address)?.listen(BACKLOG)?),
            (Self::Lost, false) => Self::Shut(bind(address)?),
            (same, _) => same,
        };
        Ok(())
    }

    async fn accept(&self) -> io::Result<TcpStream> {
        match self {
            Self::Open(listener) => listener.accept().await.map(|(stream, _)| stream),
            Self::Shut(_) | Self::Lost => std::future::pending().await,
        }
    }
}

/// A socket for the address, and for nobody else from now on.
fn bind(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = if address.is_ipv4() {
        TcpSocket::new_v4()?
    } else {
        TcpSocket::new_v6()?
    };
    // Connections that ended a moment ago do not keep the port.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

/// Serves every connection until told to stop; then ends those that are open.
pub(super) async fn run(
    listener: TcpListener,
    address: SocketAddr,
    shared: Arc<Shared>,
    mut wishes: mpsc::UnboundedReceiver<Wish>,
    mut stopping: Stopping,
) {
    let mut connections = JoinSet::new();
    let mut door = Door::Open(listener);
    let mut availability = Availability::Up;
    loop {
        tokio::select! {
            // An error means that the proxy has been dropped.
            _ = stopping.wait_for(|stop| *stop) => break,
            Some((wish, done)) = wishes.recv() => {
                availability = wish;
                // Whoever asked may have gone.
                let _ = done.send(door.set(address, wish != Availability::Down));
            }
            Some(_) = connections.join_next() => {}
            accepted = door.accept() => match accepted {
                Ok(stream) if availability == Availability::Resetting => reset(&stream, &shared),
                Ok(stream) => {
                    connections.spawn(connection::serve(stream, Arc::clone(&shared)));
                }
                Err(error) => {
                    warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    drop(door);
    connections.shutdown().await;
}

fn reset(stream: &TcpStream, shared: &Shared) {
    shared.counters.opened();
    if let Err(error) = stream.set_zero_linger() {
        debug!(%error, "the connection ends without a reset");
    }
    shared.counters.closed();
    shared.counters.struck(FaultKind::Refuse);
}
