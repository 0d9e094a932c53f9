//! The operations on a real S3 protocol: requests counted, faults of the store, nothing left behind.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use alluvium_engine::ErrorKind;
use alluvium_format::IndexType;
use alluvium_testkit::{
    broker::*,
    s3_server::{FaultAction, FaultRule, Operation, S3Server},
    segment::TestSegment,
};
use tempfile::tempdir;

const MIB: u64 = 1 << 20;

/// Parts of 5 MiB, chunks of 1 MiB, and deadlines that a test can wait for.
const QUICK: &[(&str, &str)] = &[
    ("chunk.size.bytes", "1048576"),
    ("upload.part.size.bytes", "5242880"),
    ("request.attempt.timeout.ms", "1000"),
    ("request.timeout.ms", "3000"),
    ("fetch.timeout.ms", "4000"),
    ("copy.timeout.ms", "6000"),
];

/// Objects and multipart uploads in the bucket.
fn left(engine: &alluvium_engine::Engine, server: &S3Server) -> (usize, u64) {
    let objects = engine
        .block_on(engine.store().list("", None, 1000))
        .unwrap()
        .objects
        .len();
    (objects, server.counters().multipart_uploads_open())
}

#[test]
fn a_cold_segment_with_its_indexes_costs_two_gets_and_a_warm_one_none() {
    let (source, server) = (tempdir().unwrap(), server());
    let segment = TestSegment::write(source.path(), 1, 3 * MIB).unwrap();
    copy(&on_server(&server, QUICK), &segment).unwrap();
    let engine = on_server(&server, QUICK);
    server.counters().reset();
    for index_type in [IndexType::Offset, IndexType::Timestamp, IndexType::Transaction] {
        read_to_end(&open_index(&engine, &segment, index_type).unwrap(), 8192).unwrap();
    }
    let reader = open_segment(&engine, &segment, 100..u64::MAX).unwrap();
    assert_eq!(read_once(&reader, 17).unwrap().unwrap().len(), 17);
    assert_eq!(server.counters().requests(Operation::GetObject), 2);
    // As Kafka reads: a stream for every mebibyte or so, 17 bytes, a batch, the rest.
    for _ in 0..2 {
        let mut position = 0;
        while position < 3 * MIB {
            let reader = open_segment(&engine, &segment, position..u64::MAX).unwrap();
            for piece in [17, 1000, 300_000] {
                position += read_once(&reader, piece).unwrap().map_or(0, |bytes| bytes.len() as u64);
            }
        }
    }
    // A manifest, the first chunk, and what follows in one or two: then the reader is known to go on.
    let gets = server.counters().requests(Operation::GetObject);
    assert!((3..=4).contains(&gets), "{gets}");
    // Each of the two who read it to its end looked for the segment behind.
    let listings = server.counters().requests(Operation::ListObjectsV2);
    assert!(listings <= 2, "{listings}");
    assert_eq!(server.counters().all_requests(), gets + listings);
    let bytes = server.counters().bytes_out();
    assert!(bytes < 3 * MIB + 100_000, "{bytes} bytes: nothing is fetched twice");
}

#[test]
fn eight_consumers_of_a_segment_cost_the_requests_of_one() {
    let (source, server) = (tempdir().unwrap(), server());
    let segment = TestSegment::write(source.path(), 1, 8 * MIB).unwrap();
    copy(&on_server(&server, QUICK), &segment).unwrap();
    let engine = on_server(&server, QUICK);
    let bytes = segment.log_bytes().unwrap();
    server.counters().reset();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| assert!(read_segment(&engine, &segment, 0..u64::MAX).unwrap() == bytes));
        }
    });
    let gets = server.counters().requests(Operation::GetObject);
    assert!(
        gets <= 9,
        "a manifest and at most one for each of eight chunks, not {gets}"
    );
    assert_idle(&engine);
}

#[test]
fn a_delete_is_one_request_and_also_ends_uploads_that_never_finished() {
    let (source, server) = (tempdir().unwrap(), server());
    let segment = TestSegment::write(source.path(), 1, 12 * MIB).unwrap();
    let engine = on_server(&server, QUICK);
    let custom = copy(&engine, &segment).unwrap();
    server.counters().reset();
    delete(&engine, &segment, Some(custom)).unwrap();
    assert_eq!(server.counters().all_requests(), 1);
    assert_eq!(left(&engine, &server), (0, 0));

    // A broker killed in the middle of a copy leaves an upload that only its key tells of.
    let store = engine.store();
    let key =
        alluvium_format::SegmentKeys::new(&alluvium_format::KeyPrefix::new("tier/").unwrap(), &segment.metadata).log;
    engine
        .block_on(store.create_upload(&alluvium_store::Key::new(key).unwrap()))
        .unwrap();
    assert_eq!(left(&engine, &server), (0, 1));
    delete(&engine, &segment, None).unwrap();
    assert_eq!(left(&engine, &server), (0, 0));
}

