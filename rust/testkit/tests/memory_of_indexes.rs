//! Native memory of copies whose indexes are the larger part: measured for a whole process, so this is one test in one of its own.

use std::{fs, thread, time::Duration};

use alluvium_engine::Engine;
use alluvium_testkit::{
    broker::{assert_idle, copy_request, finish, settings_at},
    process::{ToolProcess, anonymous_bytes},
    segment::TestSegment,
};
use rand::{Rng, SeedableRng, rngs::StdRng};
use tempfile::tempdir;

const MIB: u64 = 1 << 20;

/// What the process may have besides the budget: connections, the runtime, the allocator's gaps.
const BESIDES: u64 = 64 * MIB;

const COPIES: u64 = 10;

/// Kafka's default of `segment.index.bytes`.
const INDEX_BYTES: usize = 10 << 20;

#[test]
fn ten_copies_with_the_largest_indexes_stay_within_the_memory_budget() {
    let server = ToolProcess::s3_server(env!("CARGO_BIN_EXE_alluvium-testkit")).expect("a server");
    let source = tempdir().expect("a directory");
    let mut noise = vec![0; INDEX_BYTES];
    StdRng::seed_from_u64(1).fill_bytes(&mut noise);
    let segments: Vec<TestSegment> = (0..COPIES)
        .map(|seed| {
            let segment = TestSegment::write(source.path(), seed, 200_000).expect("a segment");
            for index in [&segment.offset_index, &segment.time_index] {
                fs::write(index, &noise).expect("an index");
            }
            segment
        })
        .collect();
    drop(noise);
    for budget in [18 * MIB, 128 * MIB] {
        let (number, prefix) = (budget.to_string(), format!("{budget}/"));
        let settings = [
            ("memory.budget.bytes", number.as_str()),
            ("cache.memory.bytes", "0"),
            ("chunk.size.bytes", "1048576"),
            ("upload.part.size.bytes", "5242880"),
            ("key.prefix", &prefix),
        ];
        let engine = Engine::open(settings_at(server.endpoint(), &settings)).expect("an instance");
        let waiters: Vec<_> = segments
            .iter()
            .map(|segment| {
                let task = engine.start_copy(copy_request(segment));
                thread::spawn(move || finish(&task).expect("a copy"))
            })
            .collect();
        let mut most = 0;
        while !waiters.iter().all(thread::JoinHandle::is_finished) {
            most = most.max(anonymous_bytes().expect("Linux"));
            thread::sleep(Duration::from_millis(2));
        }
        waiters
            .into_iter()
            .for_each(|waiter| drop(waiter.join().expect("a waiter")));
        println!("at most {} MiB, with a budget of {} MiB", most / MIB, budget / MIB);
        assert!(most <= budget + BESIDES, "{most} bytes with a budget of {budget}");
        assert_idle(&engine);
        engine.close();
    }
}
