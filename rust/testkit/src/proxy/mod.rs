//! Purpose: a network that breaks on request, between a client and any S3 server, on real sockets.
//!
//! Flow: `listener` (who may connect) → `connection` → `link` (bytes: latency, width, resets, silence; any protocol,
//! TLS passed through) → the server; or, with [`Protocol::Http`], → `link` → `http` (requests: errors, lost requests
//! and replies, spoiled bodies) → the server.
//!
//! Invariants: the proxy knows nothing of the server behind it and changes nothing that a signature covers: the client
//! signs for the proxy's address, and the server checks the host it is told. It runs on threads of its own, so a test
//! may block, or run on one thread, without stopping it. Everything can be changed while it runs; another process reads
//! counters and sets faults of requests by the `admin` listener.
//!
//! Cancel: [`FaultProxy::shutdown`] and dropping do the same: they end all connections, and wait for the threads.
//! Neither waits for clients.
//!
//! ```no_run
//! # async fn example(server: std::net::SocketAddr) -> Result<(), Box<dyn std::error::Error>> {
//! use alluvium_testkit::proxy::*;
//! use alluvium_testkit::s3_server::{FaultRule, Operation};
//! use std::time::Duration;
//!
//! let proxy = FaultProxy::start(ProxyConfig::http(server)).await?;
//! proxy.set_link(LinkShape::round_trip(Duration::from_millis(15), Some(80 << 20)));
//! let lost = HttpFault::DropReply { reset: false };
//! proxy.faults().add(FaultRule::new(Operation::CompleteMultipartUpload, lost).times(1))?;
//! let chaos = Chaos::new(42, 0.05).action(3, HttpFault::error(503, "SlowDown")).action(1, HttpFault::Delay { ms: 500 });
//! proxy.chaos().start(chaos)?;
//! // … a client uses proxy.endpoint() …
//! assert!(proxy.counters().faults(FaultKind::DropReply) > 0);
//! proxy.set_availability(Availability::Down).await?;
//! # Ok(())
//! # }
//! ```

mod connection;
mod counters;
mod http;
mod link;
mod listener;

pub use self::counters::{FaultKind, ProxyCounters};
pub use self::http::chaos::{Chaos, ChaosStatus, ChaosSwitch};
pub use self::http::fault::HttpFault;
pub use self::link::fault::{LinkFault, LinkFaults, LinkRule};
pub use self::link::{Direction, LaneShape, LinkShape};
pub use self::listener::Availability;

use self::connection::Level;
use self::link::trunk::Trunks;
use self::listener::Wish;
use crate::accept::{accept_all, bind};
use crate::admin::{self, Administered};
use crate::s3_server::{FaultError, Faults, Tls, TlsError, acceptor};
use crate::service::Service;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::Value;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot, watch};

/// What a proxy is made with.
#[derive(Clone, Debug)]
pub struct ProxyConfig {
    /// The server. It need not run yet.
    pub upstream: SocketAddr,
    pub listen: SocketAddr,
    pub link: LinkShape,
    pub protocol: Protocol,
}

/// What the proxy understands of what it carries.
#[derive(Clone, Debug)]
pub enum Protocol {
    /// Bytes. Faults of requests, and chaos, have no effect.
    Tcp,
    /// Requests.
    Http,
    /// Requests, over TLS from the client; plain to the server.
    Https(ProxyTls),
}

/// The certificate that the proxy shows.
#[derive(Clone, Debug)]
pub enum ProxyTls {
    /// Of an authority made at start; its `ca.pem` is written into the directory, if one is given.
    OwnAuthority { directory: Option<PathBuf> },
    /// A given one: the chain, own certificate first, and its key.
    Given { chain_pem: String, key_pem: String },
}

impl ProxyConfig {
    /// On a free port of the loopback, without any delay, and without understanding.
    #[must_use]
    pub fn tcp(upstream: SocketAddr) -> Self {
        Self {
            upstream,
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            link: LinkShape::default(),
            protocol: Protocol::Tcp,
        }
    }

    /// The same, understanding requests.
    #[must_use]
    pub fn http(upstream: SocketAddr) -> Self {
        Self {
            protocol: Protocol::Http,
            ..Self::tcp(upstream)
        }
    }
}

