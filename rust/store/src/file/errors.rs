//! From an operating system error to a kind.

use std::io;

use crate::{ErrorKind, Operation, StoreError};

/// Maps `error`, met with `what` (a path and what was to be done with it).
pub(super) fn map(operation: Operation, error: &io::Error, what: &str) -> StoreError {
    let kind = match error.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT) => ErrorKind::NoSpace,
        Some(libc::EACCES | libc::EPERM | libc::EROFS) => ErrorKind::AccessDenied,
        Some(libc::ENOENT) if operation == Operation::Open => ErrorKind::BucketNotFound,
        Some(libc::ENOENT) => ErrorKind::NotFound,
        Some(libc::ENAMETOOLONG | libc::ENOTDIR | libc::EISDIR | libc::ELOOP | libc::EINVAL | libc::EFBIG) => {
            ErrorKind::Invalid
        }
        None if error.kind() == io::ErrorKind::InvalidInput => ErrorKind::Invalid,
        Some(libc::ETIMEDOUT) => ErrorKind::Timeout,
        // EIO, ESTALE, ENFILE, EMFILE, EAGAIN, EINTR, ENODEV and what else a mount may say: it may be back later.
        _ => ErrorKind::Unavailable,
    };
    StoreError::new(kind, operation, format!("{what}: {error}"))
}
