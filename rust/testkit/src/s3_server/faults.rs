//! Purpose: rules that make the server misbehave, on chosen requests. The fault proxy has the same rules, with actions
//! of its own.
//!
//! Flow: a request is compared with the rules in order; the first one that matches, has let its `skip` requests pass
//! and has `times` left, decides what happens. A matching rule that is still skipping, or is used up, leaves the request
//! to the rules behind it.
//!
//! In JSON a rule is
//!
//! ```json
//! {"op": "UploadPart", "key_contains": "/topic-a/", "skip": 1, "times": 2,
//!  "action": {"error": {"status": 503, "code": "SlowDown"}}}
//! ```
//!
//! where `op` is S3's name of an operation or `"*"`; `key_contains` may be left out (requests on a bucket have no key
//! and match only then); `skip` defaults to 0; `times` left out means always. Actions:
//!
//! | action | effect |
//! | --- | --- |
//! | `{"error": {"status": n, "code": "…", "retry_after": seconds}}` | that answer, nothing done (`retry_after` may be left out) |
//! | `{"delay": {"ms": n}}` | the request is handled, but later |
//! | `"stall"` | the request is read, and never answered |
//! | `"reset"` | the connection is reset (RST) before anything is done |
//! | `"drop_reply"` | the operation is done, then the connection closed without an answer |
//! | `{"truncate_body": {"bytes": n}}` | full length announced, n bytes of the body sent, connection closed |
//! | `{"stall_body": {"bytes": n}}` | full length announced, n bytes of the body sent, then silence |
//! | `{"corrupt_body": {"at": n}}` | byte n of the body (of this answer, from 0) is inverted; none if it is shorter |
//! | `{"ok_with_error": {"code": "…"}}` | CompleteMultipartUpload only: 200 with an error body, nothing done |
//!
//! Invariants: unknown names and fields, and rules that could never have an effect, are errors; a list is taken whole
//! or not at all. Faults come before signature checks.

use super::operation::{Operation, Target};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fmt::Debug;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What actions must know of themselves for rules to be made of them.
pub trait Action: Clone + Debug {
    /// Whether the action can have an effect on requests of the operation.
    fn fits(&self, operation: Operation) -> bool;

    /// The status the action answers with, if it answers with an error.
    fn error_status(&self) -> Option<u16>;
}

/// What a rule does to a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum FaultAction {
    Error {
        status: u16,
        code: String,
        /// Seconds, for the `Retry-After` header.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        retry_after: Option<u64>,
    },
    Delay {
        ms: u64,
    },
    Stall,
    Reset,
    DropReply,
    TruncateBody {
        bytes: u64,
    },
    StallBody {
        bytes: u64,
    },
    CorruptBody {
        at: u64,
    },
    OkWithError {
        code: String,
    },
}

impl FaultAction {
    /// Whether the action changes the body of the regular answer.
    fn is_on_body(&self) -> bool {
        matches!(
            self,
            Self::TruncateBody { .. } | Self::StallBody { .. } | Self::CorruptBody { .. }
        )
    }
}

impl Action for FaultAction {
    fn fits(&self, operation: Operation) -> bool {
        match self {
            Self::OkWithError { .. } => operation == Operation::CompleteMultipartUpload,
            action => !action.is_on_body() || !operation.is_head(),
        }
    }

    fn error_status(&self) -> Option<u16> {
        match self {
            Self::Error { status, .. } => Some(*status),
            _ => None,
        }
    }
}

/// Which operations a rule is about: one, or all that its action fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum FaultTarget {
    Any,
    Operation(Operation),
}

impl TryFrom<String> for FaultTarget {
    type Error = FaultError;

    fn try_from(name: String) -> Result<Self, Self::Error> {
        if name == "*" {
            return Ok(Self::Any);
        }
        Operation::from_name(&name)
            .map(Self::Operation)
            .ok_or(FaultError::UnknownOperation(name))
    }
}

