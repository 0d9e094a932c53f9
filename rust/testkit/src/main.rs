//! Purpose: the testkit's tools for other processes.
//!
//! `s3-server` and `fault-proxy` print `READY <endpoint>` and `ADMIN <url>` when they can be used, and run until they are told
//! to end: by SIGTERM or SIGINT, or, with `--exit-with-stdin`, by the end of their standard input. `ranged-get` prints one
//! JSON object and ends. Diagnostics go to standard error, as `RUST_LOG` says.

use alluvium_testkit::proxy::{FaultProxy, LinkShape, Protocol, ProxyConfig, ProxyError};
use alluvium_testkit::ranged_get::{RangedGet, RangedGetError};
use alluvium_testkit::s3_server::{FaultError, S3Server, S3ServerConfig, S3ServerError, TlsMode};
use clap::{Args, Parser, Subcommand};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc;
use std::time::Duration;
use tracing_subscriber::EnvFilter;

#[derive(Parser)]
#[command(version, about = "Tools for testing Alluvium")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run an S3 server for tests: strict, and able to misbehave on request
    S3Server(S3ServerArguments),
    /// Run a proxy in front of an S3 server: a network with latency and a limited width
    FaultProxy(FaultProxyArguments),
    /// Read an object by parallel GETs of ranges and throw it away: the raw limit of reading
    RangedGet(RangedGetArguments),
}

#[derive(Args)]
struct S3ServerArguments {
    /// Address and port to listen on; port 0 takes a free one
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Directory to keep objects in; without it a temporary one, removed at the end
    #[arg(long)]
    data: Option<PathBuf>,
    /// Bucket to create unless it exists; may be given several times
    #[arg(long = "bucket", value_name = "NAME")]
    buckets: Vec<String>,
    #[arg(long)]
    access_key: String,
    #[arg(long)]
    secret_key: String,
    /// Session token that requests must carry
    #[arg(long)]
    session_token: Option<String>,
    #[arg(long, default_value = "us-east-1")]
    region: String,
    /// Speak TLS, and write the certificate to trust as ca.pem into this directory
    #[arg(long, value_name = "DIR")]
    tls_dir: Option<PathBuf>,
    /// End when standard input is closed
    #[arg(long)]
    exit_with_stdin: bool,
}

#[derive(Args)]
struct FaultProxyArguments {
    /// The server to pass everything on to
    #[arg(long, value_name = "HOST:PORT")]
    upstream: String,
    /// Address and port to listen on; port 0 takes a free one
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Time that a request and its answer take longer together
    #[arg(long, value_name = "N", default_value_t = 0)]
    latency_ms: u64,
    /// Limit of each direction of each connection
    #[arg(long, value_name = "N")]
    bytes_per_second: Option<u64>,
    /// Limit of each direction of all connections together
    #[arg(long, value_name = "N")]
    total_bytes_per_second: Option<u64>,
    /// Understand requests, instead of passing bytes
    #[arg(long)]
    http: bool,
    /// Rules for requests, a JSON array
    #[arg(long, value_name = "JSON", requires = "http")]
    faults: Option<String>,
    /// End when standard input is closed
    #[arg(long)]
    exit_with_stdin: bool,
}

#[derive(Args)]
struct RangedGetArguments {
    /// The object, as http://host:port/bucket/key
    #[arg(long)]
    url: String,
    /// Line of the head of every request, such as one of a signature; may be given several times
    #[arg(long = "header", value_name = "NAME: VALUE")]
    headers: Vec<String>,
    #[arg(long, value_name = "N")]
    object_bytes: u64,
    #[arg(long, value_name = "N", default_value_t = 16 << 20)]
    range_bytes: u64,
    /// Requests at a time, each on a connection of its own
    #[arg(long, value_name = "N", default_value_t = 8)]
    in_flight: usize,
    /// How often the object is read
    #[arg(long, value_name = "N", default_value_t = 1)]
    times: u64,
}

