//! Purpose: the operations on single objects, and DeleteObjects.

use super::Backend;
use super::blob::{Reader, Slice, write_body};
use super::checksum::{Announced, Kind, checksum_fields, set_checksum_fields};
use super::store::{Attributes, Extent, Object, ObjectDescription, WriteCondition};
use s3s::dto::*;
use s3s::{S3Error, S3Request, S3Result, s3_error};
use std::collections::{BTreeMap, VecDeque};
use std::ops;
use std::sync::Arc;

/// The largest body of one request.
const BODY_BYTES_MAX: i64 = 5 * 1024 * 1024 * 1024;
/// The most keys of one DeleteObjects.
const DELETE_KEYS_MAX: usize = 1000;
/// Bytes of user metadata, names and values together.
const METADATA_BYTES_MAX: usize = 2048;

const DEFAULT_CONTENT_TYPE: &str = "binary/octet-stream";

pub(super) fn check_body_length(length: Option<i64>) -> S3Result<()> {
    if length.is_some_and(|length| length > BODY_BYTES_MAX) {
        return Err(s3_error!(
            EntityTooLarge,
            "Your proposed upload exceeds the maximum allowed size"
        ));
    }
    Ok(())
}

/// Collects what is kept of an object's headers; the structures of both ways of writing name them alike.
macro_rules! attributes {
    ($input:expr) => {
        $crate::s3_server::backend::object::checked_attributes($crate::s3_server::backend::store::Attributes {
            metadata: $input.metadata.clone().unwrap_or_default().into_iter().collect(),
            cache_control: $input.cache_control.clone(),
            content_disposition: $input.content_disposition.clone(),
            content_encoding: $input.content_encoding.clone(),
            content_language: $input.content_language.clone(),
            content_type: $input.content_type.clone(),
        })
    };
}
pub(super) use attributes;

pub(super) fn checked_attributes(mut attributes: Attributes) -> S3Result<Attributes> {
    let bytes: usize = attributes
        .metadata
        .iter()
        .map(|(name, value)| name.len() + value.len())
        .sum();
    if bytes > METADATA_BYTES_MAX {
        return Err(s3_error!(
            MetadataTooLarge,
            "Your metadata headers exceed the maximum allowed metadata size"
        ));
    }
    // The framing of a streamed upload is not a property of the object.
    if let Some(encoding) = &attributes.content_encoding {
        let kept: Vec<_> = encoding
            .split(',')
            .map(str::trim)
            .filter(|name| *name != "aws-chunked")
            .collect();
        attributes.content_encoding = Some(kept.join(",")).filter(|encoding| !encoding.is_empty());
    }
    Ok(attributes)
}

pub(super) fn quoted(etag: &str) -> ETag {
    ETag::Strong(etag.to_owned())
}

/// The conditions of a read. Modification times are compared in whole seconds, as HTTP writes them.
struct ReadCondition<'request> {
    if_match: Option<&'request ETagCondition>,
    if_none_match: Option<&'request ETagCondition>,
    if_modified_since: Option<&'request Timestamp>,
    if_unmodified_since: Option<&'request Timestamp>,
}

impl ReadCondition<'_> {
    fn check(&self, object: &Object) -> S3Result<()> {
        let matches = |condition: &ETagCondition| match condition {
            ETagCondition::Any => true,
            ETagCondition::ETag(etag) => etag.value() == object.description.etag,
        };
        let modified = Timestamp::from(object.modified);
        let modified_after = |limit: &Timestamp| whole_seconds(&modified) > whole_seconds(limit);
        let failed = || {
            s3_error!(
                PreconditionFailed,
                "At least one of the pre-conditions you specified did not hold"
            )
        };
        match (self.if_match, self.if_unmodified_since) {
            (Some(condition), _) if !matches(condition) => return Err(failed()),
            (None, Some(limit)) if modified_after(limit) => return Err(failed()),
            _ => {}
        }
        match (self.if_none_match, self.if_modified_since) {
            (Some(condition), _) if matches(condition) => Err(s3_error!(NotModified)),
            (None, Some(limit)) if !modified_after(limit) => Err(s3_error!(NotModified)),
            _ => Ok(()),
        }
    }
}

fn whole_seconds(time: &Timestamp) -> String {
    let mut text = Vec::new();
    // The format sorts as time does; a time that cannot be written sorts first.
    let _ = time.format(TimestampFormat::EpochSeconds, &mut text);
    let text = String::from_utf8_lossy(&text).into_owned();
    let seconds = text.split('.').next().unwrap_or_default();
    format!("{seconds:0>20}")
}

