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
    let hint = match kind {
        ErrorKind::AccessDenied => " (a matter of the permissions of the directory, or of a read-only mount)",
        _ => "",
    };
    StoreError::new(kind, operation, format!("{what}: {error}{hint}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_the_permissions_of_the_directory() {
        for code in [libc::EACCES, libc::EPERM, libc::EROFS] {
            let error = map(Operation::Put, &io::Error::from_raw_os_error(code), "/data/x");
            assert_eq!(error.kind(), ErrorKind::AccessDenied);
            assert!(error.detail().contains("permissions of the directory"), "{error}");
        }
    }
}