impl From<FaultTarget> for String {
    fn from(target: FaultTarget) -> Self {
        match target {
            FaultTarget::Any => "*".to_owned(),
            FaultTarget::Operation(operation) => operation.name().to_owned(),
        }
    }
}

/// On which requests an action is taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FaultRule<A = FaultAction> {
    pub op: FaultTarget,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_contains: Option<String>,
    /// Matching requests to leave alone first.
    #[serde(default)]
    pub skip: u64,
    /// Requests to hit; `None` for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times: Option<u64>,
    pub action: A,
}

impl<A: Action> FaultRule<A> {
    /// Hits every request of the operation, until narrowed.
    #[must_use]
    pub fn new(operation: Operation, action: A) -> Self {
        Self {
            op: FaultTarget::Operation(operation),
            key_contains: None,
            skip: 0,
            times: None,
            action,
        }
    }

    /// Hits every request of every operation that the action fits.
    #[must_use]
    pub fn any(action: A) -> Self {
        Self {
            op: FaultTarget::Any,
            key_contains: None,
            skip: 0,
            times: None,
            action,
        }
    }

    #[must_use]
    pub fn key_contains(mut self, text: impl Into<String>) -> Self {
        self.key_contains = Some(text.into());
        self
    }

    #[must_use]
    pub fn skip(mut self, skip: u64) -> Self {
        self.skip = skip;
        self
    }

    #[must_use]
    pub fn times(mut self, times: u64) -> Self {
        self.times = Some(times);
        self
    }

    pub(crate) fn check(&self) -> Result<(), FaultError> {
        if let FaultTarget::Operation(operation) = self.op
            && !self.action.fits(operation)
        {
            return Err(FaultError::NoEffect(operation));
        }
        match self.action.error_status() {
            Some(status) if !(300..600).contains(&status) => Err(FaultError::NotAnError(status)),
            _ => Ok(()),
        }
    }

    fn matches(&self, target: &Target) -> bool {
        let operation_matches = match self.op {
            FaultTarget::Any => self.action.fits(target.operation),
            FaultTarget::Operation(operation) => operation == target.operation,
        };
        let key_matches = self.key_contains.as_ref().is_none_or(|text| target.key.contains(text));
        operation_matches && key_matches
    }
}

/// Why a rule is refused.
#[derive(Debug, thiserror::Error)]
pub enum FaultError {
    #[error("unknown operation {0:?}")]
    UnknownOperation(String),
    #[error("the action has no effect on {0}")]
    NoEffect(Operation),
    #[error("{0} is not the status of an error")]
    NotAnError(u16),
    #[error("not a list of fault rules: {0}")]
    Json(#[from] serde_json::Error),
}

/// A rule and what it has done so far.
#[derive(Clone, Debug, Serialize)]
pub struct FaultStatus<A = FaultAction> {
    #[serde(flatten)]
    pub rule: FaultRule<A>,
    /// Matching requests seen, skipped ones included.
    pub seen: u64,
    /// Requests hit.
    pub hits: u64,
}

/// The rules in force. Shared with the server; changes count from the next request on.
#[derive(Debug)]
pub struct Faults<A = FaultAction> {
    rules: Mutex<Vec<FaultStatus<A>>>,
}

impl<A> Default for Faults<A> {
    fn default() -> Self {
        Self {
            rules: Mutex::new(Vec::new()),
        }
    }
}

impl<A: Action> Faults<A> {
    fn lock(&self) -> MutexGuard<'_, Vec<FaultStatus<A>>> {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces all rules.
    pub fn set(&self, rules: Vec<FaultRule<A>>) -> Result<(), FaultError> {
        rules.iter().try_for_each(FaultRule::<A>::check)?;
        *self.lock() = rules
            .into_iter()
            .map(|rule| FaultStatus { rule, seen: 0, hits: 0 })
            .collect();
        Ok(())
    }

