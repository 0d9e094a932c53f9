//! Purpose: ListObjectsV2, ListParts and ListMultipartUploads.
//!
//! Invariants: keys come in the order of their UTF-8 bytes, each key or common prefix once, whatever the page size. A
//! page limit counts keys and common prefixes together.

use super::checksum::set_checksum_fields;
use super::key::percent_encode;
use super::object::{quoted, signed};
use super::store::no_such_bucket;
use super::upload::Upload;
use super::{Backend, checked_limit};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as TOKEN;
use s3s::dto::*;
use s3s::{S3Result, s3_error};
use std::ops::Bound;

const PAGE_MAX: usize = 1000;

/// The common prefix that `key` falls under, if any.
fn common_prefix<'key>(key: &'key str, prefix: &str, delimiter: Option<&str>) -> Option<&'key str> {
    let delimiter = delimiter.filter(|delimiter| !delimiter.is_empty())?;
    let position = key.get(prefix.len()..)?.find(delimiter)?;
    Some(&key[..prefix.len() + position + delimiter.len()])
}

/// Keys in an answer are percent-encoded on request, since XML cannot hold every character.
struct Encoding(Option<EncodingType>);

impl Encoding {
    fn read(encoding: Option<EncodingType>) -> S3Result<Self> {
        match encoding {
            Some(encoding) if encoding.as_str() != EncodingType::URL => Err(s3_error!(
                InvalidArgument,
                "Invalid Encoding Method specified in Request"
            )),
            encoding => Ok(Self(encoding)),
        }
    }

    fn apply(&self, text: &str) -> String {
        if self.0.is_some() {
            percent_encode(text, true)
        } else {
            text.to_owned()
        }
    }
}

fn encode_token(last: &str) -> String {
    TOKEN.encode(last)
}

fn decode_token(token: &str) -> S3Result<String> {
    let decoded = TOKEN.decode(token).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    decoded.ok_or_else(|| s3_error!(InvalidArgument, "The continuation token provided is incorrect"))
}

impl Backend {
    pub(super) fn list_objects_v2_impl(&self, input: ListObjectsV2Input) -> S3Result<ListObjectsV2Output> {
        let encoding = Encoding::read(input.encoding_type.clone())?;
        let limit = checked_limit(input.max_keys, PAGE_MAX, "max-keys")?;
        let prefix = input.prefix.clone().unwrap_or_default();
        let after = match &input.continuation_token {
            Some(token) => Some(decode_token(token)?),
            None => input.start_after.clone(),
        };
        let mut contents = Vec::new();
        let mut prefixes: Vec<String> = Vec::new();
        let mut last = None;
        let mut is_truncated = false;
        {
            let buckets = self.store.lock();
            let objects = &buckets.get(&input.bucket).ok_or_else(no_such_bucket)?.objects;
            let start = match after.as_deref() {
                Some(after) if after >= prefix.as_str() => Bound::Excluded(after),
                _ => Bound::Included(prefix.as_str()),
            };
            for (key, object) in objects.range::<str, _>((start, Bound::Unbounded)) {
                if !key.starts_with(&prefix) {
                    break;
                }
                let group = common_prefix(key, &prefix, input.delimiter.as_deref());
                if let Some(group) = group {
                    // A page that ended with this prefix has given it already, for all the keys below it.
                    let given = prefixes.last().is_some_and(|given| given == group) || after.as_deref() == Some(group);
                    if given {
                        continue;
                    }
                }
                if contents.len() + prefixes.len() == limit {
                    is_truncated = limit > 0;
                    break;
                }
                last = Some(group.unwrap_or(key).to_owned());
                match group {
                    Some(group) => prefixes.push(group.to_owned()),
                    None => contents.push(Object {
                        checksum_algorithm: Some(vec![ChecksumAlgorithm::from_static(
                            object.description.checksum.algorithm.name(),
                        )]),
                        checksum_type: Some(ChecksumType::from_static(object.description.checksum_kind.name())),
                        e_tag: Some(quoted(&object.description.etag)),
                        key: Some(encoding.apply(key)),
                        last_modified: Some(Timestamp::from(object.modified)),
                        size: Some(signed(object.description.length)?),
                        storage_class: Some(ObjectStorageClass::from_static(ObjectStorageClass::STANDARD)),
                        ..Default::default()
                    }),
                }
            }
        }
        let count = contents.len() + prefixes.len();
        Ok(ListObjectsV2Output {
            name: Some(input.bucket),
            prefix: Some(encoding.apply(&prefix)),
            max_keys: Some(i32::try_from(limit).unwrap_or(i32::MAX)),
            key_count: Some(i32::try_from(count).unwrap_or(i32::MAX)),
            continuation_token: input.continuation_token,
            is_truncated: Some(is_truncated),
            next_continuation_token: last.filter(|_| is_truncated).map(|last| encode_token(&last)),
            contents: Some(contents),
            common_prefixes: to_prefixes(&prefixes, &encoding),
            delimiter: input.delimiter.map(|delimiter| encoding.apply(&delimiter)),
            start_after: input.start_after.map(|start| encoding.apply(&start)),
            encoding_type: input.encoding_type,
            ..Default::default()
        })
    }

