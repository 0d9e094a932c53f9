//! Failures as the boundary sees them: few kinds, each saying what the caller can do, and one message for the operator.

use std::{any::Any, error::Error as StdError, fmt};

use alluvium_format::FormatError;
use alluvium_store::{ErrorKind as StoreKind, StoreError};

/// Result of an engine operation.
pub type Result<T> = std::result::Result<T, Error>;

/// What kind of failure it is. The numbers are part of the boundary's ABI.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(i32)]
pub enum ErrorKind {
    /// The segment, or the index of it, does not exist in the store.
    NotFound = 1,
    /// The store does not serve now.
    Unavailable = 2,
    /// The store asks for fewer requests.
    Throttled = 3,
    /// No result before the deadline.
    Timeout = 4,
    /// Wrong credentials or missing rights.
    Denied = 5,
    /// Stored or read bytes are not what they must be.
    Corrupt = 6,
    /// A setting is wrong.
    Config = 7,
    /// The instance is closed.
    Closed = 8,
    /// A fault of this plugin.
    Internal = 9,
    /// The caller gave up.
    Cancelled = 10,
    /// The call's arguments are impossible.
    Invalid = 11,
    /// Written by a later release, in a way that this one cannot read.
    Unsupported = 12,
}

impl ErrorKind {
    /// All kinds, in order of their numbers from 1.
    pub const ALL: [ErrorKind; 12] = [
        ErrorKind::NotFound,
        ErrorKind::Unavailable,
        ErrorKind::Throttled,
        ErrorKind::Timeout,
        ErrorKind::Denied,
        ErrorKind::Corrupt,
        ErrorKind::Config,
        ErrorKind::Closed,
        ErrorKind::Internal,
        ErrorKind::Cancelled,
        ErrorKind::Invalid,
        ErrorKind::Unsupported,
    ];

    /// The code that begins each message, to search for in logs and docs.
    pub fn code(self) -> &'static str {
        match self {
            ErrorKind::NotFound => "ALLUVIUM-NOT-FOUND",
            ErrorKind::Unavailable => "ALLUVIUM-UNAVAILABLE",
            ErrorKind::Throttled => "ALLUVIUM-THROTTLED",
            ErrorKind::Timeout => "ALLUVIUM-TIMEOUT",
            ErrorKind::Denied => "ALLUVIUM-DENIED",
            ErrorKind::Corrupt => "ALLUVIUM-CORRUPT",
            ErrorKind::Config => "ALLUVIUM-CONFIG",
            ErrorKind::Closed => "ALLUVIUM-CLOSED",
            ErrorKind::Internal => "ALLUVIUM-INTERNAL",
            ErrorKind::Cancelled => "ALLUVIUM-CANCELLED",
            ErrorKind::Invalid => "ALLUVIUM-INVALID",
            ErrorKind::Unsupported => "ALLUVIUM-UNSUPPORTED",
        }
    }
}

/// A failed operation.
#[derive(Clone, PartialEq, Eq)]
pub struct Error {
    kind: ErrorKind,
    retryable: bool,
    message: String,
}

impl Error {
    /// An error of `kind`; `message` is one line that says what, where, and what can be done.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        let message = one_line(message.into());
        let retryable = matches!(kind, ErrorKind::Unavailable | ErrorKind::Throttled | ErrorKind::Timeout);
        Error {
            kind,
            retryable,
            message,
        }
    }

    /// A wrong setting: names its key.
    pub fn config(key: &str, reason: impl fmt::Display) -> Self {
        Error::new(ErrorKind::Config, format!("{key}: {reason}"))
    }

    /// The instance is closed or closing.
    pub(crate) fn closed() -> Self {
        Error::new(ErrorKind::Closed, "the storage manager is closed")
    }

    /// A panic, with what it said.
    pub fn panic(payload: &(dyn Any + Send)) -> Self {
        let text = payload
            .downcast_ref::<&str>()
            .copied()
            .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
            .unwrap_or("no message");
        Error::new(ErrorKind::Internal, format!("panic in native code: {text}"))
    }

    /// A file of Kafka's that could not be read.
    pub(crate) fn file(path: &std::path::Path, error: &std::io::Error) -> Self {
        Error::new(ErrorKind::Internal, format!("cannot read {}: {error}", path.display()))
    }

    /// Says what was being done, in front of the message.
    #[must_use]
    pub(crate) fn during(mut self, what: impl fmt::Display) -> Self {
        self.message = one_line(format!("{what}: {}", self.message));
        self
    }

    /// What kind of failure it is.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Whether the same call may succeed later without anybody's help.
    pub fn is_retryable(&self) -> bool {
        self.retryable
    }

    /// The message without its code.
    pub fn message(&self) -> &str {
        &self.message
    }
}

