//! Where keys come from, remembered until they expire or their file changes.
//!
//! # Purpose
//! One provider for all sources, so that the SDK keeps no keys of its own.
//!
//! # Invariants
//! * Nothing but the named source is asked; the network only for [`CredentialsSource::Metadata`] (and for a profile that itself
//!   names a role to assume).
//! * A key file that is half written or unreadable does not take away keys that worked.
//!
//! # Failure
//! Every error names each place that was looked at.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::PoisonError,
    time::{Duration, SystemTime},
};

use aws_config::{
    ecs::EcsCredentialsProvider, environment::EnvironmentVariableCredentialsProvider,
    imds::credentials::ImdsCredentialsProvider, profile::ProfileFileCredentialsProvider,
    provider_config::ProviderConfig, web_identity_token::WebIdentityTokenCredentialsProvider,
};
use aws_credential_types::{
    Credentials,
    provider::{self, ProvideCredentials, error::CredentialsError, future},
};
use aws_runtime::env_config::file::{EnvConfigFileKind, EnvConfigFiles};
use aws_sdk_s3::config::{Region, SharedHttpClient};
use aws_smithy_async::time::{SystemTimeSource, TimeSource};
use tokio::time::Instant;

use super::{
    config::{CredentialsSource, Secret},
    errors,
    watched::FileStamp,
};

/// How often a key file is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Temporary keys are renewed this long before they expire.
const RENEW_BEFORE: Duration = Duration::from_secs(300);

/// After a failed renewal, how long the old keys are used before the next try.
const RENEW_AGAIN: Duration = Duration::from_secs(10);

/// The provider.
#[derive(Debug)]
pub(super) struct KeySource {
    source: CredentialsSource,
    network: ProviderConfig,
    state: tokio::sync::Mutex<Option<Remembered>>,
    /// The last keys handed out: a refused request compares with them.
    handed: std::sync::Mutex<Option<Handed>>,
}

#[derive(Clone, Debug)]
struct Handed {
    keys: Credentials,
    /// When they were first.
    since: Instant,
}

#[derive(Debug)]
struct Remembered {
    keys: Credentials,
    stamp: Option<FileStamp>,
    look_next: Instant,
}

impl KeySource {
    pub(super) fn new(source: CredentialsSource, region: &str, http: &SharedHttpClient) -> Self {
        let network = ProviderConfig::without_region()
            .with_region(Some(Region::new(region.to_owned())))
            .with_http_client(http.clone());
        KeySource {
            source,
            network,
            state: tokio::sync::Mutex::default(),
            handed: std::sync::Mutex::default(),
        }
    }

    /// For a request that was refused and had begun at `begin`: whether there are other keys than those it was signed with.
    ///
    /// Forgets what is remembered and asks the source again, unless another refused request has done so in the meantime: of many that
    /// are under way when keys are rotated, each is to go on.
    pub(super) async fn changed(&self, begin: Instant) -> bool {
        if matches!(
            self.source,
            CredentialsSource::Static { .. } | CredentialsSource::Environment
        ) {
            return false;
        }
        let mut state = self.state.lock().await;
        let handed = self.handed.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if handed.as_ref().is_some_and(|handed| handed.since > begin) {
            return true;
        }
        let Ok(fresh) = self.load().await else {
            return false;
        };
        let differs = handed.is_some_and(|handed| !same_keys(&handed.keys, &fresh.keys));
        *state = Some(fresh);
        differs
    }

    async fn keys(&self) -> provider::Result {
        let mut state = self.state.lock().await;
        if state.is_none() {
            *state = Some(self.load().await?);
        }
        let Some(remembered) = state.as_mut() else {
            return Err(CredentialsError::unhandled("no credentials"));
        };
        if self.is_due(remembered).await {
            match self.load().await {
                Ok(fresh) => *remembered = fresh,
                Err(error) => {
                    // Said once a state of the file, not once a look.
                    tracing::warn!(error = %errors::chain(&error), "cannot renew s3 credentials, keeping the present ones");
                    remembered.look_next = Instant::now() + RENEW_AGAIN;
                    if let CredentialsSource::KeyFile(path) = &self.source {
                        remembered.stamp = Some(stamp_of(path.clone()).await);
                        remembered.look_next = Instant::now() + LOOK_EVERY;
                    }
                }
            }
        }
        let keys = remembered.keys.clone();
        let mut handed = self.handed.lock().unwrap_or_else(PoisonError::into_inner);
        if !handed.as_ref().is_some_and(|handed| same_keys(&handed.keys, &keys)) {
            *handed = Some(Handed {
                keys: keys.clone(),
                since: Instant::now(),
            });
        }
        Ok(keys)
    }

