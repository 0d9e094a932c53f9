//! Purpose: servers and clients for these tests.

use alluvium_testkit::s3_server::{S3Server, S3ServerConfig};
use aws_credential_types::Credentials;
use aws_sdk_s3::Client;
use aws_sdk_s3::config::retry::RetryConfig;
use aws_sdk_s3::config::timeout::TimeoutConfig;
use aws_sdk_s3::config::{BehaviorVersion, Region};
use aws_sdk_s3::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_s3::primitives::ByteStream;
use aws_smithy_http_client::tls::rustls_provider::CryptoMode;
use aws_smithy_http_client::tls::{Provider, TlsContext, TrustStore};
use aws_smithy_runtime_api::client::http::SharedHttpClient;
use aws_smithy_runtime_api::http::Response;
use std::fmt::Debug;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

pub(crate) const BUCKET: &str = "test-bucket";
pub(crate) const MIB: usize = 1024 * 1024;

pub(crate) async fn server() -> S3Server {
    S3Server::start(S3ServerConfig::default()).await.unwrap()
}

/// A server and a client of it.
pub(crate) async fn pair() -> (S3Server, Client) {
    let server = server().await;
    let client = client(&server);
    (server, client)
}

/// What a client needs to know; tests spoil one field at a time.
#[derive(Clone)]
pub(crate) struct Identity {
    pub(crate) access_key: &'static str,
    pub(crate) secret_key: &'static str,
    pub(crate) token: Option<&'static str>,
    pub(crate) region: &'static str,
}

impl Default for Identity {
    fn default() -> Self {
        Self {
            access_key: "test-access-key",
            secret_key: "test-secret-key",
            token: None,
            region: "us-east-1",
        }
    }
}

pub(crate) fn client(server: &S3Server) -> Client {
    client_as(server, server.endpoint(), Identity::default())
}

pub(crate) fn client_as(server: &S3Server, endpoint: &str, identity: Identity) -> Client {
    client_trusting(endpoint, identity, server.ca_pem())
}

pub(crate) fn client_trusting(endpoint: &str, identity: Identity, ca_pem: Option<&str>) -> Client {
    client_over(endpoint, identity, http_client(ca_pem))
}

pub(crate) fn client_over(endpoint: &str, identity: Identity, http: SharedHttpClient) -> Client {
    let token = identity.token.map(str::to_owned);
    let credentials = Credentials::new(identity.access_key, identity.secret_key, token, None, "test");
    let timeouts = TimeoutConfig::builder()
        .connect_timeout(Duration::from_secs(5))
        .operation_timeout(Duration::from_secs(60))
        .build();
    let configuration = aws_sdk_s3::Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .endpoint_url(endpoint)
        .force_path_style(true)
        .region(Region::new(identity.region))
        .credentials_provider(credentials)
        .retry_config(RetryConfig::disabled())
        .timeout_config(timeouts)
        .http_client(http)
        .build();
    Client::from_conf(configuration)
}

fn http_client(ca_pem: Option<&str>) -> SharedHttpClient {
    let Some(ca_pem) = ca_pem else {
        return aws_smithy_http_client::Builder::new().build_http();
    };
    let trust = TrustStore::empty().with_pem_certificate(ca_pem.as_bytes());
    aws_smithy_http_client::Builder::new()
        .tls_provider(Provider::Rustls(CryptoMode::Ring))
        .tls_context(TlsContext::builder().with_trust_store(trust).build().unwrap())
        .build_https()
}

/// Bytes that differ everywhere, so that a wrong offset is seen.
pub(crate) fn pattern(length: usize) -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

pub(crate) async fn put(client: &Client, key: &str, bytes: &[u8]) {
    let body = ByteStream::from(bytes.to_vec());
    client
        .put_object()
        .bucket(BUCKET)
        .key(key)
        .body(body)
        .send()
        .await
        .unwrap();
}

pub(crate) async fn get(client: &Client, key: &str) -> Vec<u8> {
    let output = client.get_object().bucket(BUCKET).key(key).send().await.unwrap();
    output.body.collect().await.unwrap().to_vec()
}

pub(crate) fn crc32(bytes: &[u8]) -> String {
    base64(&crc32fast::hash(bytes).to_be_bytes())
}

pub(crate) fn base64(bytes: &[u8]) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

/// Status and code of a refused request.
pub(crate) fn refusal<Output: Debug, Error>(result: Result<Output, SdkError<Error, Response>>) -> (u16, String)
where
    Error: ProvideErrorMetadata + Debug,
{
    let error = result.expect_err("the request must be refused");
    let status = error
        .raw_response()
        .unwrap_or_else(|| panic!("no answer: {error:?}"))
        .status()
        .as_u16();
    (status, error.code().unwrap_or_default().to_owned())
}

macro_rules! assert_refused {
    ($result:expr, $status:expr, $code:expr) => {
        assert_eq!($crate::support::refusal($result), ($status, $code.to_owned()))
    };
}
pub(crate) use assert_refused;

/// Waits until a condition holds that other threads bring about.
pub(crate) async fn eventually(what: &str, condition: impl Fn() -> bool) {
    for _ in 0..500 {
        if condition() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("not in time: {what}");
}

/// Status and body of a request to the admin listener at `url`.
pub(crate) fn call(url: &str, method: &str, path: &str, body: &str) -> (u16, String) {
    let address = url.trim_start_matches("http://");
    let mut stream = TcpStream::connect(address).unwrap();
    let length = body.len();
    let request =
        format!("{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

pub(crate) fn counters(url: &str) -> serde_json::Map<String, serde_json::Value> {
    let (status, body) = call(url, "GET", "/counters", "");
    assert_eq!(status, 200);
    serde_json::from_str(&body).unwrap()
}
