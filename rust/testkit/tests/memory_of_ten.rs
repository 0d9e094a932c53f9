//! Native memory of ten copies at once, and that each gets its share: measured for a whole process, so this is one test in one of its own.

use std::{
    thread,
    time::{Duration, Instant},
};

use alluvium_engine::Engine;
use alluvium_testkit::{
    broker::{copy_request, settings_at},
    process::{ToolProcess, anonymous_bytes},
    segment::{Content, TestSegment},
};
use tempfile::tempdir;

const MIB: u64 = 1 << 20;

const BUDGET: u64 = 128 * MIB;

/// What the process may have besides: connections, the runtime, the allocator's gaps.
const BESIDES: u64 = 64 * MIB;

const COPIES: u64 = 10;
const SEGMENT_BYTES: u64 = 64 * MIB;

#[test]
#[expect(clippy::disallowed_methods, reason = "what is measured is when each copy ends")]
fn ten_copies_share_one_budget_and_none_starves() {
    let server = ToolProcess::s3_server(env!("CARGO_BIN_EXE_alluvium-testkit")).expect("a server");
    let budget = BUDGET.to_string();
    let source = tempdir().expect("a directory");
    let segments: Vec<TestSegment> = (0..COPIES)
        .map(|seed| {
            let content = if seed % 2 == 0 { Content::Noise } else { Content::Json };
            TestSegment::write_content(source.path(), seed, SEGMENT_BYTES, content).expect("a segment")
        })
        .collect();
    for compression in ["none", "zstd"] {
        let settings = [
            ("memory.budget.bytes", budget.as_str()),
            ("compression.type", compression),
            ("upload.threads", "2"),
            ("key.prefix", compression),
        ];
        let engine = Engine::open(settings_at(server.endpoint(), &settings)).expect("an instance");
        let begin = Instant::now();
        let tasks: Vec<_> = segments
            .iter()
            .map(|segment| engine.start_copy(copy_request(segment)))
            .collect();
        let waiters: Vec<_> = tasks
            .into_iter()
            .map(|task| {
                thread::spawn(move || {
                    let outcome = task.wait(Duration::from_secs(120)).expect("a copy that ends");
                    outcome.expect("a copy");
                    begin.elapsed()
                })
            })
            .collect();
        let mut most = 0;
        while !waiters.iter().all(thread::JoinHandle::is_finished) {
            most = most.max(anonymous_bytes().expect("Linux"));
            thread::sleep(Duration::from_millis(5));
        }
        let mut ends: Vec<Duration> = waiters
            .into_iter()
            .map(|waiter| waiter.join().expect("a waiter"))
            .collect();
        ends.sort();
        println!(
            "{compression}: at most {} MiB of {}; ended after {ends:.1?}",
            most / MIB,
            BUDGET / MIB
        );
        assert!(most <= BUDGET + BESIDES, "{most} bytes with {compression}");
        // All are of one size and began together. Had one waited for the others, the first would be done after a tenth of the time.
        assert!(ends[0] * 3 >= ends[ends.len() - 1], "{compression}: {ends:?}");
        engine.close();
    }
}
