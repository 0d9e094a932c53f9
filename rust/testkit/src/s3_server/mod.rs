//! Purpose: a strict S3 server for tests, with real sockets and real signatures, that can be told to misbehave.
//!
//! Flow: `connection` (socket, TLS, HTTP) → `front` (counters, [`faults`], credential scope) → s3s (signatures, S3's
//! syntax) → `backend` (operations over a directory). Another process reads counters and sets
//! faults by the `admin` listener.
//!
//! Invariants: the server runs on threads of its own, so a test may block, or run on one thread, without stopping it.
//! Where AWS and lenient servers differ it does as AWS, so that what passes here passes there.
//!
//! Cancel: [`S3Server::shutdown`] and dropping do the same: they end all connections, wait for the threads, and remove
//! a temporary directory. Neither waits for clients.
//!
//! Not here: virtual-host addressing, HTTP/2, durability, users who differ in rights.

mod auth;
mod backend;
mod body;
mod connection;
mod counters;
pub mod faults;
mod front;
mod operation;
mod tls;

pub use self::auth::Users;
pub use self::counters::{Counters, Outcome};
pub use self::faults::{Action, FaultAction, FaultError, FaultRule, FaultStatus, FaultTarget, Faults};
pub(crate) use self::front::error_document;
pub use self::operation::Operation;
pub(crate) use self::operation::Target;
pub use self::tls::TlsError;
pub(crate) use self::tls::{Tls, acceptor};

use self::auth::{Gate, Keys};
use self::backend::Backend;
use self::front::Front;
use crate::accept::{accept_all, bind};
use crate::admin::{self, Administered};
use crate::service::{Service, Stopping};
use s3s::service::S3ServiceBuilder;
use serde_json::Value;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// What a server is made with. The default suits tests: a free port of the loopback, one bucket, a temporary directory.
#[derive(Clone)]
pub struct S3ServerConfig {
    pub listen: SocketAddr,
    /// Where objects are kept. `None`: a temporary directory that goes with the server.
    pub data: Option<PathBuf>,
    /// Created unless they exist.
    pub buckets: Vec<String>,
    pub access_key: String,
    pub secret_key: String,
    /// When set, requests must carry it; when not, they must carry none.
    pub session_token: Option<String>,
    pub region: String,
    pub tls: TlsMode,
}

/// Whether the server speaks TLS.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum TlsMode {
    #[default]
    Off,
    /// With a certificate of an authority made at start; its `ca.pem` is written into the directory, if one is given.
    OwnAuthority { directory: Option<PathBuf> },
}

impl Default for S3ServerConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            data: None,
            buckets: vec!["test-bucket".to_owned()],
            access_key: "test-access-key".to_owned(),
            secret_key: "test-secret-key".to_owned(),
            session_token: None,
            region: "us-east-1".to_owned(),
            tls: TlsMode::Off,
        }
    }
}

