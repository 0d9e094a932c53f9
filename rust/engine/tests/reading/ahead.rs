//! Reading ahead, as requests show it.

use std::{thread, time::Duration};

use alluvium_format::IndexType;
use alluvium_testkit::{
    broker::*,
    s3_server::{FaultAction, FaultRule, Operation},
};
use rand::{RngExt, SeedableRng, rngs::StdRng};

use super::{FETCH, MIB, consumers::Bench};

/// GETs of segments are answered so.
fn refused(status: u16, code: &str) -> FaultRule {
    let action = FaultAction::Error {
        status,
        code: code.to_owned(),
        retry_after: None,
    };
    FaultRule::new(Operation::GetObject, action).key_contains(".log")
}

#[test]
fn a_consumer_in_sequence_costs_few_requests_and_no_byte_twice() {
    let bench = Bench::new(&[128 * MIB], &[]);
    bench.consume(0);
    // Manifest, the first mebibytes until he is known to go on, then 16 MiB at a time.
    let gets = bench.gets();
    assert!(gets <= 13, "{gets} GETs");
    assert!(soon(|| metric(&bench.engine, "store", "requests_running") == 0));
    let (bytes, size) = (bench.server.counters().bytes_out(), 128 * MIB);
    assert!(bytes <= size + size / 50, "{bytes} bytes for {size}");
    assert_idle(&bench.engine);
    // A second consumer finds the end of it in the cache.
    bench.server.counters().reset();
    bench.fetch(0, 120 * MIB);
    assert_eq!(bench.gets(), 0);
}

#[test]
fn the_next_segment_is_there_before_it_is_asked_for() {
    let bench = Bench::new(&[20 * MIB, 20 * MIB], &[]);
    bench.consume(0);
    // Its manifest, and its bytes in two requests.
    assert!(soon(|| metric(&bench.engine, "read_ahead", "requests_running") == 0));
    bench.server.counters().reset();
    let reader = open_segment(&bench.engine, &bench.segments[1].0, 0..MIB).unwrap();
    assert!(read_to_end(&reader, 1 << 20).unwrap() == bench.segments[1].1[..FETCH]);
    drop(reader);
    assert_eq!(bench.gets(), 0);
    bench.consume(1);
    assert!(bench.gets() <= 3, "{}", bench.gets());
    assert_idle(&bench.engine);
}

#[test]
fn random_reads_cost_the_chunks_that_they_touch() {
    let bench = Bench::new(&[256 * MIB], &[]);
    let mut random = StdRng::seed_from_u64(1);
    for _ in 0..100 {
        bench.fetch(0, random.random_range(0..255 * MIB));
    }
    let gets = bench.gets();
    assert!(gets <= 1 + 2 * 100, "{gets} GETs");
    assert_eq!(metric(&bench.engine, "read_ahead", "requests_total"), 0);
    assert_eq!(bench.server.counters().requests(Operation::ListObjectsV2), 0);
}

#[test]
fn who_reads_in_the_middle_of_the_next_segment_does_not_go_on_where_another_is_at_the_end() {
    let bench = Bench::new(&[24 * MIB, 128 * MIB], &[]);
    bench.consume(0);
    assert_idle(&bench.engine);
    let (requests, gets) = (metric(&bench.engine, "read_ahead", "requests_total"), bench.gets());
    for position in [70 * MIB, 90 * MIB, 110 * MIB] {
        bench.fetch(1, position);
    }
    assert_idle(&bench.engine);
    assert_eq!(metric(&bench.engine, "read_ahead", "requests_total"), requests);
    // A chunk or two each.
    assert!(bench.gets() <= gets + 6, "{} GETs", bench.gets() - gets);
}

#[test]
fn a_failed_load_ahead_is_no_failed_read() {
    let bench = Bench::new(&[48 * MIB], &[("request.attempt.timeout.ms", "1000")]);
    // Every second GET is cut in its body, or answered by an error.
    let cut = FaultRule::new(Operation::GetObject, FaultAction::TruncateBody { bytes: 3_000_000 }).key_contains(".log");
    let refused = refused(500, "InternalError");
    bench
        .server
        .faults()
        .set(vec![cut.skip(1).times(4), refused.skip(2).times(4)])
        .unwrap();
    bench.consume(0);
    assert_idle(&bench.engine);
}

