//! Purpose: requests that pass, that are answered by the proxy, and that get lost.

use crate::support::*;
use crate::wire::*;
use alluvium_testkit::proxy::{FaultKind, FaultProxy, HttpFault, Protocol, ProxyConfig, ProxyTls};
use alluvium_testkit::s3_server::{FaultRule, Operation, Outcome, S3Server};
use aws_sdk_s3::Client;
use aws_sdk_s3::primitives::ByteStream;
use aws_sdk_s3::types::{CompletedMultipartUpload, CompletedPart};
use std::io::ErrorKind;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, timeout};

fn inject(proxy: &FaultProxy, operation: Operation, fault: HttpFault) {
    proxy.faults().set(vec![FaultRule::new(operation, fault)]).unwrap();
}

/// What a GET of the key, without a signature, gives on a bare socket.
async fn raw_get(proxy: &FaultProxy) -> (String, std::io::Result<()>) {
    let mut stream = connect(proxy).await;
    let request = format!("GET /{BUCKET}/k HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let (answer, end) = read_all(&mut stream).await;
    (String::from_utf8(answer).unwrap(), end)
}

async fn exists(server: &S3Server, key: &str) -> bool {
    let direct = client(server);
    direct.head_object().bucket(BUCKET).key(key).send().await.is_ok()
}

#[tokio::test]
async fn requests_pass_as_they_are() {
    let server = server().await;
    let (proxy, client) = proxied(&server).await;
    // Signed by the client for the proxy, with what a path may hold.
    for key in ["k", "a//b", "ü %25+=&?#;,$@~", "x/../y/.", "a b"] {
        let bytes = pattern(300_000);
        put(&client, key, &bytes).await;
        assert!(get(&client, key).await == bytes, "{key}");
    }
    let listed = client.list_objects_v2().bucket(BUCKET).send().await.unwrap();
    assert_eq!(listed.key_count(), Some(5));
    assert_eq!(
        refusal(client.get_object().bucket(BUCKET).key("no").send().await).1,
        "NoSuchKey"
    );
    let big = pattern(20 * MIB);
    put(&client, "big", &big).await;
    assert!(get(&client, "big").await == big);
    let counters = proxy.counters();
    assert_eq!(counters.requests(Operation::PutObject), 6);
    assert_eq!(counters.requests(Operation::GetObject), 7);
    assert_eq!(counters.requests(Operation::ListObjectsV2), 1);
    assert_eq!((counters.all_requests(), counters.all_faults()), (14, 0));
    assert_eq!(counters.connections(), 1, "answers, errors too, keep the connection");
    assert_eq!(server.counters().connections_open(), 1);
}

#[tokio::test]
async fn heads_and_bodies_pass_byte_for_byte() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = FaultProxy::start(ProxyConfig::http(listener.local_addr().unwrap()))
        .await
        .unwrap();
    let mut client = connect(&proxy).await;
    let request = "PUT /b/a%2fB//%C3%bc?x=%7E&y HTTP/1.1\r\nhOST: Some.Name:1234\r\nX-Amz-Date: 1\r\nx-b: c  d\r\n\
        Content-Length: 5\r\n\r\nhello";
    client.write_all(request.as_bytes()).await.unwrap();
    let (mut server, _) = listener.accept().await.unwrap();
    let mut got = vec![0; request.len()];
    timeout(LONG, server.read_exact(&mut got)).await.unwrap().unwrap();
    assert_eq!(String::from_utf8(got).unwrap(), request);
    let answer = "HTTP/1.1 206 Partial Content\r\nETag: \"x\"\r\nX-Odd: y\r\nContent-Length: 3\r\n\r\nabc";
    server.write_all(answer.as_bytes()).await.unwrap();
    let mut got = vec![0; answer.len()];
    timeout(LONG, client.read_exact(&mut got)).await.unwrap().unwrap();
    assert_eq!(String::from_utf8(got).unwrap(), answer);
    // A server that ends an idle connection is asked again on a new one.
    drop(server);
    tokio::time::sleep(SILENCE).await;
    client
        .write_all(b"HEAD /b/k HTTP/1.1\r\nHost: x\r\n\r\n")
        .await
        .unwrap();
    let (mut server, _) = timeout(LONG, listener.accept()).await.unwrap().unwrap();
    server.read_u8().await.unwrap();
    server
        .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 70\r\n\r\n")
        .await
        .unwrap();
    let got = read_until_silence(&mut client).await;
    assert!(
        String::from_utf8(got)
            .unwrap()
            .ends_with("\r\nContent-Length: 70\r\n\r\n")
    );
    // And one that is gone resets the client.
    drop((server, listener));
    assert!(raw_get(&proxy).await.1.is_err());
}

