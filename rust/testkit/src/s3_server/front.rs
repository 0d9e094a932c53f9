//! Purpose: what every request passes before and after the S3 service.
//!
//! Flow: name the operation, count, apply a fault, check the scope of the credentials, call the service, number the
//! answer.
//!
//! Invariants: an answer with an error is given only when the request body has been read to its end, so that a client
//! in the middle of sending hears it and can keep the connection. Every answer has a request id.
//!
//! Cancel: a request whose client leaves is dropped where it stands; what was not committed by then leaves nothing.

use super::auth::{Gate, Refusal};
use super::body::{RequestBody, ResponseBody};
use super::counters::{Counters, Outcome};
use super::faults::{FaultAction, Faults};
use super::operation::{Operation, Target};
use crate::control::Control;
use hyper::body::Incoming;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{Request, Response, StatusCode};
use s3s::Body;
use s3s::service::S3Service;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-amz-request-id");
const BUCKET_REGION: HeaderName = HeaderName::from_static("x-amz-bucket-region");

/// The connection is to end without an answer.
#[derive(Debug, thiserror::Error)]
#[error("the connection is cut on purpose")]
pub(super) struct Cut;

pub(super) struct Front {
    pub(super) service: S3Service,
    pub(super) gate: Gate,
    pub(super) faults: Arc<Faults>,
    pub(super) counters: Arc<Counters>,
    pub(super) next_request: AtomicU64,
}

/// Counts a request as cut unless it has been answered.
struct Unanswered<'front> {
    counters: &'front Counters,
    operation: Operation,
    outcome: Outcome,
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        self.counters.outcome(self.operation, self.outcome);
    }
}

impl Front {
    pub(super) fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    pub(super) async fn handle(
        self: Arc<Self>,
        request: Request<Incoming>,
        control: Arc<Control>,
    ) -> Result<Response<ResponseBody>, Cut> {
        let target = Target::of(request.method(), request.uri(), request.headers());
        self.counters.request(target.operation);
        let mut unanswered = Unanswered {
            counters: &self.counters,
            operation: target.operation,
            outcome: Outcome::Cut,
        };
        let request_id = format!("{:016X}", self.next_request.fetch_add(1, Ordering::Relaxed));
        let fault = self.faults.take(&target);
        let answer = self.answer(request, fault.as_ref(), &request_id, &control).await?;
        if fault == Some(FaultAction::DropReply) {
            return Err(Cut);
        }
        unanswered.outcome = Outcome::from(answer.status());
        let mut answer =
            answer.map(|body| ResponseBody::new(body, Arc::clone(&self.counters), control, fault.as_ref()));
        if let Ok(value) = HeaderValue::try_from(request_id) {
            answer.headers_mut().insert(REQUEST_ID, value);
        }
        Ok(answer)
    }

    async fn answer(
        &self,
        request: Request<Incoming>,
        fault: Option<&FaultAction>,
        request_id: &str,
        control: &Control,
    ) -> Result<Response<Body>, Cut> {
        let (head, incoming) = request.into_parts();
        let (body, rest) = RequestBody::new(incoming, Arc::clone(&self.counters));
        match fault {
            Some(FaultAction::Error {
                status,
                code,
                retry_after,
            }) => {
                body.drain().await;
                let status = StatusCode::from_u16(*status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
                let mut answer = error_answer(status, code, "injected error", &[], request_id);
                if let Some(seconds) = retry_after {
                    answer
                        .headers_mut()
                        .insert(header::RETRY_AFTER, HeaderValue::from(*seconds));
                }
                return Ok(answer);
            }
            Some(FaultAction::OkWithError { code }) => {
                body.drain().await;
                return Ok(error_answer(StatusCode::OK, code, "injected error", &[], request_id));
            }
            Some(FaultAction::Stall) => {
                // Only a request that has been read lets the connection notice that its client has left.
                body.drain().await;
                return std::future::pending().await;
            }
            Some(FaultAction::Reset) => {
                control.reset_at_end();
                return Err(Cut);
            }
            Some(FaultAction::Delay { ms }) => tokio::time::sleep(Duration::from_millis(*ms)).await,
            _ => {}
        }
        if let Err(refusal) = self.gate.check(&head.headers, &head.uri) {
            body.drain().await;
            return Ok(refusal_answer(&refusal, request_id));
        }
        let request = Request::from_parts(head, Body::http_body_unsync(body));
        let answer = match self.service.call(request).await {
            Ok(answer) => answer,
            Err(error) => {
                tracing::error!(?error, "the S3 service has no answer");
                error_answer(
                    StatusCode::INTERNAL_SERVER_ERROR,
                    "InternalError",
                    "no answer",
                    &[],
                    request_id,
                )
            }
        };
        if !answer.status().is_success() {
            rest.drain(&self.counters).await;
        }
        Ok(answer)
    }
}

fn refusal_answer(refusal: &Refusal, request_id: &str) -> Response<Body> {
    let region = refusal.region.as_deref();
    let fields: Vec<_> = region.map(|region| ("Region", region)).into_iter().collect();
    let mut answer = error_answer(refusal.status, refusal.code, &refusal.message, &fields, request_id);
    // The answer to a HEAD has no body to say it in.
    if let Some(value) = region.and_then(|region| HeaderValue::try_from(region).ok()) {
        answer.headers_mut().insert(BUCKET_REGION, value);
    }
    answer
}

/// An error as S3 writes it.
fn error_answer(
    status: StatusCode,
    code: &str,
    message: &str,
    fields: &[(&str, &str)],
    request_id: &str,
) -> Response<Body> {
    let mut answer = Response::new(Body::from(error_document(code, message, fields, request_id)));
    *answer.status_mut() = status;
    answer
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static("application/xml"));
    answer
}

/// The body of an error as S3 writes it.
pub(crate) fn error_document(code: &str, message: &str, fields: &[(&str, &str)], request_id: &str) -> String {
    let mut xml = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error>");
    let fixed = [("Code", code), ("Message", message), ("RequestId", request_id)];
    for (name, value) in fixed.iter().chain(fields) {
        write!(xml, "<{name}>{}</{name}>", escape(value)).expect("writing to a String does not fail");
    }
    xml.push_str("</Error>");
    xml
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
