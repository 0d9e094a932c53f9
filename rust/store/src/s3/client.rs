//! Builds the SDK client: TLS, connections, and everything that the SDK would do by itself switched off.

use std::{fs, path::Path, sync::Arc, time::Duration};

use aws_sdk_s3::{
    Client, Config,
    config::{
        BehaviorVersion, IdentityCache, Region, RequestChecksumCalculation, ResponseChecksumValidation,
        SharedCredentialsProvider, SharedHttpClient, StalledStreamProtectionConfig, retry::RetryConfig,
        timeout::TimeoutConfig,
    },
};
use aws_smithy_http_client::{
    Builder,
    tls::{Provider, TlsContext, TrustStore, rustls_provider::CryptoMode},
};
use rustls::{
    RootCertStore,
    pki_types::{CertificateDer, pem::PemObject},
};

use super::{
    config::{CredentialsSource, S3Config},
    limit,
    names::Names,
    sending::{self, Sending},
};
use crate::{ErrorKind, Operation, StoreError, StoreResult, pace::Pace};

/// How long an idle connection is kept: below the idle limits of load balancers, which drop connections silently (60 s is usual).
const POOL_IDLE: Duration = Duration::from_secs(20);

/// Makes the HTTP client, trusting the authorities that `config` names. Where hosts are, it asks `names`, or the system.
///
/// Blocks on reading the certificate files.
///
/// # Errors
/// [`ErrorKind::Invalid`] when the certificate file cannot be read or holds no certificate.
pub(super) fn http_client(config: &S3Config, names: Option<&Names>) -> StoreResult<SharedHttpClient> {
    let builder = Builder::new().pool_idle_timeout(POOL_IDLE);
    let own_requests_only = matches!(
        config.credentials,
        CredentialsSource::Static { .. } | CredentialsSource::KeyFile(_) | CredentialsSource::Environment
    );
    let plain = config
        .endpoint
        .as_deref()
        .is_some_and(|endpoint| endpoint.starts_with("http://"));
    let trust = match &config.ca_file {
        Some(path) => TrustStore::empty().with_pem_certificate(authorities(path)?),
        // No certificate will be looked at, so a container without any is no reason for a warning.
        None if plain && own_requests_only && names.is_none() => return Ok(builder.build_http()),
        None => TrustStore::default(),
    };
    let context = TlsContext::builder()
        .with_trust_store(trust)
        .build()
        .map_err(|error| StoreError::new(ErrorKind::Invalid, Operation::Open, format!("TLS settings: {error}")))?;
    let builder = builder
        .tls_provider(Provider::Rustls(CryptoMode::Ring))
        .tls_context(context);
    Ok(match names {
        Some(names) => builder.build_with_resolver(names.clone()),
        None => builder.build_https(),
    })
}

/// Reads a PEM bundle and proves that all its certificates can be used: the HTTP client panics on one that cannot.
fn authorities(path: &Path) -> StoreResult<Vec<u8>> {
    let invalid = |reason: String| {
        let detail = format!("certificate authorities file {}: {reason}", path.display());
        StoreError::new(ErrorKind::Invalid, Operation::Open, detail)
    };
    let pem = fs::read(path).map_err(|error| invalid(error.to_string()))?;
    let mut store = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate = certificate.map_err(|error| invalid(format!("not PEM: {error}")))?;
        store
            .add(certificate)
            .map_err(|error| invalid(format!("unusable certificate: {error}")))?;
    }
    if store.is_empty() {
        return Err(invalid("holds no PEM certificate".to_owned()));
    }
    Ok(pem)
}

/// Makes the S3 client, whose uploads keep to `pace`.
pub(super) fn s3_client(
    config: &S3Config,
    http: SharedHttpClient,
    credentials: SharedCredentialsProvider,
    pace: Option<Arc<Pace>>,
) -> Client {
    let http = limit::all_but_objects(http);
    let sending = Sending {
        pace,
        silence: config.read_timeout,
    };
    let http = sending::uploads(http, sending);
    let timeouts = TimeoutConfig::builder().connect_timeout(config.connect_timeout).build();
    let mut builder = Config::builder()
        .behavior_version(BehaviorVersion::v2026_01_12())
        .region(Region::new(config.region.clone()))
        .force_path_style(config.path_style)
        .credentials_provider(credentials)
        // The provider remembers and renews; a second memory above it would keep a rotated key alive.
        .identity_cache(IdentityCache::no_cache())
        .http_client(http)
        .retry_config(RetryConfig::disabled())
        .timeout_config(timeouts)
        .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
        .request_checksum_calculation(RequestChecksumCalculation::WhenRequired)
        .response_checksum_validation(ResponseChecksumValidation::WhenRequired);
    if let Some(endpoint) = &config.endpoint {
        builder = builder.endpoint_url(endpoint);
    }
    Client::from_conf(builder.build())
}
