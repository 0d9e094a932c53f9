//! From whatever the SDK says to one kind, with what an operator needs to know.
//!
//! # Invariants
//! * The kind comes from code, status, headers and the source chain together: servers disagree on the codes, and a HEAD has none.
//! * `detail` is one line, bounded, and has neither secrets nor signatures: it is the server's message or the chain of causes.

use std::{error::Error, io, time::Duration};

use aws_credential_types::provider::error::CredentialsError;
use aws_sdk_s3::error::{ProvideErrorMetadata, SdkError};
use aws_smithy_runtime_api::client::orchestrator::HttpResponse;

use crate::{ErrorKind, Key, Operation, StoreError};

/// Longest `detail`: enough for a chain of causes, not for a web page that a proxy answered with.
const DETAIL_CHARS_MAX: usize = 600;

/// Whom the requests go to, for messages.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) endpoint: String,
    pub(super) bucket: String,
    pub(super) region: String,
}

impl Target {
    /// Maps a failed request.
    pub(super) fn error<E>(
        &self,
        operation: Operation,
        key: Option<&Key>,
        error: &SdkError<E, HttpResponse>,
    ) -> StoreError
    where
        E: ProvideErrorMetadata + Error + 'static,
    {
        let response = error.raw_response();
        let mapped = match (error, response) {
            // A success that is not the document it should be.
            (SdkError::ServiceError(service), Some(response))
                if response.status().is_success() && service.err().code().is_none() =>
            {
                self.unparsed(operation, error, response)
            }
            (SdkError::ServiceError(service), Some(response)) => {
                self.answered(operation, service.err().code(), service.err().message(), response)
            }
            (SdkError::ResponseError(_), Some(response)) => self.unparsed(operation, error, response),
            _ => self.unanswered(operation, error),
        };
        let mapped = match response.and_then(request_id) {
            Some(request_id) => mapped.with_request_id(request_id),
            None => mapped,
        };
        match key {
            Some(key) => mapped.with_key(key),
            None => mapped,
        }
    }

    /// Maps an error of one key within a request that succeeded as a whole.
    pub(super) fn key_error(&self, operation: Operation, code: Option<&str>, message: Option<&str>) -> StoreError {
        let kind = code.and_then(kind_of_code).unwrap_or(ErrorKind::Unavailable);
        let error = StoreError::new(kind, operation, one_line(message.or(code).unwrap_or("no reason given")));
        with_code(error, code)
    }

    /// The server answered with an error.
    fn answered(
        &self,
        operation: Operation,
        code: Option<&str>,
        message: Option<&str>,
        response: &HttpResponse,
    ) -> StoreError {
        let status = response.status().as_u16();
        let header = |name: &str| response.headers().get(name);
        let region = header("x-amz-bucket-region")
            .map(str::to_owned)
            .or_else(|| element(response, "Region"));
        let region = region.filter(|region| *region != self.region);
        let mut kind = kind_of(operation, code, status);
        if region.is_some() && matches!(status, 301 | 307 | 400 | 403) {
            kind = ErrorKind::WrongRegion;
        }
        // The same code is used for a header without a key; only the text tells.
        if code == Some("AuthorizationHeaderMalformed") && !message.unwrap_or_default().contains("region") {
            kind = ErrorKind::InvalidCredentials;
        }
        let said = one_line(message.or(code).unwrap_or("no message"));
        let detail = match (kind, region) {
            (ErrorKind::WrongRegion, Some(region)) => {
                format!(
                    "the request was for region {:?}, the server expects {region:?}: {said}",
                    self.region
                )
            }
            (ErrorKind::WrongRegion, None) => format!("the request was for region {:?}: {said}", self.region),
            (ErrorKind::BucketNotFound, _) => format!("bucket {:?} at {}: {said}", self.bucket, self.endpoint),
            _ => said,
        };
        let error = with_code(StoreError::new(kind, operation, detail).with_status(status), code);
        match header("retry-after").and_then(|value| value.trim().parse().ok()) {
            Some(seconds) => error.with_retry_after(Duration::from_secs(seconds)),
            None => error,
        }
    }

