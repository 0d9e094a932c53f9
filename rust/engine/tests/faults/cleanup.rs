//! What is left of a copy that failed, and that it does not stay.

use std::{fs, path::Path, time::Duration};

use alluvium_engine::ErrorKind;
use alluvium_testkit::{
    broker::*,
    proxy::{Availability, FaultKind, HttpFault},
    s3_server::{FaultAction, FaultRule, Operation, Outcome},
};

use crate::{Bench, MIB, eventually, log, side_by_side};

#[test]
fn a_store_that_goes_away_in_mid_copy_is_clean_after_the_delete_that_succeeds() {
    let quick = [("request.timeout.ms", "1000"), ("delete.timeout.ms", "1000")];
    let operations = [
        Operation::UploadPart,
        Operation::CompleteMultipartUpload,
        Operation::PutObject,
    ];
    side_by_side(operations, |operation| {
        let bench = Bench::with(&quick, |_| {});
        let segment = bench.segment(1, 12 * MIB);
        // Of the parts, the last; then what is before it has been stored.
        let skip = if operation == Operation::UploadPart { 2 } else { 0 };
        bench.fault(FaultRule::new(operation, HttpFault::SlowReply { ms: 60_000 }).skip(skip));
        let task = bench.engine.start_copy(copy_request(&segment));
        eventually("the request is on its way", || bench.struck(FaultKind::SlowReply) == 1);
        let server = bench.server.counters();
        eventually("it was carried out", || {
            server.outcomes(operation, Outcome::Success) > skip
        });
        bench.take_away();
        let error = finish(&task).unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout),
            "{operation}: {error}"
        );
        assert_eq!(bench.metric("copy", "cleanup_failures_total"), 1, "{operation}");
        assert_eq!(bench.metric("copy", "cleanups_pending"), 1, "{operation}");
        // Kafka's own, which it does next.
        delete(&bench.engine, &segment, None).unwrap_err();
        let (keys, uploads) = bench.left();
        assert!(keys.len() + usize::try_from(uploads).unwrap() > 0, "{operation}");

        bench.proxy.faults().clear();
        bench.set_availability(Availability::Up);
        eventually("a delete succeeds", || delete(&bench.engine, &segment, None).is_ok());
        bench.assert_empty(operation);
        delete(&bench.engine, &segment, None).unwrap();
        assert_idle(&bench.engine);
        copy(&bench.engine, &segment).unwrap();
        bench.assert_one_segment(&segment, operation);
    });
}

#[test]
fn what_the_store_does_after_the_clean_up_is_undone_later() {
    let (done, refused) = (Outcome::Success, Outcome::ClientError);
    let cases = [
        (Operation::PutObject, 1000, ".log", done),
        (Operation::PutObject, 1000, ".manifest", done),
        (Operation::CreateMultipartUpload, 12 * MIB, ".log", done),
        // What was aborted stays so.
        (Operation::CompleteMultipartUpload, 12 * MIB, ".log", refused),
    ];
    side_by_side(cases, |(operation, size, key, outcome)| {
        let bench = Bench::with(&[], |config| {
            config.janitor_distances = vec![Duration::from_millis(1500), Duration::from_millis(2500)];
        });
        let segment = bench.segment(1, size);
        let rule = FaultRule::new(operation, HttpFault::Late { ms: 3000 }).key_contains(key);
        bench.fault(rule.times(1));
        let task = bench.engine.start_copy(copy_request(&segment));
        eventually("the request is on its way", || bench.struck(FaultKind::Late) == 1);
        let before = bench.server.counters().outcomes(operation, outcome);
        task.cancel();
        assert_eq!(kind(finish(&task)), ErrorKind::Cancelled);
        bench.assert_empty(operation);
        assert_eq!(bench.metric("copy", "cleanups_pending"), 1, "{operation}");
        eventually("it is carried out after all", || {
            bench.server.counters().outcomes(operation, outcome) > before
        });
        eventually("somebody came back", || bench.metric("copy", "cleanups_pending") == 0);
        bench.assert_empty(operation);
    });
}