    async fn is_due(&self, remembered: &mut Remembered) -> bool {
        if Instant::now() < remembered.look_next {
            return false;
        }
        remembered.look_next = Instant::now() + LOOK_EVERY;
        if let CredentialsSource::KeyFile(path) = &self.source {
            return remembered.stamp != Some(stamp_of(path.clone()).await);
        }
        let now = SystemTimeSource::new().now();
        remembered.keys.expiry().is_some_and(|expiry| expires_soon(expiry, now))
    }

    async fn load(&self) -> Result<Remembered, CredentialsError> {
        let mut stamp = None;
        let keys = match &self.source {
            CredentialsSource::Static {
                access_key_id,
                secret_access_key,
                session_token,
            } => Credentials::new(
                access_key_id,
                secret_access_key.reveal(),
                session_token.as_ref().map(|token| token.reveal().to_owned()),
                None,
                "configuration",
            ),
            CredentialsSource::KeyFile(path) => {
                let path = path.clone();
                let read = tokio::task::spawn_blocking(move || {
                    // Looked at before reading: a change in between is then seen at the next look.
                    let stamp = FileStamp::of(&path);
                    read_key_file(&path).map(|keys| (keys, stamp))
                });
                let (keys, seen) = read
                    .await
                    .map_err(CredentialsError::unhandled)?
                    .map_err(CredentialsError::provider_error)?;
                stamp = Some(seen);
                keys
            }
            CredentialsSource::Environment => environment().await?,
            CredentialsSource::Profile { name, file } => self.profile(name.as_deref(), file.clone()).await?,
            CredentialsSource::Local => match environment().await {
                Ok(keys) => keys,
                Err(first) => self.profile(None, None).await.map_err(|second| {
                    let text = format!("{}; {}", errors::chain(&first), errors::chain(&second));
                    CredentialsError::not_loaded(format!(
                        "{text} (cloud metadata is not asked unless s3.credentials.provider is metadata)"
                    ))
                })?,
            },
            CredentialsSource::Metadata => self.metadata().await?,
        };
        Ok(Remembered {
            keys,
            stamp,
            look_next: Instant::now() + LOOK_EVERY,
        })
    }

    async fn profile(&self, name: Option<&str>, file: Option<PathBuf>) -> provider::Result {
        let mut builder = ProfileFileCredentialsProvider::builder().configure(&self.network);
        if let Some(name) = name {
            builder = builder.profile_name(name);
        }
        let place = match &file {
            Some(file) => file.display().to_string(),
            None => "the shared AWS files (~/.aws/credentials, ~/.aws/config)".to_owned(),
        };
        if let Some(file) = file {
            let files = EnvConfigFiles::builder()
                .with_file(EnvConfigFileKind::Credentials, file)
                .build();
            builder = builder.profile_files(files);
        }
        Box::pin(builder.build().provide_credentials()).await.map_err(|error| {
            let name = name.unwrap_or("default");
            let text = format!("profile {name:?} of {place}: {}", errors::chain(&error));
            CredentialsError::not_loaded(text)
        })
    }

    async fn metadata(&self) -> provider::Result {
        let mut failures = Vec::new();
        let web_identity = WebIdentityTokenCredentialsProvider::builder()
            .configure(&self.network)
            .build();
        match Box::pin(web_identity.provide_credentials()).await {
            Ok(keys) => return Ok(keys),
            Err(error) => failures.push(format!("web identity token: {}", errors::chain(&error))),
        }
        let container = EcsCredentialsProvider::builder().configure(&self.network).build();
        match Box::pin(container.provide_credentials()).await {
            Ok(keys) => return Ok(keys),
            Err(error) => failures.push(format!("container credentials: {}", errors::chain(&error))),
        }
        let instance = ImdsCredentialsProvider::builder().configure(&self.network).build();
        match Box::pin(instance.provide_credentials()).await {
            Ok(keys) => return Ok(keys),
            Err(error) => failures.push(format!("instance metadata: {}", errors::chain(&error))),
        }
        Err(CredentialsError::not_loaded(failures.join("; ")))
    }
}

