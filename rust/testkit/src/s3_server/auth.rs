//! Purpose: who may speak to the server.
//!
//! Flow: [`Gate`] looks at the credential scope before the service does and answers as AWS for what s3s does not know:
//! a wrong region, a wrong or expired session token. The signature itself is checked by s3s, with the secret that
//! [`Keys`] gives it.
//!
//! Invariants: an unknown access key is always reported as that, whatever else is wrong, and an unsigned request is
//! refused. A change of the [`Users`] counts from the next request on.

use super::operation::{Query, percent_decode};
use hyper::{HeaderMap, StatusCode, Uri};
use s3s::auth::{S3Auth, SecretKey};
use s3s::{S3Result, s3_error};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The credentials that are good, changeable while the server runs: keys are rotated, tokens expire.
#[derive(Debug, Default)]
pub struct Users(Mutex<Vec<User>>);

#[derive(Clone, Debug)]
struct User {
    access_key: String,
    secret_key: SecretKey,
    session_token: Option<String>,
    expired: bool,
}

impl Users {
    /// Adds credentials, in place of those of the same access key. Requests must carry the token if there is one, and
    /// none if there is none.
    pub fn allow(&self, access_key: &str, secret_key: &str, session_token: Option<&str>) {
        self.revoke(access_key);
        self.lock().push(User {
            access_key: access_key.to_owned(),
            secret_key: SecretKey::from(secret_key),
            session_token: session_token.map(str::to_owned),
            expired: false,
        });
    }

    /// Removes credentials: they are unknown from now on.
    pub fn revoke(&self, access_key: &str) {
        self.lock().retain(|user| user.access_key != access_key);
    }

    /// Lets the token of these credentials expire.
    pub fn expire(&self, access_key: &str) {
        for user in self.lock().iter_mut().filter(|user| user.access_key == access_key) {
            user.expired = true;
        }
    }

    fn find(&self, access_key: &str) -> Option<User> {
        self.lock().iter().find(|user| user.access_key == access_key).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<User>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The secrets of the users.
pub(super) struct Keys(pub(super) Arc<Users>);

#[async_trait::async_trait]
impl S3Auth for Keys {
    async fn get_secret_key(&self, access_key: &str) -> S3Result<SecretKey> {
        if let Some(user) = self.0.find(access_key) {
            return Ok(user.secret_key);
        }
        Err(s3_error!(
            InvalidAccessKeyId,
            "The AWS Access Key Id you provided does not exist in our records."
        ))
    }
}

/// Why a request does not come through.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) status: StatusCode,
    pub(super) code: &'static str,
    pub(super) message: String,
    /// The region to use instead.
    pub(super) region: Option<String>,
}

/// What is checked before the signature.
#[derive(Debug)]
pub(super) struct Gate {
    pub(super) users: Arc<Users>,
    pub(super) region: String,
}

impl Gate {
    pub(super) fn check(&self, headers: &HeaderMap, uri: &Uri) -> Result<(), Refusal> {
        let query = Query(uri.query().unwrap_or_default());
        let (credential, code) = match header_credential(headers) {
            Some(credential) => (credential.to_owned(), "AuthorizationHeaderMalformed"),
            None => match query.value("X-Amz-Credential") {
                Some(credential) => (percent_decode(credential), "AuthorizationQueryParametersError"),
                // Unsigned, or signed in a way that only the service behind understands.
                None => return Ok(()),
            },
        };
        let mut scope = credential.split('/');
        let Some(user) = scope.next().and_then(|access_key| self.users.find(access_key)) else {
            return Ok(());
        };
        let region = scope.nth(1).unwrap_or_default();
        if region != self.region {
            return Err(Refusal {
                status: StatusCode::BAD_REQUEST,
                code,
                message: format!(
                    "The authorization header is malformed; the region '{region}' is wrong; expecting '{}'",
                    self.region
                ),
                region: Some(self.region.clone()),
            });
        }
        let header_token = headers
            .get("x-amz-security-token")
            .and_then(|token| token.to_str().ok())
            .map(str::to_owned);
        let token = header_token.or_else(|| query.value("X-Amz-Security-Token").map(percent_decode));
        user.check_token(token.as_deref())
    }
}

impl User {
    fn check_token(&self, token: Option<&str>) -> Result<(), Refusal> {
        let (status, code, message) = match (self.session_token.as_deref(), token) {
            (expected, token) if expected == token && !self.expired => return Ok(()),
            (expected, token) if expected == token => (
                StatusCode::BAD_REQUEST,
                "ExpiredToken",
                "The provided token has expired.",
            ),
            (Some(_), None) => (
                StatusCode::FORBIDDEN,
                "InvalidAccessKeyId",
                "The AWS Access Key Id you provided does not exist in our records.",
            ),
            _ => (
                StatusCode::BAD_REQUEST,
                "InvalidToken",
                "The provided token is malformed or otherwise invalid.",
            ),
        };
        Err(Refusal {
            status,
            code,
            message: message.to_owned(),
            region: None,
        })
    }
}

fn header_credential(headers: &HeaderMap) -> Option<&str> {
    let header = headers.get(hyper::header::AUTHORIZATION)?.to_str().ok()?;
    let fields = header.strip_prefix("AWS4-HMAC-SHA256")?;
    fields
        .split(',')
        .find_map(|field| field.trim().strip_prefix("Credential="))
}
