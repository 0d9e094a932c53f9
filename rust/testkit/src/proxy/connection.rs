//! Purpose: one client connection: its link, its level, and how it ends.
//!
//! Flow: at the TCP level the link lies between the client's socket and a connection to the server; at the HTTP level
//! between the client's socket and a pipe in memory, at whose other end `http` is the server.
//!
//! Failure: what breaks one side breaks the other: a reset is passed on as a reset, an end as an end. A server that
//! cannot be reached resets the client.
//!
//! Cancel: dropping the future resets both sockets.

use super::Shared;
use super::counters::ProxyCounters;
use super::http;
use super::link::Direction;
use super::link::fault::LinkFault;
use super::link::lane::{Lane, LaneEnd};
use super::link::socket::SharedSocket;
use crate::control::Control;
use std::fmt;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tracing::debug;

/// What the pipe to the HTTP level holds in each direction: one large read.
const PIPE_BYTES: usize = 256 * 1024;
/// A client may still be sending when it is closed; unread bytes would turn the end into a reset that overtakes the
/// answer.
const LINGER: Duration = Duration::from_secs(2);

/// What the proxy understands.
pub(super) enum Level {
    Tcp,
    Http(Option<TlsAcceptor>),
}

impl fmt::Debug for Level {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Tcp => "Tcp",
            Self::Http(None) => "Http",
            Self::Http(Some(_)) => "Https",
        })
    }
}

/// How a connection is to be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Finish {
    Orderly,
    Reset,
}

/// A socket that is reset unless it ended in order.
struct Socket {
    stream: TcpStream,
    orderly: AtomicBool,
}

impl Socket {
    fn new(stream: TcpStream) -> io::Result<Self> {
        // Small messages must not wait for acknowledgements: all delay is the link's.
        stream.set_nodelay(true)?;
        let orderly = AtomicBool::new(false);
        Ok(Self { stream, orderly })
    }

    fn close(&self, finish: Finish) {
        self.orderly.store(finish == Finish::Orderly, Ordering::Relaxed);
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if !self.orderly.load(Ordering::Relaxed)
            && let Err(error) = self.stream.set_zero_linger()
        {
            debug!(%error, "the connection ends without a reset");
        }
    }
}

/// Counts a connection as open.
struct Open<'counters>(&'counters ProxyCounters);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.closed();
    }
}

pub(super) async fn serve(stream: TcpStream, shared: Arc<Shared>) {
    shared.counters.opened();
    // Declared before the socket, and so dropped behind it: what is counted as closed is closed.
    let _open = Open(&shared.counters);
    let client = match Socket::new(stream) {
        Ok(client) => client,
        Err(error) => return debug!(%error, "the client has gone already"),
    };
    let mut resets = shared.resets.subscribe();
    let fault = shared.link_faults.take();
    let finish = tokio::select! {
        finish = broken_or_carried(&client.stream, fault, &shared) => finish,
        // An error means that the proxy has been dropped.
        _ = resets.changed() => Finish::Reset,
    };
    client.close(finish);
}

async fn broken_or_carried(client: &TcpStream, fault: Option<LinkFault>, shared: &Arc<Shared>) -> Finish {
    match fault {
        Some(fault @ LinkFault::Refuse) => {
            shared.counters.struck(fault.kind());
            Finish::Reset
        }
        Some(fault @ LinkFault::BlackHole) => {
            shared.counters.struck(fault.kind());
            forget(client).await;
            Finish::Orderly
        }
        fault => match &shared.level {
            Level::Tcp => to_server(client, fault, shared).await,
            Level::Http(tls) => to_http(client, fault, tls.clone(), shared).await,
        },
    }
}

async fn to_server(client: &TcpStream, fault: Option<LinkFault>, shared: &Shared) -> Finish {
    let server = match TcpStream::connect(shared.upstream).await.and_then(Socket::new) {
        Ok(server) => server,
        Err(error) => {
            debug!(%error, "the server cannot be reached");
            return Finish::Reset;
        }
    };
    let (mut source, mut sink) = (SharedSocket(&server.stream), SharedSocket(&server.stream));
    let both = |up, down| match (up?, down?) {
        (LaneEnd::Complete, LaneEnd::Complete) => Some(Finish::Orderly),
        _ => Some(Finish::Reset),
    };
    let control = Control::default();
    let finish = carry(client, &mut source, &mut sink, fault, shared, &control, both).await;
    server.close(finish);
    finish
}

async fn to_http(
    client: &TcpStream,
    fault: Option<LinkFault>,
    tls: Option<TlsAcceptor>,
    shared: &Arc<Shared>,
) -> Finish {
    let control = Arc::new(Control::default());
    let (near, far) = tokio::io::duplex(PIPE_BYTES);
    // A task of its own, that ends with this one.
    let mut level = JoinSet::new();
    level.spawn(http::serve(far, tls, Arc::clone(&control), Arc::clone(shared)));
    let (mut source, mut sink) = tokio::io::split(near);
    // When HTTP has said everything nobody listens to the client any more.
    let said = |_up, down: Option<LaneEnd>| down.map(|_| Finish::Orderly);
    let finish = carry(client, &mut source, &mut sink, fault, shared, &control, said).await;
    if finish == Finish::Orderly {
        // A client that goes on sending has had its time.
        let _ = tokio::time::timeout(LINGER, forget(client)).await;
    }
    finish
}

/// Carries both directions until the connection ends. `ended` says whether it does when nothing is broken on the
/// client's side, from how each direction ended.
async fn carry<Source, Sink>(
    client: &TcpStream,
    source: &mut Source,
    sink: &mut Sink,
    fault: Option<LinkFault>,
    shared: &Shared,
    control: &Control,
    ended: impl Fn(Option<LaneEnd>, Option<LaneEnd>) -> Option<Finish>,
) -> Finish
where
    Source: AsyncRead + Unpin,
    Sink: AsyncWrite + Unpin,
{
    let lane = |direction| {
        let trunk = shared.trunks.of(direction);
        Lane::new(
            direction,
            shared.link.subscribe(),
            trunk,
            fault,
            &shared.counters,
            control,
        )
    };
    let (up, down) = (lane(Direction::Up), lane(Direction::Down));
    let (mut from_client, mut to_client) = (SharedSocket(client), SharedSocket(client));
    let mut upwards = pin!(up.carry(&mut from_client, sink));
    let mut downwards = pin!(down.carry(source, &mut to_client));
    let mut given_up = pin!(async {
        tokio::select! {
            () = up.stalled() => {}
            () = down.stalled() => {}
        }
        SharedSocket(client).left().await;
    });
    let (mut up_end, mut down_end) = (None, None);
    loop {
        tokio::select! {
            end = &mut upwards, if up_end.is_none() => up_end = Some(end),
            end = &mut downwards, if down_end.is_none() => down_end = Some(end),
            () = &mut given_up => return Finish::Orderly,
        }
        match (up_end, down_end) {
            (Some(LaneEnd::Reset | LaneEnd::SourceBroken), _) => return Finish::Reset,
            // A broken sink upwards is no reason: what the server said before is still on its way down.
            (_, Some(LaneEnd::Reset | LaneEnd::SourceBroken | LaneEnd::SinkBroken)) => return Finish::Reset,
            (up_end, down_end) => {
                if let Some(finish) = ended(up_end, down_end) {
                    return finish;
                }
            }
        }
    }
}

/// Reads what the client says, until it leaves.
async fn forget(client: &TcpStream) {
    // How it leaves does not matter.
    let _ = tokio::io::copy(&mut SharedSocket(client), &mut tokio::io::sink()).await;
}
