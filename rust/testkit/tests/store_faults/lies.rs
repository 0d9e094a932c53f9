//! A proxy in between that answers in the store's place, or changes what the store says.

use std::{sync::atomic::Ordering, time::Duration};

use alluvium_store::{ErrorKind, Operation, Payload, layer::Policies};
use alluvium_testkit::s3_server::{self, FaultAction, FaultRule};
use bytes::Bytes;
use futures::StreamExt;

use crate::{
    bytes,
    front::{Act, Front, answer, error_document},
    key, policies, read,
};

/// Answers to a PUT of bytes with another checksum that say, or seem to say, that it is done.
fn lies() -> Vec<(&'static str, ErrorKind, String)> {
    let unexpected = ErrorKind::Unexpected;
    let wrong = "ETag: \"x\"\r\nx-amz-checksum-crc32: AAAAAA==\r\n";
    vec![
        ("an empty 200", unexpected, answer("200 OK", "", "")),
        ("a page", unexpected, answer("200 OK", "", "<html>log in</html>")),
        (
            "a 204",
            unexpected,
            "HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n".to_owned(),
        ),
        ("an empty ETag", unexpected, answer("200 OK", "ETag: \r\n", "")),
        (
            "a wrong checksum",
            ErrorKind::ChecksumMismatch,
            answer("200 OK", wrong, ""),
        ),
    ]
}

#[tokio::test]
async fn a_put_counts_only_when_the_store_has_the_bytes() {
    let front = Front::start(policies()).await;
    let mut lies = lies();
    let nothing_stored = answer("200 OK", "ETag: \"x\"\r\n", "");
    lies.push(("an ETag and no object", ErrorKind::Unexpected, nothing_stored));
    for (what, kind, lie) in lies {
        let object = key("object");
        front.rule("PUT", "/object", 1, Act::Answer(lie.clone()));
        let outcome = front.store.put(&object, Payload::new(bytes(1000))).await;
        outcome.unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(front.count("PUT"), 2, "{what}");
        assert_eq!(
            read(&front.store, &object).await.expect("a body"),
            bytes(1000),
            "{what}"
        );
        front
            .store
            .delete(std::slice::from_ref(&object))
            .await
            .expect("a delete");

        front.rule("PUT", "/object", usize::MAX, Act::Answer(lie));
        let error = front.store.put(&object, Payload::new(bytes(1000))).await;
        let error = error.expect_err("never stored");
        assert_eq!((error.kind(), error.is_retryable()), (kind, true), "{what}: {error}");
        assert_eq!(error.key(), Some("object"), "{what}");
    }
}

#[tokio::test]
async fn a_put_whose_answer_has_no_checksum_is_proven_by_a_head() {
    let front = Front::start(policies()).await;
    let object = key("object");
    let without = |text: String| text.replace("x-amz-checksum-crc32", "x-other");
    front.rule("PUT", "/object", usize::MAX, Act::Change(without));
    let put = front.store.put(&object, Payload::new(bytes(1000))).await;
    put.expect("a put");
    let seen = front.seen();
    let methods: Vec<&str> = seen.iter().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(methods, ["PUT", "HEAD"], "{seen:?}");
    // An older object of that name is not the one that was sent.
    front.rule(
        "PUT",
        "/object",
        usize::MAX,
        Act::Answer(answer("200 OK", "ETag: \"x\"\r\n", "")),
    );
    for other in [Bytes::from(vec![9; 1000]), bytes(999)] {
        let error = front.store.put(&object, Payload::new(other)).await;
        let error = error.expect_err("other bytes are stored");
        assert_eq!(
            (error.kind(), error.is_retryable()),
            (ErrorKind::ChecksumMismatch, true),
            "{error}"
        );
    }
}

