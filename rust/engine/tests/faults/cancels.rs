//! Copies that are cancelled, at every request and at any moment. Kafka cancels them when a partition's leader moves, and does not
//! clean up after them.

use std::time::Duration;

use alluvium_engine::ErrorKind;
use alluvium_testkit::{
    broker::*,
    proxy::{FaultKind, HttpFault, LinkShape},
    s3_server::{FaultRule, Operation},
    segment::TestSegment,
};

use crate::{Bench, MIB, eventually, side_by_side};

/// Cancels a copy while its request number `skip` is on its way, or its answer is.
fn cancel_at(bench: &Bench, segment: &TestSegment, skip: u64, fault: &HttpFault) {
    let struck = bench.struck(fault.kind());
    bench.fault(FaultRule::any(fault.clone()).skip(skip).times(1));
    let task = bench.engine.start_copy(copy_request(segment));
    eventually("the request is on its way", || bench.struck(fault.kind()) > struck);
    task.cancel();
    assert_eq!(kind(finish(&task)), ErrorKind::Cancelled, "request {skip}, {fault:?}");
    bench.assert_empty((skip, fault));
    assert_idle(&bench.engine);
}

#[test]
fn a_copy_cancelled_at_any_of_its_requests_leaves_nothing() {
    let faults = [
        HttpFault::Delay { ms: 300 },
        HttpFault::SlowReply { ms: 300 },
        // Never answered: it is given up, and what it may have done is removed.
        HttpFault::Stall,
    ];
    side_by_side(faults, |fault| {
        let bench = Bench::new();
        // A put and the manifest's; an upload, three parts, its end and the manifest's put.
        for (size, requests) in [(100_000, 2), (12 * MIB, 6)] {
            let segment = bench.segment(size, size);
            let before = bench.proxy.counters().all_requests();
            copy(&bench.engine, &segment).unwrap();
            assert_eq!(bench.proxy.counters().all_requests() - before, requests);
            delete(&bench.engine, &segment, None).unwrap();
            for skip in 0..requests {
                cancel_at(&bench, &segment, skip, &fault);
            }
            bench.proxy.faults().clear();
            copy(&bench.engine, &segment).unwrap();
            bench.assert_one_segment(&segment, "copied again");
            delete(&bench.engine, &segment, None).unwrap();
        }
        assert_eq!(bench.metric("copy", "cleanup_failures_total"), 0);
    });
}

#[test]
fn a_copy_cancelled_at_any_moment_leaves_nothing() {
    for compression in ["none", "zstd"] {
        let bench = Bench::with(&[("compression.type", compression)], |_| {});
        let segment = bench.segment(1, 12 * MIB);
        // Wide enough for a third of a second.
        bench
            .proxy
            .set_link(LinkShape::round_trip(Duration::from_millis(4), Some(48 << 20)));
        let mut cancelled = 0;
        for moment in 0..10 {
            let task = bench.engine.start_copy(copy_request(&segment));
            let early = task.wait(Duration::from_millis(2 + 30 * moment));
            task.cancel();
            match early.unwrap_or_else(|| finish(&task)) {
                Ok(_) => {
                    bench.assert_one_segment(&segment, moment);
                    delete(&bench.witness, &segment, None).unwrap();
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
                    cancelled += 1;
                }
            }
            bench.assert_empty((compression, moment));
            assert_idle(&bench.engine);
        }
        assert!(cancelled >= 3, "{cancelled} of 10");
        assert_eq!(bench.metric("copy", "cleanup_failures_total"), 0);
    }
}

#[test]
fn a_copy_cancelled_while_it_waits_for_memory_gives_everything_back() {
    let memory = [
        ("memory.budget.bytes", "33554432"),
        ("cache.memory.bytes", "8388608"),
        ("copy.timeout.ms", "60000"),
        ("request.attempt.timeout.ms", "60000"),
        ("request.timeout.ms", "60000"),
    ];
    let bench = Bench::with(&memory, |_| {});
    let (first, second) = (bench.segment(1, 40 * MIB), bench.segment(2, 40 * MIB));
    let stalled = FaultRule::new(Operation::UploadPart, HttpFault::Stall);
    bench.fault(stalled.key_contains(first.metadata.segment_id.to_string()));
    let holding = bench.engine.start_copy(copy_request(&first));
    // As many parts as fit are stuck, and the next one waits for memory already.
    let part = 5 << 20;
    eventually("no part has room any more", || {
        let left = bench.metric("memory", "upload_capacity_bytes") - bench.metric("memory", "upload_bytes");
        left < part && bench.struck(FaultKind::Stall) >= 2
    });
    let waiting = bench.engine.start_copy(copy_request(&second));
    eventually("the other has begun", || {
        bench.server.counters().multipart_uploads_open() == 2
    });
    assert!(waiting.wait(Duration::from_millis(100)).is_none());
    waiting.cancel();
    assert_eq!(kind(finish(&waiting)), ErrorKind::Cancelled);
    assert_eq!(bench.left(), (Vec::new(), 1));
    holding.cancel();
    assert_eq!(kind(finish(&holding)), ErrorKind::Cancelled);
    bench.assert_empty("both were cancelled");
    assert_idle(&bench.engine);
    bench.proxy.faults().clear();
    copy(&bench.engine, &second).unwrap();
    bench.assert_one_segment(&second, "copied again");
}
