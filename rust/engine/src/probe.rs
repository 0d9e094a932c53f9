//! Whether the store works, tried at the start with a verdict that names the setting to mend.
//!
//! # Not here
//! What the settings mean for themselves ([`crate::config`]).

use std::{sync::Arc, time::Duration};

use alluvium_store::{
    ErrorKind as StoreKind, Key, ObjectStore, Operation, Payload, StoreError, StoreResult,
    layer::{self, Policies, metrics::StoreMetrics},
    s3::{CredentialsSource, Deletes, S3Config, S3Store, ServerSideEncryption},
};
use bytes::Bytes;

use crate::{
    Error, Result,
    config::{Config, StartupProbe, StoreConfig},
};

/// Limits of each request of the probe, so that its cause is told before the start's own deadline.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(4);
const OPERATION_TIMEOUT: Duration = Duration::from_secs(5);

/// Limit of asking what the bucket does with deletes: it only serves a warning.
const VERSIONS_TIMEOUT: Duration = Duration::from_secs(1);

const CONTENT: &[u8] = b"Alluvium tries at its start whether it can write, read and delete here.\n";

/// Tries the store as `startup.probe` says.
pub(crate) async fn probe(config: &Config, base: Arc<dyn ObjectStore>, metrics: Arc<StoreMetrics>) -> Result<()> {
    let policies = Policies {
        attempt_timeout: config.policies.attempt_timeout.min(ATTEMPT_TIMEOUT),
        operation_timeout: config.policies.operation_timeout.min(OPERATION_TIMEOUT),
        ..config.policies.clone()
    };
    let store = layer::stack(base, policies, metrics);
    // One name a broker: if its delete fails at every start, one object stays and not one for each.
    let tool = || format!("tool-{:016x}", unique());
    let named = |name: String| {
        let name = format!("{}alluvium-probe/{name}", config.key_prefix);
        Key::new(name).map_err(|error| Error::config("key.prefix", error))
    };
    let key = named(config.broker_id.map_or_else(tool, |id| format!("broker-{id}")))?;
    let outcome = match config.startup_probe {
        StartupProbe::Off => Ok(()),
        StartupProbe::Read => read(&*store, &key).await,
        StartupProbe::Write => match write(&*store, &key).await {
            // Another process of the same name tries at the same time, and has deleted it: once more, under a name that nobody else has.
            Err(error) if error.kind() == StoreKind::NotFound => write(&*store, &named(tool())?).await,
            outcome => outcome,
        },
    };
    outcome.map_err(|error| verdict(config, &error))
}