    pub(super) fn list_parts_impl(&self, input: &ListPartsInput) -> S3Result<ListPartsOutput> {
        let limit = checked_limit(input.max_parts, PAGE_MAX, "max-parts")?;
        let marker = input.part_number_marker.unwrap_or(0);
        let buckets = self.store.lock();
        let upload = Upload::find(&buckets, &input.bucket, &input.key, &input.upload_id)?;
        let mut parts = Vec::new();
        let mut rest = upload.parts.range((Bound::Excluded(marker), Bound::Unbounded));
        for (number, part) in rest.by_ref().take(limit) {
            let mut listed = Part {
                e_tag: Some(quoted(&part.description.etag)),
                last_modified: Some(Timestamp::from(part.modified)),
                part_number: Some(*number),
                size: Some(signed(part.description.extent.length)?),
                ..Default::default()
            };
            set_checksum_fields!(listed, part.description.checksum.as_ref());
            parts.push(listed);
        }
        let is_truncated = limit > 0 && rest.next().is_some();
        let description = &upload.description;
        let next = parts.last().and_then(|part| part.part_number).filter(|_| is_truncated);
        Ok(ListPartsOutput {
            bucket: Some(input.bucket.clone()),
            checksum_algorithm: description
                .algorithm
                .map(|named| ChecksumAlgorithm::from_static(named.name())),
            checksum_type: description
                .algorithm
                .map(|_| ChecksumType::from_static(description.kind.name())),
            is_truncated: Some(is_truncated),
            key: Some(input.key.clone()),
            max_parts: Some(i32::try_from(limit).unwrap_or(i32::MAX)),
            next_part_number_marker: next,
            part_number_marker: Some(marker),
            parts: Some(parts),
            storage_class: Some(StorageClass::from_static(StorageClass::STANDARD)),
            upload_id: Some(input.upload_id.clone()),
            ..Default::default()
        })
    }

    pub(super) fn list_multipart_uploads_impl(
        &self,
        input: ListMultipartUploadsInput,
    ) -> S3Result<ListMultipartUploadsOutput> {
        let encoding = Encoding::read(input.encoding_type.clone())?;
        let limit = checked_limit(input.max_uploads, PAGE_MAX, "max-uploads")?;
        let prefix = input.prefix.clone().unwrap_or_default();
        let key_marker = input.key_marker.clone().unwrap_or_default();
        // Without a key marker S3 ignores the marker of the upload id.
        let id_marker = input.upload_id_marker.clone().filter(|_| !key_marker.is_empty());
        let is_past_marker = |key: &str, id: &str| {
            if key_marker.is_empty() {
                return true;
            }
            match &id_marker {
                Some(marker) => (key, id) > (key_marker.as_str(), marker.as_str()),
                None => key > key_marker.as_str(),
            }
        };
        let mut uploads = Vec::new();
        let mut prefixes: Vec<String> = Vec::new();
        let mut last: Option<(String, Option<String>)> = None;
        let mut is_truncated = false;
        let buckets = self.store.lock();
        for ((key, id), upload) in &buckets.get(&input.bucket).ok_or_else(no_such_bucket)?.uploads {
            if !key.starts_with(&prefix) || !is_past_marker(key, id) {
                continue;
            }
            let group = common_prefix(key, &prefix, input.delimiter.as_deref());
            if let Some(group) = group
                && (prefixes.last().is_some_and(|given| given == group) || key_marker == group)
            {
                continue;
            }
            if uploads.len() + prefixes.len() == limit {
                is_truncated = limit > 0;
                break;
            }
            if let Some(group) = group {
                last = Some((group.to_owned(), None));
                prefixes.push(group.to_owned());
                continue;
            }
            last = Some((key.clone(), Some(id.clone())));
            let description = &upload.description;
            uploads.push(MultipartUpload {
                checksum_algorithm: description
                    .algorithm
                    .map(|named| ChecksumAlgorithm::from_static(named.name())),
                checksum_type: description
                    .algorithm
                    .map(|_| ChecksumType::from_static(description.kind.name())),
                initiated: Some(Timestamp::from(upload.initiated)),
                key: Some(encoding.apply(key)),
                storage_class: Some(StorageClass::from_static(StorageClass::STANDARD)),
                upload_id: Some(id.clone()),
                ..Default::default()
            });
        }
        let (next_key, next_id) = match last.filter(|_| is_truncated) {
            Some((key, id)) => (Some(encoding.apply(&key)), id),
            None => (None, None),
        };
        Ok(ListMultipartUploadsOutput {
            bucket: Some(input.bucket),
            common_prefixes: to_prefixes(&prefixes, &encoding),
            delimiter: input.delimiter.map(|delimiter| encoding.apply(&delimiter)),
            is_truncated: Some(is_truncated),
            key_marker: Some(encoding.apply(&key_marker)),
            max_uploads: Some(i32::try_from(limit).unwrap_or(i32::MAX)),
            next_key_marker: next_key,
            next_upload_id_marker: next_id,
            prefix: Some(encoding.apply(&prefix)),
            upload_id_marker: input.upload_id_marker,
            uploads: Some(uploads),
            encoding_type: input.encoding_type,
            ..Default::default()
        })
    }
}

fn to_prefixes(prefixes: &[String], encoding: &Encoding) -> Option<Vec<CommonPrefix>> {
    let listed = prefixes.iter().map(|prefix| CommonPrefix {
        prefix: Some(encoding.apply(prefix)),
    });
    Some(listed.collect())
}
