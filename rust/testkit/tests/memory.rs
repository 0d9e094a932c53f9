//! Native memory of one copy, measured for a whole process: so this is one test in a process of its own.

use std::{fs, time::Duration};

use alluvium_engine::Engine;
use alluvium_testkit::{
    broker::{copy_request, settings_at},
    process::{ToolProcess, anonymous_bytes},
    segment::TestSegment,
};
use tempfile::tempdir;

const MIB: u64 = 1 << 20;

/// 8 MiB of it go to the cache and 11 to loads, 45 to uploads. The client's own buffers must fit in as well.
const BUDGET: u64 = 64 * MIB;

/// What connections and the allocator may keep after a copy.
const BESIDES: u64 = 12 * MIB;

#[test]
fn a_copy_of_a_gigabyte_stays_within_the_memory_budget() {
    let server = ToolProcess::s3_server(env!("CARGO_BIN_EXE_alluvium-testkit")).expect("a server");
    let budget = BUDGET.to_string();
    let settings = [
        ("memory.budget.bytes", budget.as_str()),
        ("cache.memory.bytes", "8388608"),
    ];
    let engine = Engine::open(settings_at(server.endpoint(), &settings)).expect("an instance");
    let source = tempdir().expect("a directory");
    let mut segment = TestSegment::write(source.path(), 1, MIB).expect("a segment");
    // Sparse: what is measured is memory, not the disk.
    let log = fs::File::options().write(true).open(&segment.log).expect("the log");
    log.set_len(1024 * MIB).expect("room");
    segment.metadata.segment_size = 1024 * MIB;

    let before = anonymous_bytes().expect("Linux");
    let task = engine.start_copy(copy_request(&segment));
    let mut most = before;
    loop {
        most = most.max(anonymous_bytes().expect("Linux"));
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
    // Memory comes back once no copy has run for a while, to the system and not to an allocator.
    for _ in 0..200 {
        if anonymous_bytes().expect("Linux") <= before + BESIDES {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    let kept = anonymous_bytes().expect("Linux").saturating_sub(before);
    println!("{} MiB kept", kept / MIB);
    assert!(kept <= BESIDES, "{kept} bytes are kept");
    engine.close();
}