    /// The answer broke off, or is not S3's.
    fn unparsed<E>(
        &self,
        operation: Operation,
        error: &SdkError<E, HttpResponse>,
        response: &HttpResponse,
    ) -> StoreError
    where
        E: Error + 'static,
    {
        let status = response.status().as_u16();
        let chain = chain(error);
        let broke = sources(error).any(|source| source.is::<io::Error>()) || mentions(&chain, BROKEN);
        let kind = match status {
            // As a TLS port answers plain HTTP: with a line of text, then the end of the connection.
            400 => ErrorKind::Invalid,
            _ if broke => ErrorKind::Unavailable,
            429 | 503 => ErrorKind::Throttled,
            500..=599 => ErrorKind::Unavailable,
            _ => ErrorKind::Unexpected,
        };
        let detail = format!("unusable answer of {}: {chain}", self.endpoint);
        // Something in between may have given it: the next one may be the store's.
        StoreError::new(kind, operation, one_line(&detail))
            .with_status(status)
            .with_retryable(kind != ErrorKind::Invalid)
    }

    /// No answer at all.
    fn unanswered<E>(&self, operation: Operation, error: &SdkError<E, HttpResponse>) -> StoreError
    where
        E: Error + 'static,
    {
        let chain = chain(error);
        let endpoint = &self.endpoint;
        if sources(error).any(|source| source.is::<CredentialsError>()) {
            return StoreError::new(ErrorKind::InvalidCredentials, operation, one_line(&chain));
        }
        let (kind, what) = if mentions(&chain, NOT_TLS) {
            (ErrorKind::Invalid, "plain HTTP and no TLS is spoken by")
        } else if mentions(&chain, TLS) {
            (ErrorKind::Tls, "the TLS handshake failed with")
        } else if is_unreachable(error) || mentions(&chain, UNREACHABLE) {
            (ErrorKind::Unreachable, "no connection to")
        } else if is_timeout(error) {
            (ErrorKind::Timeout, "no answer in time from")
        } else if matches!(error, SdkError::ConstructionFailure(_)) {
            (ErrorKind::Invalid, "the request cannot be made for")
        } else {
            (ErrorKind::Unavailable, "the connection broke to")
        };
        StoreError::new(kind, operation, one_line(&format!("{what} {endpoint}: {chain}")))
    }
}

fn with_code(error: StoreError, code: Option<&str>) -> StoreError {
    match code {
        Some(code) => error.with_code(code),
        None => error,
    }
}

fn request_id(response: &HttpResponse) -> Option<&str> {
    response
        .headers()
        .get("x-amz-request-id")
        .filter(|request_id| !request_id.is_empty())
}

fn kind_of(operation: Operation, code: Option<&str>, status: u16) -> ErrorKind {
    if let Some(kind) = code.and_then(kind_of_code) {
        return match kind {
            // `NotFound` of a HEAD and `NoSuchKey` of servers that say it for uploads.
            ErrorKind::NotFound => not_found(operation),
            kind => kind,
        };
    }
    match status {
        // CompleteMultipartUpload: the status was sent before the work failed.
        200 => ErrorKind::Unavailable,
        301 | 307 => ErrorKind::WrongRegion,
        401 | 403 => ErrorKind::AccessDenied,
        404 => not_found(operation),
        408 => ErrorKind::Timeout,
        409 => ErrorKind::Unavailable,
        416 => ErrorKind::Invalid,
        429 | 503 => ErrorKind::Throttled,
        501 => ErrorKind::Invalid,
        507 => ErrorKind::NoSpace,
        500..=599 => ErrorKind::Unavailable,
        400..=499 => ErrorKind::Invalid,
        _ => ErrorKind::Unexpected,
    }
}

fn not_found(operation: Operation) -> ErrorKind {
    match operation {
        Operation::UploadPart | Operation::CompleteUpload | Operation::AbortUpload => ErrorKind::UploadNotFound,
        Operation::Get | Operation::Head => ErrorKind::NotFound,
        _ => ErrorKind::BucketNotFound,
    }
}

