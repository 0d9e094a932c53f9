//! Sends uploads: no faster than allowed, and not for ever to a server that takes or says nothing.
//!
//! # Purpose
//! A rate is kept inside each request: a part of many megabytes does not go out in one rush. And a server that stops taking bytes, or
//! does not answer once it has all, is told from one that is only slow: the deadline of an attempt leaves its bytes a minute or more.
//!
//! # Invariants
//! * It is below signing: the head of a request, its `Content-Length` with it, is what was signed, and the body has the same bytes.
//! * Bytes are not copied: a slice is a view of the buffer.
//! * Only bodies of objects and parts wait. What is small, or ends an upload, does not queue behind them.
//!
//! # Failure
//! A timeout, after which it is unknown whether the server has carried the request out.
//!
//! # Not here
//! Deadlines of whole attempts that fit a rate ([`crate::layer::Policies::paced`]).

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use aws_sdk_s3::config::SharedHttpClient;
use aws_smithy_runtime_api::client::{
    connector_metadata::ConnectorMetadata,
    http::{HttpClient, HttpConnector, HttpConnectorFuture, HttpConnectorSettings, SharedHttpConnector},
    orchestrator::HttpRequest,
    result::ConnectorError,
    runtime_components::RuntimeComponents,
};
use aws_smithy_types::body::SdkBody;
use bytes::Bytes;
use futures::{StreamExt, stream};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use tokio::time::Instant;

use crate::pace::{Pace, SLICE_BYTES};

/// Slices of a body that keeps to no rate: what a connection's buffer takes at once.
const FREE_SLICE_BYTES: usize = 256 << 10;

/// How bodies of uploads are sent.
#[derive(Clone, Debug)]
pub(super) struct Sending {
    /// The rate of all of them together.
    pub(super) pace: Option<Arc<Pace>>,
    /// Longest that the server may take no bytes, or be silent after it has all.
    pub(super) silence: Duration,
}

/// Sends the uploads of `http` like that.
pub(super) fn uploads(http: SharedHttpClient, sending: Sending) -> SharedHttpClient {
    SharedHttpClient::new(SendingClient { inner: http, sending })
}

#[derive(Debug)]
struct SendingClient {
    inner: SharedHttpClient,
    sending: Sending,
}

impl HttpClient for SendingClient {
    fn http_connector(&self, settings: &HttpConnectorSettings, components: &RuntimeComponents) -> SharedHttpConnector {
        SharedHttpConnector::new(SendingConnector {
            inner: self.inner.http_connector(settings, components),
            sending: self.sending.clone(),
        })
    }

    fn connector_metadata(&self) -> Option<ConnectorMetadata> {
        self.inner.connector_metadata()
    }
}

#[derive(Debug)]
struct SendingConnector {
    inner: SharedHttpConnector,
    sending: Sending,
}

impl HttpConnector for SendingConnector {
    fn call(&self, mut request: HttpRequest) -> HttpConnectorFuture {
        // The server is to be told the length even when the body cannot tell it.
        let has_length = request.headers().contains_key("content-length");
        let is_empty = request.body().content_length() == Some(0);
        if !has_length || is_empty || !is_upload(request.method(), request.uri()) {
            return self.inner.call(request);
        }
        let progress = Arc::new(Progress::new());
        let body = request.take_body();
        *request.body_mut() = sliced(body, self.sending.pace.clone(), Arc::clone(&progress));
        let answer = self.inner.call(request);
        let silence = self.sending.silence;
        HttpConnectorFuture::new(async move {
            tokio::select! {
                biased;
                answer = answer => answer,
                () = progress.silent_for(silence) => Err(ConnectorError::timeout(
                    format!("the server took no bytes and said nothing for {silence:?}").into(),
                )),
            }
        })
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

/// When a body last got on.
#[derive(Debug)]
struct Progress(Mutex<Instant>);

impl Progress {
    fn new() -> Self {
        Progress(Mutex::new(Instant::now()))
    }

    /// The connection asks for the next slice, which it may have at `due`.
    fn got_on(&self, due: Instant) {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *last = due.max(*last);
    }

    /// Ends when nothing was asked for in so long a time.
    async fn silent_for(&self, silence: Duration) {
        loop {
            let end = *self.0.lock().unwrap_or_else(PoisonError::into_inner) + silence;
            if end <= Instant::now() {
                return;
            }
            tokio::time::sleep_until(end).await;
        }
    }
}

/// The same body in slices, each when `pace` lets it go.
fn sliced(body: SdkBody, pace: Option<Arc<Pace>>, progress: Arc<Progress>) -> SdkBody {
    let slice_bytes = if pace.is_some() { SLICE_BYTES } else { FREE_SLICE_BYTES };
    let slices = stream::unfold((body, Bytes::new()), move |(mut body, mut rest)| {
        let (pace, progress) = (pace.clone(), Arc::clone(&progress));
        async move {
            progress.got_on(Instant::now());
            while rest.is_empty() {
                match body.frame().await? {
                    Ok(frame) => rest = frame.into_data().unwrap_or_default(),
                    Err(error) => return Some((Err(error), (body, rest))),
                }
            }
            let slice = rest.split_to(rest.len().min(slice_bytes));
            if let Some(pace) = pace {
                let due = pace.take(slice.len());
                progress.got_on(due);
                Pace::until(due).await;
            }
            Some((Ok(Frame::data(slice)), (body, rest)))
        }
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
        let pace = Some(Arc::new(Pace::new(SLICE_BYTES as u64)));
        let mut body = sliced(SdkBody::from(bytes.clone()), pace, Arc::new(Progress::new()));
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
