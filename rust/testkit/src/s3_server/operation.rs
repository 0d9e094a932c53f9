//! Purpose: which S3 operation a request is, from its method, path and query alone.
//!
//! Flow: faults and counters need the name before the request is checked or read, so it is found here, by the same
//! rules the service behind uses.

use hyper::{HeaderMap, Method, Uri};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The operations this server has. `Other` stands for everything else, which is answered `NotImplemented`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Operation {
    AbortMultipartUpload,
    CompleteMultipartUpload,
    CreateBucket,
    CreateMultipartUpload,
    DeleteObject,
    DeleteObjects,
    GetBucketLocation,
    GetObject,
    HeadBucket,
    HeadObject,
    ListMultipartUploads,
    ListObjectsV2,
    ListParts,
    PutObject,
    UploadPart,
    #[serde(skip_deserializing)]
    Other,
}

impl Operation {
    pub const ALL: [Self; 16] = [
        Self::AbortMultipartUpload,
        Self::CompleteMultipartUpload,
        Self::CreateBucket,
        Self::CreateMultipartUpload,
        Self::DeleteObject,
        Self::DeleteObjects,
        Self::GetBucketLocation,
        Self::GetObject,
        Self::HeadBucket,
        Self::HeadObject,
        Self::ListMultipartUploads,
        Self::ListObjectsV2,
        Self::ListParts,
        Self::PutObject,
        Self::UploadPart,
        Self::Other,
    ];

    /// S3's name of the operation.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::AbortMultipartUpload => "AbortMultipartUpload",
            Self::CompleteMultipartUpload => "CompleteMultipartUpload",
            Self::CreateBucket => "CreateBucket",
            Self::CreateMultipartUpload => "CreateMultipartUpload",
            Self::DeleteObject => "DeleteObject",
            Self::DeleteObjects => "DeleteObjects",
            Self::GetBucketLocation => "GetBucketLocation",
            Self::GetObject => "GetObject",
            Self::HeadBucket => "HeadBucket",
            Self::HeadObject => "HeadObject",
            Self::ListMultipartUploads => "ListMultipartUploads",
            Self::ListObjectsV2 => "ListObjectsV2",
            Self::ListParts => "ListParts",
            Self::PutObject => "PutObject",
            Self::UploadPart => "UploadPart",
            Self::Other => "Other",
        }
    }

    /// The operation with S3's name `name`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|operation| *operation != Self::Other && operation.name() == name)
    }

    /// Whether the answer never has a body.
    #[must_use]
    pub fn is_head(self) -> bool {
        matches!(self, Self::HeadBucket | Self::HeadObject)
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// What a request addresses.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) operation: Operation,
    /// Decoded; empty when the request is about a bucket.
    pub(crate) key: String,
}

impl Target {
    pub(crate) fn of(method: &Method, uri: &Uri, headers: &HeaderMap) -> Self {
        let path = uri.path().trim_start_matches('/');
        let (bucket, encoded_key) = path.split_once('/').unwrap_or((path, ""));
        let key = percent_decode(encoded_key);
        let query = Query(uri.query().unwrap_or_default());
        let operation = if bucket.is_empty() {
            Operation::Other
        } else if key.is_empty() {
            bucket_operation(method, &query)
        } else {
            object_operation(method, &query, headers)
        };
        Self { operation, key }
    }
}

fn bucket_operation(method: &Method, query: &Query<'_>) -> Operation {
    match *method {
        Method::HEAD => Operation::HeadBucket,
        Method::PUT if query.0.is_empty() || query.has("x-id") => Operation::CreateBucket,
        Method::POST if query.has("delete") => Operation::DeleteObjects,
        Method::GET if query.has("location") => Operation::GetBucketLocation,
        Method::GET if query.has("uploads") => Operation::ListMultipartUploads,
        Method::GET if query.value("list-type") == Some("2") => Operation::ListObjectsV2,
        _ => Operation::Other,
    }
}

fn object_operation(method: &Method, query: &Query<'_>, headers: &HeaderMap) -> Operation {
    let of_upload = query.has("uploadId");
    let of_other_kind = [
        "acl",
        "attributes",
        "legal-hold",
        "retention",
        "tagging",
        "torrent",
        "restore",
        "select",
    ];
    if headers.contains_key("x-amz-copy-source") || of_other_kind.iter().any(|name| query.has(name)) {
        return Operation::Other;
    }
    match *method {
        Method::HEAD => Operation::HeadObject,
        Method::GET if of_upload => Operation::ListParts,
        Method::GET => Operation::GetObject,
        Method::PUT if of_upload && query.has("partNumber") => Operation::UploadPart,
        Method::PUT => Operation::PutObject,
        Method::POST if query.has("uploads") => Operation::CreateMultipartUpload,
        Method::POST if of_upload => Operation::CompleteMultipartUpload,
        Method::DELETE if of_upload => Operation::AbortMultipartUpload,
        Method::DELETE => Operation::DeleteObject,
        _ => Operation::Other,
    }
}

/// A query string. The names looked for need no decoding.
pub(super) struct Query<'uri>(pub(super) &'uri str);

impl<'uri> Query<'uri> {
    pub(super) fn value(&self, name: &str) -> Option<&'uri str> {
        self.0.split('&').find_map(|pair| {
            let (found, value) = pair.split_once('=').unwrap_or((pair, ""));
            (found == name).then_some(value)
        })
    }

    fn has(&self, name: &str) -> bool {
        self.value(name).is_some()
    }
}

/// Decodes `%XX`; what is not valid UTF-8 afterwards is replaced, as no key can match it anyway.
pub(super) fn percent_decode(text: &str) -> String {
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let hex = tail
            .get(..2)
            .filter(|_| *first == b'%')
            .and_then(|digits| std::str::from_utf8(digits).ok());
        match hex.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                decoded.push(byte);
                rest = &tail[2..];
            }
            None => {
                decoded.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(method: Method, uri: &str) -> Target {
        Target::of(&method, &uri.parse().unwrap(), &HeaderMap::new())
    }

    #[test]
    fn names_are_found() {
        let cases = [
            (Method::HEAD, "/bucket", Operation::HeadBucket),
            (Method::PUT, "/bucket/", Operation::CreateBucket),
            (Method::PUT, "/bucket?acl", Operation::Other),
            (Method::GET, "/bucket?list-type=2&prefix=a", Operation::ListObjectsV2),
            (Method::GET, "/bucket", Operation::Other),
            (Method::GET, "/bucket/k?x-id=GetObject", Operation::GetObject),
            (Method::GET, "/bucket/k?uploadId=1", Operation::ListParts),
            (Method::PUT, "/bucket/k?partNumber=1&uploadId=1", Operation::UploadPart),
            (Method::POST, "/bucket/k?uploads", Operation::CreateMultipartUpload),
            (Method::POST, "/bucket?delete", Operation::DeleteObjects),
            (Method::DELETE, "/bucket/k", Operation::DeleteObject),
            (Method::GET, "/", Operation::Other),
        ];
        for (method, uri, expected) in cases {
            assert_eq!(target(method, uri).operation, expected, "{uri}");
        }
        for operation in Operation::ALL {
            assert_eq!(
                Operation::from_name(operation.name()).is_some(),
                operation != Operation::Other
            );
        }
    }

    #[test]
    fn keys_are_decoded() {
        assert_eq!(target(Method::GET, "/bucket/a%2Fb/%C3%BC%25").key, "a/b/ü%");
        assert_eq!(target(Method::GET, "/bucket//a%zz").key, "/a%zz");
    }
}