impl Backend {
    pub(super) async fn put_object_impl(&self, request: S3Request<PutObjectInput>) -> S3Result<PutObjectOutput> {
        let input = request.input;
        check_body_length(input.content_length)?;
        let condition = WriteCondition {
            if_match: input.if_match.clone(),
            if_none_match: input.if_none_match.clone(),
        };
        let attributes = attributes!(input)?;
        let fields = checksum_fields!(input);
        let announced = Announced::read(fields, &request.headers, request.trailing_headers, input.content_md5)?;
        let blob = self.store.new_blob();
        let values = write_body(&blob, input.body, announced.digests()).await?;
        let checksum = announced.verify(&values)?.unwrap_or_else(|| values.crc64nvme());
        let description = ObjectDescription {
            key: input.key,
            length: values.length,
            etag: values.etag(),
            checksum: checksum.clone(),
            checksum_kind: Kind::FullObject,
            attributes,
            extents: vec![Extent {
                blob: blob.name(),
                length: values.length,
            }],
        };
        let bucket = input.bucket;
        self.change(move |store| store.commit(&bucket, description, vec![blob], &condition))
            .await?;
        let mut output = PutObjectOutput {
            e_tag: Some(quoted(&values.etag())),
            checksum_type: Some(ChecksumType::from_static(ChecksumType::FULL_OBJECT)),
            ..Default::default()
        };
        set_checksum_fields!(output, Some(&checksum));
        Ok(output)
    }

    pub(super) async fn get_object_impl(&self, input: GetObjectInput) -> S3Result<GetObjectOutput> {
        if input.part_number.is_some() || input.version_id.is_some() {
            return Err(s3_error!(
                NotImplemented,
                "partNumber and versionId are not implemented"
            ));
        }
        let object = self.store.object(&input.bucket, &input.key)?;
        let condition = ReadCondition {
            if_match: input.if_match.as_ref(),
            if_none_match: input.if_none_match.as_ref(),
            if_modified_since: input.if_modified_since.as_ref(),
            if_unmodified_since: input.if_unmodified_since.as_ref(),
        };
        condition.check(&object)?;
        let description = &object.description;
        let length = description.length;
        let range = input.range.as_ref().map(|range| select(range, length)).transpose()?;
        let content_range = range
            .as_ref()
            .map(|range| format!("bytes {}-{}/{length}", range.start, range.end.saturating_sub(1)));
        // The checksum is one of the whole object, so it would be wrong for a part of it.
        let wants_checksum = input.checksum_mode.is_some() && range.is_none();
        let range = range.unwrap_or(0..length);
        let body = Reader::new(slices(&object, &range)).into_body().await?;
        let attributes = description.attributes.clone();
        let mut output = GetObjectOutput {
            accept_ranges: Some("bytes".to_owned()),
            body: Some(body),
            cache_control: attributes.cache_control,
            content_disposition: attributes.content_disposition,
            content_encoding: attributes.content_encoding,
            content_language: attributes.content_language,
            content_length: Some(signed(range.end - range.start)?),
            content_range,
            content_type: Some(
                attributes
                    .content_type
                    .unwrap_or_else(|| DEFAULT_CONTENT_TYPE.to_owned()),
            ),
            e_tag: Some(quoted(&description.etag)),
            last_modified: Some(Timestamp::from(object.modified)),
            metadata: to_metadata(attributes.metadata),
            ..Default::default()
        };
        if wants_checksum {
            set_checksum_fields!(output, Some(&description.checksum));
            output.checksum_type = Some(ChecksumType::from_static(description.checksum_kind.name()));
        }
        Ok(output)
    }

    pub(super) fn head_object_impl(&self, input: &HeadObjectInput) -> S3Result<HeadObjectOutput> {
        if input.part_number.is_some() || input.version_id.is_some() || input.range.is_some() {
            return Err(s3_error!(
                NotImplemented,
                "partNumber, versionId and Range of a HEAD are not implemented"
            ));
        }
        let object = self.store.object(&input.bucket, &input.key)?;
        let condition = ReadCondition {
            if_match: input.if_match.as_ref(),
            if_none_match: input.if_none_match.as_ref(),
            if_modified_since: input.if_modified_since.as_ref(),
            if_unmodified_since: input.if_unmodified_since.as_ref(),
        };
        condition.check(&object)?;
        let description = &object.description;
        let attributes = description.attributes.clone();
        let mut output = HeadObjectOutput {
            accept_ranges: Some("bytes".to_owned()),
            cache_control: attributes.cache_control,
            content_disposition: attributes.content_disposition,
            content_encoding: attributes.content_encoding,
            content_language: attributes.content_language,
            content_length: Some(signed(description.length)?),
            content_type: Some(
                attributes
                    .content_type
                    .unwrap_or_else(|| DEFAULT_CONTENT_TYPE.to_owned()),
            ),
            e_tag: Some(quoted(&description.etag)),
            last_modified: Some(Timestamp::from(object.modified)),
            metadata: to_metadata(attributes.metadata),
            ..Default::default()
        };
        if input.checksum_mode.is_some() {
            set_checksum_fields!(output, Some(&description.checksum));
            output.checksum_type = Some(ChecksumType::from_static(description.checksum_kind.name()));
        }
        Ok(output)
    }

