//! Native memory of a copy: one test in a process of its own, since memory is measured for the whole process.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::{fs, time::Duration};

use alluvium_testkit::segment::TestSegment;
use common::*;
use tempfile::tempdir;

const MIB: u64 = 1 << 20;

/// 8 MiB of it go to the cache and 14 to loads, 42 to uploads. The test's server and the client's own buffers must fit in as well.
const BUDGET: u64 = 64 * MIB;

/// Memory of the process that no file backs.
fn anonymous_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

#[test]
fn a_copy_of_a_gigabyte_stays_within_the_memory_budget() {
    let (source, server) = (tempdir().unwrap(), server());
    let budget = BUDGET.to_string();
    let engine = on_server(
        &server,
        &[("memory.budget.bytes", &budget), ("cache.memory.bytes", "8388608")],
    );
    let mut segment = TestSegment::write(source.path(), 1, MIB).unwrap();
    // Sparse: what is measured is memory, not the disk.
    fs::File::options()
        .write(true)
        .open(&segment.log)
        .unwrap()
        .set_len(1024 * MIB)
        .unwrap();
    segment.metadata.segment_size = 1024 * MIB;
    let before = anonymous_bytes();
    let task = engine.start_copy(copy_request(&segment));
    let mut most = 0;
    loop {
        most = most.max(anonymous_bytes());
        if let Some(outcome) = task.wait(Duration::from_millis(5)) {
            outcome.unwrap();
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
    assert_eq!(
        server
            .counters()
            .requests(alluvium_testkit::s3_server::Operation::UploadPart),
        64
    );
    assert_idle(&engine);
}
