//! Native memory of a copy, measured for a whole process: so this is one test in a process of its own, and its server is another.

use std::{
    fs,
    io::{BufRead, BufReader},
    process::{Command, Stdio},
    time::Duration,
};

use alluvium_engine::{CopyRequest, Engine, SegmentFiles, SegmentRef};
use alluvium_testkit::segment::TestSegment;
use tempfile::tempdir;

const MIB: u64 = 1 << 20;

/// 8 MiB of it go to the cache and 14 to loads, 42 to uploads. The client's own buffers must fit in as well.
const BUDGET: u64 = 64 * MIB;

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

/// Memory of the process that no file backs.
fn anonymous_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"))
        .expect("a line of RssAnon");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
}

#[test]
fn a_copy_of_a_gigabyte_stays_within_the_memory_budget() {
    let mut server = Command::new(env!("CARGO_BIN_EXE_alluvium-testkit"))
        .args(SERVER)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a server");
    let mut said = String::new();
    let mut output = BufReader::new(server.stdout.take().expect("a pipe"));
    output.read_line(&mut said).expect("a line");
    let endpoint = said.strip_prefix("READY ").expect("the server's address").trim();

    let budget = BUDGET.to_string();
    let settings = [
        ("s3.endpoint", endpoint),
        ("s3.bucket", "bucket"),
        ("s3.access.key.id", "k"),
        ("s3.secret.access.key", "s"),
        ("memory.budget.bytes", &budget),
        ("cache.memory.bytes", "8388608"),
    ];
    let settings = settings
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    let engine = Engine::open(settings.collect()).expect("an instance");
    let source = tempdir().expect("a directory");
    let mut segment = TestSegment::write(source.path(), 1, MIB).expect("a segment");
    // Sparse: what is measured is memory, not the disk.
    let log = fs::File::options().write(true).open(&segment.log).expect("the log");
    log.set_len(1024 * MIB).expect("room");
    segment.metadata.segment_size = 1024 * MIB;

    let before = anonymous_bytes();
    let task = engine.start_copy(CopyRequest {
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
    });
    let mut most = before;
    loop {
        most = most.max(anonymous_bytes());
        if let Some(outcome) = task.wait(Duration::from_millis(5)) {
            outcome.expect("a copy");
            break;
        }
    }
    let grown = most - before;
    println!(
        "{} MiB more than before, of a budget of {} MiB",
        grown / MIB,
        BUDGET / MIB
    );
    assert!(grown <= BUDGET, "{grown} bytes");
    engine.close();
    drop(server.stdin.take());
    server.wait().expect("the server ends with its standard input");
}
