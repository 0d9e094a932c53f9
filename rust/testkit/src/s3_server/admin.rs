//! Purpose: the second listener, by which a test in another process reads counters and sets faults.
//!
//! | request | effect |
//! | --- | --- |
//! | `GET /counters` | the counters, a flat JSON object of numbers |
//! | `POST /reset` | counters to zero, but for the gauges; faults stay |
//! | `GET /faults` | the rules, each with `seen` and `hits` |
//! | `PUT /faults` | replaces the rules by a JSON array of them (see [`faults`](super::faults)); `[]` ends all faults |
//!
//! Failure: 400 with the reason as text for rules that are not understood; nothing is changed then.

use super::counters::Counters;
use super::faults::Faults;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::sync::Arc;
use tokio::net::TcpStream;
use tracing::debug;

const BODY_BYTES_MAX: usize = 1024 * 1024;

#[derive(Clone)]
pub(super) struct Admin {
    pub(super) counters: Arc<Counters>,
    pub(super) faults: Arc<Faults>,
}

impl Admin {
    pub(super) async fn serve(self, stream: TcpStream) {
        let service = service_fn(move |request| {
            let admin = self.clone();
            async move { Ok::<_, Infallible>(admin.answer(request).await) }
        });
        let connection = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
        if let Err(error) = connection.await {
            debug!(%error, "admin connection ended");
        }
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        match (request.method(), request.uri().path()) {
            (&Method::GET, "/counters") => json(self.counters.to_json().to_string()),
            (&Method::POST, "/reset") => {
                self.counters.reset();
                text(StatusCode::NO_CONTENT, String::new())
            }
            (&Method::GET, "/faults") => match serde_json::to_string(&self.faults.status()) {
                Ok(rules) => json(rules),
                Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
            },
            (&Method::PUT, "/faults") => self.set_faults(request.into_body()).await,
            (_, "/counters" | "/reset" | "/faults") => text(StatusCode::METHOD_NOT_ALLOWED, String::new()),
            _ => text(StatusCode::NOT_FOUND, String::new()),
        }
    }

    async fn set_faults(&self, body: Incoming) -> Response<Full<Bytes>> {
        let rules = match Limited::new(body, BODY_BYTES_MAX).collect().await {
            Ok(rules) => rules.to_bytes(),
            Err(error) => return text(StatusCode::BAD_REQUEST, error.to_string()),
        };
        match self.faults.set_json(&rules) {
            Ok(()) => text(StatusCode::NO_CONTENT, String::new()),
            Err(error) => text(StatusCode::BAD_REQUEST, error.to_string()),
        }
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
