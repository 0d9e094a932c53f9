//! Settings of an S3 store, already parsed and checked for themselves; the store checks them against the world.

use std::{fmt, path::PathBuf, time::Duration};

/// A text that cannot be printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a secret.
    pub fn new(secret: impl Into<String>) -> Self {
        Secret(secret.into())
    }

    /// The secret itself: only for signing.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("[hidden]")
    }
}

/// Where credentials come from. A machine without cloud metadata must not be asked for it, so nothing is guessed beyond
/// what is named here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CredentialsSource {
    /// Given in the configuration.
    Static {
        /// Access key id.
        access_key_id: String,
        /// Secret access key.
        secret_access_key: Secret,
        /// Session token of temporary credentials.
        session_token: Option<Secret>,
    },
    /// A key file, read again when it changes: lines `aws_access_key_id = …`, `aws_secret_access_key = …` and optionally
    /// `aws_session_token = …`, with or without a `[default]` header.
    KeyFile(PathBuf),
    /// `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN` of the broker's environment.
    Environment,
    /// A profile of the shared AWS files.
    Profile {
        /// Name of the profile; `AWS_PROFILE`, else `default`.
        name: Option<String>,
        /// The credentials file; the usual place (`~/.aws/credentials`) when absent.
        file: Option<PathBuf>,
    },
    /// The environment, then the default profile, in this order; nothing on the network.
    Local,
    /// Cloud metadata: web identity token file, container credentials, instance metadata, in this order.
    Metadata,
}

/// Encryption at rest, by the store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ServerSideEncryption {
    /// Whatever the bucket does by default.
    #[default]
    None,
    /// With the store's own keys (`AES256`).
    S3,
    /// With a key of a key management service (`aws:kms`).
    Kms {
        /// The key; the service's default when absent.
        key_id: Option<String>,
    },
}

/// Settings of an S3 store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct S3Config {
    /// Bucket name.
    pub bucket: String,
    /// Region of the signature.
    pub region: String,
    /// Endpoint URL (`http://` or `https://`, no path) of a store that is not AWS.
    pub endpoint: Option<String>,
    /// Address the bucket in the path, not in the host name.
    pub path_style: bool,
    /// Where credentials come from.
    pub credentials: CredentialsSource,
    /// PEM bundle of the authorities to trust, instead of the system's.
    pub ca_file: Option<PathBuf>,
    /// Sign the SHA-256 of each payload. Off: `UNSIGNED-PAYLOAD`; the CRC-32 is sent and checked in both cases.
    pub payload_signing: bool,
    /// Limit of a TCP and TLS connection being made.
    pub connect_timeout: Duration,
    /// Limit of silence: between two pieces of a body in either direction, and between an upload's last byte and its answer.
    pub read_timeout: Duration,
    /// Encryption at rest of what is written.
    pub encryption: ServerSideEncryption,
    /// Storage class of what is written, such as `STANDARD_IA`; the bucket's default when absent.
    pub storage_class: Option<String>,
    /// Tags of what is written: names and values, not encoded.
    pub tags: Vec<(String, String)>,
    /// Bytes of objects and parts that are sent in a second, by all requests together; no limit when absent. The policies must
    /// fit: [`crate::layer::Policies::paced`].
    pub upload_bytes_per_second: Option<u64>,
}
