//! Sends uploads no faster than allowed.
//!
//! # Purpose
//! The rate is kept inside each request: a part of many megabytes does not go out in one rush.
//!
//! # Invariants
//! * It is below signing: the head of a request, its `Content-Length` with it, is what was signed, and the body has the same bytes.
//! * Bytes are not copied: a slice is a view of the buffer.
//! * Only bodies of objects and parts wait. What is small, or ends an upload, does not queue behind them.
//!
//! # Not here
//! Deadlines that fit ([`crate::layer::Policies::paced`]).

use std::sync::Arc;

use aws_sdk_s3::config::SharedHttpClient;
use aws_smithy_runtime_api::client::{
    connector_metadata::ConnectorMetadata,
    http::{HttpClient, HttpConnector, HttpConnectorFuture, HttpConnectorSettings, SharedHttpConnector},
    orchestrator::HttpRequest,
    runtime_components::RuntimeComponents,
};
use aws_smithy_types::body::SdkBody;
use bytes::Bytes;
use futures::{StreamExt, stream};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};

use crate::pace::{Pace, SLICE_BYTES};

/// Shapes the uploads of `http`.
pub(super) fn uploads(http: SharedHttpClient, pace: Arc<Pace>) -> SharedHttpClient {
    SharedHttpClient::new(PacedClient { inner: http, pace })
}

#[derive(Debug)]
struct PacedClient {
    inner: SharedHttpClient,
    pace: Arc<Pace>,
}

impl HttpClient for PacedClient {
    fn http_connector(&self, settings: &HttpConnectorSettings, components: &RuntimeComponents) -> SharedHttpConnector {
        SharedHttpConnector::new(PacedConnector {
            inner: self.inner.http_connector(settings, components),
            pace: Arc::clone(&self.pace),
        })
    }

    fn connector_metadata(&self) -> Option<ConnectorMetadata> {
        self.inner.connector_metadata()
    }
}

#[derive(Debug)]
struct PacedConnector {
    inner: SharedHttpConnector,
    pace: Arc<Pace>,
}

impl HttpConnector for PacedConnector {
    fn call(&self, mut request: HttpRequest) -> HttpConnectorFuture {
        // The server is to be told the length even when the body cannot tell it.
        let has_length = request.headers().contains_key("content-length");
        let is_empty = request.body().content_length() == Some(0);
        if has_length && !is_empty && is_upload(request.method(), request.uri()) {
            let body = request.take_body();
            *request.body_mut() = paced(body, Arc::clone(&self.pace));
        }
        self.inner.call(request)
    }
}

/// The SDK marks its operations.
fn is_upload(method: &str, uri: &str) -> bool {
    let Some((_, query)) = uri.split_once('?') else {
        return false;
    };
    method == "PUT"
        && query
            .split('&')
            .any(|pair| matches!(pair, "x-id=PutObject" | "x-id=UploadPart"))
}

/// The same body in slices, each when `pace` lets it go.
fn paced(body: SdkBody, pace: Arc<Pace>) -> SdkBody {
    let slices = stream::unfold((body, Bytes::new(), pace), |(mut body, mut rest, pace)| async move {
        while rest.is_empty() {
            match body.frame().await? {
                Ok(frame) => rest = frame.into_data().unwrap_or_default(),
                Err(error) => return Some((Err(error), (body, rest, pace))),
            }
        }
        let slice = rest.split_to(rest.len().min(SLICE_BYTES));
        pace.wait(slice.len()).await;
        Some((Ok(Frame::data(slice)), (body, rest, pace)))
    });
    // A body is asked again after its end, for trailers.
    SdkBody::from_body_1_x(StreamBody::new(slices.fuse()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_uploads_wait() {
        assert!(is_upload("PUT", "http://host/bucket/key?x-id=PutObject"));
        assert!(is_upload(
            "PUT",
            "http://host/bucket/key?x-id=UploadPart&partNumber=1&uploadId=u"
        ));
        assert!(!is_upload("GET", "http://host/bucket/key?x-id=GetObject"));
        assert!(!is_upload("POST", "http://host/bucket/key?uploadId=u"));
        assert!(!is_upload("PUT", "http://host/bucket/key?prefix=x-id%3DPutObject"));
    }

    #[tokio::test(start_paused = true)]
    async fn slices_are_views_of_the_same_bytes() {
        let bytes: Bytes = (0..=255u8).cycle().take(3 * SLICE_BYTES + 5).collect();
        let begin = tokio::time::Instant::now();
        let mut body = paced(SdkBody::from(bytes.clone()), Arc::new(Pace::new(SLICE_BYTES as u64)));
        let mut position = 0;
        while let Some(frame) = body.frame().await {
            let slice = frame.expect("a frame").into_data().expect("data");
            assert!(slice.len() <= SLICE_BYTES);
            assert_eq!(slice.as_ptr(), bytes[position..].as_ptr());
            position += slice.len();
        }
        assert_eq!(position, bytes.len());
        // The first slice is the burst; each of the others takes a second, and the five bytes next to nothing.
        assert_eq!(begin.elapsed().as_secs(), 2);
    }
}
