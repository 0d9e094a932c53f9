//! The operator's key pairs: wrap the data keys of new segments, and unwrap those of stored ones.
//!
//! # Invariants
//! * Every pair was tried at the start, so a wrong file stops the broker then and not a consumer later.
//! * Keys are read once: a file that changes its content under the same id would make all earlier segments of it unreadable. Rotation
//!   is a new id.
//!
//! # Not here
//! How bytes are sealed with a data key: `alluvium_format`.

use std::{collections::BTreeMap, fmt, fs, io::Read, path::Path};

use alluvium_format::{DATA_KEY_BYTES, DataKey, DataKeys, Encryption, FormatError, WrappedKey};
use ring::rand::{SecureRandom, SystemRandom};
use rsa::{
    PrivateKey, PublicKey,
    pkcs1::{ALGORITHM_OID, DecodeRsaPrivateKey, DecodeRsaPublicKey},
    pkcs8::{DecodePublicKey, PrivateKeyInfoRef, SecretDocument},
    sha2::Sha256,
    traits::PublicKeyParts,
};
use zeroize::Zeroizing;

use crate::{
    Error, ErrorKind, Result,
    config::{EncryptionConfig, KeyPairFiles},
};

/// Longest key file: a key of 16,384 bits has 13 KiB.
const PEM_BYTES_MAX: u64 = 64 << 10;

/// Smallest modulus in bytes: 2048 bits (NIST SP 800-57 part 1, for use to 2030).
const MODULUS_BYTES_MIN: usize = 256;

/// All key pairs of an instance.
#[derive(Default)]
pub(crate) struct KeyRing {
    active: Option<String>,
    pairs: BTreeMap<String, PrivateKey>,
}

impl KeyRing {
    /// Reads all key files and proves that each pair fits together. Blocks on the disk.
    ///
    /// # Errors
    /// [`ErrorKind::Config`], naming the key of the file.
    pub(crate) fn load(config: &EncryptionConfig) -> Result<Self> {
        let mut pairs = BTreeMap::new();
        for (id, files) in &config.pairs {
            pairs.insert(id.clone(), load_pair(id, files)?);
        }
        let ring = KeyRing {
            active: config.active.clone(),
            pairs,
        };
        if let Some(encryption) = ring.new_encryption()? {
            ring.unwrap_key(&encryption.wrapped)?;
        }
        Ok(ring)
    }

    /// A new data key, wrapped by the active pair; `None` when new segments are not encrypted.
    ///
    /// # Errors
    /// [`ErrorKind::Internal`] when the machine gives no random numbers.
    pub(crate) fn new_encryption(&self) -> Result<Option<Encryption>> {
        let Some((id, pair)) = self.active.as_ref().and_then(|id| self.pairs.get_key_value(id)) else {
            return Ok(None);
        };
        let failed =
            |reason: &dyn fmt::Display| Error::new(ErrorKind::Internal, format!("cannot make a data key: {reason}"));
        let mut bytes = Zeroizing::new([0; DATA_KEY_BYTES]);
        SystemRandom::new()
            .fill(&mut bytes[..])
            .map_err(|error| failed(&error))?;
        let data_key = DataKey::new(*bytes);
        let wrapped = pair
            .to_public_key()
            .oaep_encrypt::<Sha256>(data_key.reveal())
            .map_err(|error| failed(&error))?;
        Ok(Some(Encryption {
            wrapped: WrappedKey {
                key_id: id.clone(),
                bytes: wrapped,
            },
            data_key,
        }))
    }
}

impl DataKeys for KeyRing {
    fn unwrap_key(&self, wrapped: &WrappedKey) -> std::result::Result<DataKey, FormatError> {
        let id = &wrapped.key_id;
        let no_key = |reason: String| FormatError::NoDataKey { reason };
        let pair = self.pairs.get(id).ok_or_else(|| {
            no_key(format!(
                "the segment needs the key pair {id:?}, and encryption.key.pairs.{id}.private.key.file is not set"
            ))
        })?;
        let bytes = pair
            .oaep_decrypt::<Sha256>(&wrapped.bytes)
            .map(Zeroizing::new)
            .map_err(|_| no_key(format!("the configured key pair {id:?} is not the one that wrapped it")))?;
        let bytes = <&[u8; DATA_KEY_BYTES]>::try_from(&bytes[..])
            .map_err(|_| no_key(format!("{} bytes were wrapped by {id:?}", bytes.len())))?;
        Ok(DataKey::new(*bytes))
    }
}

