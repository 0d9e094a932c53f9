//! A limit for the bodies of answers.
//!
//! # Purpose
//! The SDK reads every answer but an object into memory, however long it is; a server or a proxy in between decides the length.
//!
//! # Invariants
//! * Bodies of objects are not limited: they are streamed, and [`super::body`] counts them.
//!
//! # Failure
//! A body over the limit breaks: the request fails as one whose answer cannot be used.

use aws_sdk_s3::config::SharedHttpClient;
use aws_smithy_runtime_api::client::{
    connector_metadata::ConnectorMetadata,
    http::{HttpClient, HttpConnector, HttpConnectorFuture, HttpConnectorSettings, SharedHttpConnector},
    orchestrator::HttpRequest,
    runtime_components::RuntimeComponents,
};
use aws_smithy_types::body::SdkBody;
use http_body_util::Limited;

/// Longest body of an answer that is not an object: a page of 1000 keys of 1024 bytes, each byte written as `&#x..;`.
pub(super) const ANSWER_BYTES_MAX: usize = 8 << 20;

/// Limits all answers but objects.
pub(super) fn all_but_objects(http: SharedHttpClient) -> SharedHttpClient {
    SharedHttpClient::new(LimitedClient {
        inner: http,
        objects_pass: true,
    })
}

/// Limits all answers: for what asks for credentials.
pub(super) fn all(http: SharedHttpClient) -> SharedHttpClient {
    SharedHttpClient::new(LimitedClient {
        inner: http,
        objects_pass: false,
    })
}

#[derive(Debug)]
struct LimitedClient {
    inner: SharedHttpClient,
    objects_pass: bool,
}

impl HttpClient for LimitedClient {
    fn http_connector(&self, settings: &HttpConnectorSettings, components: &RuntimeComponents) -> SharedHttpConnector {
        SharedHttpConnector::new(LimitedConnector {
            inner: self.inner.http_connector(settings, components),
            objects_pass: self.objects_pass,
        })
    }

    fn connector_metadata(&self) -> Option<ConnectorMetadata> {
        self.inner.connector_metadata()
    }
}

#[derive(Debug)]
struct LimitedConnector {
    inner: SharedHttpConnector,
    objects_pass: bool,
}

impl HttpConnector for LimitedConnector {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let for_object = self.objects_pass && asks_for_object(request.method(), request.uri());
        let answer = self.inner.call(request);
        HttpConnectorFuture::new(async move {
            let answer = answer.await?;
            if for_object && matches!(answer.status().as_u16(), 200 | 206) {
                return Ok(answer);
            }
            Ok(answer.map(|body| SdkBody::from_body_1_x(Limited::new(body, ANSWER_BYTES_MAX))))
        })
    }
}

/// The SDK marks the one operation whose body it streams.
fn asks_for_object(method: &str, uri: &str) -> bool {
    let Some((_, query)) = uri.split_once('?') else {
        return false;
    };
    method == "GET" && query.split('&').any(|pair| pair == "x-id=GetObject")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_objects_pass() {
        assert!(asks_for_object("GET", "http://host/bucket/key?x-id=GetObject"));
        assert!(!asks_for_object("PUT", "http://host/bucket/key?x-id=GetObject"));
        assert!(!asks_for_object("GET", "http://host/bucket/key"));
        assert!(!asks_for_object(
            "GET",
            "http://host/bucket?list-type=2&prefix=x-id%3DGetObject"
        ));
    }
}
