//! Purpose: what can be done to requests, answers and their effects between client and server.
//!
//! Rules are those of the embedded server (see [`faults`](crate::s3_server::faults)): operation, `key_contains`, `skip`,
//! `times`, and one of these actions, in JSON
//!
//! | action | effect |
//! | --- | --- |
//! | `{"error": {"status": n, "code": "…", "retry_after": seconds, "html": true}}` | that answer, not passed on (`retry_after` may be left out; `html`: a page as gateways send it, else S3's XML) |
//! | `{"ok_with_error": {"code": "…", "commit": true}}` | CompleteMultipartUpload only: 200 with an error body, passed on before or not |
//! | `{"delay": {"ms": n}}` | passed on so much later |
//! | `{"late": {"ms": n}}` | read to its end, and passed on so much later, even if its client has left by then |
//! | `{"slow_reply": {"ms": n}}` | passed on at once; the answer is had, and given so much later |
//! | `"stall"` | the request is read, not passed on, and never answered |
//! | `{"drop_request": {"reset": true}}` | closed (or reset) before it is passed on |
//! | `{"drop_reply": {"reset": true}}` | passed on, the answer read to its end, then closed (or reset) without it |
//! | `{"truncate_body": {"bytes": n, "reset": true}}` | full length announced, n bytes of the body sent, closed (or reset) |
//! | `{"stall_body": {"bytes": n}}` | full length announced, n bytes of the body sent, then silence |
//! | `{"corrupt_body": {"at": n}}` | byte n of the body (of this answer, from 0) is inverted |
//!
//! Invariants: a position in a body is taken modulo its announced length, so that it always hits; `html`, `commit` and
//! `reset` default to false.

use crate::proxy::counters::FaultKind;
use crate::s3_server::{Action, Operation};
use serde::{Deserialize, Serialize};

/// What is done to a request or its answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum HttpFault {
    Error {
        status: u16,
        code: String,
        /// Seconds, for the `Retry-After` header.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        retry_after: Option<u64>,
        #[serde(default)]
        html: bool,
    },
    OkWithError {
        code: String,
        #[serde(default)]
        commit: bool,
    },
    Delay {
        ms: u64,
    },
    Late {
        ms: u64,
    },
    SlowReply {
        ms: u64,
    },
    Stall,
    DropRequest {
        #[serde(default)]
        reset: bool,
    },
    DropReply {
        #[serde(default)]
        reset: bool,
    },
    TruncateBody {
        bytes: u64,
        #[serde(default)]
        reset: bool,
    },
    StallBody {
        bytes: u64,
    },
    CorruptBody {
        at: u64,
    },
}

impl HttpFault {
    /// An error in S3's XML.
    #[must_use]
    pub fn error(status: u16, code: &str) -> Self {
        Self::Error {
            status,
            code: code.to_owned(),
            retry_after: None,
            html: false,
        }
    }

    #[must_use]
    pub fn kind(&self) -> FaultKind {
        match self {
            Self::Error { .. } => FaultKind::Error,
            Self::OkWithError { .. } => FaultKind::OkWithError,
            Self::Delay { .. } => FaultKind::Delay,
            Self::Late { .. } => FaultKind::Late,
            Self::SlowReply { .. } => FaultKind::SlowReply,
            Self::Stall => FaultKind::Stall,
            Self::DropRequest { .. } => FaultKind::DropRequest,
            Self::DropReply { .. } => FaultKind::DropReply,
            Self::TruncateBody { .. } => FaultKind::TruncateBody,
            Self::StallBody { .. } => FaultKind::StallBody,
            Self::CorruptBody { .. } => FaultKind::CorruptBody,
        }
    }

    /// Whether the action changes the body of the regular answer.
    pub(super) fn is_on_body(&self) -> bool {
        matches!(
            self,
            Self::TruncateBody { .. } | Self::StallBody { .. } | Self::CorruptBody { .. }
        )
    }

    /// The same with `amount` between 0 and its own time or position, drawn from any number.
    pub(super) fn drawn(mut self, number: u64) -> Self {
        if let Self::Delay { ms: amount }
        | Self::Late { ms: amount }
        | Self::SlowReply { ms: amount }
        | Self::TruncateBody { bytes: amount, .. }
        | Self::StallBody { bytes: amount }
        | Self::CorruptBody { at: amount } = &mut self
        {
            *amount = amount.checked_add(1).map_or(number, |limit| number % limit);
        }
        self
    }
}

impl Action for HttpFault {
    fn fits(&self, operation: Operation) -> bool {
        match self {
            Self::OkWithError { .. } => operation == Operation::CompleteMultipartUpload,
            action => !action.is_on_body() || has_answer_body(operation),
        }
    }

    fn error_status(&self) -> Option<u16> {
        match self {
            Self::Error { status, .. } => Some(*status),
            _ => None,
        }
    }
}

/// Whether a regular answer to the operation has a body.
fn has_answer_body(operation: Operation) -> bool {
    matches!(
        operation,
        Operation::CompleteMultipartUpload
            | Operation::CreateMultipartUpload
            | Operation::DeleteObjects
            | Operation::GetBucketLocation
            | Operation::GetObject
            | Operation::ListMultipartUploads
            | Operation::ListObjectsV2
            | Operation::ListParts
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::s3_server::Faults;

    #[test]
    fn json_is_strict() {
        let faults = Faults::<HttpFault>::default();
        let good = br#"[{"op":"*","action":"stall"},
            {"op":"GetObject","times":1,"action":{"error":{"status":503,"code":"SlowDown","html":true}}},
            {"op":"PutObject","action":{"drop_reply":{}}},
            {"op":"CompleteMultipartUpload","action":{"ok_with_error":{"code":"InternalError","commit":true}}}]"#;
        faults.set_json(good).unwrap();
        for bad in [
            r#"[{"op":"GetObject","action":{"error":{"status":200,"code":"x"}}}]"#,
            r#"[{"op":"PutObject","action":{"corrupt_body":{"at":1}}}]"#,
            r#"[{"op":"PutObject","action":{"ok_with_error":{"code":"x"}}}]"#,
            r#"[{"op":"PutObject","action":{"drop_reply":{"rest":true}}}]"#,
        ] {
            assert!(faults.set_json(bad.as_bytes()).is_err(), "{bad}");
        }
        assert_eq!(faults.status().len(), 4, "a refused list changes nothing");
    }

    #[test]
    fn amounts_are_drawn_up_to_their_own() {
        let drawn = |number| match (HttpFault::Delay { ms: 9 }).drawn(number) {
            HttpFault::Delay { ms } => ms,
            other => panic!("{other:?}"),
        };
        assert_eq!([0, 9, 10, u64::MAX].map(drawn), [0, 9, 0, 5]);
        let anywhere = HttpFault::CorruptBody { at: u64::MAX }.drawn(7);
        assert_eq!(anywhere, HttpFault::CorruptBody { at: 7 });
    }
}