/// What the codes mean, of AWS and, where they have their own, of MinIO, versitygw and others.
fn kind_of_code(code: &str) -> Option<ErrorKind> {
    Some(match code {
        "NoSuchKey" | "NotFound" | "NoSuchVersion" => ErrorKind::NotFound,
        "NoSuchBucket" => ErrorKind::BucketNotFound,
        "NoSuchUpload" => ErrorKind::UploadNotFound,
        "AccessDenied" | "AllAccessDisabled" | "AccountProblem" | "MethodNotAllowed" | "ObjectLocked" => {
            ErrorKind::AccessDenied
        }
        "InvalidAccessKeyId"
        | "SignatureDoesNotMatch"
        | "ExpiredToken"
        | "InvalidToken"
        | "TokenRefreshRequired"
        | "InvalidSecurity"
        | "NotSignedUp"
        | "InvalidClientTokenId"
        | "XAdminUserNotFound"
        | "XMinioInvalidIAMCredentials" => ErrorKind::InvalidCredentials,
        "AuthorizationHeaderMalformed"
        | "PermanentRedirect"
        | "TemporaryRedirect"
        | "Redirect"
        | "IncorrectEndpoint"
        | "InvalidRegion"
        | "IllegalLocationConstraintException" => ErrorKind::WrongRegion,
        "RequestTimeTooSkewed" | "RequestExpired" => ErrorKind::ClockSkew,
        "SlowDown"
        | "SlowDownRead"
        | "SlowDownWrite"
        | "Throttling"
        | "ThrottlingException"
        | "TooManyRequests"
        | "TooManyRequestsException"
        | "RequestLimitExceeded"
        | "BandwidthLimitExceeded"
        | "ServiceUnavailable" => ErrorKind::Throttled,
        "InternalError"
        | "InternalServerError"
        | "OperationAborted"
        | "ConditionalRequestConflict"
        | "XMinioServerNotInitialized"
        | "XMinioBackendDown"
        | "ServerNotInitialized" => ErrorKind::Unavailable,
        "RequestTimeout" => ErrorKind::Timeout,
        "IncompleteBody" => ErrorKind::Truncated,
        "BadDigest"
        | "InvalidDigest"
        | "XAmzContentChecksumMismatch"
        | "XAmzContentSHA256Mismatch"
        | "ContentSHA256Mismatch"
        | "XMinioInvalidObjectChecksum" => ErrorKind::ChecksumMismatch,
        "QuotaExceeded"
        | "InsufficientStorage"
        | "InsufficientCapacity"
        | "XMinioStorageFull"
        | "XMinioStorageQuotaExceeded"
        | "XMinioAdminBucketQuotaExceeded" => ErrorKind::NoSpace,
        "InvalidRange"
        | "InvalidArgument"
        | "InvalidRequest"
        | "InvalidPart"
        | "InvalidPartOrder"
        | "EntityTooSmall"
        | "EntityTooLarge"
        | "KeyTooLongError"
        | "MalformedXML"
        | "NotImplemented"
        | "MissingContentMD5"
        | "MissingContentLength"
        | "InvalidBucketName"
        | "XMinioInvalidObjectName"
        | "InvalidObjectName" => ErrorKind::Invalid,
        _ => return None,
    })
}

/// An element of the answer's error document, without a parser: the document was understood once already.
fn element(response: &HttpResponse, name: &str) -> Option<String> {
    let text = std::str::from_utf8(response.body().bytes()?).ok()?;
    let (_, rest) = text.split_once(&format!("<{name}>"))?;
    let (value, _) = rest.split_once("</")?;
    Some(one_line(value))
}

/// What rustls says of an answer that is not TLS.
const NOT_TLS: &[&str] = &["InvalidContentType"];

const TLS: &[&str] = &[
    "invalid peer certificate",
    "received fatal alert",
    "received corrupt message",
    "peer is incompatible",
    "peer misbehaved",
    "tls handshake",
];
const UNREACHABLE: &[&str] = &[
    "dns error",
    "failed to lookup address",
    "tcp connect error",
    "HTTP connect timeout",
];
const BROKEN: &[&str] = &[
    "connection closed",
    "error reading a body",
    "IncompleteMessage",
    "unexpected end of file",
];

fn mentions(chain: &str, texts: &[&str]) -> bool {
    texts.iter().any(|text| chain.contains(text))
}