/// Longest message in characters: more says no more.
const MESSAGE_CHARS_MAX: usize = 4000;

/// Texts of servers and names of files go into messages, which go into logs: they must not look like other lines.
fn one_line(message: String) -> String {
    if message.len() <= MESSAGE_CHARS_MAX && !message.contains(char::is_control) {
        return message;
    }
    message
        .chars()
        .take(MESSAGE_CHARS_MAX)
        .map(|letter| if letter.is_control() { ' ' } else { letter })
        .collect()
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.kind.code(), self.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

impl StdError for Error {}

impl From<FormatError> for Error {
    fn from(error: FormatError) -> Self {
        match error {
            FormatError::UnknownVersion { .. } | FormatError::UnknownFeatures { .. } => {
                Error::new(ErrorKind::Unsupported, format!("{error}; upgrade this broker's plugin"))
            }
            FormatError::NoDataKey { .. } => Error::new(ErrorKind::Config, error.to_string()),
            FormatError::NoRoom { .. } => Error::new(ErrorKind::Internal, error.to_string()),
            _ => Error::new(ErrorKind::Corrupt, error.to_string()),
        }
    }
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        let (kind, mend) = match error.kind() {
            StoreKind::NotFound => (ErrorKind::NotFound, ""),
            StoreKind::BucketNotFound => (ErrorKind::Config, "; the bucket or root directory must exist"),
            // A directory answers without a status, and says itself what is wrong with its permissions.
            StoreKind::AccessDenied if error.status().is_none() => (ErrorKind::Denied, ""),
            StoreKind::AccessDenied => (ErrorKind::Denied, "; check the policy of these credentials"),
            StoreKind::InvalidCredentials => (ErrorKind::Denied, "; check the credentials"),
            StoreKind::WrongRegion => (ErrorKind::Config, "; set s3.region"),
            StoreKind::ClockSkew => (ErrorKind::Denied, "; set this machine's clock"),
            StoreKind::Throttled => (ErrorKind::Throttled, ""),
            StoreKind::Unavailable | StoreKind::Unreachable => (ErrorKind::Unavailable, ""),
            StoreKind::NoSpace => (ErrorKind::Unavailable, "; the store is full"),
            StoreKind::Tls => (ErrorKind::Config, "; check s3.ca.file and the server's certificate"),
            StoreKind::Timeout => (ErrorKind::Timeout, ""),
            StoreKind::Truncated | StoreKind::ChecksumMismatch => (ErrorKind::Corrupt, ""),
            StoreKind::Invalid => (ErrorKind::Config, ""),
            StoreKind::UploadNotFound => (ErrorKind::Unavailable, "; somebody else has ended this upload"),
            StoreKind::Unexpected => (
                ErrorKind::Unavailable,
                "; something between the broker and the store may have answered",
            ),
        };
        let retryable = error.is_retryable();
        Error {
            retryable,
            ..Error::new(kind, format!("{error}{mend}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_line_of_bounded_length() {
        let error = Error::new(
            ErrorKind::Internal,
            format!("a\nERROR b\u{1b}[31m{}", "x".repeat(100_000)),
        );
        assert!(error.message().starts_with("a ERROR b [31mxx"));
        assert!(error.message().len() <= MESSAGE_CHARS_MAX);
        assert!(!error.during("reading\r\n").to_string().contains(char::is_control));
    }
}