#[tokio::test]
async fn a_part_counts_only_when_the_store_has_the_bytes() {
    let front = Front::start(policies()).await;
    let object = key("object");
    for (what, kind, lie) in lies() {
        let upload = front.store.create_upload(&object).await.expect("an upload");
        front.rule("PUT", "partNumber", 1, Act::Answer(lie.clone()));
        let part = front
            .store
            .upload_part(&object, &upload, 1, Payload::new(bytes(1000)))
            .await;
        let part = part.unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(front.count("PUT"), 2, "{what}");
        let crc32 = part.crc32;
        let completed = front.store.complete_upload(&object, &upload, &[part], crc32).await;
        completed.unwrap_or_else(|error| panic!("{what}: {error}"));

        front.rule("PUT", "partNumber", usize::MAX, Act::Answer(lie));
        let error = front
            .store
            .upload_part(&object, &upload, 1, Payload::new(bytes(1000)))
            .await;
        let error = error.expect_err("never stored");
        assert_eq!((error.kind(), error.is_retryable()), (kind, true), "{what}: {error}");
    }
}

#[tokio::test]
async fn an_answer_without_end_is_cut() {
    let limits = Policies {
        operation_timeout: Duration::from_secs(3),
        ..policies()
    };
    let front = Front::start(limits).await;
    let object = key("object");
    let error_head = "HTTP/1.1 500 Bad\r\nConnection: close\r\nContent-Type: text/html\r\n\r\n";
    let list_head =
        "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: application/xml\r\n\r\n<?xml version=\"1.0\"?>";
    for (method, contains, head) in [
        ("GET", "/object", error_head),
        ("PUT", "/object", error_head),
        ("GET", "list-type", list_head),
        ("POST", "?delete", list_head),
    ] {
        front.rule(method, contains, 1, Act::Endless(head));
        front.shared.endless.store(0, Ordering::Relaxed);
        // One answer without end is no reason to fail.
        match (method, contains) {
            ("PUT", _) => front.store.put(&object, Payload::new(bytes(10))).await.expect("a put"),
            ("POST", _) => front.store.delete(&[key("other")]).await.expect("a delete"),
            (_, "list-type") => front.store.list("", None, 10).await.map(|_| ()).expect("a list"),
            _ => {
                let error = read(&front.store, &object).await.expect_err("no object yet");
                assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
            }
        }
        assert_eq!(front.count(method), 2, "{method} {contains}");
        // 8 MiB, and what the sockets hold.
        let taken = front.shared.endless.load(Ordering::Relaxed) >> 20;
        assert!(taken < 32, "{method} {contains}: {taken} MiB");
    }
    // An object is as long as it is.
    let long = bytes(9 << 20);
    front
        .store
        .put(&object, Payload::new(long.clone()))
        .await
        .expect("a put");
    assert_eq!(read(&front.store, &object).await.expect("a body"), long);
}

#[tokio::test]
async fn an_upload_that_may_have_begun_is_not_begun_again() {
    let front = Front::start(policies()).await;
    let object = key("object");
    let page = "<html>bad gateway</html>";
    let cut = |text: String| text[..text.len() - 20].to_owned();
    for (what, act) in [
        ("502", Act::Answer(answer("502 Bad Gateway", "", page))),
        ("504", Act::Answer(answer("504 Gateway Timeout", "", page))),
        (
            "503 of a gateway",
            Act::Answer(answer("503 Service Unavailable", "", page)),
        ),
        (
            "500",
            Act::Answer(answer("500 Bad", "", &error_document("InternalError"))),
        ),
        ("200 of a gateway", Act::Answer(answer("200 OK", "", page))),
        ("an empty 200", Act::Answer(answer("200 OK", "", ""))),
        ("a cut body", Act::Change(cut)),
    ] {
        front.rule("POST", "uploads", usize::MAX, act);
        let error = front
            .store
            .create_upload(&object)
            .await
            .expect_err("no upload is named");
        assert!(error.is_retryable(), "{what}: {error}");
        assert_eq!(front.count("POST"), 1, "{what}");
    }
    for (what, refusal) in [
        ("503", answer("503 Slow Down", "", &error_document("SlowDown"))),
        ("429", answer("429 Slow Down", "", &error_document("TooManyRequests"))),
        ("409", answer("409 Conflict", "", &error_document("OperationAborted"))),
    ] {
        front.rule("POST", "uploads", 1, Act::Answer(refusal));
        let upload = front.store.create_upload(&object).await;
        let upload = upload.unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(front.count("POST"), 2, "{what}");
        front.store.abort_upload(&object, &upload).await.expect("an abort");
    }
}