#[test]
fn a_copy_that_fails_anywhere_leaves_nothing() {
    let (source, server) = (tempdir().unwrap(), server());
    let engine = on_server(&server, QUICK);
    let segment = TestSegment::write(source.path(), 1, 12 * MIB).unwrap();
    let refused = || FaultAction::Error {
        status: 403,
        code: "AccessDenied".to_owned(),
        retry_after: None,
    };
    let cases = [
        (
            FaultRule::new(Operation::CreateMultipartUpload, refused()),
            ErrorKind::Denied,
        ),
        (
            FaultRule::new(Operation::UploadPart, refused()).skip(1),
            ErrorKind::Denied,
        ),
        (
            FaultRule::new(Operation::CompleteMultipartUpload, refused()),
            ErrorKind::Denied,
        ),
        (FaultRule::new(Operation::PutObject, refused()), ErrorKind::Denied),
        (
            FaultRule::new(Operation::UploadPart, FaultAction::Stall),
            ErrorKind::Timeout,
        ),
        (
            FaultRule::new(Operation::CompleteMultipartUpload, FaultAction::Stall),
            ErrorKind::Timeout,
        ),
        (
            FaultRule::new(Operation::PutObject, FaultAction::Stall),
            ErrorKind::Timeout,
        ),
    ];
    for (rule, expected) in cases {
        server.faults().set(vec![rule.clone()]).unwrap();
        assert_eq!(kind(copy(&engine, &segment)), expected, "{rule:?}");
        server.faults().clear();
        assert_eq!(left(&engine, &server), (0, 0), "{rule:?}");
        assert_idle(&engine);
    }
    assert_eq!(metric(&engine, "copy", "failures_total"), 7);
    assert_eq!(metric(&engine, "copy", "cleanup_failures_total"), 0);
    copy(&engine, &segment).unwrap();
    assert!(read_segment(&engine, &segment, 0..u64::MAX).unwrap() == segment.log_bytes().unwrap());
}

#[test]
fn a_copy_survives_what_passes() {
    let (source, server) = (tempdir().unwrap(), server());
    let engine = on_server(&server, QUICK);
    let segment = TestSegment::write(source.path(), 1, 12 * MIB).unwrap();
    let slow_down = FaultAction::Error {
        status: 503,
        code: "SlowDown".to_owned(),
        retry_after: None,
    };
    server
        .faults()
        .set(vec![
            FaultRule::new(Operation::CreateMultipartUpload, slow_down.clone()).times(1),
            FaultRule::new(Operation::UploadPart, FaultAction::Reset).times(2),
            FaultRule::new(Operation::CompleteMultipartUpload, FaultAction::DropReply).times(1),
            FaultRule::new(Operation::PutObject, slow_down).times(2),
            FaultRule::new(Operation::GetObject, FaultAction::TruncateBody { bytes: 1000 }).times(2),
            FaultRule::new(Operation::GetObject, FaultAction::CorruptBody { at: 5 }).times(1),
        ])
        .unwrap();
    copy(&engine, &segment).unwrap();
    assert!(read_segment(&engine, &segment, 0..u64::MAX).unwrap() == segment.log_bytes().unwrap());
    assert_eq!(left(&engine, &server), (2, 0));
    assert!(metric(&engine, "store", "retries_total") >= 6);
    assert_idle(&engine);
}

#[test]
fn a_cancelled_copy_leaves_nothing() {
    let (source, server) = (tempdir().unwrap(), server());
    let engine = on_server(&server, QUICK);
    let segment = TestSegment::write(source.path(), 1, 12 * MIB).unwrap();
    for operation in [
        Operation::CreateMultipartUpload,
        Operation::UploadPart,
        Operation::CompleteMultipartUpload,
        Operation::PutObject,
    ] {
        server
            .faults()
            .set(vec![FaultRule::new(operation, FaultAction::Delay { ms: 500 })])
            .unwrap();
        let before = server.counters().requests(operation);
        let task = engine.start_copy(copy_request(&segment));
        while server.counters().requests(operation) == before {
            assert!(task.wait(Duration::from_millis(1)).is_none());
        }
        task.cancel();
        assert_eq!(kind(finish(&task)), ErrorKind::Cancelled);
        server.faults().clear();
        assert_eq!(left(&engine, &server), (0, 0), "{operation:?}");
        assert_idle(&engine);
    }
}

