//! Purpose: answers that get lost, or come cut short, spoiled or not to their end.

use crate::support::*;
use crate::wire::*;
use alluvium_testkit::proxy::{Direction, FaultKind, FaultProxy, HttpFault, LinkFault, LinkRule, LinkShape};
use alluvium_testkit::s3_server::{FaultRule, Operation, S3Server};
use aws_sdk_s3::Client;
use std::time::Duration;
use tokio::time::{Instant, timeout};

fn inject(proxy: &FaultProxy, operation: Operation, fault: HttpFault) {
    proxy.faults().set(vec![FaultRule::new(operation, fault)]).unwrap();
}

/// A server with an object, a proxy in front of it, and a client.
async fn with_object(bytes: &[u8]) -> (S3Server, FaultProxy, Client) {
    let server = server().await;
    let (proxy, through) = proxied(&server).await;
    put(&client(&server), "k", bytes).await;
    (server, proxy, through)
}

/// What arrives of the object, and whether it was all.
async fn got(client: &Client) -> (Vec<u8>, bool) {
    let mut output = client.get_object().bucket(BUCKET).key("k").send().await.unwrap();
    let mut got = Vec::new();
    loop {
        match timeout(LONG, output.body.next()).await.expect("an end") {
            Some(Ok(piece)) => got.extend_from_slice(&piece),
            Some(Err(_)) => return (got, false),
            None => return (got, true),
        }
    }
}

#[tokio::test]
async fn a_lost_reply() {
    for reset in [false, true] {
        let server = server().await;
        let (proxy, client) = proxied(&server).await;
        inject(&proxy, Operation::PutObject, HttpFault::DropReply { reset });
        let request = client.put_object().bucket(BUCKET).key("k");
        let lost = request.body(pattern(MIB).into()).send().await;
        assert!(lost.unwrap_err().raw_response().is_none());
        proxy.faults().clear();
        assert!(get(&client, "k").await == pattern(MIB), "the operation has been done");
        assert_eq!(proxy.counters().faults(FaultKind::DropReply), 1);
    }
}

#[tokio::test]
async fn truncate_body() {
    let bytes = pattern(5 * MIB);
    let (_server, proxy, client) = with_object(&bytes).await;
    for reset in [false, true] {
        for cut in [0, 1, 100_000, 3 * MIB, 5 * MIB + 7] {
            let fault = HttpFault::TruncateBody {
                bytes: cut as u64,
                reset,
            };
            inject(&proxy, Operation::GetObject, fault);
            let (got, all) = got(&client).await;
            assert!(!all, "an answer cut at {cut} is not taken for whole");
            // A position behind the end goes round.
            assert!(
                got == bytes[..cut % bytes.len()],
                "{} bytes instead of {cut}",
                got.len()
            );
        }
    }
    assert_eq!(proxy.counters().faults(FaultKind::TruncateBody), 10);
}

#[tokio::test]
async fn stall_body() {
    let bytes = pattern(3 * MIB);
    let (_server, proxy, client) = with_object(&bytes).await;
    inject(&proxy, Operation::GetObject, HttpFault::StallBody { bytes: 1_500_000 });
    let mut output = client.get_object().bucket(BUCKET).key("k").send().await.unwrap();
    let mut got = Vec::new();
    while let Ok(piece) = timeout(2 * SILENCE, output.body.next()).await {
        got.extend_from_slice(&piece.unwrap().unwrap());
    }
    assert!(got == bytes[..1_500_000]);
    drop((output, client));
    eventually("it has ended with its client", || {
        proxy.counters().connections_open() == 0
    })
    .await;
}

#[tokio::test]
async fn corrupt_body() {
    let mut bytes = pattern(3 * MIB);
    let (_server, proxy, client) = with_object(&bytes).await;
    let at = 2_000_000;
    inject(&proxy, Operation::GetObject, HttpFault::CorruptBody { at: at as u64 });
    // A range has no checksum for the client to verify.
    let request = client.get_object().bucket(BUCKET).key("k").range("bytes=0-");
    let got = request.send().await.unwrap().body.collect().await.unwrap().to_vec();
    bytes[at] = !bytes[at];
    assert!(got == bytes);
    let whole = client.get_object().bucket(BUCKET).key("k").send().await.unwrap();
    assert!(
        whole.body.collect().await.is_err(),
        "the client sees it by the checksum"
    );
    // An error has no body to corrupt when it answers a HEAD, nor has an empty object.
    put(&client, "empty", b"").await;
    assert!(get(&client, "empty").await.is_empty());
    assert_eq!(proxy.counters().faults(FaultKind::CorruptBody), 2);
}

#[tokio::test]
async fn both_levels_at_once() {
    let bytes = pattern(2 * MIB);
    let (_server, proxy, client) = with_object(&bytes).await;
    let latency = Duration::from_millis(100);
    proxy.set_link(LinkShape::round_trip(latency, Some(4 << 20)));
    inject(&proxy, Operation::GetObject, HttpFault::Delay { ms: 100 });
    let begin = Instant::now();
    assert!(get(&client, "k").await == bytes);
    let time = begin.elapsed();
    // Half a second for the bytes, latency and delay once.
    assert!(time >= Duration::from_millis(650), "{time:?}");
    assert!(time < Duration::from_millis(2000), "{time:?}");
    // A reset by the link, in the middle of an answer that HTTP thinks given.
    proxy.faults().clear();
    reset_all(&proxy).await;
    let fault = LinkFault::ResetAt {
        direction: Direction::Down,
        bytes: 500_000,
    };
    proxy.link_faults().add(LinkRule::new(fault).times(1));
    let (got, all) = got(&client).await;
    assert!(!all);
    assert!(got.len() < 500_000 && got.len() > 490_000, "{}", got.len());
}
