//! A server that misbehaves.

use std::time::Duration;

use alluvium_store::{ErrorKind, Key, Operation, Payload, StoreError, layer::Policies};
use alluvium_testkit::s3_server::{self, FaultAction, FaultRule};
use bytes::Bytes;
use futures::StreamExt;
use tokio::time::Instant;

use crate::{Bench, bench, bytes, key, policies, read};

#[tokio::test]
async fn a_truncated_body_is_resumed() {
    let bench = bench(policies()).await;
    let object = key("object");
    bench
        .store
        .put(&object, Payload::new(bytes(500_000)))
        .await
        .expect("a put");
    for sent in [0, 1, 499_999] {
        bench.fault(
            FaultRule::new(
                s3_server::Operation::GetObject,
                FaultAction::TruncateBody { bytes: sent },
            )
            .times(1),
        );
        assert_eq!(read(&bench.store, &object).await.expect("a body"), bytes(500_000));
        bench.clear();
    }
    let gets = bench.metrics.snapshot().of(Operation::Get).clone();
    assert_eq!(
        (gets.requests, gets.retries, gets.failed(ErrorKind::Truncated)),
        (6, 3, 3)
    );
    bench.settle().await;
}

#[tokio::test]
async fn a_ranged_body_is_resumed_in_its_range() {
    let bench = bench(policies()).await;
    let object = key("object");
    bench
        .store
        .put(&object, Payload::new(bytes(500_000)))
        .await
        .expect("a put");
    bench.fault(
        FaultRule::new(
            s3_server::Operation::GetObject,
            FaultAction::TruncateBody { bytes: 1000 },
        )
        .times(1),
    );
    let answer = bench.store.get(&object, Some(100..450_000)).await.expect("an answer");
    assert_eq!(
        answer.collect().await.expect("a body"),
        bytes(500_000).slice(100..450_000)
    );
}

#[tokio::test]
async fn a_body_that_never_comes_is_an_error_and_never_short() {
    let bench = bench(policies()).await;
    let object = key("object");
    bench
        .store
        .put(&object, Payload::new(bytes(100_000)))
        .await
        .expect("a put");
    bench.fault(FaultRule::new(
        s3_server::Operation::GetObject,
        FaultAction::TruncateBody { bytes: 0 },
    ));
    let error = read(&bench.store, &object).await.expect_err("no bytes come");
    assert_eq!((error.kind(), error.attempts()), (ErrorKind::Truncated, 4), "{error}");
    assert_eq!(error.key(), Some("object"));
    bench.settle().await;
}

#[tokio::test]
async fn a_stalled_body_is_resumed() {
    let bench = bench(Policies {
        attempt_timeout: Duration::from_millis(400),
        ..policies()
    })
    .await;
    let object = key("object");
    bench
        .store
        .put(&object, Payload::new(bytes(300_000)))
        .await
        .expect("a put");
    bench.fault(FaultRule::new(s3_server::Operation::GetObject, FaultAction::StallBody { bytes: 1000 }).times(1));
    assert_eq!(read(&bench.store, &object).await.expect("a body"), bytes(300_000));
    assert_eq!(
        bench.metrics.snapshot().of(Operation::Get).failed(ErrorKind::Timeout),
        1
    );
}

#[tokio::test]
async fn an_object_replaced_while_its_body_is_resumed_is_an_error() {
    let bench = bench(policies()).await;
    let object = key("object");
    bench
        .store
        .put(&object, Payload::new(bytes(500_000)))
        .await
        .expect("a put");
    bench.fault(
        FaultRule::new(
            s3_server::Operation::GetObject,
            FaultAction::TruncateBody { bytes: 1000 },
        )
        .times(1),
    );
    let mut answer = bench.store.get(&object, None).await.expect("an answer");
    let first = answer.body.next().await.expect("a piece").expect("bytes");
    assert!(first.len() <= 1000);
    bench
        .store
        .put(&object, Payload::new(Bytes::from(vec![9; 500_000])))
        .await
        .expect("a put");
    let mut last = None;
    while let Some(piece) = answer.body.next().await {
        last = Some(piece);
    }
    let error = last.expect("more").expect_err("the old bytes are gone");
    assert_eq!(
        (error.kind(), error.is_retryable()),
        (ErrorKind::ChecksumMismatch, false),
        "{error}"
    );
}

