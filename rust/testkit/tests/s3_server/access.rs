//! Purpose: credentials, regions, TLS.

use crate::support::*;
use alluvium_testkit::s3_server::{Operation, Outcome, S3Server, S3ServerConfig, S3ServerError, TlsMode};
use aws_sdk_s3::error::ProvideErrorMetadata;
use aws_sdk_s3::presigning::PresigningConfig;
use aws_sdk_s3::primitives::ByteStream;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

#[tokio::test]
async fn wrong_credentials_are_told_apart() {
    let server = server().await;
    let endpoint = server.endpoint();
    let cases = [
        (
            Identity {
                access_key: "unknown",
                ..Identity::default()
            },
            403,
            "InvalidAccessKeyId",
        ),
        (
            Identity {
                secret_key: "wrong",
                ..Identity::default()
            },
            403,
            "SignatureDoesNotMatch",
        ),
        (
            Identity {
                region: "eu-west-1",
                ..Identity::default()
            },
            400,
            "AuthorizationHeaderMalformed",
        ),
        (
            Identity {
                token: Some("unasked"),
                ..Identity::default()
            },
            400,
            "InvalidToken",
        ),
    ];
    for (identity, status, code) in cases {
        let client = client_as(&server, endpoint, identity);
        assert_refused!(client.get_object().bucket(BUCKET).key("k").send().await, status, code);
        // The client is told although it has a body to send, and that on a connection that lives on.
        let body = ByteStream::from(vec![1; 8 * MIB]);
        assert_refused!(
            client.put_object().bucket(BUCKET).key("k").body(body).send().await,
            status,
            code
        );
        assert_eq!(refusal(client.head_bucket().bucket(BUCKET).send().await).0, status);
    }
    assert_eq!(server.counters().requests(Operation::PutObject), 4);
    assert_eq!(
        server.counters().outcomes(Operation::PutObject, Outcome::ClientError),
        4
    );
}

#[tokio::test]
async fn a_wrong_region_is_answered_with_the_right_one() {
    let server = server().await;
    let client = client_as(
        &server,
        server.endpoint(),
        Identity {
            region: "eu-west-1",
            ..Identity::default()
        },
    );
    let error = client.get_object().bucket(BUCKET).key("k").send().await.unwrap_err();
    let answer = error.raw_response().unwrap();
    assert_eq!(answer.headers().get("x-amz-bucket-region"), Some("us-east-1"));
    assert!(answer.headers().get("x-amz-request-id").is_some());
    let body = String::from_utf8(answer.body().bytes().unwrap().to_vec()).unwrap();
    assert!(body.contains("<Region>us-east-1</Region>"), "{body}");
    assert!(error.message().unwrap().contains("expecting 'us-east-1'"));
}

#[tokio::test]
async fn session_tokens() {
    let configuration = S3ServerConfig {
        session_token: Some("the-token".to_owned()),
        ..S3ServerConfig::default()
    };
    let server = S3Server::start(configuration).await.unwrap();
    let with = |token| {
        client_as(
            &server,
            server.endpoint(),
            Identity {
                token,
                ..Identity::default()
            },
        )
    };
    with(Some("the-token"))
        .head_bucket()
        .bucket(BUCKET)
        .send()
        .await
        .unwrap();
    assert_refused!(
        with(None).list_objects_v2().bucket(BUCKET).send().await,
        403,
        "InvalidAccessKeyId"
    );
    assert_refused!(
        with(Some("other")).list_objects_v2().bucket(BUCKET).send().await,
        400,
        "InvalidToken"
    );
}

#[tokio::test]
async fn users_change_while_the_server_runs() {
    let server = server().await;
    let endpoint = server.endpoint();
    let old = client_as(&server, endpoint, Identity::default());
    let with_token = Identity {
        access_key: "new-access-key",
        secret_key: "new-secret-key",
        token: Some("new-token"),
        ..Identity::default()
    };
    let new = client_as(&server, endpoint, with_token);
    let look = |client: &aws_sdk_s3::Client| client.list_objects_v2().bucket(BUCKET).send();
    assert_refused!(look(&new).await, 403, "InvalidAccessKeyId");
    server
        .users()
        .allow("new-access-key", "new-secret-key", Some("new-token"));
    look(&old).await.unwrap();
    look(&new).await.unwrap();
    server.users().revoke("test-access-key");
    assert_refused!(look(&old).await, 403, "InvalidAccessKeyId");
    look(&new).await.unwrap();
    server.users().expire("new-access-key");
    assert_refused!(look(&new).await, 400, "ExpiredToken");
}