#[tokio::test]
async fn tls_to_the_client() {
    let server = server().await;
    let made = FaultProxy::start(ProxyConfig {
        protocol: Protocol::Https(ProxyTls::OwnAuthority { directory: None }),
        ..ProxyConfig::http(address(&server))
    });
    let made = made.await.unwrap();
    let key = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    let given = FaultProxy::start(ProxyConfig {
        protocol: Protocol::Https(ProxyTls::Given {
            chain_pem: key.cert.pem(),
            key_pem: key.signing_key.serialize_pem(),
        }),
        ..ProxyConfig::http(address(&server))
    });
    let given = given.await.unwrap();
    for (proxy, trusted) in [(&made, made.ca_pem().unwrap().to_owned()), (&given, key.cert.pem())] {
        assert!(proxy.endpoint().starts_with("https://"));
        let client = client_trusting(&proxy.endpoint(), Identity::default(), Some(&trusted));
        put(&client, "k", b"hello").await;
        let fault = HttpFault::TruncateBody { bytes: 2, reset: false };
        inject(proxy, Operation::GetObject, fault);
        let cut = client.get_object().bucket(BUCKET).key("k").send().await.unwrap();
        assert!(cut.body.collect().await.is_err());
        proxy.faults().clear();
        assert_eq!(get(&client, "k").await, b"hello");
    }
}

#[tokio::test]
async fn errors_in_the_servers_place() {
    let server = server().await;
    let (proxy, client) = proxied(&server).await;
    for (status, code, retry_after) in [
        (500, "InternalError", None),
        (502, "BadGateway", None),
        (503, "SlowDown", Some(7)),
        (429, "TooManyRequests", Some(0)),
    ] {
        let fault = HttpFault::Error {
            status,
            code: code.to_owned(),
            retry_after,
            html: false,
        };
        inject(&proxy, Operation::PutObject, fault);
        let connections = proxy.counters().connections();
        for bytes in [10, 8 * MIB] {
            let body = ByteStream::from(vec![1; bytes]);
            let put = client.put_object().bucket(BUCKET).key("k").body(body).send().await;
            let error = put.unwrap_err();
            let header = error.raw_response().unwrap().headers().get("retry-after");
            assert_eq!(header.map(|seconds| seconds.parse().unwrap()), retry_after);
            assert_refused!(Err::<(), _>(error), status, code);
        }
        // After other errors the client itself takes another connection.
        if status == 429 {
            assert_eq!(proxy.counters().connections(), connections, "an error does not cost it");
        }
    }
    inject(
        &proxy,
        Operation::GetObject,
        HttpFault::Error {
            status: 502,
            code: String::new(),
            retry_after: None,
            html: true,
        },
    );
    let (page, end) = raw_get(&proxy).await;
    end.unwrap();
    assert!(page.starts_with("HTTP/1.1 502 Bad Gateway\r\n"), "{page}");
    assert!(
        page.to_lowercase().contains("content-type: text/html") && page.contains("<html>"),
        "{page}"
    );
    assert_eq!(server.counters().all_requests(), 0, "nothing is passed on");
    assert_eq!(proxy.counters().faults(FaultKind::Error), 9);
}

async fn upload(client: &Client) -> (String, CompletedMultipartUpload) {
    let created = client
        .create_multipart_upload()
        .bucket(BUCKET)
        .key("k")
        .send()
        .await
        .unwrap();
    let id = created.upload_id().unwrap().to_owned();
    let part = client
        .upload_part()
        .bucket(BUCKET)
        .key("k")
        .upload_id(&id)
        .part_number(1);
    let part = part.body(ByteStream::from_static(b"hello")).send().await.unwrap();
    let part = CompletedPart::builder().part_number(1).set_e_tag(part.e_tag).build();
    (id, CompletedMultipartUpload::builder().parts(part).build())
}

#[tokio::test]
async fn ok_with_error() {
    for commit in [false, true] {
        let server = server().await;
        let (proxy, client) = proxied(&server).await;
        let (id, parts) = upload(&client).await;
        let code = "InternalError".to_owned();
        inject(
            &proxy,
            Operation::CompleteMultipartUpload,
            HttpFault::OkWithError { code, commit },
        );
        let complete = client.complete_multipart_upload().bucket(BUCKET).key("k");
        let complete = complete.upload_id(id).multipart_upload(parts).send().await;
        assert_refused!(complete, 200, "InternalError");
        assert_eq!(exists(&server, "k").await, commit);
        assert_eq!(proxy.counters().faults(FaultKind::OkWithError), 1);
    }
}

