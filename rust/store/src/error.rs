//! What can go wrong at a store, precise enough to decide on a retry and to tell an operator what to mend.

use std::{error::Error, fmt, time::Duration};

use crate::Key;

/// Longest detail: a chain of causes with a path, not the web page that a proxy answered with.
const DETAIL_CHARS_MAX: usize = 2000;

/// Longest code or request id of a store; real ones are shorter.
const CODE_CHARS_MAX: usize = 100;

/// `text` as it may stand in a log line: a server must neither break the line nor fill the disk.
fn one_line(text: &str, chars_max: usize) -> String {
    text.chars()
        .map(|character| match character {
            '\u{2028}' | '\u{2029}' => ' ',
            character if character.is_control() => ' ',
            character => character,
        })
        .take(chars_max)
        .collect()
}

/// Result of a store operation.
pub type StoreResult<T> = Result<T, StoreError>;

/// The operation that failed, in S3's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Operation {
    /// `PutObject`.
    Put,
    /// `CreateMultipartUpload`.
    CreateUpload,
    /// `UploadPart`.
    UploadPart,
    /// `CompleteMultipartUpload`.
    CompleteUpload,
    /// `AbortMultipartUpload`.
    AbortUpload,
    /// `ListMultipartUploads`.
    ListUploads,
    /// `GetObject`, headers and body.
    Get,
    /// `HeadObject`.
    Head,
    /// `DeleteObjects`.
    Delete,
    /// `ListObjectsV2`.
    List,
    /// Opening the store, before any request.
    Open,
}

impl Operation {
    /// All operations, in declaration order: `Operation::ALL[op as usize] == op`.
    pub const ALL: [Operation; 11] = [
        Operation::Put,
        Operation::CreateUpload,
        Operation::UploadPart,
        Operation::CompleteUpload,
        Operation::AbortUpload,
        Operation::ListUploads,
        Operation::Get,
        Operation::Head,
        Operation::Delete,
        Operation::List,
        Operation::Open,
    ];

    /// S3's name of the operation; the other stores borrow it.
    pub fn name(self) -> &'static str {
        match self {
            Operation::Put => "PutObject",
            Operation::CreateUpload => "CreateMultipartUpload",
            Operation::UploadPart => "UploadPart",
            Operation::CompleteUpload => "CompleteMultipartUpload",
            Operation::AbortUpload => "AbortMultipartUpload",
            Operation::ListUploads => "ListMultipartUploads",
            Operation::Get => "GetObject",
            Operation::Head => "HeadObject",
            Operation::Delete => "DeleteObjects",
            Operation::List => "ListObjectsV2",
            Operation::Open => "Open",
        }
    }
}

/// The kind of a failure. Decides what the caller and the operator can do; never parsed from text later on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ErrorKind {
    /// No such object.
    NotFound,
    /// No such bucket, or the root directory of a file store is gone.
    BucketNotFound,
    /// No such multipart upload: aborted, completed, or never made.
    UploadNotFound,
    /// The identity is known but has not the right.
    AccessDenied,
    /// Unknown access key, wrong secret, expired token, or no credentials found at all.
    InvalidCredentials,
    /// The bucket or endpoint belongs to another region.
    WrongRegion,
    /// The request's date is too far from the server's clock.
    ClockSkew,
    /// The store asks for fewer requests (503 SlowDown, 429).
    Throttled,
    /// The store answered that it cannot serve now (5xx), or the connection broke.
    Unavailable,
    /// No connection: name not resolved, refused, no route.
    Unreachable,
    /// The TLS handshake failed: unknown issuer, wrong name, expired certificate.
    Tls,
    /// No answer in time. What happened at the store is unknown.
    Timeout,
    /// A body ended before its announced length.
    Truncated,
    /// Stored bytes do not have the checksum that was sent or expected.
    ChecksumMismatch,
    /// The store has no room left.
    NoSpace,
    /// The request or the settings are wrong; the same request will fail again.
    Invalid,
    /// An answer outside the protocol.
    Unexpected,
}