#[test]
fn what_is_on_its_way_for_readers_who_left_is_given_up() {
    let bench = Bench::new(&[48 * MIB], &[("fetch.hedging.enabled", "false")]);
    // Three streams that continue each other; what is asked for ahead of the third comes to a halt.
    bench.fetch(0, 0);
    bench.fetch(0, MIB - 4000);
    let stalled =
        FaultRule::new(Operation::GetObject, FaultAction::StallBody { bytes: 2_500_000 }).key_contains(".log");
    bench.server.faults().set(vec![stalled]).unwrap();
    bench.fetch(0, 2 * MIB - 8000);
    assert!(metric(&bench.engine, "read_ahead", "requests_running") > 0);
    assert!(soon(|| metric(&bench.engine, "read_ahead", "requests_running") == 0));
    assert!(metric(&bench.engine, "read_ahead", "abandoned_total") > 0);
    bench.server.faults().clear();
    assert_idle(&bench.engine);
    // Whoever comes back finds the rest.
    let rest = read_segment(&bench.engine, &bench.segments[0].0, 4 * MIB..u64::MAX).unwrap();
    assert!(rest == bench.segments[0].1[4 * FETCH..]);
}

#[test]
fn consumers_of_many_segments_share_the_memory_and_hardly_a_chunk_comes_twice() {
    let memory = [("cache.memory.bytes", "33554432"), ("memory.budget.bytes", "100000000")];
    let bench = Bench::of_partitions(&[32 * MIB; 6], &memory);
    for (segment, _) in &bench.segments {
        drop(open_index(&bench.engine, segment, IndexType::Offset).unwrap());
    }
    bench.server.counters().reset();
    let slow = FaultRule::new(Operation::GetObject, FaultAction::Delay { ms: 20 }).key_contains(".log");
    bench.server.faults().set(vec![slow]).unwrap();
    thread::scope(|threads| {
        for segment in 0..bench.segments.len() {
            let bench = &bench;
            threads.spawn(move || bench.consume(segment));
        }
    });
    assert!(metric(&bench.engine, "read_ahead", "requests_total") > 0);
    let (bytes, size) = (bench.server.counters().bytes_out(), 6 * 32 * MIB);
    // Nearly none, where threads come by their turns as they may; without shares it is up to half of them.
    assert!(bytes <= size + size / 20, "{bytes} bytes for {size}");
    assert_idle(&bench.engine);
}

#[test]
fn what_waits_for_memory_ends_when_its_reader_pauses_and_begins_again_with_him() {
    let memory = [("cache.memory.bytes", "16777216"), ("memory.budget.bytes", "80000000")];
    let bench = Bench::new(&[96 * MIB], &memory);
    let slow = FaultRule::new(Operation::GetObject, FaultAction::Delay { ms: 20 }).key_contains(".log");
    bench.server.faults().set(vec![slow]).unwrap();
    let mut position = 0;
    let waits = || metric(&bench.engine, "read_ahead", "memory_waits_total");
    while waits() == 0 {
        position = bench.fetch(0, position) - 4000;
        if position > 24 * MIB {
            thread::sleep(Duration::from_millis(300));
        }
        assert!(position < 64 * MIB, "nothing has waited for memory");
    }
    // As much as he may have is there or comes, and the rest waits with the store.
    assert!(soon(|| metric(&bench.engine, "read_ahead", "requests_running") == 0));
    assert!(metric(&bench.engine, "read_ahead", "bytes") <= 16 * (1 << 20));
    assert!(metric(&bench.engine, "read_ahead", "abandoned_total") > 0);
    assert_idle(&bench.engine);
    while position < 95 * MIB {
        position = bench.fetch(0, position) - 4000;
    }
    assert_idle(&bench.engine);
}