fn is_timeout<E: Error + 'static>(error: &SdkError<E, HttpResponse>) -> bool {
    match error {
        SdkError::TimeoutError(_) => true,
        SdkError::DispatchFailure(failure) => failure.is_timeout(),
        _ => false,
    }
}

fn is_unreachable(error: &(dyn Error + 'static)) -> bool {
    sources(error)
        .filter_map(|source| source.downcast_ref::<io::Error>())
        .any(|error| {
            matches!(
                error.kind(),
                io::ErrorKind::ConnectionRefused
                    | io::ErrorKind::HostUnreachable
                    | io::ErrorKind::NetworkUnreachable
                    | io::ErrorKind::NetworkDown
                    | io::ErrorKind::AddrNotAvailable
            )
        })
}

fn sources<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |error| (*error).source())
}

/// The causes of `error`, outermost first, without those that repeat another and without words that say nothing.
pub(super) fn chain(error: &(dyn Error + 'static)) -> String {
    const EMPTY_WORDS: [&str; 7] = [
        "dispatch failure",
        "service error",
        "io error",
        "other",
        "response error",
        "client error (Connect)",
        "the credential provider was not enabled",
    ];
    let mut texts: Vec<String> = Vec::new();
    for source in sources(error) {
        let text = source.to_string();
        let known = texts.iter().any(|earlier| earlier.contains(&text));
        if text.is_empty() || known || EMPTY_WORDS.contains(&text.as_str()) {
            continue;
        }
        // An outer text that ends with its cause says it twice.
        if let Some(last) = texts.last_mut()
            && let Some(start) = last.strip_suffix(&text)
        {
            *last = start.trim_end_matches([':', ' ']).to_owned();
            if last.is_empty() {
                texts.pop();
            }
        }
        texts.push(text);
    }
    if texts.is_empty() {
        texts.push(error.to_string());
    }
    one_line(&texts.join(": "))
}

fn one_line(text: &str) -> String {
    let mut line: String = text
        .chars()
        .map(|character| if character.is_control() { ' ' } else { character })
        .take(DETAIL_CHARS_MAX)
        .collect();
    line.truncate(line.trim_end().len());
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Link {
        text: &'static str,
        #[source]
        cause: Option<Box<Link>>,
    }

    fn linked(texts: &[&'static str]) -> Link {
        let (first, rest) = texts.split_first().expect("at least one text");
        Link {
            text: first,
            cause: (!rest.is_empty()).then(|| Box::new(linked(rest))),
        }
    }

    #[test]
    fn a_chain_has_no_repetition() {
        let error = linked(&[
            "dispatch failure",
            "io error",
            "tcp connect error",
            "Connection refused (os error 111)",
        ]);
        assert_eq!(chain(&error), "tcp connect error: Connection refused (os error 111)");
        let error = linked(&["outer: inner", "inner", "inner"]);
        assert_eq!(chain(&error), "outer: inner");
        assert_eq!(chain(&linked(&["io error"])), "io error");
    }

    #[test]
    fn the_three_spellings_of_a_wrong_checksum_are_one_kind() {
        for code in ["BadDigest", "XAmzContentChecksumMismatch", "InvalidDigest"] {
            assert_eq!(kind_of(Operation::Put, Some(code), 400), ErrorKind::ChecksumMismatch);
        }
    }

    #[test]
    fn a_bare_404_depends_on_the_operation() {
        assert_eq!(kind_of(Operation::Head, None, 404), ErrorKind::NotFound);
        assert_eq!(kind_of(Operation::Head, Some("NotFound"), 404), ErrorKind::NotFound);
        assert_eq!(kind_of(Operation::AbortUpload, None, 404), ErrorKind::UploadNotFound);
        assert_eq!(kind_of(Operation::List, None, 404), ErrorKind::BucketNotFound);
        assert_eq!(
            kind_of(Operation::CompleteUpload, Some("SomethingNew"), 200),
            ErrorKind::Unavailable
        );
    }

    #[test]
    fn a_detail_is_one_bounded_line() {
        assert_eq!(one_line("two\nlines\t \n"), "two lines");
        assert_eq!(one_line(&"x".repeat(5000)).len(), DETAIL_CHARS_MAX);
    }
}