impl fmt::Debug for KeyRing {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("KeyRing")
            .field("active", &self.active)
            .field("pairs", &self.pairs.keys())
            .finish()
    }
}

fn load_pair(id: &str, files: &KeyPairFiles) -> Result<PrivateKey> {
    let private_name = format!("encryption.key.pairs.{id}.private.key.file");
    let private = read_pem(&private_name, &files.private)?;
    let wrong = |name: &str, path: &Path, reason: &str| Error::config(name, format!("{}: {reason}", path.display()));
    if private.contains("PUBLIC KEY-----") {
        return Err(wrong(&private_name, &files.private, "this is a public key"));
    }
    if private.contains("ENCRYPTED") {
        let reason = "the key has a passphrase; remove it with: openssl pkey -in FILE -out NEW";
        return Err(wrong(&private_name, &files.private, reason));
    }
    let private = private_key(&private).map_err(|reason| {
        wrong(
            &private_name,
            &files.private,
            &format!("not a PEM of an unencrypted RSA private key: {reason}"),
        )
    })?;
    if private.size() < MODULUS_BYTES_MIN {
        let reason = format!("a key of {} bits; at least 2048 are needed", private.size() * 8);
        return Err(wrong(&private_name, &files.private, &reason));
    }
    private
        .validate()
        .map_err(|error| wrong(&private_name, &files.private, &error.to_string()))?;
    if let Some(path) = &files.public {
        let name = format!("encryption.key.pairs.{id}.public.key.file");
        let pem = read_pem(&name, path)?;
        let public = PublicKey::from_public_key_pem(&pem)
            .map_err(|error| error.to_string())
            .or_else(|reason| PublicKey::from_pkcs1_pem(&pem).map_err(|_| reason));
        let public =
            public.map_err(|reason| wrong(&name, path, &format!("not a PEM of an RSA public key: {reason}")))?;
        if public != private.to_public_key() {
            return Err(wrong(&name, path, "it does not belong to the private key"));
        }
    }
    Ok(private)
}

fn private_key(pem: &str) -> std::result::Result<PrivateKey, String> {
    if pem.contains("BEGIN RSA PRIVATE KEY") {
        return PrivateKey::from_pkcs1_pem(pem).map_err(|error| error.to_string());
    }
    let (_, document) = SecretDocument::from_pem(pem).map_err(|error| error.to_string())?;
    let info = PrivateKeyInfoRef::try_from(document.as_bytes()).map_err(|error| error.to_string())?;
    // A key that is for RSA-PSS signatures only (RFC 8017, A.2.3) would wrap as well, but other tools would refuse to unwrap with it.
    if info.algorithm.oid != ALGORITHM_OID {
        return Err(format!(
            "its algorithm is {}, and {ALGORITHM_OID} (rsaEncryption) is needed",
            info.algorithm.oid
        ));
    }
    PrivateKey::try_from(info).map_err(|error| error.to_string())
}

fn read_pem(name: &str, path: &Path) -> Result<String> {
    // Looked at before it is opened, since opening a pipe waits for its other end.
    if fs::metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
        return Err(Error::config(name, format!("{} is not a file", path.display())));
    }
    let failed = |reason: &dyn fmt::Display| Error::config(name, format!("cannot read {}: {reason}", path.display()));
    let mut pem = String::new();
    fs::File::open(path)
        .and_then(|file| file.take(PEM_BYTES_MAX + 1).read_to_string(&mut pem))
        .map_err(|error| failed(&error))?;
    if pem.len() as u64 > PEM_BYTES_MAX {
        return Err(failed(&format_args!("over {PEM_BYTES_MAX} bytes, which no key has")));
    }
    Ok(pem)
}