impl ProvideCredentials for KeySource {
    fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
    where
        Self: 'a,
    {
        future::ProvideCredentials::new(self.keys())
    }
}

fn expires_soon(expiry: SystemTime, now: SystemTime) -> bool {
    expiry.duration_since(now).map_or(true, |left| left < RENEW_BEFORE)
}

fn same_keys(left: &Credentials, right: &Credentials) -> bool {
    left.access_key_id() == right.access_key_id()
        && left.secret_access_key() == right.secret_access_key()
        && left.session_token() == right.session_token()
}

async fn environment() -> provider::Result {
    let provider = EnvironmentVariableCredentialsProvider::new();
    provider.provide_credentials().await.map_err(|error| {
        let text = format!(
            "environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY): {}",
            errors::chain(&error)
        );
        CredentialsError::not_loaded(text)
    })
}

async fn stamp_of(path: PathBuf) -> FileStamp {
    // A look that could not be made differs from every stamp that was, so the file is read again.
    tokio::task::spawn_blocking(move || FileStamp::of(&path))
        .await
        .unwrap_or_else(|_| FileStamp::of(Path::new("")))
}

fn read_key_file(path: &Path) -> Result<Credentials, String> {
    let text = fs::read_to_string(path).map_err(|error| format!("key file {}: {error}", path.display()))?;
    parse_key_file(&text).map_err(|reason| format!("key file {}: {reason}", path.display()))
}

fn parse_key_file(text: &str) -> Result<Credentials, String> {
    let mut access_key_id = None;
    let mut secret_access_key = None;
    let mut session_token = None;
    let mut in_default = true;
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        if let Some(section) = line.strip_prefix('[') {
            in_default = section.trim_end_matches(']').trim() == "default";
            continue;
        }
        if !in_default {
            continue;
        }
        // The line itself is not quoted: it may be a secret.
        let (name, value) = line
            .split_once('=')
            .ok_or_else(|| format!("line {} is not name = value", index + 1))?;
        let value = value.trim();
        match name.trim().to_ascii_lowercase().as_str() {
            "aws_access_key_id" => access_key_id = Some(value.to_owned()),
            "aws_secret_access_key" => secret_access_key = Some(Secret::new(value)),
            "aws_session_token" => session_token = Some(value.to_owned()).filter(|token| !token.is_empty()),
            _ => {}
        }
    }
    let access_key_id = access_key_id
        .filter(|value| !value.is_empty())
        .ok_or("aws_access_key_id is missing")?;
    let secret = secret_access_key
        .filter(|value| !value.reveal().is_empty())
        .ok_or("aws_secret_access_key is missing")?;
    Ok(Credentials::new(
        access_key_id,
        secret.reveal(),
        session_token,
        None,
        "key file",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_file_with_and_without_a_header_is_read() {
        for text in [
            "aws_access_key_id = AK\naws_secret_access_key=SK\n",
            "# comment\n[default]\naws_access_key_id=AK\r\naws_secret_access_key = SK\nregion = x\n[other]\naws_access_key_id = no\nnonsense\n",
        ] {
            let keys = parse_key_file(text).expect("a good key file");
            assert_eq!(
                (keys.access_key_id(), keys.secret_access_key(), keys.session_token()),
                ("AK", "SK", None)
            );
        }
        let keys =
            parse_key_file("aws_access_key_id=A\naws_secret_access_key=S=/+\naws_session_token=T\n").expect("good");
        assert_eq!((keys.secret_access_key(), keys.session_token()), ("S=/+", Some("T")));
    }

    #[test]
    fn a_bad_key_file_is_refused_without_quoting_it() {
        assert_eq!(parse_key_file("").expect_err("empty"), "aws_access_key_id is missing");
        assert_eq!(
            parse_key_file("aws_access_key_id=A\naws_secret_access_key=\n").expect_err("no secret"),
            "aws_secret_access_key is missing"
        );
        assert_eq!(
            parse_key_file("SECRETLINE").expect_err("no assignment"),
            "line 1 is not name = value"
        );
    }
}
