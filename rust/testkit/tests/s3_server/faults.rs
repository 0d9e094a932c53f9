//! Purpose: every fault, as a client meets it.

use crate::support::*;
use alluvium_testkit::s3_server::{FaultAction, FaultRule, Operation, Outcome, S3Server};
use aws_sdk_s3::Client;
use aws_sdk_s3::primitives::ByteStream;
use aws_sdk_s3::types::{CompletedMultipartUpload, CompletedPart};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;
use tokio::time::{Instant, timeout};

fn inject(server: &S3Server, rule: FaultRule) {
    server.faults().set(vec![rule]).unwrap();
}

/// What an unsigned GET of the key gives on a bare socket; faults come before signatures.
fn raw_get(server: &S3Server) -> std::io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(server.endpoint().trim_start_matches("http://")).unwrap();
    write!(stream, "GET /{BUCKET}/k HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).map(|_| answer)
}

fn put_request(client: &Client, bytes: usize) -> aws_sdk_s3::operation::put_object::builders::PutObjectFluentBuilder {
    client
        .put_object()
        .bucket(BUCKET)
        .key("k")
        .body(ByteStream::from(vec![1; bytes]))
}

#[tokio::test]
async fn error() {
    let (server, client) = pair().await;
    let action = FaultAction::Error {
        status: 503,
        code: "SlowDown".to_owned(),
        retry_after: Some(7),
    };
    inject(
        &server,
        FaultRule::new(Operation::PutObject, action)
            .key_contains("k")
            .skip(1)
            .times(2),
    );
    put(&client, "other", b"x").await;
    put(&client, "k", b"x").await;
    for bytes in [10, 8 * MIB] {
        let error = put_request(&client, bytes).send().await.unwrap_err();
        let answer = error.raw_response().unwrap();
        assert_eq!(
            (answer.status().as_u16(), answer.headers().get("retry-after")),
            (503, Some("7"))
        );
        assert_refused!(Err::<(), _>(error), 503, "SlowDown");
    }
    put(&client, "k", b"y").await;
    let status = server.faults().status();
    assert_eq!((status[0].seen, status[0].hits), (4, 2));
    assert_eq!(
        server.counters().outcomes(Operation::PutObject, Outcome::ServerError),
        2
    );
    assert_eq!(server.counters().outcomes(Operation::PutObject, Outcome::Success), 3);
    assert_eq!(
        server.counters().connections_open(),
        1,
        "an injected error does not cost the connection"
    );
}

#[tokio::test]
async fn any_operation() {
    let (server, client) = pair().await;
    inject(
        &server,
        FaultRule::any(FaultAction::Error {
            status: 500,
            code: "InternalError".to_owned(),
            retry_after: None,
        }),
    );
    assert_refused!(
        client.list_objects_v2().bucket(BUCKET).send().await,
        500,
        "InternalError"
    );
    assert_eq!(refusal(client.head_bucket().bucket(BUCKET).send().await).0, 500);
    server.faults().clear();
    client.head_bucket().bucket(BUCKET).send().await.unwrap();
}

#[tokio::test]
async fn delay() {
    let (server, client) = pair().await;
    inject(
        &server,
        FaultRule::new(Operation::HeadBucket, FaultAction::Delay { ms: 300 }),
    );
    let before = Instant::now();
    client.head_bucket().bucket(BUCKET).send().await.unwrap();
    assert!(before.elapsed() >= Duration::from_millis(300));
}

#[tokio::test]
async fn stall() {
    let (server, client) = pair().await;
    inject(&server, FaultRule::new(Operation::PutObject, FaultAction::Stall));
    let request = put_request(&client, 3 * MIB).send();
    assert!(timeout(Duration::from_millis(300), request).await.is_err());
    drop(client);
    eventually("the stalled request has ended with its client", || {
        server.counters().connections_open() == 0
    })
    .await;
    assert_eq!(server.counters().outcomes(Operation::PutObject, Outcome::Cut), 1);
    // And a server with a stalled request ends all the same.
    let client = client_as(&server, server.endpoint(), Identity::default());
    let stalled = tokio::spawn(put_request(&client, 10).send());
    eventually("the request has arrived", || {
        server.counters().requests(Operation::PutObject) == 2
    })
    .await;
    timeout(Duration::from_secs(5), server.shutdown()).await.unwrap();
    assert!(stalled.await.unwrap().is_err());
}

#[tokio::test]
async fn reset() {
    let (server, client) = pair().await;
    inject(&server, FaultRule::new(Operation::GetObject, FaultAction::Reset));
    assert_eq!(raw_get(&server).unwrap_err().kind(), ErrorKind::ConnectionReset);
    let error = client.get_object().bucket(BUCKET).key("k").send().await.unwrap_err();
    assert!(error.raw_response().is_none());
    inject(&server, FaultRule::new(Operation::PutObject, FaultAction::Reset));
    assert!(
        put_request(&client, 8 * MIB)
            .send()
            .await
            .unwrap_err()
            .raw_response()
            .is_none()
    );
    assert_eq!(server.counters().outcomes(Operation::GetObject, Outcome::Cut), 2);
}

