//! Answers and requests that get lost, and faults that last or pass.

use alluvium_engine::ErrorKind;
use alluvium_format::IndexType;
use alluvium_testkit::{
    broker::*,
    proxy::HttpFault,
    s3_server::{FaultRule, Operation},
};

use crate::{Bench, MIB, eventually, side_by_side};

/// The requests of a copy in parts.
const STEPS: [Operation; 4] = [
    Operation::CreateMultipartUpload,
    Operation::UploadPart,
    Operation::CompleteMultipartUpload,
    Operation::PutObject,
];

#[test]
fn whatever_gets_lost_once_the_copy_is_done_once() {
    side_by_side(STEPS, |operation| {
        let bench = Bench::new();
        let segment = bench.segment(1, 12 * MIB);
        for fault in losses(operation) {
            let struck = bench.struck(fault.kind());
            bench.fault(FaultRule::new(operation, fault.clone()).times(1));
            let custom = copy(&bench.engine, &segment);
            let custom = custom.unwrap_or_else(|error| panic!("{operation} {fault:?}: {error}"));
            assert_eq!(bench.struck(fault.kind()), struck + 1, "{operation} {fault:?}");
            bench.proxy.faults().clear();
            bench.assert_one_segment(&segment, (operation, &fault));
            delete(&bench.engine, &segment, Some(custom)).unwrap();
            // What the other one has cached.
            delete(&bench.witness, &segment, None).unwrap();
        }
        bench.assert_empty(operation);
        assert_idle(&bench.engine);
    });
}

/// Everything that can get lost of a request or its answer.
fn losses(operation: Operation) -> Vec<HttpFault> {
    let mut losses = vec![
        HttpFault::DropRequest { reset: false },
        HttpFault::DropRequest { reset: true },
        HttpFault::DropReply { reset: false },
        HttpFault::DropReply { reset: true },
        // Longer than an attempt: done, but nobody heard of it in time.
        HttpFault::SlowReply { ms: 1500 },
        HttpFault::Error {
            status: 502,
            code: String::new(),
            retry_after: None,
            html: true,
        },
    ];
    let (begins, completes) = (
        operation == Operation::CreateMultipartUpload,
        operation == Operation::CompleteMultipartUpload,
    );
    if begins || completes {
        let cut = |reset| HttpFault::TruncateBody { bytes: 60, reset };
        losses.extend([cut(false), cut(true), HttpFault::StallBody { bytes: 60 }]);
    }
    if completes {
        // 200 with an error in the body, done or not.
        losses.extend([false, true].map(|commit| HttpFault::OkWithError {
            code: "InternalError".to_owned(),
            commit,
        }));
    }
    losses
}

#[test]
fn a_fault_that_lasts_fails_the_copy_which_leaves_nothing() {
    side_by_side(STEPS, |operation| {
        let bench = Bench::with(&[("request.timeout.ms", "1000")], |_| {});
        let segment = bench.segment(1, 12 * MIB);
        let lost = HttpFault::DropReply { reset: true };
        let mut faults = vec![
            HttpFault::error(503, "SlowDown"),
            HttpFault::DropRequest { reset: true },
        ];
        if operation == Operation::CompleteMultipartUpload {
            faults.push(HttpFault::OkWithError {
                code: "SlowDown".to_owned(),
                commit: false,
            });
        } else {
            // Of an end whose answers all get lost, the object itself shows that it was carried out.
            faults.push(lost);
        }
        for fault in faults {
            bench.fault(FaultRule::new(operation, fault.clone()));
            let error = copy(&bench.engine, &segment).unwrap_err();
            let expected = [ErrorKind::Unavailable, ErrorKind::Throttled, ErrorKind::Timeout];
            assert!(expected.contains(&error.kind()), "{operation} {fault:?}: {error}");
            assert!(error.is_retryable(), "{operation} {fault:?}: {error}");
            bench.proxy.faults().clear();
            bench.assert_empty((operation, &fault));
            assert_idle(&bench.engine);
            // The store may count as away now; it does not after an answer.
            eventually("the store answers", || delete(&bench.engine, &segment, None).is_ok());
        }
        assert_eq!(bench.metric("copy", "failures_total"), 3);
        assert_eq!(bench.metric("copy", "cleanup_failures_total"), 0);
        copy(&bench.engine, &segment).unwrap();
        bench.assert_one_segment(&segment, "after all of it");
    });
}

