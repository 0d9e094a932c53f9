//! Purpose: a certificate authority made for one server, and the server's certificate.
//!
//! Invariants: the keys exist in memory only; nothing but the authority's certificate is written. The server's
//! certificate is for
//! `localhost`, `127.0.0.1` and `::1`.

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use std::io;
use std::path::Path;
use std::sync::Arc;
use tokio_rustls::TlsAcceptor;

/// The file with the authority's certificate.
pub(super) const CA_FILE: &str = "ca.pem";

/// Far apart, since the certificates end with their server and a test should not depend on the date.
const VALID_FROM_YEAR: i32 = 2020;
const VALID_TO_YEAR: i32 = 2120;

pub(crate) struct Tls {
    pub(crate) acceptor: TlsAcceptor,
    pub(crate) ca_pem: String,
}

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("cannot make certificates: {0}")]
    Certificate(#[from] rcgen::Error),
    #[error("cannot use the certificate: {0}")]
    Configuration(#[from] rustls::Error),
    #[error("not a certificate and its key in PEM: {0}")]
    Pem(#[from] rustls::pki_types::pem::Error),
    #[error("cannot write {CA_FILE}: {0}")]
    Write(#[from] io::Error),
}

impl Tls {
    /// Makes authority and certificate, and writes the authority's `ca.pem` into the directory, if one is given.
    pub(crate) fn make(directory: Option<&Path>) -> Result<Self, TlsError> {
        let mut authority = parameters("Alluvium testkit authority", Vec::new())?;
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate()?)?;
        let names = ["localhost", "127.0.0.1", "::1"].map(str::to_owned).to_vec();
        let mut server = parameters("Alluvium testkit server", names)?;
        server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let key = KeyPair::generate()?;
        let certificate = server.signed_by(&key, &authority)?;
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let acceptor = acceptor(vec![certificate.der().clone()], key)?;
        let ca_pem = authority.pem();
        if let Some(directory) = directory {
            std::fs::create_dir_all(directory)?;
            std::fs::write(directory.join(CA_FILE), &ca_pem)?;
        }
        Ok(Self { acceptor, ca_pem })
    }
}

/// A server side that shows these certificates, its own first.
pub(crate) fn acceptor(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<TlsAcceptor, TlsError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let configuration = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    Ok(TlsAcceptor::from(Arc::new(configuration)))
}

fn parameters(common_name: &str, names: Vec<String>) -> Result<CertificateParams, rcgen::Error> {
    let mut parameters = CertificateParams::new(names)?;
    parameters.distinguished_name.push(DnType::CommonName, common_name);
    parameters.not_before = rcgen::date_time_ymd(VALID_FROM_YEAR, 1, 1);
    parameters.not_after = rcgen::date_time_ymd(VALID_TO_YEAR, 1, 1);
    Ok(parameters)
}
