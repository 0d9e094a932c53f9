//! Purpose: answers, those of the server and those made in its place.

use super::fault::HttpFault;
use crate::s3_server::error_document;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Either, Full};
use hyper::body::Incoming;
use hyper::header::{self, HeaderValue};
use hyper::{Response, StatusCode};

/// The server's body as it comes, or one that is had whole.
pub(super) type Answer = Either<Incoming, Full<Bytes>>;

/// What answers made here call their request: no server has numbered it.
const REQUEST_ID: &str = "FAULT-PROXY";
/// As S3 names it, so that clients find it in logs beside the body's.
const REQUEST_ID_HEADER: &str = "x-amz-request-id";

/// The server's answer.
pub(super) fn regular(answer: Response<Incoming>) -> Response<Answer> {
    answer.map(Either::Left)
}

/// The answer, when all of it has come.
pub(super) async fn collected(
    answer: Response<Answer>,
) -> Result<Response<Answer>, Box<dyn std::error::Error + Send + Sync>> {
    let (head, body) = answer.into_parts();
    let body = body.collect().await?.to_bytes();
    Ok(Response::from_parts(head, Either::Right(Full::new(body))))
}

/// The answer that a fault gives in the server's place.
pub(super) fn made(fault: &HttpFault) -> Response<Answer> {
    let (status, code, retry_after, html) = match fault {
        HttpFault::Error {
            status,
            code,
            retry_after,
            html,
        } => (StatusCode::from_u16(*status), code.as_str(), *retry_after, *html),
        HttpFault::OkWithError { code, .. } => (Ok(StatusCode::OK), code.as_str(), None, false),
        _ => (Ok(StatusCode::INTERNAL_SERVER_ERROR), "InternalError", None, false),
    };
    let status = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let (content_type, body) = if html {
        ("text/html", page(status))
    } else {
        let document = error_document(code, "injected error", &[], REQUEST_ID);
        ("application/xml", document)
    };
    let mut answer = Response::new(Either::Right(Full::from(body)));
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(REQUEST_ID_HEADER, HeaderValue::from_static(REQUEST_ID));
    if let Some(seconds) = retry_after {
        headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    answer
}

/// An error as gateways and load balancers write it.
fn page(status: StatusCode) -> String {
    format!("<html>\r\n<head><title>{status}</title></head>\r\n<body>\r\n<h1>{status}</h1>\r\n</body>\r\n</html>\r\n")
}