    /// Replaces all rules with a JSON array of rules.
    pub fn set_json(&self, json: &[u8]) -> Result<(), FaultError>
    where
        A: DeserializeOwned,
    {
        self.set(serde_json::from_slice(json)?)
    }

    /// Adds a rule behind the others.
    pub fn add(&self, rule: FaultRule<A>) -> Result<(), FaultError> {
        rule.check()?;
        self.lock().push(FaultStatus { rule, seen: 0, hits: 0 });
        Ok(())
    }

    /// Removes all rules. Requests stalled by one stay stalled.
    pub fn clear(&self) {
        self.lock().clear();
    }

    #[must_use]
    pub fn status(&self) -> Vec<FaultStatus<A>> {
        self.lock().clone()
    }

    /// The action for this request, if any.
    pub(crate) fn take(&self, target: &Target) -> Option<A> {
        for status in self.lock().iter_mut().filter(|status| status.rule.matches(target)) {
            status.seen += 1;
            let left = status.rule.times.is_none_or(|times| status.hits < times);
            if status.seen > status.rule.skip && left {
                status.hits += 1;
                return Some(status.rule.action.clone());
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(operation: Operation, key: &str) -> Target {
        Target {
            operation,
            key: key.to_owned(),
        }
    }

    #[test]
    fn skip_and_times_are_counted_per_rule() {
        let faults = Faults::default();
        let rule = FaultRule::new(Operation::GetObject, FaultAction::Stall)
            .key_contains("x")
            .skip(1)
            .times(2);
        faults
            .set(vec![rule, FaultRule::any(FaultAction::Reset).skip(4)])
            .unwrap();
        assert_eq!(faults.take(&target(Operation::GetObject, "y")), None);
        let mut taken = Vec::new();
        for _ in 0..7 {
            taken.push(faults.take(&target(Operation::GetObject, "axb")));
        }
        let (stall, reset) = (Some(FaultAction::Stall), Some(FaultAction::Reset));
        assert_eq!(taken, [None, stall.clone(), stall, None, None, reset.clone(), reset]);
    }

    #[test]
    fn json_is_strict() {
        let faults = Faults::<FaultAction>::default();
        let good = br#"[{"op":"*","action":"stall"},
            {"op":"GetObject","key_contains":"k","skip":1,"times":1,"action":{"error":{"status":503,"code":"SlowDown"}}},
            {"op":"CompleteMultipartUpload","action":{"ok_with_error":{"code":"InternalError"}}}]"#;
        faults.set_json(good).unwrap();
        assert_eq!(faults.status().len(), 3);
        for bad in [
            r#"[{"op":"GetObjects","action":"stall"}]"#,
            r#"[{"op":"Other","action":"stall"}]"#,
            r#"[{"op":"GetObject","action":"stall","extra":1}]"#,
            r#"[{"op":"GetObject","action":{"delay":{"ms":1,"s":1}}}]"#,
            r#"[{"op":"GetObject","action":"explode"}]"#,
            r#"[{"op":"GetObject","action":{"error":{"status":200,"code":"x"}}}]"#,
            r#"[{"op":"HeadObject","action":{"corrupt_body":{"at":1}}}]"#,
            r#"[{"op":"PutObject","action":{"ok_with_error":{"code":"x"}}}]"#,
            r#"{"op":"GetObject","action":"stall"}"#,
        ] {
            assert!(faults.set_json(bad.as_bytes()).is_err(), "{bad}");
        }
        assert_eq!(faults.status().len(), 3, "a refused list changes nothing");
    }

    #[test]
    fn any_leaves_alone_what_the_action_does_not_fit() {
        let faults = Faults::default();
        faults
            .set(vec![FaultRule::any(FaultAction::OkWithError {
                code: "InternalError".to_owned(),
            })])
            .unwrap();
        assert_eq!(faults.take(&target(Operation::PutObject, "k")), None);
        assert!(faults.take(&target(Operation::CompleteMultipartUpload, "k")).is_some());
    }
}