async fn read(store: &dyn ObjectStore, key: &Key) -> StoreResult<()> {
    match store.get(key, Some(0..1)).await {
        Err(error) if error.kind() != StoreKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

async fn write(store: &dyn ObjectStore, key: &Key) -> StoreResult<()> {
    store.put(key, Payload::new(Bytes::from_static(CONTENT))).await?;
    let written = match store.get(key, Some(0..CONTENT.len() as u64)).await {
        Ok(object) => object.collect().await,
        Err(error) => Err(error),
    };
    // Deleted in any case, but the first failure is the one to tell.
    let deleted = store.delete(std::slice::from_ref(key)).await;
    if written? != CONTENT {
        let detail = "the store gave back other bytes than were written";
        return Err(StoreError::new(StoreKind::Unexpected, Operation::Get, detail).with_key(key));
    }
    deleted
}

/// Says in the log when a delete frees nothing in this bucket. Where that cannot be found out, nothing is said: neither the right to ask
/// nor a store that knows of versions is needed for anything else.
pub(crate) async fn warn_of_versions(bucket: &S3Store) {
    match tokio::time::timeout(VERSIONS_TIMEOUT, bucket.deletes()).await {
        Ok(Ok(Deletes::Free)) => {}
        Ok(Ok(Deletes::LeaveVersions)) => tracing::warn!(
            "the bucket keeps versions: what Kafka deletes goes on taking space until a lifecycle rule removes noncurrent versions"
        ),
        Ok(Ok(Deletes::LeaveLockedVersions)) => tracing::warn!(
            "the bucket locks objects: what Kafka deletes goes on taking space until its retention has ended and a lifecycle rule removes \
             noncurrent versions"
        ),
        Ok(Err(error)) => tracing::debug!(%error, "whether the bucket keeps versions is not known"),
        Err(_) => tracing::debug!(limit = ?VERSIONS_TIMEOUT, "whether the bucket keeps versions is not known"),
    }
}

/// A number that two tools which start at the same moment do not share.
fn unique() -> u64 {
    rand::RngExt::random(&mut rand::rng())
}

/// Opening the store took too long: nothing was asked of it yet but, for some sources, credentials.
pub(crate) fn opening_timed_out(config: &Config, limit: Duration) -> Error {
    let key = match &config.store {
        StoreConfig::S3(_) => "s3.credentials.provider",
        StoreConfig::File(_) => "file.path",
    };
    Error::config(key, format!("no answer within {limit:?}"))
}

/// The start's deadline passed.
pub(crate) fn timed_out(config: &Config, limit: Duration) -> Error {
    Error::config(location(config), format!("the store gave no result within {limit:?}"))
}

/// The setting that a failure speaks of, and how to mend it.
pub(crate) fn verdict(config: &Config, error: &StoreError) -> Error {
    let StoreConfig::S3(s3) = &config.store else {
        return Error::config(
            "file.path",
            format!("{error}; the directory must exist, be writable and have room"),
        );
    };
    let location = location(config);
    let bucket = &s3.bucket;
    if let Some((key, mend)) = setting_refused(s3, error) {
        return Error::config(key, format!("{mend} (bucket {bucket}): {error}"));
    }
    let (key, mend) = match error.kind() {
        StoreKind::Unreachable => (location, "cannot connect; check host, port and network"),
        StoreKind::Timeout => (location, "no answer; check host, port, http or https, and network"),
        StoreKind::Unavailable | StoreKind::Throttled => (
            location,
            "the store does not serve now; startup.probe=off starts without it",
        ),
        StoreKind::Tls => (
            "s3.ca.file",
            "the server's certificate is not trusted; name the bundle of the authority that signed it",
        ),
        StoreKind::InvalidCredentials => (credentials_key(&s3.credentials, error.code()), "no valid credentials"),
        StoreKind::AccessDenied => (
            "s3.bucket",
            "these credentials lack a right; needed are s3:GetObject, s3:PutObject, s3:DeleteObject and s3:AbortMultipartUpload under key.prefix, and s3:ListBucket, without which AWS does not tell an absent object from a forbidden one; with s3.object.tags also s3:PutObjectTagging, with s3.sse.type=sse-kms kms:GenerateDataKey and kms:Decrypt",
        ),
        StoreKind::BucketNotFound => ("s3.bucket", "no such bucket; create it or mend the name"),
        StoreKind::WrongRegion => ("s3.region", "the store expects another region"),
        StoreKind::ClockSkew => (location, "this machine's clock differs from the store's; set it"),
        StoreKind::NoSpace => ("s3.bucket", "the store is full"),
        StoreKind::Invalid if error.operation() == Operation::Open => {
            ("s3.ca.file", "the file must be a readable PEM bundle")
        }
        _ => (
            location,
            "the store did not answer as S3 does; check that this is an S3 endpoint, and http or https",
        ),
    };
    Error::config(key, format!("{mend} (bucket {bucket}): {error}"))
}

/// The setting of how objects are kept that the store refused, where it says so.
fn setting_refused(s3: &S3Config, error: &StoreError) -> Option<(&'static str, &'static str)> {
    let code = error.code()?.to_ascii_lowercase();
    let says = |word: &str| code.contains(word) || error.detail().to_ascii_lowercase().contains(word);
    if code == "invalidtag" {
        return Some(("s3.object.tags", "the store refuses these tags"));
    }
    if code == "invalidstorageclass" {
        return Some(("s3.storage.class", "the store has no such storage class"));
    }
    match s3.encryption {
        ServerSideEncryption::None => None,
        ServerSideEncryption::Kms { key_id: Some(_) } if says("kms") => {
            Some(("s3.sse.kms.key.id", "the store cannot use this key"))
        }
        _ if says("kms") || says("encryption") => Some(("s3.sse.type", "the store does not encrypt like this")),
        _ => None,
    }
}

/// The setting that names where the refused credentials come from.
fn credentials_key(source: &CredentialsSource, code: Option<&str>) -> &'static str {
    match (source, code) {
        (CredentialsSource::KeyFile(_), _) => "s3.credentials.file",
        (CredentialsSource::Profile { .. }, _) => "s3.profile",
        (CredentialsSource::Static { .. }, Some("SignatureDoesNotMatch")) => "s3.secret.access.key",
        (CredentialsSource::Static { .. }, _) => "s3.access.key.id",
        (CredentialsSource::Environment | CredentialsSource::Local | CredentialsSource::Metadata, _) => {
            "s3.credentials.provider"
        }
    }
}

fn location(config: &Config) -> &'static str {
    match &config.store {
        StoreConfig::S3(s3) if s3.endpoint.is_some() => "s3.endpoint",
        StoreConfig::S3(_) => "s3.region",
        StoreConfig::File(_) => "file.path",
    }
}
