//! A store that is away: not reached, or silent.

use std::time::Duration;

use alluvium_engine::ErrorKind;
use alluvium_testkit::{
    broker::*,
    proxy::{Availability, FaultKind, LinkFault, LinkRule},
};

use crate::{Bench, eventually, now};

fn is_about_the_store(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Unavailable | ErrorKind::Timeout)
}

#[test]
fn ten_copies_end_on_a_silent_store_new_ones_are_refused_and_all_come_back_with_it() {
    let quick = [("request.attempt.timeout.ms", "500"), ("request.timeout.ms", "2600")];
    let bench = Bench::with(&quick, |_| {});
    let segments: Vec<_> = (0..10).map(|seed| bench.segment(seed, 70_000)).collect();
    copy(&bench.engine, &bench.segment(99, 1000)).unwrap();
    let last_success = now();

    // It accepts connections, and answers nothing on them.
    bench.proxy.link_faults().add(LinkRule::new(LinkFault::BlackHole));
    bench.proxy.reset_connections();
    let begin = now();
    let tasks: Vec<_> = segments
        .iter()
        .map(|segment| bench.engine.start_copy(copy_request(segment)))
        .collect();
    for task in &tasks {
        let error = finish(task).unwrap_err();
        assert!(is_about_the_store(error.kind()), "{error}");
    }
    // A request's time for the copy and for the clean-up each.
    assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
    assert!(bench.struck(FaultKind::BlackHole) >= 10);
    assert_eq!(
        (bench.metric("store", "away"), bench.metric("store", "away_total")),
        (1, 1)
    );

    // What an operator sees meanwhile.
    assert_eq!(bench.metric("copy", "failures_total"), 10);
    assert_eq!(bench.metric("copy", "cleanup_failures_total"), 10);
    assert_eq!(bench.metric("copy", "segments_total"), 1);
    let age = Duration::from_millis(bench.metric("copy", "last_success_age_ms").unsigned_abs());
    let since = last_success.elapsed();
    assert!(
        age <= since + Duration::from_secs(1) && age + Duration::from_secs(2) >= since,
        "{age:?}, {since:?}"
    );

    // A copier thread is not to wait for it; one in ten seconds looks whether it is back.
    let mut refused = 0;
    for segment in &segments {
        let (begin, connections) = (now(), bench.proxy.counters().connections());
        let error = copy(&bench.engine, segment).unwrap_err();
        assert!(is_about_the_store(error.kind()), "{error}");
        let at_once = begin.elapsed() < Duration::from_millis(500);
        if at_once && bench.proxy.counters().connections() == connections {
            assert!(error.message().contains("has been away for"), "{error}");
            refused += 1;
        }
    }
    assert!(refused >= 7, "{refused} of ten were refused");

    bench.proxy.link_faults().clear();
    bench.proxy.reset_connections();
    for segment in &segments {
        eventually("a copy succeeds", || copy(&bench.engine, segment).is_ok());
    }
    assert_eq!(bench.metric("store", "away"), 0);
    assert_eq!(bench.left().0.len(), 22);
    assert_eq!(
        bench.metric("copy", "cleanups_pending"),
        0,
        "what was copied again is let alone"
    );
    assert!(bench.metric("copy", "last_success_age_ms") < 10_000);
    for segment in &segments {
        let bytes = read_segment(&bench.engine, segment, 0..u64::MAX).unwrap();
        assert!(bytes == segment.log_bytes().unwrap());
    }
    assert_idle(&bench.engine);
}

#[test]
fn deletes_while_the_store_is_away_are_bounded_and_can_be_repeated() {
    let quick = [("delete.timeout.ms", "1000"), ("request.attempt.timeout.ms", "500")];
    let bench = Bench::with(&quick, |_| {});
    let segments: Vec<_> = (1..=2).map(|seed| bench.segment(seed, 1000)).collect();
    let mut failures = 0;
    for segment in &segments {
        copy(&bench.engine, segment).unwrap();
    }
    for (segment, silent) in segments.iter().zip([false, true]) {
        if silent {
            bench.proxy.link_faults().add(LinkRule::new(LinkFault::BlackHole));
            bench.proxy.reset_connections();
        } else {
            bench.take_away();
        }
        // With and without custom metadata: then there are stale uploads to look for as well.
        for custom in [None, Some(Vec::new()), None] {
            let begin = now();
            let error = delete(&bench.engine, segment, custom).unwrap_err();
            assert!(begin.elapsed() < Duration::from_secs(4), "{:?}", begin.elapsed());
            assert!(is_about_the_store(error.kind()), "{error}");
            failures += 1;
        }
        assert_eq!(bench.metric("delete", "failures_total"), failures);
        bench.proxy.link_faults().clear();
        bench.set_availability(Availability::Up);
        bench.proxy.reset_connections();
        eventually("a delete succeeds", || {
            let deleted = delete(&bench.engine, segment, None).is_ok();
            failures += i64::from(!deleted);
            deleted
        });
        delete(&bench.engine, segment, None).unwrap();
        assert_eq!(kind(open_segment(&bench.engine, segment, 0..1)), ErrorKind::NotFound);
    }
    bench.assert_empty("at the end");
    assert_eq!(bench.metric("delete", "segments_total"), 4);
    assert_eq!(bench.metric("delete", "failures_total"), failures);
    assert_idle(&bench.engine);
}