/// Sends a request as it is and returns all that comes back.
fn raw(server: &S3Server, request: &str) -> String {
    let address = server.endpoint().trim_start_matches("http://");
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[tokio::test]
async fn unsigned_requests_are_refused_and_presigned_ones_are_not() {
    let (server, client) = pair().await;
    put(&client, "k", b"hello").await;
    let head = "Host: localhost\r\nConnection: close\r\n\r\n";
    let answer = raw(&server, &format!("GET /{BUCKET}/k HTTP/1.1\r\n{head}"));
    assert!(
        answer.starts_with("HTTP/1.1 403") && answer.contains("AccessDenied"),
        "{answer}"
    );
    let valid = PresigningConfig::expires_in(Duration::from_secs(60)).unwrap();
    let presigned = client
        .get_object()
        .bucket(BUCKET)
        .key("k")
        .presigned(valid)
        .await
        .unwrap();
    let (_, path) = presigned.uri().split_once(&format!("/{BUCKET}")).unwrap();
    let host = server.endpoint().trim_start_matches("http://");
    let answer = raw(
        &server,
        &format!("GET /{BUCKET}{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"),
    );
    assert!(
        answer.starts_with("HTTP/1.1 200") && answer.ends_with("hello"),
        "{answer}"
    );
    let other = path.replace("us-east-1", "eu-west-1");
    let answer = raw(
        &server,
        &format!("GET /{BUCKET}{other} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"),
    );
    assert!(answer.contains("AuthorizationQueryParametersError"), "{answer}");
}

#[tokio::test]
async fn tls_with_its_own_authority() {
    let directory = tempfile::tempdir().unwrap();
    let tls = TlsMode::OwnAuthority {
        directory: Some(directory.path().join("tls")),
    };
    let server = S3Server::start(S3ServerConfig {
        tls,
        ..S3ServerConfig::default()
    })
    .await
    .unwrap();
    let written = std::fs::read_to_string(directory.path().join("tls/ca.pem")).unwrap();
    assert_eq!(server.ca_pem(), Some(written.as_str()));
    assert!(server.endpoint().starts_with("https://127.0.0.1:"));
    let by_name = server.endpoint().replace("127.0.0.1", "localhost");
    let bytes = pattern(9 * MIB);
    for endpoint in [server.endpoint(), &by_name] {
        let client = client_as(&server, endpoint, Identity::default());
        put(&client, "k", &bytes).await;
        assert!(get(&client, "k").await == bytes);
    }
    let stranger = S3Server::start(S3ServerConfig {
        tls: TlsMode::OwnAuthority { directory: None },
        ..S3ServerConfig::default()
    });
    let distrusting = client_as(&stranger.await.unwrap(), server.endpoint(), Identity::default());
    let error = distrusting.head_bucket().bucket(BUCKET).send().await.unwrap_err();
    assert!(error.raw_response().is_none(), "{error:?}");
}

#[tokio::test]
async fn a_server_ends_cleanly() {
    let (server, client) = pair().await;
    put(&client, "k", &pattern(MIB)).await;
    let address = server.endpoint().trim_start_matches("http://").to_owned();
    assert!(server.counters().connections_open() > 0);
    server.shutdown().await;
    assert!(TcpStream::connect(&address).is_err(), "the port is free");
    // Dropping does the same, in a runtime and out of one.
    drop(S3Server::start(S3ServerConfig::default()).await.unwrap());
    std::thread::spawn(|| drop(S3Server::start_blocking(S3ServerConfig::default()).unwrap()))
        .join()
        .unwrap();
    let refused = S3Server::start(S3ServerConfig {
        buckets: vec!["../up".to_owned()],
        ..S3ServerConfig::default()
    });
    assert!(matches!(refused.await, Err(S3ServerError::BucketName(_))));
    let running = S3Server::start(S3ServerConfig::default()).await.unwrap();
    let listen = running.endpoint().trim_start_matches("http://").parse().unwrap();
    let refused = S3Server::start(S3ServerConfig {
        listen,
        ..S3ServerConfig::default()
    })
    .await;
    assert!(matches!(refused, Err(S3ServerError::Listen(_))));
}

#[tokio::test]
async fn connections_are_counted_while_open() {
    let (server, client) = pair().await;
    put(&client, "k", b"x").await;
    assert_eq!(server.counters().connections_open(), 1);
    drop(client);
    eventually("all connections closed", || server.counters().connections_open() == 0).await;
}