#[tokio::test]
async fn an_answer_that_does_not_fit_the_range_is_tried_again() {
    let front = Front::start(policies()).await;
    let object = key("object");
    front
        .store
        .put(&object, Payload::new(bytes(1000)))
        .await
        .expect("a put");
    let ten = "x".repeat(10);
    for (what, lie) in [
        ("a whole object", answer("200 OK", "", &ten)),
        (
            "another range",
            answer("206 Partial", "Content-Range: bytes 5-14/1000\r\n", &ten),
        ),
        ("no range", answer("206 Partial", "Content-Range: nonsense\r\n", &ten)),
    ] {
        front.rule("GET", "/object", 1, Act::Answer(lie.clone()));
        let answer = front.store.get(&object, Some(0..10)).await;
        let answer = answer.unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(answer.collect().await.expect("a body"), bytes(10), "{what}");
        front.rule("GET", "/object", usize::MAX, Act::Answer(lie));
        let error = front
            .store
            .get(&object, Some(0..10))
            .await
            .map(|_| ())
            .expect_err("lies");
        assert_eq!(
            (error.kind(), error.is_retryable(), error.attempts()),
            (ErrorKind::Unexpected, true, 4),
            "{what}: {error}"
        );
    }
}

#[tokio::test]
async fn an_object_replaced_by_a_shorter_one_while_it_is_read_is_corrupt() {
    let front = Front::start(policies()).await;
    let object = key("object");
    front
        .store
        .put(&object, Payload::new(bytes(500_000)))
        .await
        .expect("a put");
    let broken = FaultAction::TruncateBody { bytes: 1000 };
    let rule = FaultRule::new(s3_server::Operation::GetObject, broken).times(1);
    front.server.faults().add(rule).expect("a rule");
    let mut answer = front.store.get(&object, None).await.expect("an answer");
    answer.body.next().await.expect("a piece").expect("bytes");
    front.store.put(&object, Payload::new(bytes(10))).await.expect("a put");
    // The store refuses the range past the end.
    let error = loop {
        match answer.body.next().await.expect("an error at the end") {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert_eq!(
        (error.kind(), error.is_retryable(), error.operation()),
        (ErrorKind::ChecksumMismatch, false, Operation::Get),
        "{error}"
    );
}

#[tokio::test]
async fn a_code_can_neither_break_a_line_nor_fill_it() {
    let front = Front::start(policies()).await;
    let code = format!("Bad\nERROR forged line{}", "x".repeat(100_000));
    let refusal = answer("400 Bad Request", "", &error_document(&code));
    front.rule("PUT", "/object", 1, Act::Answer(refusal));
    let error = front.store.put(&key("object"), Payload::new(bytes(10))).await;
    let line = error.expect_err("a refusal").to_string();
    assert!(
        line.contains("Bad ERROR") && !line.contains('\n') && line.len() < 1500,
        "{line}"
    );
}

#[tokio::test]
async fn an_answer_that_is_no_document_deletes_and_lists_nothing() {
    let front = Front::start(policies()).await;
    let object = key("object");
    front.store.put(&object, Payload::new(bytes(10))).await.expect("a put");
    for (what, lie) in [
        ("an empty 200", answer("200 OK", "", "")),
        ("a page", answer("200 OK", "", "<html>log in</html>")),
    ] {
        front.rule("POST", "?delete", usize::MAX, Act::Answer(lie.clone()));
        let deleted = front.store.delete(std::slice::from_ref(&object)).await;
        front.rule("GET", "list-type", usize::MAX, Act::Answer(lie.clone()));
        let listed = front.store.list("", None, 10).await;
        front.rule("GET", "uploads", usize::MAX, Act::Answer(lie));
        let uploads = front.store.list_uploads(&object).await;
        for error in [
            deleted.expect_err("delete"),
            listed.map(|_| ()).expect_err("list"),
            uploads.map(|_| ()).expect_err("list of uploads"),
        ] {
            assert_eq!(
                (error.kind(), error.is_retryable(), error.attempts()),
                (ErrorKind::Unexpected, true, 4),
                "{what}: {error}"
            );
        }
    }
}