/// Why a server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum S3ServerError {
    #[error("not a bucket name: {0:?}")]
    BucketName(String),
    #[error("cannot use the data directory: {0}")]
    Data(#[source] io::Error),
    #[error("cannot listen: {0}")]
    Listen(#[source] io::Error),
    #[error("cannot start threads: {0}")]
    Threads(#[source] io::Error),
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// A running server. Ends when dropped.
#[derive(Debug)]
pub struct S3Server {
    endpoint: String,
    admin: String,
    ca_pem: Option<String>,
    counters: Arc<Counters>,
    faults: Arc<Faults>,
    users: Arc<Users>,
    service: Service,
    /// After the service, by the order of drops: what is at work would still write into it.
    _directory: Option<TempDir>,
}

impl S3Server {
    /// Starts a server. It is ready when this returns.
    pub async fn start(config: S3ServerConfig) -> Result<Self, S3ServerError> {
        // Nothing here waits for anything but the file system; the function is async as its callers are.
        Self::start_blocking(config)
    }

    /// The same, for callers without a runtime.
    pub fn start_blocking(config: S3ServerConfig) -> Result<Self, S3ServerError> {
        if let Some(name) = config.buckets.iter().find(|name| !s3s::path::check_bucket_name(name)) {
            return Err(S3ServerError::BucketName(name.clone()));
        }
        let mut directory = None;
        let data = match config.data.clone() {
            Some(data) => data,
            None => {
                let created = tempfile::Builder::new().prefix("alluvium-testkit-").tempdir();
                directory
                    .insert(created.map_err(S3ServerError::Data)?)
                    .path()
                    .to_path_buf()
            }
        };
        let counters = Arc::new(Counters::default());
        let faults = Arc::new(Faults::default());
        let users = Arc::new(Users::default());
        users.allow(&config.access_key, &config.secret_key, config.session_token.as_deref());
        let backend = Backend::open(&data, &config.buckets, &config.region, Arc::clone(&counters))
            .map_err(S3ServerError::Data)?;
        let tls = match &config.tls {
            TlsMode::Off => None,
            TlsMode::OwnAuthority { directory } => Some(Tls::make(directory.as_deref())?),
        };
        let (requests, request_address) = bind(config.listen).map_err(S3ServerError::Listen)?;
        let (controls, control_address) =
            bind(SocketAddr::new(config.listen.ip(), 0)).map_err(S3ServerError::Listen)?;
        let scheme = if tls.is_some() { "https" } else { "http" };
        let endpoint = format!("{scheme}://{request_address}");
        let admin = format!("http://{control_address}");
        let (acceptor, ca_pem) = tls.map_or((None, None), |tls| (Some(tls.acceptor), Some(tls.ca_pem)));
        let front = Arc::new(front(
            config.region,
            backend,
            Arc::clone(&users),
            Arc::clone(&counters),
            Arc::clone(&faults),
        ));
        let controls_of = Arc::new(Administration {
            counters: Arc::clone(&counters),
            faults: Arc::clone(&faults),
        });
        let service = Service::start("testkit-s3", move |stopping| {
            let (requests, controls) = (TcpListener::from_std(requests)?, TcpListener::from_std(controls)?);
            Ok(run(requests, acceptor, front, controls, controls_of, stopping))
        })
        .map_err(S3ServerError::Threads)?;
        Ok(Self {
            endpoint,
            admin,
            ca_pem,
            counters,
            faults,
            users,
            service,
            _directory: directory,
        })
    }

    /// The URL for S3 clients (path style).
    #[must_use]
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// The URL of the admin listener.
    #[must_use]
    pub fn admin(&self) -> &str {
        &self.admin
    }

    /// The certificate of the authority to trust, with TLS.
    #[must_use]
    pub fn ca_pem(&self) -> Option<&str> {
        self.ca_pem.as_deref()
    }

    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    #[must_use]
    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    /// Who may speak to it: at first, those that the configuration names.
    #[must_use]
    pub fn users(&self) -> &Users {
        &self.users
    }

    /// Ends the server and all its connections; the ports are free and a temporary directory gone when this returns.
    pub async fn shutdown(self) {
        self.service.shutdown().await;
    }
}

fn front(region: String, backend: Backend, users: Arc<Users>, counters: Arc<Counters>, faults: Arc<Faults>) -> Front {
    let mut service = S3ServiceBuilder::new(backend);
    service.set_auth(Keys(Arc::clone(&users)));
    Front {
        service: service.build(),
        gate: Gate { users, region },
        faults,
        counters,
        next_request: AtomicU64::new(1),
    }
}

/// What the admin listener reads and sets.
struct Administration {
    counters: Arc<Counters>,
    faults: Arc<Faults>,
}

impl Administered for Administration {
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

async fn run(
    requests: TcpListener,
    acceptor: Option<TlsAcceptor>,
    front: Arc<Front>,
    controls: TcpListener,
    controls_of: Arc<Administration>,
    stopping: Stopping,
) {
    let serve_request = move |stream| connection::serve(stream, acceptor.clone(), Arc::clone(&front));
    let serve_control = move |stream| admin::serve(Arc::clone(&controls_of), stream);
    tokio::join!(
        accept_all(requests, serve_request, stopping.clone()),
        accept_all(controls, serve_control, stopping)
    );
}
