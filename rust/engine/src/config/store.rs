//! The settings of the store.

use super::*;

/// Most tags of an object, and most characters of a tag's name and value (S3: "Categorizing your storage using tags").
const TAGS_MAX: usize = 10;
const TAG_NAME_CHARS_MAX: usize = 128;
const TAG_VALUE_CHARS_MAX: usize = 256;

/// Storage classes whose objects must be restored before they can be read.
const ARCHIVES: [&str; 2] = ["GLACIER", "DEEP_ARCHIVE"];

pub(super) fn store(settings: &Settings) -> Result<StoreConfig> {
    let upload_bytes_per_second = settings.optional_number(UPLOAD_RATE)?;
    if settings.text("storage.type")? == "file" {
        return Ok(StoreConfig::File(FileConfig {
            root: PathBuf::from(settings.required("file.path", "storage.type=file")?),
            upload_bytes_per_second,
        }));
    }
    let endpoint = settings.optional("s3.endpoint").map(endpoint).transpose()?;
    Ok(StoreConfig::S3(S3Config {
        bucket: settings.required("s3.bucket", "storage.type=s3")?.to_owned(),
        region: settings.text("s3.region")?.to_owned(),
        path_style: settings
            .optional_flag("s3.path.style.enabled")?
            .unwrap_or(endpoint.is_some()),
        endpoint,
        credentials: credentials(settings)?,
        ca_file: settings.optional("s3.ca.file").map(PathBuf::from),
        payload_signing: settings.flag("s3.payload.signing.enabled")?,
        connect_timeout: settings.duration("connect.timeout.ms")?,
        read_timeout: settings.duration("request.attempt.timeout.ms")?,
        encryption: server_side_encryption(settings)?,
        storage_class: settings.optional("s3.storage.class").map(storage_class).transpose()?,
        tags: settings
            .optional("s3.object.tags")
            .map(tags)
            .transpose()?
            .unwrap_or_default(),
        upload_bytes_per_second,
    }))
}

fn server_side_encryption(settings: &Settings) -> Result<ServerSideEncryption> {
    let key_id = settings.optional("s3.sse.kms.key.id").map(str::to_owned);
    match settings.text("s3.sse.type")? {
        "sse-kms" => Ok(ServerSideEncryption::Kms { key_id }),
        other if key_id.is_some() => Err(Error::config(
            "s3.sse.kms.key.id",
            format!("it is for s3.sse.type=sse-kms, which is {other}"),
        )),
        "sse-s3" => Ok(ServerSideEncryption::S3),
        _ => Ok(ServerSideEncryption::None),
    }
}

fn storage_class(name: &str) -> Result<String> {
    if ARCHIVES.iter().any(|archive| archive.eq_ignore_ascii_case(name)) {
        return Err(Error::config(
            "s3.storage.class",
            format!("objects of {name} cannot be read without being restored, so consumers would find nothing"),
        ));
    }
    Ok(name.to_owned())
}

fn tags(text: &str) -> Result<Vec<(String, String)>> {
    let wrong = |reason: String| Error::config("s3.object.tags", reason);
    let mut tags: Vec<(String, String)> = Vec::new();
    for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
        let (name, value) = pair
            .split_once('=')
            .ok_or_else(|| wrong(format!("{pair:?} is not name=value")))?;
        let (name, value) = (name.trim(), value.trim());
        if name.is_empty() || name.chars().count() > TAG_NAME_CHARS_MAX || value.chars().count() > TAG_VALUE_CHARS_MAX {
            return Err(wrong(format!(
                "{pair:?}: a name has 1 to {TAG_NAME_CHARS_MAX} characters, a value at most {TAG_VALUE_CHARS_MAX}"
            )));
        }
        if tags.iter().any(|(known, _)| known == name) {
            return Err(wrong(format!("{name} comes twice")));
        }
        tags.push((name.to_owned(), value.to_owned()));
    }
    if tags.len() > TAGS_MAX {
        return Err(wrong(format!("{} tags, at most {TAGS_MAX}", tags.len())));
    }
    Ok(tags)
}

/// A URL of scheme, host and port: a path would change the bucket's address without a word.
fn endpoint(text: &str) -> Result<String> {
    let wrong = |reason: &str| {
        Error::config(
            "s3.endpoint",
            format!("{reason}; write it as http://host:port or https://host:port"),
        )
    };
    let host = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    let host = host.ok_or_else(|| wrong("it must begin with http:// or https://"))?;
    let host = host.strip_suffix('/').unwrap_or(host);
    if host.contains('@') {
        return Err(wrong("it must not hold credentials"));
    }
    if host.is_empty() || host.contains(['/', '?', '#', ' ']) {
        return Err(wrong(
            "it must be a scheme, a host and optionally a port, and nothing else",
        ));
    }
    Ok(text.strip_suffix('/').unwrap_or(text).to_owned())
}

fn credentials(settings: &Settings) -> Result<CredentialsSource> {
    let static_keys = || -> Result<CredentialsSource> {
        Ok(CredentialsSource::Static {
            access_key_id: settings.required("s3.access.key.id", "a static key")?.to_owned(),
            secret_access_key: Secret::new(settings.required("s3.secret.access.key", "a static key")?),
            session_token: settings.optional("s3.session.token").map(Secret::new),
        })
    };
    let key_file = || -> Result<CredentialsSource> {
        Ok(CredentialsSource::KeyFile(PathBuf::from(
            settings.required("s3.credentials.file", "s3.credentials.provider=file")?,
        )))
    };
    let profile = || CredentialsSource::Profile {
        name: settings.optional("s3.profile").map(str::to_owned),
        file: settings.optional("s3.profile.file").map(PathBuf::from),
    };
    let is_set = |key| settings.optional(key).is_some();
    let has_static = is_set("s3.access.key.id") || is_set("s3.secret.access.key");
    match settings.text("s3.credentials.provider")? {
        "static" => static_keys(),
        "file" => key_file(),
        "environment" => Ok(CredentialsSource::Environment),
        "profile" => Ok(profile()),
        "metadata" => Ok(CredentialsSource::Metadata),
        _ if has_static && is_set("s3.credentials.file") => Err(Error::config(
            "s3.credentials.file",
            "it is set beside a static key (s3.access.key.id, s3.secret.access.key); remove one, or name one in s3.credentials.provider",
        )),
        _ if has_static => static_keys(),
        _ if is_set("s3.credentials.file") => key_file(),
        _ if is_set("s3.profile") || is_set("s3.profile.file") => Ok(profile()),
        _ => Ok(CredentialsSource::Local),
    }
}
