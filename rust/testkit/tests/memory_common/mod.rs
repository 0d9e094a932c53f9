//! A process of its own for what is measured, and another for the server.

use std::{
    fs,
    io::{BufRead, BufReader},
    process::{Child, ChildStdout, Command, Stdio},
    sync::Arc,
};

use alluvium_engine::{CopyRequest, Engine, SegmentFiles, SegmentRef};
use alluvium_testkit::segment::TestSegment;

pub(crate) const MIB: u64 = 1 << 20;

const SERVER: &[&str] = &[
    "s3-server",
    "--listen",
    "127.0.0.1:0",
    "--bucket",
    "bucket",
    "--access-key",
    "k",
    "--secret-key",
    "s",
    "--region",
    "us-east-1",
    "--exit-with-stdin",
];

/// Memory of this process that no file backs.
pub(crate) fn anonymous_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"))
        .expect("a line of RssAnon");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
}

/// The server; ends when dropped.
pub(crate) struct Server {
    process: Child,
    endpoint: String,
    /// Held open: the server still writes to it.
    _output: BufReader<ChildStdout>,
}

impl Server {
    pub(crate) fn start() -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_alluvium-testkit"))
            .args(SERVER)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a server");
        let mut said = String::new();
        let mut output = BufReader::new(process.stdout.take().expect("a pipe"));
        output.read_line(&mut said).expect("a line");
        let endpoint = said.strip_prefix("READY ").expect("the server's address").trim();
        Server {
            endpoint: endpoint.to_owned(),
            process,
            _output: output,
        }
    }

    pub(crate) fn engine(&self, extra: &[(&str, &str)]) -> Arc<Engine> {
        let settings = [
            ("s3.endpoint", self.endpoint.as_str()),
            ("s3.bucket", "bucket"),
            ("s3.access.key.id", "k"),
            ("s3.secret.access.key", "s"),
        ];
        let settings = settings.iter().chain(extra);
        let settings = settings.map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        Engine::open(settings.collect()).expect("an instance")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        self.process.wait().expect("the server ends with its standard input");
    }
}

pub(crate) fn copy_request(segment: TestSegment) -> CopyRequest {
    CopyRequest {
        segment: SegmentRef {
            metadata: segment.metadata,
            custom_metadata: None,
        },
        files: SegmentFiles {
            log: segment.log,
            offset_index: segment.offset_index,
            time_index: segment.time_index,
            transaction_index: segment.transaction_index,
            producer_snapshot: segment.producer_snapshot,
            leader_epochs: segment.leader_epochs,
        },
    }
}