#[tokio::test]
async fn drop_reply() {
    let (server, client) = pair().await;
    inject(&server, FaultRule::new(Operation::GetObject, FaultAction::DropReply));
    assert_eq!(raw_get(&server).unwrap(), b"", "closed, not reset");
    inject(&server, FaultRule::new(Operation::PutObject, FaultAction::DropReply));
    assert!(
        put_request(&client, MIB)
            .send()
            .await
            .unwrap_err()
            .raw_response()
            .is_none()
    );
    server.faults().clear();
    assert!(get(&client, "k").await == vec![1; MIB], "the operation has been done");
}

#[tokio::test]
async fn truncate_body() {
    let (server, client) = pair().await;
    let bytes = pattern(5 * MIB);
    put(&client, "k", &bytes).await;
    for cut in [0, 1, 100_000, 3 * MIB] {
        inject(
            &server,
            FaultRule::new(Operation::GetObject, FaultAction::TruncateBody { bytes: cut as u64 }),
        );
        let mut output = client.get_object().bucket(BUCKET).key("k").send().await.unwrap();
        assert_eq!(output.content_length(), Some(bytes.len() as i64));
        let mut got = Vec::new();
        let error = loop {
            match output.body.next().await {
                Some(Ok(piece)) => got.extend_from_slice(&piece),
                Some(Err(error)) => break Some(error),
                None => break None,
            }
        };
        assert!(error.is_some(), "an answer cut at {cut} is not taken for whole");
        assert!(got == bytes[..cut], "{} bytes instead of {cut}", got.len());
    }
}

#[tokio::test]
async fn stall_body() {
    let (server, client) = pair().await;
    let bytes = pattern(3 * MIB);
    put(&client, "k", &bytes).await;
    inject(
        &server,
        FaultRule::new(Operation::GetObject, FaultAction::StallBody { bytes: 1_500_000 }),
    );
    let mut output = client.get_object().bucket(BUCKET).key("k").send().await.unwrap();
    let mut got = Vec::new();
    while let Ok(piece) = timeout(Duration::from_millis(500), output.body.next()).await {
        got.extend_from_slice(&piece.unwrap().unwrap());
    }
    assert!(got == bytes[..1_500_000]);
    drop(output);
    drop(client);
    eventually("the stalled answer has ended with its client", || {
        server.counters().connections_open() == 0
    })
    .await;
}

#[tokio::test]
async fn corrupt_body() {
    let (server, client) = pair().await;
    let mut bytes = pattern(3 * MIB);
    put(&client, "k", &bytes).await;
    let at = 2_000_000;
    inject(
        &server,
        FaultRule::new(Operation::GetObject, FaultAction::CorruptBody { at: at as u64 }),
    );
    // A range has no checksum for the client to verify.
    let output = client
        .get_object()
        .bucket(BUCKET)
        .key("k")
        .range("bytes=0-")
        .send()
        .await
        .unwrap();
    let got = output.body.collect().await.unwrap().to_vec();
    bytes[at] = !bytes[at];
    assert!(got == bytes);
    let whole = client.get_object().bucket(BUCKET).key("k").send().await.unwrap();
    assert!(
        whole.body.collect().await.is_err(),
        "the client sees it by the checksum"
    );
}

#[tokio::test]
async fn ok_with_error() {
    let (server, client) = pair().await;
    let created = client
        .create_multipart_upload()
        .bucket(BUCKET)
        .key("k")
        .send()
        .await
        .unwrap();
    let id = created.upload_id().unwrap();
    let part = client
        .upload_part()
        .bucket(BUCKET)
        .key("k")
        .upload_id(id)
        .part_number(1);
    let part = part.body(ByteStream::from_static(b"hello")).send().await.unwrap();
    let part = CompletedPart::builder().part_number(1).set_e_tag(part.e_tag).build();
    let complete = || {
        let parts = CompletedMultipartUpload::builder().parts(part.clone()).build();
        client
            .complete_multipart_upload()
            .bucket(BUCKET)
            .key("k")
            .upload_id(id)
            .multipart_upload(parts)
    };
    let action = FaultAction::OkWithError {
        code: "InternalError".to_owned(),
    };
    inject(
        &server,
        FaultRule::new(Operation::CompleteMultipartUpload, action).times(1),
    );
    assert_refused!(complete().send().await, 200, "InternalError");
    assert_eq!(
        refusal(client.head_object().bucket(BUCKET).key("k").send().await).0,
        404
    );
    assert_eq!(server.counters().multipart_uploads_open(), 1);
    complete().send().await.unwrap();
    assert_eq!(get(&client, "k").await, b"hello");
}