#[test]
fn segments_and_indexes_of_no_bytes_are_never_asked_for() {
    let bench = Bench::new();
    // Nothing of the log may be asked for, and what is not one part needs no upload.
    let refused = HttpFault::error(403, "AccessDenied");
    let rule = |operation| FaultRule::new(operation, refused.clone());
    let rules = [
        rule(Operation::GetObject).key_contains(".log"),
        rule(Operation::CreateMultipartUpload),
    ];
    bench.proxy.faults().set(rules.to_vec()).unwrap();
    for (seed, transaction_index) in [(3, true), (6, false)] {
        let mut segment = bench.segment(seed, 0);
        std::fs::write(&segment.producer_snapshot, []).unwrap();
        segment.leader_epochs = bytes::Bytes::new();
        if !transaction_index {
            segment.transaction_index = None;
        }
        let before = bench.requests(Operation::PutObject);
        let custom = copy(&bench.engine, &segment).unwrap();
        assert_eq!(bench.requests(Operation::PutObject), before + 2);
        let empty = Vec::<u8>::new();
        assert_eq!(read_segment(&bench.engine, &segment, 0..u64::MAX).unwrap(), empty);
        for index_type in IndexType::ALL {
            if index_type == IndexType::Transaction && !transaction_index {
                let missing = open_index(&bench.engine, &segment, index_type);
                assert_eq!(kind(missing), ErrorKind::NotFound);
                continue;
            }
            let reader = open_index(&bench.engine, &segment, index_type).unwrap();
            assert_eq!(read_to_end(&reader, 10).unwrap(), empty, "{index_type:?}");
        }
        delete(&bench.engine, &segment, Some(custom)).unwrap();
    }
    bench.assert_empty("at the end");
}

#[test]
fn a_store_that_asks_for_less_gets_less_and_later_all_again() {
    let bench = Bench::with(&[("request.timeout.ms", "20000")], |config| {
        config.policies.writes_max = 8
    });
    let limit = || bench.metric("store", "writes_limit");
    assert_eq!(limit(), 8);
    bench.fault(FaultRule::new(
        Operation::UploadPart,
        HttpFault::Error {
            status: 503,
            code: "SlowDown".to_owned(),
            retry_after: Some(1),
            html: false,
        },
    ));
    let segments: Vec<_> = (1..=4).map(|seed| bench.segment(seed, 12 * MIB)).collect();
    let tasks: Vec<_> = segments
        .iter()
        .map(|segment| bench.engine.start_copy(copy_request(segment)))
        .collect();
    let begin = crate::now();
    eventually("one write at a time", || limit() == 1);
    let (took, asked) = (begin.elapsed(), bench.requests(Operation::UploadPart));
    // Each of the eight under way comes again once a second, since that is what the store asked for.
    assert!(asked <= 8 * (took.as_secs() + 1), "{asked} requests in {took:?}");
    assert_eq!(bench.metric("store", "away"), 0, "it answers");
    bench.proxy.faults().clear();
    for task in &tasks {
        finish(task).unwrap();
    }
    let small = bench.segment(9, 1000);
    eventually("as many writes as ever", || {
        copy(&bench.engine, &small).unwrap();
        limit() == 8
    });
    assert_eq!(bench.left().0.len(), 10);
    assert!(bench.metric("store", "throttled_errors_total") > 0);
    assert_idle(&bench.engine);
}

#[test]
fn a_clock_that_is_off_is_survived_or_told_plainly() {
    let bench = Bench::new();
    let segment = bench.segment(1, 12 * MIB);
    let skewed = || FaultRule::any(HttpFault::error(403, "RequestTimeTooSkewed"));
    // A request that lay about too long: the next attempt has a date of its own.
    bench.fault(skewed().skip(1).times(2));
    copy(&bench.engine, &segment).unwrap();
    delete(&bench.engine, &segment, None).unwrap();
    // A clock that is wrong.
    bench.fault(skewed());
    for error in [
        copy(&bench.engine, &segment).unwrap_err(),
        open_segment(&bench.engine, &segment, 0..1).map(|_| ()).unwrap_err(),
        delete(&bench.engine, &segment, None).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        assert!(error.message().contains("set this machine's clock"), "{error}");
    }
    assert!(bench.metric("store", "denied_errors_total") > 0);
    assert_eq!(bench.metric("store", "away"), 0, "it answers");
    let endpoint = bench.proxy.endpoint();
    let settings = settings_for(&bench.server, &[("s3.endpoint", endpoint.as_str())]);
    let error = alluvium_engine::Engine::open(settings).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(error.message().contains("clock"), "{error}");
    bench.proxy.faults().clear();
    copy(&bench.engine, &segment).unwrap();
    bench.assert_one_segment(&segment, "with the right clock");
}
