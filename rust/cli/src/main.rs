//! `alluvium`: looks at the bucket without a JVM and without a broker.
//!
//! # Purpose
//! Tries the settings as a broker would, lists segments, shows manifests, verifies stored bytes.
//!
//! # Flow
//! [`settings`] reads the broker's own properties file; each command is a function in [`commands`] on an open engine.
//!
//! # Not here
//! Anything that changes the bucket, but for the probe's own small object.

mod commands;
mod settings;

use std::{path::PathBuf, process::ExitCode};

use clap::{Args, Parser, Subcommand};

#[derive(Parser)]
#[command(
    name = "alluvium",
    version,
    about = "Looks at Kafka segments in an object store",
    arg_required_else_help = true
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

/// Where the plugin's settings come from.
#[derive(Args)]
struct Source {
    /// The broker's properties file; its rsm.config.* keys are used.
    #[arg(long, short, value_name = "FILE")]
    properties: Option<PathBuf>,
    /// The prefix of the plugin's keys in that file (remote.log.storage.manager.impl.prefix).
    #[arg(long, value_name = "PREFIX", default_value = "rsm.config.")]
    impl_prefix: String,
    /// One more setting, without the prefix; wins over the file. Can be repeated.
    #[arg(long = "set", short, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

#[derive(Subcommand)]
enum Command {
    /// Try the settings and the store, as a broker does at its start.
    Probe(Source),
    /// List segments: bytes of the .log object, and key of the manifest.
    List {
        #[command(flatten)]
        source: Source,
        /// Only keys that begin so, with or without key.prefix; for example a topic.
        #[arg(default_value = "")]
        prefix: String,
    },
    /// Show what a manifest says.
    Show {
        #[command(flatten)]
        source: Source,
        /// Key of the manifest or of the .log, with or without key.prefix.
        key: String,
    },
    /// Read segments whole and check every checksum. Ends with 1 when one is bad, with 2 when one could not be checked.
    Verify {
        #[command(flatten)]
        source: Source,
        /// Keys or beginnings of keys, with or without key.prefix; all under key.prefix when there is none.
        keys: Vec<String>,
    },
    /// Print docs/CONFIGURATION.md.
    Config,
    /// Print docs/METRICS.md.
    Metrics,
}

fn main() -> ExitCode {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_env_filter(tracing_subscriber::EnvFilter::from_env("ALLUVIUM_LOG"))
        .init();
    match run(Arguments::parse().command) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("alluvium: {error}");
            ExitCode::from(2)
        }
    }
}

/// Whether all is well; an error when that could not be found out.
fn run(command: Command) -> commands::Result<bool> {
    match command {
        Command::Probe(source) => commands::probe(source.read()?),
        Command::List { source, prefix } => commands::list(source.read()?, &prefix),
        Command::Show { source, key } => commands::show(source.read()?, &key),
        Command::Verify { source, keys } => commands::verify(source.read()?, keys),
        Command::Config => commands::print(&alluvium_engine::config::markdown()),
        Command::Metrics => commands::print(&alluvium_engine::metrics::markdown()),
    }
}