#[tokio::test]
async fn a_reset_connection_is_tried_again() {
    let bench = bench(policies()).await;
    for operation in [s3_server::Operation::PutObject, s3_server::Operation::GetObject] {
        bench.fault(FaultRule::new(operation, FaultAction::Reset).times(2));
    }
    let object = key("object");
    bench
        .store
        .put(&object, Payload::new(bytes(3_000_000)))
        .await
        .expect("a put");
    assert_eq!(read(&bench.store, &object).await.expect("a body"), bytes(3_000_000));
    let puts = bench.metrics.snapshot().of(Operation::Put).clone();
    assert_eq!(
        (puts.requests, puts.retries, puts.failed(ErrorKind::Unavailable)),
        (3, 2, 2),
        "{puts:?}"
    );
    bench.settle().await;
}

#[tokio::test]
async fn a_server_that_never_answers_is_a_timeout_within_the_deadline() {
    let limits = Policies {
        attempt_timeout: Duration::from_millis(200),
        operation_timeout: Duration::from_millis(700),
        ..policies()
    };
    let bench = bench(limits).await;
    bench.fault(FaultRule::any(FaultAction::Stall));
    let object = key("object");
    let upload = alluvium_store::UploadId("none".to_owned());
    let begin = Instant::now();
    let (put, get, delete, abort) = tokio::join!(
        bench.store.put(&object, Payload::new(bytes(10))),
        bench.store.get(&object, None),
        bench.store.delete(std::slice::from_ref(&object)),
        bench.store.abort_upload(&object, &upload),
    );
    assert!(begin.elapsed() < Duration::from_millis(1500), "{:?}", begin.elapsed());
    for error in [
        put.expect_err("put"),
        get.map(|_| ()).expect_err("get"),
        delete.expect_err("delete"),
        abort.expect_err("abort"),
    ] {
        assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
        assert!(error.attempts() >= 2 && error.is_retryable(), "{error}");
    }
    bench.settle().await;
}

#[tokio::test]
async fn retry_after_is_honoured_and_bounded_by_the_deadline() {
    let bench = bench(policies()).await;
    let slow = |seconds| FaultAction::Error {
        status: 503,
        code: "SlowDown".to_owned(),
        retry_after: Some(seconds),
    };
    bench.fault(FaultRule::new(s3_server::Operation::PutObject, slow(1)).times(1));
    let begin = Instant::now();
    bench
        .store
        .put(&key("object"), Payload::new(bytes(10)))
        .await
        .expect("a put");
    assert!(begin.elapsed() >= Duration::from_secs(1), "{:?}", begin.elapsed());
    assert_eq!(
        bench.metrics.snapshot().of(Operation::Put).failed(ErrorKind::Throttled),
        1
    );
    // Longer than the operation has: no use in waiting.
    bench.fault(FaultRule::new(s3_server::Operation::PutObject, slow(120)));
    let begin = Instant::now();
    let error = bench
        .store
        .put(&key("object"), Payload::new(bytes(10)))
        .await
        .expect_err("a refusal");
    assert!(begin.elapsed() < Duration::from_secs(1), "{:?}", begin.elapsed());
    assert_eq!(
        (error.kind(), error.status(), error.code()),
        (ErrorKind::Throttled, Some(503), Some("SlowDown"))
    );
    assert_eq!(error.retry_after(), Some(Duration::from_secs(120)));
    assert!(error.request_id().is_some(), "{error:?}");
}

#[tokio::test]
async fn a_completion_answered_200_with_an_error_is_tried_again() {
    let bench = bench(Policies {
        operation_timeout: Duration::from_secs(2),
        ..policies()
    })
    .await;
    let object = key("object");
    for code in ["InternalError", "SlowDown", "NobodyKnowsThis"] {
        let rule = FaultRule::new(
            s3_server::Operation::CompleteMultipartUpload,
            FaultAction::OkWithError { code: code.to_owned() },
        );
        bench.fault(rule.times(1));
        upload(&bench, &object).await.expect("an upload");
        assert_eq!(
            read(&bench.store, &object).await.expect("a body").len(),
            (5 << 20) + 1000
        );
        bench.clear();
    }
    bench.fault(FaultRule::new(
        s3_server::Operation::CompleteMultipartUpload,
        FaultAction::OkWithError {
            code: "InternalError".to_owned(),
        },
    ));
    let error = upload(&bench, &object).await.expect_err("never completed");
    // The deadline ends it, in a pause or in an attempt.
    assert!(
        matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout),
        "{error}"
    );
    assert!(error.is_retryable() && error.attempts() > 4, "{error:?}");
}

