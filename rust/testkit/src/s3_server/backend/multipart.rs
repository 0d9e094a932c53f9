//! Purpose: the operations of multipart uploads; listing them is in `list`, their state in `upload`.

use super::Backend;
use super::blob::write_body;
use super::checksum::{Algorithm, Announced, Checksum, Kind, checksum_fields, set_checksum_fields};
use super::object::{attributes, check_body_length, quoted};
use super::store::{Extent, WriteCondition};
use super::upload::{Completion, NamedPart, PartDescription, Upload};
use s3s::dto::*;
use s3s::{S3Request, S3Result, s3_error};

const PART_NUMBER_MAX: i32 = 10_000;

/// The checksum type of an upload: as asked, else S3's default for the algorithm.
fn checksum_kind(algorithm: Option<Algorithm>, asked: Option<&ChecksumType>) -> S3Result<Kind> {
    let Some(algorithm) = algorithm else {
        if asked.is_some() {
            return Err(s3_error!(
                InvalidRequest,
                "x-amz-checksum-type needs x-amz-checksum-algorithm"
            ));
        }
        // An upload without an algorithm ends as an object with a CRC-64/NVME of the whole.
        return Ok(Kind::FullObject);
    };
    let only = match algorithm {
        Algorithm::Crc64Nvme => Some(Kind::FullObject),
        Algorithm::Sha1 | Algorithm::Sha256 => Some(Kind::Composite),
        Algorithm::Crc32 | Algorithm::Crc32c => None,
    };
    let Some(asked) = asked else {
        return Ok(only.unwrap_or(Kind::Composite));
    };
    let asked = match asked.as_str() {
        ChecksumType::FULL_OBJECT => Kind::FullObject,
        ChecksumType::COMPOSITE => Kind::Composite,
        _ => {
            return Err(s3_error!(
                InvalidRequest,
                "Value for x-amz-checksum-type header is invalid."
            ));
        }
    };
    if only.is_some_and(|only| only != asked) {
        return Err(s3_error!(
            InvalidRequest,
            "The {} checksum type cannot be used with the {} checksum algorithm.",
            asked.name(),
            algorithm.name().to_ascii_lowercase()
        ));
    }
    Ok(asked)
}

/// A part without the checksum of its upload could not take part in the object's.
fn check_part_algorithm(expected: Option<Algorithm>, sent: Option<Algorithm>) -> S3Result<()> {
    let Some(expected) = expected.filter(|expected| Some(*expected) != sent) else {
        return Ok(());
    };
    Err(s3_error!(
        InvalidRequest,
        "Checksum Type mismatch occurred, expected checksum Type: {}, actual checksum Type: {}",
        expected.name().to_ascii_lowercase(),
        sent.map_or("null".to_owned(), |sent| sent.name().to_ascii_lowercase())
    ))
}

impl Backend {
    pub(super) async fn create_multipart_upload_impl(
        &self,
        input: CreateMultipartUploadInput,
    ) -> S3Result<CreateMultipartUploadOutput> {
        let named = input.checksum_algorithm.as_ref().map(ChecksumAlgorithm::as_str);
        let algorithm = named.map(Algorithm::parse).transpose()?;
        let kind = checksum_kind(algorithm, input.checksum_type.as_ref())?;
        let attributes = attributes!(input)?;
        let (bucket, key) = (input.bucket.clone(), input.key.clone());
        let id = self
            .change(move |store| store.create_upload(&bucket, &key, algorithm, kind, attributes))
            .await?;
        Ok(CreateMultipartUploadOutput {
            bucket: Some(input.bucket),
            checksum_algorithm: input.checksum_algorithm,
            checksum_type: algorithm.map(|_| ChecksumType::from_static(kind.name())),
            key: Some(input.key),
            upload_id: Some(id),
            ..Default::default()
        })
    }

    pub(super) async fn upload_part_impl(&self, request: S3Request<UploadPartInput>) -> S3Result<UploadPartOutput> {
        let input = request.input;
        let number = input.part_number;
        if !(1..=PART_NUMBER_MAX).contains(&number) {
            let message = "Part number must be an integer between 1 and 10000, inclusive";
            return Err(s3_error!(InvalidArgument, "{message}"));
        }
        check_body_length(input.content_length)?;
        let fields = checksum_fields!(input);
        let announced = Announced::read(fields, &request.headers, request.trailing_headers, input.content_md5)?;
        {
            let buckets = self.store.lock();
            let upload = Upload::find(&buckets, &input.bucket, &input.key, &input.upload_id)?;
            check_part_algorithm(upload.description.algorithm, announced.valued_algorithm())?;
        }
        let blob = self.store.new_blob();
        let values = write_body(&blob, input.body, announced.digests()).await?;
        let checksum = announced.verify(&values)?;
        let etag = values.etag();
        let description = PartDescription {
            number,
            etag: etag.clone(),
            extent: Extent {
                blob: blob.name(),
                length: values.length,
            },
            checksum: checksum.clone(),
            crc64nvme: values.crc64nvme(),
        };
        // The upload may have ended while the body came in; adding the part finds that out.
        self.change(move |store| store.add_part(&input.bucket, &input.key, &input.upload_id, description, blob))
            .await?;
        let mut output = UploadPartOutput {
            e_tag: Some(quoted(&etag)),
            ..Default::default()
        };
        set_checksum_fields!(output, checksum.as_ref());
        Ok(output)
    }

    pub(super) async fn complete_multipart_upload_impl(
        &self,
        input: CompleteMultipartUploadInput,
    ) -> S3Result<CompleteMultipartUploadOutput> {
        let malformed = || {
            s3_error!(
                MalformedXML,
                "The XML you provided was not well-formed or did not validate"
            )
        };
        let mut parts = Vec::new();
        let listed = input
            .multipart_upload
            .as_ref()
            .and_then(|upload| upload.parts.as_deref())
            .unwrap_or_default();
        for part in listed {
            parts.push(NamedPart {
                number: part.part_number.ok_or_else(malformed)?,
                etag: part.e_tag.as_ref().ok_or_else(malformed)?.value().to_owned(),
                checksum: Checksum::from_fields(checksum_fields!(part))?,
            });
        }
        let completion = Completion {
            parts,
            checksum: Checksum::from_fields(checksum_fields!(input))?,
            kind: input.checksum_type.as_ref().map(|kind| kind.as_str().to_owned()),
            size: input
                .mpu_object_size
                .map(u64::try_from)
                .transpose()
                .map_err(|_| malformed())?,
            condition: WriteCondition {
                if_match: input.if_match,
                if_none_match: input.if_none_match,
            },
        };
        let (bucket, key) = (input.bucket.clone(), input.key.clone());
        let object = self
            .change(move |store| store.complete_upload(&bucket, &key, &input.upload_id, &completion))
            .await?;
        let mut output = CompleteMultipartUploadOutput {
            location: Some(format!("/{}/{}", input.bucket, input.key)),
            bucket: Some(input.bucket),
            key: Some(input.key),
            checksum_type: Some(ChecksumType::from_static(object.checksum_kind.name())),
            e_tag: Some(quoted(&object.etag)),
            ..Default::default()
        };
        set_checksum_fields!(output, Some(&object.checksum));
        Ok(output)
    }

    pub(super) async fn abort_multipart_upload_impl(
        &self,
        input: AbortMultipartUploadInput,
    ) -> S3Result<AbortMultipartUploadOutput> {
        self.change(move |store| store.abort_upload(&input.bucket, &input.key, &input.upload_id))
            .await?;
        Ok(AbortMultipartUploadOutput::default())
    }
}
