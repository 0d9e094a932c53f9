//! Purpose: the testkit's tools for other processes.
//!
//! `s3-server` prints `READY <endpoint>` and `ADMIN <url>` when it can be used, and runs until it is told to end: by
//! SIGTERM or SIGINT, or, with `--exit-with-stdin`, by the end of its standard input. Diagnostics go to standard error,
//! as `RUST_LOG` says.

use alluvium_testkit::s3_server::{S3Server, S3ServerConfig, S3ServerError, TlsMode};
use clap::{Args, Parser, Subcommand};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc;
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

/// Why the tool ends with an error.
#[derive(Debug, thiserror::Error)]
enum ToolError {
    #[error(transparent)]
    Server(#[from] S3ServerError),
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
    let Command::S3Server(arguments) = Arguments::parse().command;
    match s3_server(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("alluvium-testkit: {error}");
            ExitCode::FAILURE
        }
    }
}

fn s3_server(arguments: S3ServerArguments) -> Result<(), ToolError> {
    // Before the server starts: an early signal must not leave a temporary directory behind.
    let mut signals = Signals::new([SIGTERM, SIGINT]).map_err(ToolError::Signals)?;
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
    let (end, ended) = mpsc::channel();
    let end_by_signal = end.clone();
    std::thread::spawn(move || {
        if signals.forever().next().is_some() {
            // Nobody listens any more when the server is ending already.
            let _ = end_by_signal.send(());
        }
    });
    if arguments.exit_with_stdin {
        std::thread::spawn(move || {
            let mut ignored = [0; 1024];
            while matches!(io::stdin().read(&mut ignored), Ok(count) if count > 0) {}
            let _ = end.send(());
        });
    }
    let mut output = io::stdout().lock();
    writeln!(output, "READY {}\nADMIN {}", server.endpoint(), server.admin())
        .and_then(|()| output.flush())
        .map_err(ToolError::Output)?;
    // An error means that both threads have gone, so that nobody could end the server any more.
    let _ = ended.recv();
    drop(server);
    Ok(())
}
