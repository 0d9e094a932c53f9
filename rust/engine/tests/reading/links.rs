//! Reading over links that are narrower than what is asked of them.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use alluvium_engine::ErrorKind;
use alluvium_testkit::{
    broker::*,
    proxy::LinkShape,
    s3_server::{FaultAction, FaultRule, Operation},
};

use tokio::time::Instant;

use super::{MIB, consumers::Bench};

/// A link on which all connections together carry so many bytes a second.
fn narrow(bytes_per_second: u64) -> LinkShape {
    LinkShape::round_trip(Duration::from_millis(4), None).shared_by_all(Some(bytes_per_second))
}

/// Reads a segment of `size` from end to end, none of which may come twice, within the time `most`.
fn consume_once(link: LinkShape, size: u64, most: Duration) {
    let bench = Bench::new(&[size], &[]).behind(link);
    let begin = Instant::now();
    bench.consume(0);
    let (bytes, took) = (bench.bytes(), begin.elapsed());
    println!("{bytes} bytes for {size} in {took:?}");
    assert!(bytes <= size + size / 50, "{bytes} bytes for {size}");
    assert!(took < most, "{took:?}");
    assert_idle(&bench.engine);
}

#[test]
fn nothing_comes_twice_where_the_link_is_slower_than_memory_is_large() {
    // The link needs 16.
    consume_once(narrow(4 * MIB), 64 * MIB, Duration::from_secs(20));
}

#[test]
fn many_slow_connections_bring_each_byte_once() {
    let link = LinkShape::round_trip(Duration::from_millis(4), Some(MIB));
    // One connection alone would take 96.
    consume_once(link, 96 * MIB, Duration::from_secs(30));
}

#[test]
fn who_reads_here_and_there_does_not_wait_for_what_is_loaded_ahead_of_another() {
    let bench = Bench::of_partitions(&[128 * MIB, 32 * MIB], &[]).behind(narrow(8 * MIB));
    let over = AtomicBool::new(false);
    let mut waits = Vec::new();
    thread::scope(|threads| {
        threads.spawn(|| {
            let mut position = 0;
            while !over.load(Ordering::Relaxed) {
                position = bench.fetch(0, position) - 4000;
            }
        });
        thread::sleep(Duration::from_secs(4));
        for number in 0..12 {
            let begin = Instant::now();
            bench.fetch(1, (number * 7 % 13) * 2 * MIB + 100_000);
            waits.push(begin.elapsed());
            thread::sleep(Duration::from_millis(100));
        }
        over.store(true, Ordering::Relaxed);
    });
    waits.sort_unstable();
    println!("{waits:?}");
    // Two chunks of 1 MiB with a third of the link: 0.8 s.
    assert!(waits[6] < Duration::from_millis(1200), "{waits:?}");
    assert!(waits[11] < Duration::from_millis(2500), "{waits:?}");
}

#[test]
fn a_chunk_that_needs_longer_than_a_fetch_may_wait_comes_all_the_same() {
    let settings = [("chunk.size.bytes", "4194304"), ("fetch.timeout.ms", "2000")];
    let bench = Bench::new(&[4 * MIB], &settings).behind(narrow(MIB));
    let (segment, log) = &bench.segments[0];
    let mut failed = 0;
    let read = loop {
        match read_segment(&bench.engine, segment, 0..u64::MAX) {
            Ok(read) => break read,
            Err(error) => assert_eq!(error.kind(), ErrorKind::Timeout, "{error}"),
        }
        failed += 1;
        assert!(failed < 4, "its bytes are thrown away each time");
    };
    assert!(failed > 0 && read == *log, "{failed} failed");
    // Manifest and chunk.
    assert_eq!(bench.gets(), 2);
    assert_idle(&bench.engine);
}

#[test]
fn several_consumers_of_slow_connections_get_several_each() {
    let link = LinkShape::round_trip(Duration::from_millis(4), Some(2 * MIB));
    let bench = Bench::of_partitions(&[48 * MIB; 3], &[]).behind(link);
    let begin = Instant::now();
    thread::scope(|threads| {
        for segment in 0..3 {
            let bench = &bench;
            threads.spawn(move || bench.consume(segment));
        }
    });
    let took = begin.elapsed();
    println!("{took:?}");
    // One connection for each of them would take 24 s, twelve in all 6.
    assert!(took < Duration::from_secs(16), "{took:?}");
    assert_idle(&bench.engine);
}

#[test]
fn a_body_that_halted_once_leaves_requests_as_large_as_they_were() {
    let bench = Bench::new(&[128 * MIB], &[]).behind(narrow(60 * MIB));
    let halts = FaultRule::new(Operation::GetObject, FaultAction::StallBody { bytes: 70_000 }).key_contains(".log");
    bench.server.faults().set(vec![halts.skip(1).times(1)]).unwrap();
    bench.consume(0);
    assert!(bench.gets() <= 24, "{} GETs", bench.gets());
    assert_idle(&bench.engine);
}
