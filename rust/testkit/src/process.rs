//! Purpose: what is measured of a whole process, and the testkit's tools in processes of their own beside it.

use std::{
    fs,
    io::{self, BufRead, BufReader},
    path::Path,
    process::{Child, ChildStdout, Command, Stdio},
};

/// Bytes of this process that no file backs (`RssAnon`): what it holds now.
///
/// # Errors
/// That the system does not tell.
pub fn anonymous_bytes() -> io::Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let told = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:")?.trim().strip_suffix(" kB"));
    let kib = told.and_then(|number| number.parse::<u64>().ok());
    kib.map(|kib| kib * 1024)
        .ok_or_else(|| io::Error::other("no line of RssAnon"))
}

/// A tool of `alluvium-testkit` that runs; ends when dropped.
#[derive(Debug)]
pub struct ToolProcess {
    child: Child,
    endpoint: String,
    /// Held open: the tool still writes to it.
    _output: BufReader<ChildStdout>,
}

impl ToolProcess {
    /// Starts the `program` (of tests and benchmarks: `env!("CARGO_BIN_EXE_alluvium-testkit")`) with these arguments, on a free port of the
    /// loopback. It can be used when this returns.
    ///
    /// # Errors
    /// That it does not start, or says something else than where it listens.
    pub fn start(program: impl AsRef<Path>, arguments: &[&str]) -> io::Result<Self> {
        let mut child = Command::new(program.as_ref())
            .args(arguments)
            .args(["--listen", "127.0.0.1:0", "--exit-with-stdin"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let output = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let mut output = BufReader::new(output);
        let mut said = String::new();
        output.read_line(&mut said)?;
        let endpoint = said
            .strip_prefix("READY ")
            .ok_or_else(|| io::Error::other(said.clone()))?;
        Ok(ToolProcess {
            endpoint: endpoint.trim().to_owned(),
            child,
            _output: output,
        })
    }

    /// An S3 server like that of [`crate::broker::server`].
    ///
    /// # Errors
    /// As [`ToolProcess::start`].
    pub fn s3_server(program: impl AsRef<Path>) -> io::Result<Self> {
        let defaults = crate::s3_server::S3ServerConfig::default();
        let arguments = [
            ["--bucket", &defaults.buckets[0]],
            ["--access-key", &defaults.access_key],
            ["--secret-key", &defaults.secret_key],
        ];
        Self::start(program, &[&["s3-server"], arguments.as_flattened()].concat())
    }

    /// The URL for S3 clients.
    #[must_use]
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }
}

impl Drop for ToolProcess {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        // It ends with its standard input; if not, whoever waits for the test sees which tool hangs.
        if let Err(error) = self.child.wait() {
            tracing::warn!(%error, "a tool's end cannot be waited for");
        }
    }
}