#[test]
fn closing_cancels_a_copy_which_cleans_up_first() {
    let (source, server) = (tempdir().unwrap(), server());
    let engine = on_server(&server, &[QUICK, &[("close.timeout.ms", "5000")]].concat());
    let segment = TestSegment::write(source.path(), 1, 12 * MIB).unwrap();
    server
        .faults()
        .set(vec![FaultRule::new(Operation::UploadPart, FaultAction::Stall)])
        .unwrap();
    let task = engine.start_copy(copy_request(&segment));
    while server.counters().requests(Operation::UploadPart) == 0 {
        assert!(task.wait(Duration::from_millis(1)).is_none());
    }
    engine.close();
    assert_eq!(kind(finish(&task)), ErrorKind::Cancelled);
    assert_eq!(server.counters().multipart_uploads_open(), 0);
}

#[test]
fn a_body_that_never_comes_ends_in_an_error_within_the_deadline() {
    let (source, server) = (tempdir().unwrap(), server());
    let engine = on_server(&server, QUICK);
    let segment = TestSegment::write(source.path(), 1, 2 * MIB).unwrap();
    copy(&engine, &segment).unwrap();
    for action in [
        FaultAction::Stall,
        FaultAction::StallBody { bytes: 10 },
        FaultAction::TruncateBody { bytes: 10 },
    ] {
        server
            .faults()
            .set(vec![
                FaultRule::new(Operation::GetObject, action.clone()).key_contains(".log"),
            ])
            .unwrap();
        let error = read_segment(&engine, &segment, 0..u64::MAX).unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::Timeout | ErrorKind::Corrupt),
            "{action:?}: {error}"
        );
        server.faults().clear();
        assert_idle(&engine);
    }
    assert!(read_segment(&engine, &segment, 0..u64::MAX).unwrap() == segment.log_bytes().unwrap());
}

#[test]
fn a_reader_that_gives_up_leaves_the_load_to_the_next() {
    let (source, server) = (tempdir().unwrap(), server());
    let segment = TestSegment::write(source.path(), 1, MIB).unwrap();
    copy(&on_server(&server, QUICK), &segment).unwrap();
    let engine = on_server(&server, QUICK);
    server
        .faults()
        .set(vec![
            FaultRule::new(Operation::GetObject, FaultAction::Delay { ms: 300 }).key_contains(".log"),
        ])
        .unwrap();
    server.counters().reset();
    let reader = open_segment(&engine, &segment, 0..u64::MAX).unwrap();
    assert_eq!(
        reader.read(10, Duration::from_millis(1)).unwrap(),
        alluvium_engine::Read::Pending
    );
    drop(reader);
    assert!(read_segment(&engine, &segment, 0..u64::MAX).unwrap() == segment.log_bytes().unwrap());
    assert_eq!(
        server.counters().requests(Operation::GetObject),
        2,
        "a manifest and a chunk"
    );
}

#[test]
fn a_segment_deleted_under_a_reader_ends_in_not_found() {
    let (source, server) = (tempdir().unwrap(), server());
    let engine = on_server(&server, QUICK);
    let segment = TestSegment::write(source.path(), 1, 4 * MIB).unwrap();
    let custom = copy(&engine, &segment).unwrap();
    let reader = open_segment(&engine, &segment, 0..u64::MAX).unwrap();
    read_once(&reader, 10).unwrap();
    delete(&engine, &segment, Some(custom)).unwrap();
    assert_eq!(kind(read_to_end(&reader, 1 << 20)), ErrorKind::NotFound);
    assert_eq!(kind(open_segment(&engine, &segment, 0..1)), ErrorKind::NotFound);
    assert_eq!(metric(&engine, "cache", "loads_running"), 0);
    assert_idle(&engine);
}

#[test]
fn a_store_may_take_its_time_to_put_an_object_together() {
    let (source, server) = (tempdir().unwrap(), server());
    let engine = on_server(&server, QUICK);
    let segment = TestSegment::write(source.path(), 1, 32 * MIB).unwrap();
    // Longer than an attempt's limit, within what the limit grants for so many bytes.
    let slow = FaultAction::Delay { ms: 2000 };
    server
        .faults()
        .set(vec![FaultRule::new(Operation::CompleteMultipartUpload, slow)])
        .unwrap();
    copy(&engine, &segment).unwrap();
    assert_eq!(server.counters().requests(Operation::CompleteMultipartUpload), 1);
}