/// Why a proxy cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ProxyError {
    #[error("cannot listen: {0}")]
    Listen(#[source] io::Error),
    #[error("cannot start threads: {0}")]
    Threads(#[source] io::Error),
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// What all connections share, and the handle with them.
#[derive(Debug)]
struct Shared {
    upstream: SocketAddr,
    level: Level,
    link: watch::Sender<LinkShape>,
    trunks: Trunks,
    link_faults: LinkFaults,
    faults: Faults<HttpFault>,
    chaos: ChaosSwitch,
    counters: ProxyCounters,
    resets: watch::Sender<()>,
}

impl Administered for Shared {
    fn counters(&self) -> Value {
        self.counters.to_json()
    }

    fn reset_counters(&self) {
        self.counters.reset();
    }

    fn faults(&self) -> serde_json::Result<String> {
        serde_json::to_string(&self.faults.status())
    }

    fn set_faults(&self, rules: &[u8]) -> Result<(), FaultError> {
        self.faults.set_json(rules)
    }
}

/// A running proxy. Ends when dropped.
#[derive(Debug)]
pub struct FaultProxy {
    address: SocketAddr,
    admin: SocketAddr,
    ca_pem: Option<String>,
    shared: Arc<Shared>,
    wishes: mpsc::UnboundedSender<Wish>,
    service: Service,
}

impl FaultProxy {
    /// Starts a proxy. It is ready when this returns.
    pub async fn start(config: ProxyConfig) -> Result<Self, ProxyError> {
        // Nothing here waits for anything but the file system; the function is async as its callers are.
        Self::start_blocking(config)
    }

    /// The same, for callers without a runtime.
    pub fn start_blocking(config: ProxyConfig) -> Result<Self, ProxyError> {
        let (level, ca_pem) = level(config.protocol)?;
        let (listener, address) = bind(config.listen).map_err(ProxyError::Listen)?;
        let (controls, admin) = bind(SocketAddr::new(config.listen.ip(), 0)).map_err(ProxyError::Listen)?;
        let shared = Arc::new(Shared {
            upstream: config.upstream,
            level,
            link: watch::Sender::new(config.link),
            trunks: Trunks::default(),
            link_faults: LinkFaults::default(),
            faults: Faults::default(),
            chaos: ChaosSwitch::default(),
            counters: ProxyCounters::default(),
            resets: watch::Sender::new(()),
        });
        let (wishes, wished) = mpsc::unbounded_channel();
        let of_service = Arc::clone(&shared);
        let service = Service::start("testkit-proxy", move |stopping| {
            let (listener, controls) = (TcpListener::from_std(listener)?, TcpListener::from_std(controls)?);
            let of_controls = Arc::clone(&of_service);
            let serve_control = move |stream| admin::serve(Arc::clone(&of_controls), stream);
            Ok(async move {
                tokio::join!(
                    listener::run(listener, address, of_service, wished, stopping.clone()),
                    accept_all(controls, serve_control, stopping)
                );
            })
        })
        .map_err(ProxyError::Threads)?;
        Ok(Self {
            address,
            admin,
            ca_pem,
            shared,
            wishes,
            service,
        })
    }

    /// Where clients connect.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The URL for S3 clients (path style). Of a proxy of bytes: if the server speaks no TLS.
    #[must_use]
    pub fn endpoint(&self) -> String {
        let scheme = match self.shared.level {
            Level::Tcp | Level::Http(None) => "http",
            Level::Http(Some(_)) => "https",
        };
        format!("{scheme}://{}", self.address)
    }

    /// The URL of the admin listener.
    #[must_use]
    pub fn admin(&self) -> String {
        format!("http://{}", self.admin)
    }

    /// The certificate of the authority to trust, if the proxy made one.
    #[must_use]
    pub fn ca_pem(&self) -> Option<&str> {
        self.ca_pem.as_deref()
    }

    /// What the way is like now.
    #[must_use]
    pub fn link(&self) -> LinkShape {
        *self.shared.link.borrow()
    }

    /// Changes the way, for connections that are open too.
    pub fn set_link(&self, link: LinkShape) {
        self.shared.link.send_replace(link);
    }

    /// Rules for new connections.
    #[must_use]
    pub fn link_faults(&self) -> &LinkFaults {
        &self.shared.link_faults
    }

    /// Rules for requests.
    #[must_use]
    pub fn faults(&self) -> &Faults<HttpFault> {
        &self.shared.faults
    }

    /// Chance, for requests that no rule is for.
    #[must_use]
    pub fn chaos(&self) -> &ChaosSwitch {
        &self.shared.chaos
    }

    #[must_use]
    pub fn counters(&self) -> &ProxyCounters {
        &self.shared.counters
    }

    /// What becomes of clients that connect from now on; holds when this returns. Open connections stay: see
    /// [`Self::reset_connections`].
    pub async fn set_availability(&self, availability: Availability) -> io::Result<()> {
        let (done, fulfilled) = oneshot::channel();
        self.wishes
            .send((availability, done))
            .map_err(|_| io::Error::other("the proxy has ended"))?;
        fulfilled.await.map_err(io::Error::other)?
    }

    /// Resets all open connections, on both sides, as a server does that crashes.
    pub fn reset_connections(&self) {
        self.shared.resets.send_replace(());
    }

    /// Ends the proxy and all its connections; the port is free when this returns.
    pub async fn shutdown(self) {
        self.service.shutdown().await;
    }
}

/// The level, and the certificate of the authority made for it.
fn level(protocol: Protocol) -> Result<(Level, Option<String>), TlsError> {
    Ok(match protocol {
        Protocol::Tcp => (Level::Tcp, None),
        Protocol::Http => (Level::Http(None), None),
        Protocol::Https(ProxyTls::OwnAuthority { directory }) => {
            let tls = Tls::make(directory.as_deref())?;
            (Level::Http(Some(tls.acceptor)), Some(tls.ca_pem))
        }
        Protocol::Https(ProxyTls::Given { chain_pem, key_pem }) => {
            let chain = CertificateDer::pem_slice_iter(chain_pem.as_bytes()).collect::<Result<Vec<_>, _>>()?;
            let key = PrivateKeyDer::from_pem_slice(key_pem.as_bytes())?;
            (Level::Http(Some(acceptor(chain, key)?)), None)
        }
    })
}