#[test]
fn a_copy_that_panics_anywhere_leaves_nothing_and_the_next_one_works() {
    let bench = Bench::new();
    let segment = bench.segment(1, 12 * MIB);
    let busy = || HttpFault::error(503, "SlowDown");
    for (operation, fault) in [
        // In a part's task, in that of the manifest's put, and in the copy itself.
        (Operation::UploadPart, busy()),
        (Operation::PutObject, busy()),
        (Operation::CreateMultipartUpload, HttpFault::DropReply { reset: true }),
    ] {
        bench.fault(FaultRule::new(operation, fault).times(1));
        // Each of these failures is followed by a line of the log, whose writing panics.
        log::panic_at([segment.metadata.segment_id.to_string(), "trying again".to_owned()]);
        let error = copy(&bench.engine, &segment).unwrap_err();
        assert!(!log::is_armed(), "{operation}: nothing panicked");
        assert_eq!(error.kind(), ErrorKind::Internal, "{operation}: {error}");
        bench.proxy.faults().clear();
        bench.assert_empty(operation);
        assert_idle(&bench.engine);
    }
    assert_eq!(bench.metric("copy", "cleanup_failures_total"), 0);
    copy(&bench.engine, &segment).unwrap();
    bench.assert_one_segment(&segment, "copied again");
}

#[test]
fn parts_in_flight_have_ended_before_their_upload_is_aborted_twice() {
    let bench = Bench::new();
    let segment = bench.segment(1, 12 * MIB);
    let rule = FaultRule::new;
    bench
        .proxy
        .faults()
        .set(vec![
            rule(Operation::UploadPart, HttpFault::Stall),
            rule(Operation::AbortMultipartUpload, HttpFault::Delay { ms: 700 }).times(1),
        ])
        .unwrap();
    let task = bench.engine.start_copy(copy_request(&segment));
    eventually("three parts are under way", || bench.struck(FaultKind::Stall) == 3);
    assert!(bench.proxy.counters().connections_open() >= 3);
    task.cancel();
    eventually("the abort is on its way", || bench.struck(FaultKind::Delay) == 1);
    // That of the abort, and one that is idle.
    eventually("the parts have ended", || {
        bench.proxy.counters().connections_open() <= 2
    });
    assert_eq!(bench.server.counters().requests(Operation::AbortMultipartUpload), 0);
    assert_eq!(kind(finish(&task)), ErrorKind::Cancelled);
    assert_eq!(bench.requests(Operation::AbortMultipartUpload), 2);
    bench.assert_empty("cancelled");
}

/// Open files of this process under `directory`.
/// The manifest was sent twice: the first time there was no answer at all, so the store may still write it.
#[test]
fn a_failed_copy_is_come_back_to_whatever_its_last_answer_was() {
    let bench = Bench::with(
        &[("request.timeout.ms", "2000"), ("request.attempt.timeout.ms", "500")],
        |_| {},
    );
    let segment = bench.segment(1, 1000);
    let refused = FaultAction::Error {
        status: 503,
        code: "SlowDown".to_owned(),
        retry_after: None,
    };
    for (action, times) in [(FaultAction::Stall, 1), (refused, 1000)] {
        let rule = FaultRule::new(Operation::PutObject, action)
            .key_contains(".manifest")
            .times(times);
        bench.server.faults().add(rule).unwrap();
    }
    assert_eq!(kind(copy(&bench.engine, &segment)), ErrorKind::Throttled);
    assert_eq!(bench.metric("copy", "cleanups_pending"), 1);
}

fn open_files(directory: &Path) -> usize {
    let entries = fs::read_dir("/proc/self/fd").unwrap();
    let targets = entries.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    targets.filter(|target| target.starts_with(directory)).count()
}

#[test]
fn many_copies_leave_no_file_and_no_connection_open() {
    let root = tempfile::tempdir().unwrap();
    let bench = Bench::new();
    let on_directory = on_directory(root.path(), QUICK_DIRECTORY);
    let refused = || HttpFault::error(403, "AccessDenied");
    for round in 0..40 {
        let segment = bench.segment(round % 4, if round % 2 == 0 { 100_000 } else { 6 * MIB });
        for engine in [&bench.engine, &on_directory] {
            match round % 5 {
                0 => bench.fault(FaultRule::new(Operation::UploadPart, refused())),
                1 => bench.fault(FaultRule::new(Operation::PutObject, refused())),
                _ => bench.proxy.faults().clear(),
            }
            let task = engine.start_copy(copy_request(&segment));
            if round % 5 == 2 {
                task.cancel();
            }
            if finish(&task).is_ok() {
                // Opened and not read, as Kafka may do.
                drop(open_segment(engine, &segment, 10..u64::MAX).unwrap());
            }
            bench.proxy.faults().clear();
            delete(engine, &segment, None).unwrap();
        }
    }
    bench.assert_empty("at the end");
    eventually("all files are closed", || {
        open_files(bench.source.path()) + open_files(root.path()) == 0
    });
    assert_idle(&bench.engine);
    let open = bench.proxy.counters().connections_open();
    assert!(open <= 16, "{open} connections, which are to be used again");
}

const QUICK_DIRECTORY: &[(&str, &str)] = &[("chunk.size.bytes", "1048576"), ("upload.part.size.bytes", "5242880")];
