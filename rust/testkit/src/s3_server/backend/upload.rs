//! Purpose: multipart uploads in progress: their parts, and the checks that turn them into an object.
//!
//! Invariants: an upload is open until it is completed or aborted, and then gone for good: its id is never given again.
//! A part sent twice counts as sent last. What is checked at completion, and the order of the checks, is S3's.

use super::blob::Blob;
use super::checksum::{Algorithm, Checksum, Kind, bad_digest, combine, multipart_etag};
use super::store::{
    Attributes, Buckets, Extent, ObjectDescription, Store, WriteCondition, entries, no_such_bucket, read_description,
};
use rand::Rng as _;
use s3s::{S3Error, S3Result, s3_error};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

/// The least size of every part but the last.
const PART_BYTES_MIN: u64 = 5 * 1024 * 1024;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct UploadDescription {
    pub(super) key: String,
    pub(super) id: String,
    /// As named at creation.
    pub(super) algorithm: Option<Algorithm>,
    pub(super) kind: Kind,
    pub(super) attributes: Attributes,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct PartDescription {
    pub(super) number: i32,
    pub(super) etag: String,
    pub(super) extent: Extent,
    /// The one the client sent, if any.
    pub(super) checksum: Option<Checksum>,
    pub(super) crc64nvme: Checksum,
}

#[derive(Debug)]
pub(super) struct Part {
    pub(super) description: PartDescription,
    pub(super) blob: Arc<Blob>,
    pub(super) modified: SystemTime,
}

impl Part {
    fn checksum(&self, algorithm: Algorithm) -> Option<&Checksum> {
        let own = self.description.checksum.as_ref();
        own.filter(|checksum| checksum.algorithm == algorithm)
            .or_else(|| (algorithm == Algorithm::Crc64Nvme).then_some(&self.description.crc64nvme))
    }
}

#[derive(Debug)]
pub(super) struct Upload {
    pub(super) description: UploadDescription,
    pub(super) parts: BTreeMap<i32, Part>,
    pub(super) initiated: SystemTime,
}

/// A part as named in CompleteMultipartUpload.
#[derive(Debug)]
pub(super) struct NamedPart {
    pub(super) number: i32,
    pub(super) etag: String,
    pub(super) checksum: Option<Checksum>,
}

/// What CompleteMultipartUpload asks for.
#[derive(Debug)]
pub(super) struct Completion {
    pub(super) parts: Vec<NamedPart>,
    pub(super) checksum: Option<Checksum>,
    pub(super) kind: Option<String>,
    pub(super) size: Option<u64>,
    pub(super) condition: WriteCondition,
}

fn no_such_upload() -> S3Error {
    s3_error!(
        NoSuchUpload,
        "The specified upload does not exist. The upload ID may be invalid, or the upload may have been aborted or completed."
    )
}

impl Upload {
    /// The upload, if it is open and belongs to the key.
    pub(super) fn find<'buckets>(
        buckets: &'buckets Buckets,
        bucket: &str,
        key: &str,
        id: &str,
    ) -> S3Result<&'buckets Self> {
        let uploads = &buckets.get(bucket).ok_or_else(no_such_bucket)?.uploads;
        uploads.get(&(key.to_owned(), id.to_owned())).ok_or_else(no_such_upload)
    }

    fn discard_parts(&self) {
        for part in self.parts.values() {
            part.blob.discard();
        }
    }

    /// The object that the completion asks for, or why there cannot be one.
    fn assemble(&self, completion: &Completion) -> S3Result<(ObjectDescription, Vec<Arc<Blob>>)> {
        if completion.parts.is_empty() {
            return Err(s3_error!(MalformedXML, "You must specify at least one part"));
        }
        if completion.parts.windows(2).any(|pair| pair[0].number >= pair[1].number) {
            return Err(s3_error!(
                InvalidPartOrder,
                "The list of parts was not in ascending order."
            ));
        }
        let mut parts = Vec::with_capacity(completion.parts.len());
        for named in &completion.parts {
            parts.push(self.check_named(named)?);
        }
        for part in &parts[..parts.len() - 1] {
            if part.description.extent.length < PART_BYTES_MIN {
                let message = "Your proposed upload is smaller than the minimum allowed size";
                return Err(s3_error!(EntityTooSmall, "{message}: part {}", part.description.number));
            }
        }
        let length = parts.iter().map(|part| part.description.extent.length).sum();
        if completion.size.is_some_and(|size| size != length) {
            return Err(s3_error!(
                InvalidRequest,
                "x-amz-mp-object-size does not match the parts: {length}"
            ));
        }
        let checksum = self.object_checksum(&parts, completion)?;
        let description = ObjectDescription {
            key: self.description.key.clone(),
            length,
            etag: multipart_etag(parts.iter().map(|part| part.description.etag.as_str())),
            checksum,
            checksum_kind: self.description.kind,
            attributes: self.description.attributes.clone(),
            extents: parts.iter().map(|part| part.description.extent.clone()).collect(),
        };
        Ok((description, parts.iter().map(|part| Arc::clone(&part.blob)).collect()))
    }

    fn check_named(&self, named: &NamedPart) -> S3Result<&Part> {
        let invalid = || {
            s3_error!(
                InvalidPart,
                "One or more of the specified parts could not be found, or does not match what was uploaded: part {}",
                named.number
            )
        };
        let part = self.parts.get(&named.number).ok_or_else(invalid)?;
        if part.description.etag != named.etag {
            return Err(invalid());
        }
        if let Some(algorithm) = self.description.algorithm
            && named.checksum.is_none()
        {
            return Err(s3_error!(
                InvalidRequest,
                "The upload was created using a {} checksum. The complete request must include the checksum for each part. \
                 It was missing for part {} in the request.",
                algorithm.name().to_ascii_lowercase(),
                named.number
            ));
        }
        if let Some(checksum) = &named.checksum
            && part.checksum(checksum.algorithm) != Some(checksum)
        {
            return Err(invalid());
        }
        Ok(part)
    }

    fn object_checksum(&self, parts: &[&Part], completion: &Completion) -> S3Result<Checksum> {
        let kind = self.description.kind;
        if completion.kind.as_ref().is_some_and(|asked| asked != kind.name()) {
            return Err(s3_error!(
                InvalidRequest,
                "The upload was created with checksum type {}",
                kind.name()
            ));
        }
        let algorithm = self.description.algorithm.unwrap_or(Algorithm::Crc64Nvme);
        let mut values = Vec::with_capacity(parts.len());
        for part in parts {
            // UploadPart insists on the algorithm of the upload, so every part has it.
            let checksum = part.checksum(algorithm).ok_or_else(|| s3_error!(InvalidPart))?;
            values.push((checksum.value.clone(), part.description.extent.length));
        }
        let whole = combine(algorithm, kind, &values)?;
        if let Some(asked) = &completion.checksum {
            if asked.algorithm != algorithm {
                return Err(s3_error!(
                    InvalidRequest,
                    "The upload was created with checksum {}",
                    algorithm.name()
                ));
            }
            if *asked != whole {
                return Err(bad_digest(algorithm));
            }
        }
        Ok(whole)
    }
}