#[tokio::test]
async fn a_completion_whose_answer_is_lost_is_success() {
    let bench = bench(policies()).await;
    let object = key("object");
    bench.fault(FaultRule::new(s3_server::Operation::CompleteMultipartUpload, FaultAction::DropReply).times(1));
    upload(&bench, &object).await.expect("an upload");
    assert_eq!(
        read(&bench.store, &object).await.expect("a body").len(),
        (5 << 20) + 1000
    );
    assert_eq!(bench.server.counters().requests(s3_server::Operation::HeadObject), 1);
    assert_eq!(bench.server.counters().multipart_uploads_open(), 0);
}

#[tokio::test]
async fn lost_answers_of_other_operations_are_harmless() {
    let bench = bench(policies()).await;
    let object = key("object");
    bench.fault(FaultRule::any(FaultAction::DropReply).times(1));
    bench.store.put(&object, Payload::new(bytes(100))).await.expect("a put");
    bench.clear();
    bench.fault(FaultRule::any(FaultAction::DropReply).times(1));
    bench
        .store
        .delete(std::slice::from_ref(&object))
        .await
        .expect("a delete");
    bench.clear();
    let upload = bench.store.create_upload(&object).await.expect("an upload");
    bench.fault(FaultRule::any(FaultAction::DropReply).times(1));
    bench.store.abort_upload(&object, &upload).await.expect("an abort");
    assert!(bench.store.list_uploads(&object).await.expect("a list").is_empty());
}

#[tokio::test]
async fn a_cancelled_request_is_counted_and_leaves_nothing_under_way() {
    let bench = bench(policies()).await;
    bench.fault(FaultRule::any(FaultAction::Stall));
    let object = key("object");
    let put = bench.store.put(&object, Payload::new(bytes(10)));
    assert!(tokio::time::timeout(Duration::from_millis(100), put).await.is_err());
    bench.settle().await;
    assert_eq!(bench.metrics.snapshot().of(Operation::Put).cancelled, 1);
}

#[tokio::test]
async fn codes_of_servers_have_their_kinds() {
    let bench = bench(policies()).await;
    for (status, code, kind) in [
        (403, "RequestTimeTooSkewed", ErrorKind::ClockSkew),
        (403, "ExpiredToken", ErrorKind::InvalidCredentials),
        (403, "AccessDenied", ErrorKind::AccessDenied),
        (507, "XMinioStorageFull", ErrorKind::NoSpace),
        (400, "XAmzContentChecksumMismatch", ErrorKind::ChecksumMismatch),
        (500, "InternalError", ErrorKind::Unavailable),
        (429, "TooManyRequests", ErrorKind::Throttled),
        (501, "NotImplemented", ErrorKind::Invalid),
        (502, "Whatever", ErrorKind::Unavailable),
    ] {
        let action = FaultAction::Error {
            status,
            code: code.to_owned(),
            // Longer than an operation may take: the first answer is the last.
            retry_after: Some(60),
        };
        bench.fault(FaultRule::any(action));
        let error = bench
            .store
            .put(&key("object"), Payload::new(bytes(10)))
            .await
            .expect_err("a refusal");
        assert_eq!((error.kind(), error.status()), (kind, Some(status)), "{error}");
        // A HEAD has the status only.
        let head = bench.store.head(&key("object")).await.expect_err("a refusal");
        assert_eq!(head.status(), Some(status), "{head}");
        bench.clear();
    }
}

async fn upload(bench: &Bench, object: &Key) -> Result<(), StoreError> {
    let (first, second) = (bytes(5 << 20), bytes(1000));
    let upload = bench.store.create_upload(object).await?;
    let parts = [
        bench
            .store
            .upload_part(object, &upload, 1, Payload::new(first.clone()))
            .await?,
        bench
            .store
            .upload_part(object, &upload, 2, Payload::new(second.clone()))
            .await?,
    ];
    let mut whole = crc32fast::Hasher::new();
    whole.update(&first);
    whole.update(&second);
    bench
        .store
        .complete_upload(object, &upload, &parts, whole.finalize())
        .await
}