    pub(super) async fn delete_object_impl(&self, input: DeleteObjectInput) -> S3Result<DeleteObjectOutput> {
        if input.if_match.is_some() || input.version_id.is_some() {
            return Err(s3_error!(
                NotImplemented,
                "conditional and versioned deletes are not implemented"
            ));
        }
        self.change(move |store| store.delete(&input.bucket, &input.key))
            .await?;
        Ok(DeleteObjectOutput::default())
    }

    pub(super) async fn delete_objects_impl(
        &self,
        request: S3Request<DeleteObjectsInput>,
    ) -> S3Result<DeleteObjectsOutput> {
        let protected = request.headers.keys().any(|name| {
            let name = name.as_str();
            name == "content-md5" || name.starts_with("x-amz-checksum-") || name == "x-amz-trailer"
        });
        if !protected {
            let message = "Missing required header for this request: Content-MD5 OR x-amz-checksum-*";
            return Err(s3_error!(InvalidRequest, "{message}"));
        }
        let input = request.input;
        if input.delete.objects.is_empty() || input.delete.objects.len() > DELETE_KEYS_MAX {
            return Err(s3_error!(
                MalformedXML,
                "The XML you provided was not well-formed or did not validate"
            ));
        }
        let quiet = input.delete.quiet.unwrap_or(false);
        self.change(move |store| {
            let mut deleted = Vec::new();
            let mut errors = Vec::new();
            for object in input.delete.objects {
                let result = delete_one(store, &input.bucket, &object);
                match result {
                    Ok(()) if quiet => {}
                    Ok(()) => deleted.push(DeletedObject {
                        key: Some(object.key),
                        ..Default::default()
                    }),
                    Err(error) => errors.push(Error {
                        code: Some(error.code().as_str().to_owned()),
                        key: Some(object.key),
                        message: Some(error.message().unwrap_or("internal error").to_owned()),
                        version_id: object.version_id,
                    }),
                }
            }
            Ok(DeleteObjectsOutput {
                deleted: Some(deleted),
                errors: Some(errors),
                ..Default::default()
            })
        })
        .await
    }
}

fn delete_one(store: &super::Store, bucket: &str, object: &ObjectIdentifier) -> S3Result<()> {
    if object.version_id.is_some() || object.e_tag.is_some() {
        return Err(s3_error!(
            NotImplemented,
            "conditional and versioned deletes are not implemented"
        ));
    }
    store.delete(bucket, &object.key)
}

/// The bytes a range asks for, or S3's answer to one that selects none.
fn select(range: &Range, length: u64) -> S3Result<ops::Range<u64>> {
    let selected = range.check(length).ok().filter(|selected| !selected.is_empty());
    selected.ok_or_else(|| {
        let mut error: S3Error = s3_error!(InvalidRange, "The requested range is not satisfiable");
        let mut headers = hyper::HeaderMap::new();
        headers.insert(
            hyper::header::CONTENT_TYPE,
            hyper::header::HeaderValue::from_static("application/xml"),
        );
        if let Ok(value) = hyper::header::HeaderValue::try_from(format!("bytes */{length}")) {
            headers.insert(hyper::header::CONTENT_RANGE, value);
        }
        error.set_headers(headers);
        error
    })
}

/// The blobs that hold a range of the object, in order.
fn slices(object: &Object, range: &ops::Range<u64>) -> VecDeque<Slice> {
    let mut slices = VecDeque::new();
    let mut start = 0;
    for (extent, blob) in object.description.extents.iter().zip(&object.blobs) {
        let end = start + extent.length;
        let from = range.start.max(start);
        let to = range.end.min(end);
        if from < to {
            slices.push_back(Slice {
                blob: Arc::clone(blob),
                offset: from - start,
                length: to - from,
            });
        }
        start = end;
    }
    slices
}

fn to_metadata(metadata: BTreeMap<String, String>) -> Option<Metadata> {
    (!metadata.is_empty()).then(|| metadata.into_iter().collect())
}

pub(super) fn signed(length: u64) -> S3Result<i64> {
    i64::try_from(length).map_err(S3Error::internal_error)
}