impl Store {
    pub(super) fn create_upload(
        &self,
        bucket: &str,
        key: &str,
        algorithm: Option<Algorithm>,
        kind: Kind,
        attributes: Attributes,
    ) -> S3Result<String> {
        let mut buckets = self.lock();
        let uploads = &mut buckets.get_mut(bucket).ok_or_else(no_such_bucket)?.uploads;
        // The random half keeps ids of a directory apart over restarts: the number of an aborted upload may come again.
        let id = format!("{:016x}{:016x}", self.next_number(), rand::rng().next_u64());
        let description = UploadDescription {
            key: key.to_owned(),
            id: id.clone(),
            algorithm,
            kind,
            attributes,
        };
        let path = self.uploads_directory(bucket).join(&id).join("upload.json");
        let initiated = self
            .write_description(&path, &description)
            .map_err(S3Error::internal_error)?;
        uploads.insert(
            (key.to_owned(), id.clone()),
            Upload {
                description,
                parts: BTreeMap::new(),
                initiated,
            },
        );
        self.counters().upload_opened();
        Ok(id)
    }

    pub(super) fn add_part(
        &self,
        bucket: &str,
        key: &str,
        id: &str,
        description: PartDescription,
        blob: Arc<Blob>,
    ) -> S3Result<()> {
        let mut buckets = self.lock();
        let uploads = &mut buckets.get_mut(bucket).ok_or_else(no_such_bucket)?.uploads;
        let upload = uploads
            .get_mut(&(key.to_owned(), id.to_owned()))
            .ok_or_else(no_such_upload)?;
        let number = description.number;
        let path = self
            .uploads_directory(bucket)
            .join(id)
            .join(format!("part-{number:05}.json"));
        let modified = self
            .write_description(&path, &description)
            .map_err(S3Error::internal_error)?;
        blob.keep();
        if let Some(old) = upload.parts.insert(
            number,
            Part {
                description,
                blob,
                modified,
            },
        ) {
            old.blob.discard();
        }
        Ok(())
    }