impl ErrorKind {
    /// All kinds, in declaration order: `ErrorKind::ALL[kind as usize] == kind`.
    pub const ALL: [ErrorKind; 17] = [
        ErrorKind::NotFound,
        ErrorKind::BucketNotFound,
        ErrorKind::UploadNotFound,
        ErrorKind::AccessDenied,
        ErrorKind::InvalidCredentials,
        ErrorKind::WrongRegion,
        ErrorKind::ClockSkew,
        ErrorKind::Throttled,
        ErrorKind::Unavailable,
        ErrorKind::Unreachable,
        ErrorKind::Tls,
        ErrorKind::Timeout,
        ErrorKind::Truncated,
        ErrorKind::ChecksumMismatch,
        ErrorKind::NoSpace,
        ErrorKind::Invalid,
        ErrorKind::Unexpected,
    ];

    /// The kind as a metric label.
    pub fn name(self) -> &'static str {
        match self {
            ErrorKind::NotFound => "not-found",
            ErrorKind::BucketNotFound => "bucket-not-found",
            ErrorKind::UploadNotFound => "upload-not-found",
            ErrorKind::AccessDenied => "access-denied",
            ErrorKind::InvalidCredentials => "invalid-credentials",
            ErrorKind::WrongRegion => "wrong-region",
            ErrorKind::ClockSkew => "clock-skew",
            ErrorKind::Throttled => "throttled",
            ErrorKind::Unavailable => "unavailable",
            ErrorKind::Unreachable => "unreachable",
            ErrorKind::Tls => "tls",
            ErrorKind::Timeout => "timeout",
            ErrorKind::Truncated => "truncated",
            ErrorKind::ChecksumMismatch => "checksum-mismatch",
            ErrorKind::NoSpace => "no-space",
            ErrorKind::Invalid => "invalid",
            ErrorKind::Unexpected => "unexpected",
        }
    }

    /// Whether the same request may succeed when sent again, as far as the kind tells.
    pub fn is_retryable(self) -> bool {
        matches!(
            self,
            ErrorKind::Throttled
                | ErrorKind::Unavailable
                | ErrorKind::Unreachable
                | ErrorKind::Timeout
                | ErrorKind::Truncated
                | ErrorKind::ChecksumMismatch
                | ErrorKind::ClockSkew
        )
    }
}

/// A failed store operation, with all that a message to an operator needs.
#[derive(Clone)]
pub struct StoreError {
    inner: Box<Inner>,
}

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    retryable: bool,
    operation: Operation,
    key: Option<String>,
    status: Option<u16>,
    code: Option<String>,
    request_id: Option<String>,
    retry_after: Option<Duration>,
    attempts: u32,
    detail: String,
}

impl StoreError {
    /// An error of `kind` in `operation`; `detail` says in one line what happened, with causes, without secrets.
    /// Control characters become spaces, here and in what else comes from a server, and overlong text is cut.
    pub fn new(kind: ErrorKind, operation: Operation, detail: impl Into<String>) -> Self {
        StoreError {
            inner: Box::new(Inner {
                kind,
                retryable: kind.is_retryable(),
                operation,
                key: None,
                status: None,
                code: None,
                request_id: None,
                retry_after: None,
                attempts: 1,
                detail: one_line(&detail.into(), DETAIL_CHARS_MAX),
            }),
        }
    }

    /// Names the object.
    pub fn with_key(mut self, key: &Key) -> Self {
        self.inner.key = Some(key.as_str().to_owned());
        self
    }

    /// Adds the HTTP status of the answer.
    pub fn with_status(mut self, status: u16) -> Self {
        self.inner.status = Some(status);
        self
    }

    /// Adds the store's own error code, such as `SlowDown`.
    pub fn with_code(mut self, code: impl AsRef<str>) -> Self {
        self.inner.code = Some(one_line(code.as_ref(), CODE_CHARS_MAX));
        self
    }

    /// Adds the store's request id.
    pub fn with_request_id(mut self, request_id: impl AsRef<str>) -> Self {
        self.inner.request_id = Some(one_line(request_id.as_ref(), CODE_CHARS_MAX));
        self
    }

