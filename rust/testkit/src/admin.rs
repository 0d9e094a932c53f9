//! Purpose: the second listener of a tool, by which a test in another process reads counters and sets faults.
//!
//! | request | effect |
//! | --- | --- |
//! | `GET /counters` | the counters, a flat JSON object of numbers |
//! | `POST /reset` | counters to zero, but for the gauges; faults stay |
//! | `GET /faults` | the rules, each with `seen` and `hits` |
//! | `PUT /faults` | replaces the rules by a JSON array of them (see [`faults`](crate::s3_server::faults)); `[]` ends all faults |
//!
//! Failure: 400 with the reason as text for rules that are not understood; nothing is changed then.

use crate::s3_server::FaultError;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use std::convert::Infallible;
use std::sync::Arc;
use tokio::net::TcpStream;
use tracing::debug;

const BODY_BYTES_MAX: usize = 1024 * 1024;

/// What is read and set from outside.
pub(crate) trait Administered: Send + Sync + 'static {
    /// A flat object of numbers.
    fn counters(&self) -> Value;
    /// Sets the counters to zero, but for the gauges.
    fn reset_counters(&self);
    /// The rules in force as a JSON array.
    fn faults(&self) -> serde_json::Result<String>;
    /// Replaces the rules by those of a JSON array.
    fn set_faults(&self, rules: &[u8]) -> Result<(), FaultError>;
}

/// Serves one connection.
pub(crate) async fn serve<Subject: Administered>(subject: Arc<Subject>, stream: TcpStream) {
    let service = service_fn(move |request| {
        let subject = Arc::clone(&subject);
        async move { Ok::<_, Infallible>(answer(&*subject, request).await) }
    });
    let connection = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    if let Err(error) = connection.await {
        debug!(%error, "admin connection ended");
    }
}

async fn answer<Subject: Administered>(subject: &Subject, request: Request<Incoming>) -> Response<Full<Bytes>> {
    match (request.method(), request.uri().path()) {
        (&Method::GET, "/counters") => json(subject.counters().to_string()),
        (&Method::POST, "/reset") => {
            subject.reset_counters();
            text(StatusCode::NO_CONTENT, String::new())
        }
        (&Method::GET, "/faults") => match subject.faults() {
            Ok(rules) => json(rules),
            Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
        },
        (&Method::PUT, "/faults") => set_faults(subject, request.into_body()).await,
        (_, "/counters" | "/reset" | "/faults") => text(StatusCode::METHOD_NOT_ALLOWED, String::new()),
        _ => text(StatusCode::NOT_FOUND, String::new()),
    }
}

async fn set_faults<Subject: Administered>(subject: &Subject, body: Incoming) -> Response<Full<Bytes>> {
    let rules = match Limited::new(body, BODY_BYTES_MAX).collect().await {
        Ok(rules) => rules.to_bytes(),
        Err(error) => return text(StatusCode::BAD_REQUEST, error.to_string()),
    };
    match subject.set_faults(&rules) {
        Ok(()) => text(StatusCode::NO_CONTENT, String::new()),
        Err(error) => text(StatusCode::BAD_REQUEST, error.to_string()),
    }
}

fn json(body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(body));
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn text(status: StatusCode, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(body));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}