#[test]
fn a_clean_up_goes_on_after_its_first_failure() {
    let (source, server) = (tempdir().unwrap(), server());
    let engine = on_server(&server, QUICK);
    let segment = TestSegment::write(source.path(), 1, 12 * MIB).unwrap();
    let refused = FaultAction::Error {
        status: 403,
        code: "AccessDenied".to_owned(),
        retry_after: None,
    };
    server
        .faults()
        .set(vec![
            FaultRule::new(Operation::PutObject, refused.clone()),
            FaultRule::new(Operation::AbortMultipartUpload, refused.clone()),
        ])
        .unwrap();
    assert_eq!(kind(copy(&engine, &segment)), ErrorKind::Denied);
    assert_eq!(metric(&engine, "copy", "cleanup_failures_total"), 1);
    assert_eq!(left(&engine, &server), (0, 0));

    server.faults().clear();
    copy(&engine, &segment).unwrap();
    let broken = FaultAction::Error {
        status: 500,
        code: "InternalError".to_owned(),
        retry_after: None,
    };
    server
        .faults()
        .set(vec![FaultRule::new(Operation::ListMultipartUploads, broken)])
        .unwrap();
    assert_eq!(kind(delete(&engine, &segment, None)), ErrorKind::Unavailable);
    assert_eq!(left(&engine, &server), (0, 0));
}

#[test]
fn an_upload_whose_begin_got_no_answer_is_found_and_aborted() {
    let (source, server) = (tempdir().unwrap(), server());
    let engine = on_server(&server, QUICK);
    let segment = TestSegment::write(source.path(), 1, 12 * MIB).unwrap();
    let lost = FaultRule::new(Operation::CreateMultipartUpload, FaultAction::DropReply);
    server.faults().set(vec![lost.clone().times(1)]).unwrap();
    copy(&engine, &segment).unwrap();
    assert_eq!(left(&engine, &server), (2, 0));
    delete(&engine, &segment, None).unwrap();

    server.faults().set(vec![lost]).unwrap();
    assert_eq!(kind(copy(&engine, &segment)), ErrorKind::Unavailable);
    assert_eq!(left(&engine, &server), (0, 0));
    assert_idle(&engine);
}

#[test]
fn a_segment_deleted_by_another_broker_is_found_out() {
    let (source, server) = (tempdir().unwrap(), server());
    let (engine, other) = (on_server(&server, QUICK), on_server(&server, QUICK));
    let segment = TestSegment::write(source.path(), 1, 4 * MIB).unwrap();
    copy(&engine, &segment).unwrap();
    read_segment(&engine, &segment, 0..10).unwrap();
    delete(&other, &segment, None).unwrap();
    assert_eq!(kind(read_segment(&engine, &segment, 0..u64::MAX)), ErrorKind::NotFound);
    assert_eq!(kind(open_segment(&engine, &segment, 0..1)), ErrorKind::NotFound);
}

#[test]
fn what_the_store_finishes_after_a_failed_copy_is_removed_later() {
    let (source, server) = (tempdir().unwrap(), server());
    let mut config = alluvium_engine::config::Config::parse(settings_for(&server, QUICK)).unwrap();
    config.janitor_distances = vec![Duration::from_millis(700), Duration::from_millis(10)];
    let engine = alluvium_engine::Engine::with_config(config).unwrap();
    let segment = TestSegment::write(source.path(), 1, 12 * MIB).unwrap();

    // The store is away also for the clean-up; then an upload of this key is there.
    let refused = FaultAction::Error {
        status: 403,
        code: "AccessDenied".to_owned(),
        retry_after: None,
    };
    let fail = [Operation::UploadPart, Operation::AbortMultipartUpload]
        .map(|operation| FaultRule::new(operation, refused.clone()));
    server.faults().set(fail.to_vec()).unwrap();
    assert_eq!(kind(copy(&engine, &segment)), ErrorKind::Denied);
    assert_eq!(
        (left(&engine, &server), metric(&engine, "copy", "cleanups_pending")),
        ((0, 1), 1)
    );
    server.faults().clear();
    for _ in 0..200 {
        if metric(&engine, "copy", "cleanups_pending") == 0 {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(
        (left(&engine, &server), metric(&engine, "copy", "cleanups_pending")),
        ((0, 0), 0)
    );

    // Copied again in time, it is let alone.
    server.faults().set(fail.to_vec()).unwrap();
    assert!(copy(&engine, &segment).is_err());
    server.faults().clear();
    copy(&engine, &segment).unwrap();
    std::thread::sleep(Duration::from_millis(1000));
    assert_eq!(left(&engine, &server).0, 2);
    assert_eq!(metric(&engine, "copy", "cleanups_pending"), 0);
}
