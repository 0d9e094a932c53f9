//! The settings of client-side encryption.

use super::*;

const ENABLED: &str = "encryption.enabled";
const ACTIVE: &str = "encryption.key.pair.id";
const LISTED: &str = "encryption.key.pairs";
const PRIVATE: &str = "encryption.key.pairs.<id>.private.key.file";
const PUBLIC: &str = "encryption.key.pairs.<id>.public.key.file";

/// The files of a key pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyPairFiles {
    /// PEM of the private key.
    pub private: PathBuf,
    /// PEM of the public key, where given.
    pub public: Option<PathBuf>,
}

/// The key pairs, and which of them new segments are encrypted with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EncryptionConfig {
    /// Id of the pair for new segments; `None`: new segments are not encrypted.
    pub active: Option<String>,
    /// All pairs by id.
    pub pairs: BTreeMap<String, KeyPairFiles>,
}

pub(super) fn encryption(settings: &Settings) -> Result<EncryptionConfig> {
    let public = settings.family(PUBLIC);
    let mut pairs = BTreeMap::new();
    for (id, private) in settings.family(PRIVATE) {
        let files = KeyPairFiles {
            private: PathBuf::from(private),
            public: public.get(id).map(PathBuf::from),
        };
        pairs.insert(id.to_owned(), files);
    }
    if let Some(id) = public.keys().find(|id| !pairs.contains_key(**id)) {
        let key = PUBLIC.replace("<id>", id);
        return Err(Error::config(
            &key,
            "its private key file is missing: segments could not be read back",
        ));
    }
    if let Some(listed) = settings.optional(LISTED) {
        let listed: std::collections::BTreeSet<&str> =
            listed.split(',').map(str::trim).filter(|id| !id.is_empty()).collect();
        if let Some(id) = listed.iter().find(|id| !pairs.contains_key(**id)) {
            return Err(Error::config(
                LISTED,
                format!("{id} has no {}", PRIVATE.replace("<id>", id)),
            ));
        }
        if let Some(id) = pairs.keys().find(|id| !listed.contains(id.as_str())) {
            return Err(Error::config(
                &PRIVATE.replace("<id>", id),
                format!("{id} is not in {LISTED}"),
            ));
        }
    }
    let active = if settings.flag(ENABLED)? {
        let id = settings.required(ACTIVE, "encryption.enabled=true")?;
        if !pairs.contains_key(id) {
            return Err(Error::config(
                ACTIVE,
                format!("{} is not set", PRIVATE.replace("<id>", id)),
            ));
        }
        Some(id.to_owned())
    } else {
        None
    };
    Ok(EncryptionConfig { active, pairs })
}