    /// Adds how long the store asked to wait.
    pub fn with_retry_after(mut self, retry_after: Duration) -> Self {
        self.inner.retry_after = Some(retry_after);
        self
    }

    /// Sets how many attempts were made before this error was given back.
    pub fn with_attempts(mut self, attempts: u32) -> Self {
        self.inner.attempts = attempts;
        self
    }

    /// Overrides what the kind says of a retry.
    pub fn with_retryable(mut self, retryable: bool) -> Self {
        self.inner.retryable = retryable;
        self
    }

    /// The kind.
    pub fn kind(&self) -> ErrorKind {
        self.inner.kind
    }

    /// Whether the same request may succeed when sent again.
    pub fn is_retryable(&self) -> bool {
        self.inner.retryable
    }

    /// The operation that failed.
    pub fn operation(&self) -> Operation {
        self.inner.operation
    }

    /// The object's key, where one object was concerned.
    pub fn key(&self) -> Option<&str> {
        self.inner.key.as_deref()
    }

    /// The HTTP status of the answer, where there was one.
    pub fn status(&self) -> Option<u16> {
        self.inner.status
    }

    /// The store's own error code.
    pub fn code(&self) -> Option<&str> {
        self.inner.code.as_deref()
    }

    /// The store's request id.
    pub fn request_id(&self) -> Option<&str> {
        self.inner.request_id.as_deref()
    }

    /// How long the store asked to wait.
    pub fn retry_after(&self) -> Option<Duration> {
        self.inner.retry_after
    }

    /// How many attempts were made.
    pub fn attempts(&self) -> u32 {
        self.inner.attempts
    }

    /// What happened, in one line.
    pub fn detail(&self) -> &str {
        &self.inner.detail
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = &self.inner;
        write!(formatter, "{} failed: {}", inner.operation.name(), inner.detail)?;
        if let Some(key) = &inner.key {
            write!(formatter, ", key {key}")?;
        }
        if let Some(status) = inner.status {
            write!(formatter, ", status {status}")?;
        }
        if let Some(code) = &inner.code {
            write!(formatter, ", code {code}")?;
        }
        if let Some(request_id) = &inner.request_id {
            write!(formatter, ", request id {request_id}")?;
        }
        if inner.attempts > 1 {
            write!(formatter, ", attempts {}", inner.attempts)?;
        }
        Ok(())
    }
}

impl fmt::Debug for StoreError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:?}: {self}", self.inner.kind)
    }
}

impl Error for StoreError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_lists_are_in_declaration_order() {
        for (index, operation) in Operation::ALL.iter().enumerate() {
            assert_eq!(*operation as usize, index);
        }
        for (index, kind) in ErrorKind::ALL.iter().enumerate() {
            assert_eq!(*kind as usize, index);
        }
    }

    #[test]
    fn a_message_names_everything_known() {
        let key = Key::new("a/b").expect("a valid key");
        let error = StoreError::new(ErrorKind::Throttled, Operation::Put, "please slow down")
            .with_key(&key)
            .with_status(503)
            .with_code("SlowDown")
            .with_request_id("R1")
            .with_attempts(4);
        assert_eq!(
            error.to_string(),
            "PutObject failed: please slow down, key a/b, status 503, code SlowDown, request id R1, attempts 4"
        );
        assert!(error.is_retryable());
    }

    #[test]
    fn a_server_can_neither_break_a_line_nor_fill_it() {
        let evil = format!("Slow\nERROR\r\u{1b}[2K\u{2028}{}", "x".repeat(100_000));
        let error = StoreError::new(ErrorKind::Throttled, Operation::Put, evil.as_str())
            .with_code(&evil)
            .with_request_id(&evil);
        let line = error.to_string();
        assert!(
            !line.contains(|character: char| character.is_control() || character == '\u{2028}'),
            "{line}"
        );
        assert!(line.len() < 3000, "{} bytes", line.len());
        assert_eq!(error.code().map(str::len), Some(CODE_CHARS_MAX));
    }
}
