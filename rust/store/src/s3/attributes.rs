//! What the settings say of every object written: encryption at rest, storage class, tags.
//!
//! # Invariants
//! * Said where an object begins, in PutObject and CreateMultipartUpload, and nowhere else: servers refuse it elsewhere.
//! * What is not set is not said, so that the bucket's own defaults hold.

use aws_sdk_s3::{
    operation::{
        create_multipart_upload::builders::CreateMultipartUploadFluentBuilder,
        put_object::builders::PutObjectFluentBuilder,
    },
    types::{self, StorageClass},
};

use super::config::{S3Config, ServerSideEncryption};

/// The settings in the SDK's words.
#[derive(Debug)]
pub(super) struct Attributes {
    encryption: Option<types::ServerSideEncryption>,
    kms_key_id: Option<String>,
    storage_class: Option<StorageClass>,
    tagging: Option<String>,
}

impl Attributes {
    pub(super) fn new(config: &S3Config) -> Self {
        let (encryption, kms_key_id) = match &config.encryption {
            ServerSideEncryption::None => (None, None),
            ServerSideEncryption::S3 => (Some(types::ServerSideEncryption::Aes256), None),
            ServerSideEncryption::Kms { key_id } => (Some(types::ServerSideEncryption::AwsKms), key_id.clone()),
        };
        Attributes {
            encryption,
            kms_key_id,
            storage_class: config.storage_class.as_deref().map(StorageClass::from),
            tagging: (!config.tags.is_empty()).then(|| tagging(&config.tags)),
        }
    }

    pub(super) fn of_put(&self, request: PutObjectFluentBuilder) -> PutObjectFluentBuilder {
        request
            .set_server_side_encryption(self.encryption.clone())
            .set_ssekms_key_id(self.kms_key_id.clone())
            .set_storage_class(self.storage_class.clone())
            .set_tagging(self.tagging.clone())
    }

    pub(super) fn of_upload(&self, request: CreateMultipartUploadFluentBuilder) -> CreateMultipartUploadFluentBuilder {
        request
            .set_server_side_encryption(self.encryption.clone())
            .set_ssekms_key_id(self.kms_key_id.clone())
            .set_storage_class(self.storage_class.clone())
            .set_tagging(self.tagging.clone())
    }
}

/// Tags as the query of a URL, which is how a header carries them.
fn tagging(tags: &[(String, String)]) -> String {
    let pairs: Vec<String> = tags
        .iter()
        .map(|(name, value)| format!("{}={}", percent_encoded(name), percent_encoded(value)))
        .collect();
    pairs.join("&")
}

/// All but the unreserved characters (RFC 3986, 2.3) as `%XX` of their UTF-8 bytes.
fn percent_encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_percent_encoded() {
        let tags = [
            ("plain-._~".to_owned(), "Value9".to_owned()),
            ("a b+c".to_owned(), "x=y&z/%".to_owned()),
            ("grün".to_owned(), String::new()),
        ];
        assert_eq!(tagging(&tags), "plain-._~=Value9&a%20b%2Bc=x%3Dy%26z%2F%25&gr%C3%BCn=");
    }
}