#[test]
fn consumers_who_come_by_the_same_end_cost_one_listing() {
    let bench = Bench::new(&[20 * MIB, 4 * MIB], &[]);
    for _ in 0..3 {
        bench.consume(0);
    }
    assert!(soon(|| metric(&bench.engine, "read_ahead", "requests_running") == 0));
    let lists = || bench.server.counters().requests(Operation::ListObjectsV2);
    assert_eq!(lists(), 1);
    // Where the next one is gone, it is looked for again.
    delete(&bench.engine, &bench.segments[1].0, None).unwrap();
    bench.consume(0);
    assert!(soon(|| lists() == 2));
    assert_idle(&bench.engine);
}

#[test]
fn a_consumer_not_far_behind_another_costs_little() {
    let memory = [("cache.memory.bytes", "67108864"), ("memory.budget.bytes", "160000000")];
    let bench = Bench::new(&[192 * MIB], &memory);
    // Slow enough for the first to have all loaded ahead that he may have.
    let slow = FaultRule::new(Operation::GetObject, FaultAction::Delay { ms: 20 }).key_contains(".log");
    bench.server.faults().set(vec![slow]).unwrap();
    let (mut first, mut second) = (0, 0);
    while second < 191 * MIB {
        // Twice as fast as the second, until he is 20 MiB in front.
        for _ in 0..2 {
            if first < 191 * MIB && first < second + 20 * MIB {
                first = bench.fetch(0, first) - 4000;
            }
        }
        second = bench.fetch(0, second) - 4000;
    }
    let (bytes, size) = (bench.server.counters().bytes_out(), 192 * MIB);
    // A few chunks may; nearly all would come twice if the first took all memory for himself.
    assert!(bytes <= size + size / 10, "{bytes} bytes for {size}");
    assert_idle(&bench.engine);
}

#[test]
fn little_memory_and_few_places_do_not_wait_for_each_other() {
    let least = [
        ("chunk.size.bytes", "4194304"),
        ("memory.budget.bytes", "50331648"),
        ("cache.memory.bytes", "8388608"),
        ("fetch.timeout.ms", "20000"),
    ];
    let bench = Bench::of_partitions(&[24 * MIB; 8], &least);
    // The store asks for fewer, again and again.
    let throttled = || refused(503, "SlowDown");
    let rules = (0..20).map(|number| throttled().skip(number * 4).times(2)).collect();
    bench.server.faults().set(rules).unwrap();
    thread::scope(|threads| {
        for segment in 0..bench.segments.len() {
            let bench = &bench;
            threads.spawn(move || bench.consume(segment));
        }
    });
    assert_eq!(metric(&bench.engine, "fetch", "failures_total"), 0);
    assert_idle(&bench.engine);
}

#[test]
fn after_an_outage_requests_go_out_side_by_side_again() {
    let bench = Bench::new(&[160 * MIB], &[("request.attempt.timeout.ms", "1000")]);
    let mut position = 0;
    while position < 8 * MIB {
        position = bench.fetch(0, position) - 4000;
    }
    // All that is asked for in front of him now fails.
    bench.server.faults().set(vec![refused(403, "AccessDenied")]).unwrap();
    let begun = || metric(&bench.engine, "read_ahead", "requests_total");
    while read_segment(&bench.engine, &bench.segments[0].0, position..position + MIB).is_ok() {
        position += MIB;
    }
    assert!(soon(|| metric(&bench.engine, "read_ahead", "requests_running") == 0));
    bench.server.faults().clear();
    let before = begun();
    for _ in 0..4 {
        position = bench.fetch(0, position) - 4000;
    }
    assert!(begun() >= before + 2, "{} begun", begun() - before);
    assert_idle(&bench.engine);
}

#[test]
fn little_memory_costs_no_manifest_twice() {
    let memory = [("cache.memory.bytes", "8388608"), ("memory.budget.bytes", "70000000")];
    let bench = Bench::of_partitions(&[24 * MIB; 4], &memory);
    let manifests = FaultRule::new(Operation::GetObject, FaultAction::Delay { ms: 1 }).key_contains(".manifest");
    bench.server.faults().set(vec![manifests]).unwrap();
    thread::scope(|threads| {
        for segment in 0..bench.segments.len() {
            let bench = &bench;
            threads.spawn(move || bench.consume(segment));
        }
    });
    assert_eq!(bench.server.faults().status()[0].hits, 4);
    assert_idle(&bench.engine);
}
