//! Native memory of ten copies at once, and that each gets its share: measured for a whole process, so this is one test in one of its own.

mod memory_common;

use std::{
    thread,
    time::{Duration, Instant},
};

use alluvium_testkit::segment::{Content, TestSegment};
use memory_common::{MIB, Server, anonymous_bytes, copy_request};
use tempfile::tempdir;

const BUDGET: u64 = 128 * MIB;

/// What the process may have besides: connections, the runtime, the allocator's gaps.
const BESIDES: u64 = 64 * MIB;

const COPIES: u64 = 10;
const SEGMENT_BYTES: u64 = 64 * MIB;

#[test]
#[expect(clippy::disallowed_methods, reason = "what is measured is when each copy ends")]
fn ten_copies_share_one_budget_and_none_starves() {
    let server = Server::start();
    let source = tempdir().expect("a directory");
    let segments: Vec<TestSegment> = (0..COPIES)
        .map(|seed| {
            let content = if seed % 2 == 0 { Content::Noise } else { Content::Json };
            TestSegment::write_content(source.path(), seed, SEGMENT_BYTES, content).expect("a segment")
        })
        .collect();
    for compression in ["none", "zstd"] {
        let settings = [
            ("memory.budget.bytes", BUDGET.to_string()),
            ("compression.type", compression.to_owned()),
            ("upload.threads", "2".to_owned()),
            ("key.prefix", format!("{compression}/")),
        ];
        let engine = server.engine(&settings.each_ref().map(|(key, value)| (*key, value.as_str())));
        let begin = Instant::now();
        let tasks: Vec<_> = segments
            .iter()
            .map(|segment| engine.start_copy(copy_request(segment.clone())))
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
            most = most.max(anonymous_bytes());
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