    /// Makes an object of the upload. On any error the upload stays open, as in S3.
    pub(super) fn complete_upload(
        &self,
        bucket: &str,
        key: &str,
        id: &str,
        completion: &Completion,
    ) -> S3Result<ObjectDescription> {
        let mut buckets = self.lock();
        let (object, blobs) = Upload::find(&buckets, bucket, key, id)?.assemble(completion)?;
        let content = buckets.get_mut(bucket).ok_or_else(no_such_bucket)?;
        self.commit_locked(
            bucket,
            &mut content.objects,
            object.clone(),
            blobs.clone(),
            &completion.condition,
        )?;
        let upload = content
            .uploads
            .remove(&(key.to_owned(), id.to_owned()))
            .ok_or_else(no_such_upload)?;
        upload.discard_parts();
        for blob in &blobs {
            blob.keep();
        }
        self.forget_upload(bucket, id)?;
        Ok(object)
    }

    pub(super) fn abort_upload(&self, bucket: &str, key: &str, id: &str) -> S3Result<()> {
        let mut buckets = self.lock();
        let uploads = &mut buckets.get_mut(bucket).ok_or_else(no_such_bucket)?.uploads;
        let upload = uploads
            .remove(&(key.to_owned(), id.to_owned()))
            .ok_or_else(no_such_upload)?;
        upload.discard_parts();
        self.forget_upload(bucket, id)
    }

    fn forget_upload(&self, bucket: &str, id: &str) -> S3Result<()> {
        self.counters().upload_closed();
        fs::remove_dir_all(self.uploads_directory(bucket).join(id)).map_err(S3Error::internal_error)
    }
}

/// Reads an upload back from its directory; one whose creation or end was cut short does not exist.
pub(super) fn load(
    store: &Store,
    directory: &Path,
    used: &mut HashSet<String>,
) -> io::Result<Option<((String, String), Upload)>> {
    let read: io::Result<(UploadDescription, SystemTime)> = read_description(&directory.join("upload.json"));
    let (description, initiated) = match read {
        Ok(read) => read,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            fs::remove_dir_all(directory)?;
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    let mut parts = BTreeMap::new();
    for path in entries(directory)? {
        if path.ends_with("upload.json") {
            continue;
        }
        let (part, modified): (PartDescription, SystemTime) = read_description(&path)?;
        if used.contains(&part.extent.blob) {
            // An object has these bytes: the completion took effect, and only its last step is missing.
            fs::remove_dir_all(directory)?;
            return Ok(None);
        }
        let blob = store.named_blob(&part.extent, used);
        parts.insert(
            part.number,
            Part {
                description: part,
                blob,
                modified,
            },
        );
    }
    let key = (description.key.clone(), description.id.clone());
    Ok(Some((
        key,
        Upload {
            description,
            parts,
            initiated,
        },
    )))
}