/// Why the tool ends with an error.
#[derive(Debug, thiserror::Error)]
enum ToolError {
    #[error(transparent)]
    Server(#[from] S3ServerError),
    #[error(transparent)]
    Proxy(#[from] ProxyError),
    #[error("no address for {0}")]
    Upstream(String),
    #[error(transparent)]
    Faults(#[from] FaultError),
    #[error(transparent)]
    RangedGet(#[from] RangedGetError),
    #[error("cannot listen to signals: {0}")]
    Signals(#[source] io::Error),
    #[error("cannot write to standard output: {0}")]
    Output(#[source] io::Error),
}

fn main() -> ExitCode {
    // s3s reports every refused request as an error, which in a test server is an everyday event.
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn,s3s=off"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .init();
    let ended = match Arguments::parse().command {
        Command::S3Server(arguments) => s3_server(arguments),
        Command::FaultProxy(arguments) => fault_proxy(arguments),
        Command::RangedGet(arguments) => ranged_get(arguments),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("alluvium-testkit: {error}");
            ExitCode::FAILURE
        }
    }
}

fn s3_server(arguments: S3ServerArguments) -> Result<(), ToolError> {
    // Before the server starts: an early signal must not leave a temporary directory behind.
    let signals = signals()?;
    let server = S3Server::start_blocking(S3ServerConfig {
        listen: arguments.listen,
        data: arguments.data,
        buckets: arguments.buckets,
        access_key: arguments.access_key,
        secret_key: arguments.secret_key,
        session_token: arguments.session_token,
        region: arguments.region,
        tls: arguments
            .tls_dir
            .map_or(TlsMode::Off, |directory| TlsMode::OwnAuthority {
                directory: Some(directory),
            }),
    })?;
    let ready = format!("READY {}\nADMIN {}", server.endpoint(), server.admin());
    run(&ready, signals, arguments.exit_with_stdin)
}

fn fault_proxy(arguments: FaultProxyArguments) -> Result<(), ToolError> {
    let signals = signals()?;
    let mut addresses = arguments.upstream.to_socket_addrs().into_iter().flatten();
    let upstream = addresses.next().ok_or(ToolError::Upstream(arguments.upstream))?;
    let proxy = FaultProxy::start_blocking(ProxyConfig {
        upstream,
        listen: arguments.listen,
        link: LinkShape::round_trip(Duration::from_millis(arguments.latency_ms), arguments.bytes_per_second)
            .shared_by_all(arguments.total_bytes_per_second),
        protocol: if arguments.http { Protocol::Http } else { Protocol::Tcp },
    })?;
    if let Some(rules) = arguments.faults {
        proxy.faults().set_json(rules.as_bytes())?;
    }
    let ready = format!("READY {}\nADMIN {}", proxy.endpoint(), proxy.admin());
    run(&ready, signals, arguments.exit_with_stdin)
}

fn ranged_get(arguments: RangedGetArguments) -> Result<(), ToolError> {
    let taken = RangedGet {
        url: arguments.url,
        headers: arguments.headers,
        object_bytes: arguments.object_bytes,
        range_bytes: arguments.range_bytes,
        in_flight: arguments.in_flight,
        times: arguments.times,
    }
    .run()?;
    let told = serde_json::json!({
        "bytes": taken.bytes,
        "requests": taken.requests,
        "wall_seconds": taken.wall.as_secs_f64(),
        "cpu_seconds": taken.cpu.as_secs_f64(),
    });
    writeln!(io::stdout(), "{told}").map_err(ToolError::Output)
}

fn signals() -> Result<Signals, ToolError> {
    Signals::new([SIGTERM, SIGINT]).map_err(ToolError::Signals)
}

/// Says that the tool is ready, and returns when it is to end.
fn run(ready: &str, mut signals: Signals, exit_with_stdin: bool) -> Result<(), ToolError> {
    let (end, ended) = mpsc::channel();
    let end_by_signal = end.clone();
    std::thread::spawn(move || {
        if signals.forever().next().is_some() {
            // Nobody listens any more when the tool is ending already.
            let _ = end_by_signal.send(());
        }
    });
    if exit_with_stdin {
        std::thread::spawn(move || {
            let mut ignored = [0; 1024];
            while matches!(io::stdin().read(&mut ignored), Ok(count) if count > 0) {}
            let _ = end.send(());
        });
    }
    let mut output = io::stdout().lock();
    writeln!(output, "{ready}")
        .and_then(|()| output.flush())
        .map_err(ToolError::Output)?;
    // An error means that both threads have gone, so that nobody could end the tool any more.
    let _ = ended.recv();
    Ok(())
}