#[tokio::test]
async fn delay() {
    let server = server().await;
    let (proxy, client) = proxied(&server).await;
    inject(&proxy, Operation::PutObject, HttpFault::Delay { ms: 400 });
    let begin = Instant::now();
    let request = put(&client, "k", b"hello");
    tokio::select! {
        () = request => panic!("it is late"),
        () = tokio::time::sleep(Duration::from_millis(150)) => {}
    }
    assert_eq!(
        server.counters().all_requests(),
        0,
        "late is the request, not the answer"
    );
    // The client has given up before: nothing is passed on later.
    tokio::time::sleep(Duration::from_millis(600)).await;
    assert_eq!(server.counters().all_requests(), 0);
    put(&client, "k", b"hello").await;
    assert!(begin.elapsed() >= Duration::from_millis(400 + 750));
}

#[tokio::test]
async fn slow_commit() {
    let server = server().await;
    let (proxy, client) = proxied(&server).await;
    inject(&proxy, Operation::PutObject, HttpFault::SlowReply { ms: 700 });
    let given_up = timeout(Duration::from_millis(300), put(&client, "k", b"hello")).await;
    assert!(given_up.is_err());
    eventually("the effect has happened", || {
        server.counters().outcomes(Operation::PutObject, Outcome::Success) == 1
    })
    .await;
    assert!(exists(&server, "k").await);
    let begin = Instant::now();
    put(&client, "k", b"hello").await;
    assert!(begin.elapsed() >= Duration::from_millis(700));
    inject(&proxy, Operation::GetObject, HttpFault::SlowReply { ms: 100 });
    assert_eq!(get(&client, "k").await, b"hello");
}

#[tokio::test]
async fn stall() {
    let server = server().await;
    let (proxy, client) = proxied(&server).await;
    inject(&proxy, Operation::PutObject, HttpFault::Stall);
    assert!(timeout(SILENCE, put(&client, "k", &vec![1; 3 * MIB])).await.is_err());
    drop(client);
    eventually("it has ended with its client", || {
        proxy.counters().connections_open() == 0
    })
    .await;
    assert_eq!(server.counters().all_requests(), 0);
}

#[tokio::test]
async fn a_lost_request() {
    let server = server().await;
    let (proxy, client) = proxied(&server).await;
    inject(&proxy, Operation::GetObject, HttpFault::DropRequest { reset: false });
    let (answer, end) = raw_get(&proxy).await;
    end.unwrap();
    assert_eq!(answer, "");
    inject(&proxy, Operation::GetObject, HttpFault::DropRequest { reset: true });
    let (answer, end) = raw_get(&proxy).await;
    assert_eq!(
        (answer.as_str(), end.unwrap_err().kind()),
        ("", ErrorKind::ConnectionReset)
    );
    for reset in [false, true] {
        inject(&proxy, Operation::PutObject, HttpFault::DropRequest { reset });
        let body = ByteStream::from(vec![1; 8 * MIB]);
        let put = client.put_object().bucket(BUCKET).key("k").body(body).send().await;
        assert!(put.unwrap_err().raw_response().is_none());
    }
    assert_eq!(server.counters().all_requests(), 0);
    assert_eq!(proxy.counters().faults(FaultKind::DropRequest), 4);
}

#[tokio::test]
async fn a_late_request_is_carried_out_although_its_client_has_left() {
    let server = server().await;
    let (proxy, client) = proxied(&server).await;
    inject(&proxy, Operation::PutObject, HttpFault::Late { ms: 400 });
    let begin = Instant::now();
    put(&client, "patient", b"hello").await;
    assert!(begin.elapsed() >= Duration::from_millis(400));
    let left = client
        .put_object()
        .bucket(BUCKET)
        .key("k")
        .body(ByteStream::from_static(b"hello"));
    timeout(Duration::from_millis(200), left.send()).await.unwrap_err();
    assert!(!exists(&server, "k").await);
    let direct = crate::support::client(&server);
    timeout(LONG, async {
        while direct.head_object().bucket(BUCKET).key("k").send().await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await
    .unwrap();
    assert_eq!(proxy.counters().faults(FaultKind::Late), 2);
}

#[tokio::test]
async fn a_client_that_goes_on_sending_is_not_waited_for() {
    let server = server().await;
    let (proxy, _) = proxied(&server).await;
    inject(&proxy, Operation::PutObject, HttpFault::DropRequest { reset: false });
    let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
    let head = format!("PUT /{BUCKET}/k HTTP/1.1\r\nHost: x\r\nContent-Length: 999999999\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let (answer, end) = read_all(&mut stream).await;
    end.unwrap();
    assert!(answer.is_empty(), "closed, not reset, in the middle of the request");
    let begin = Instant::now();
    eventually("the client has been given up", || {
        proxy.counters().connections_open() == 0
    })
    .await;
    assert!(begin.elapsed() < LONG);
}
