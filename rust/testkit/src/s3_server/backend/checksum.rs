//! Purpose: the checksums of S3: what a request announces, what the bytes give, and how those of parts make one of an
//! object.
//!
//! Flow: [`Announced`] is read from the request, its [`Digests`] run over the body, [`Announced::verify`] compares.
//!
//! Invariants: a value that was announced, in a header or a trailer, is always compared. CRC-64/NVME is always
//! computed: it is the checksum of objects whose writer named none, and the base of the ETag.
//!
//! Not here: ETags are not MD5. They are opaque in S3 for most objects, and MD5 would cost more than all the rest of
//! the server.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use crc_fast::CrcAlgorithm;
use s3s::checksum::ChecksumHasher;
use s3s::crypto::{Checksum as _, Crc32, Crc32c, Crc64Nvme, Md5, Sha1, Sha256};
use s3s::dto::ChecksumAlgorithm;
use s3s::{S3Error, S3Result, TrailingHeaders, dto, s3_error};
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Algorithm {
    Crc32,
    Crc32c,
    Crc64Nvme,
    Sha1,
    Sha256,
}

impl Algorithm {
    const ALL: [Self; 5] = [Self::Crc32, Self::Crc32c, Self::Crc64Nvme, Self::Sha1, Self::Sha256];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Crc32 => ChecksumAlgorithm::CRC32,
            Self::Crc32c => ChecksumAlgorithm::CRC32C,
            Self::Crc64Nvme => ChecksumAlgorithm::CRC64NVME,
            Self::Sha1 => ChecksumAlgorithm::SHA1,
            Self::Sha256 => ChecksumAlgorithm::SHA256,
        }
    }

    pub(super) fn parse(name: &str) -> S3Result<Self> {
        Self::ALL
            .into_iter()
            .find(|algorithm| algorithm.name().eq_ignore_ascii_case(name))
            .ok_or_else(|| s3_error!(InvalidRequest, "Checksum algorithm provided is unsupported: {name}"))
    }

    fn header(self) -> String {
        format!("x-amz-checksum-{}", self.name().to_ascii_lowercase())
    }

    fn digest_bytes(self) -> usize {
        match self {
            Self::Crc32 | Self::Crc32c => 4,
            Self::Crc64Nvme => 8,
            Self::Sha1 => 20,
            Self::Sha256 => 32,
        }
    }

    fn field(self, checksum: dto::Checksum) -> Option<String> {
        match self {
            Self::Crc32 => checksum.checksum_crc32,
            Self::Crc32c => checksum.checksum_crc32c,
            Self::Crc64Nvme => checksum.checksum_crc64nvme,
            Self::Sha1 => checksum.checksum_sha1,
            Self::Sha256 => checksum.checksum_sha256,
        }
    }
}

/// How the checksum of a multipart object relates to its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Kind {
    FullObject,
    Composite,
}

impl Kind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::FullObject => dto::ChecksumType::FULL_OBJECT,
            Self::Composite => dto::ChecksumType::COMPOSITE,
        }
    }
}

/// A checksum as S3 writes it: base64 of the big-endian digest (with `-n` behind it when composite).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Checksum {
    pub(super) algorithm: Algorithm,
    pub(super) value: String,
}

impl Checksum {
    /// The fields of S3's structures, to be copied into whichever one is being answered.
    pub(super) fn to_fields(&self) -> dto::Checksum {
        let mut fields = dto::Checksum::default();
        let field = match self.algorithm {
            Algorithm::Crc32 => &mut fields.checksum_crc32,
            Algorithm::Crc32c => &mut fields.checksum_crc32c,
            Algorithm::Crc64Nvme => &mut fields.checksum_crc64nvme,
            Algorithm::Sha1 => &mut fields.checksum_sha1,
            Algorithm::Sha256 => &mut fields.checksum_sha256,
        };
        *field = Some(self.value.clone());
        fields
    }

    /// The one checksum that is set; more than one is not allowed in a request.
    pub(super) fn from_fields(fields: dto::Checksum) -> S3Result<Option<Self>> {
        let mut found = None;
        for algorithm in Algorithm::ALL {
            let Some(value) = algorithm.field(fields.clone()) else {
                continue;
            };
            if found.is_some() {
                return Err(s3_error!(InvalidRequest, "Expecting a single x-amz-checksum- header"));
            }
            found = Some(Self { algorithm, value });
        }
        Ok(found)
    }

    /// Rejects what cannot be a digest of the algorithm at all.
    fn check_form(&self) -> S3Result<()> {
        let decoded = BASE64.decode(&self.value).unwrap_or_default();
        if decoded.len() == self.algorithm.digest_bytes() {
            return Ok(());
        }
        Err(s3_error!(
            InvalidRequest,
            "Value for {} header is invalid.",
            self.algorithm.header()
        ))
    }
}

/// Copies the checksum fields of an input structure into a `dto::Checksum`.
macro_rules! checksum_fields {
    ($input:expr) => {
        s3s::dto::Checksum {
            checksum_crc32: $input.checksum_crc32.clone(),
            checksum_crc32c: $input.checksum_crc32c.clone(),
            checksum_crc64nvme: $input.checksum_crc64nvme.clone(),
            checksum_sha1: $input.checksum_sha1.clone(),
            checksum_sha256: $input.checksum_sha256.clone(),
            ..Default::default()
        }
    };
}

/// Sets the checksum fields of an output structure.
macro_rules! set_checksum_fields {
    ($output:expr, $checksum:expr) => {
        if let Some(checksum) = $checksum {
            let fields = checksum.to_fields();
            $output.checksum_crc32 = fields.checksum_crc32;
            $output.checksum_crc32c = fields.checksum_crc32c;
            $output.checksum_crc64nvme = fields.checksum_crc64nvme;
            $output.checksum_sha1 = fields.checksum_sha1;
            $output.checksum_sha256 = fields.checksum_sha256;
        }
    };
}

pub(super) use {checksum_fields, set_checksum_fields};

/// What a request says about the digest of its body.
#[derive(Debug)]
pub(super) struct Announced {
    header: Option<Checksum>,
    trailer: Option<(Algorithm, TrailingHeaders)>,
    /// Named without a value: computed and kept all the same.
    named: Option<Algorithm>,
    content_md5: Option<String>,
}

impl Announced {
    pub(super) fn read(
        fields: dto::Checksum,
        headers: &hyper::HeaderMap,
        trailing: Option<TrailingHeaders>,
        content_md5: Option<String>,
    ) -> S3Result<Self> {
        let header = Checksum::from_fields(fields)?;
        if let Some(checksum) = &header {
            checksum.check_form()?;
        }
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let trailer = match (text("x-amz-trailer"), trailing) {
            (Some(names), Some(trailing)) => Algorithm::ALL
                .into_iter()
                .find(|algorithm| {
                    names
                        .split(',')
                        .any(|name| name.trim().eq_ignore_ascii_case(&algorithm.header()))
                })
                .map(|algorithm| (algorithm, trailing)),
            _ => None,
        };
        let named = text("x-amz-sdk-checksum-algorithm").map(Algorithm::parse).transpose()?;
        Ok(Self {
            header,
            trailer,
            named,
            content_md5,
        })
    }

    /// The algorithm whose value came with the request.
    pub(super) fn valued_algorithm(&self) -> Option<Algorithm> {
        let trailer = self.trailer.as_ref().map(|(algorithm, _)| *algorithm);
        self.header.as_ref().map(|checksum| checksum.algorithm).or(trailer)
    }

    fn algorithm(&self) -> Option<Algorithm> {
        self.valued_algorithm().or(self.named)
    }

    pub(super) fn digests(&self) -> Digests {
        let mut hasher = ChecksumHasher {
            crc64nvme: Some(Crc64Nvme::new()),
            ..Default::default()
        };
        match self.algorithm() {
            Some(Algorithm::Crc32) => hasher.crc32 = Some(Crc32::new()),
            Some(Algorithm::Crc32c) => hasher.crc32c = Some(Crc32c::new()),
            Some(Algorithm::Sha1) => hasher.sha1 = Some(Sha1::new()),
            Some(Algorithm::Sha256) => hasher.sha256 = Some(Sha256::new()),
            Some(Algorithm::Crc64Nvme) | None => {}
        }
        Digests {
            hasher,
            md5: self.content_md5.as_ref().map(|_| Md5::new()),
            length: 0,
        }
    }

    /// Compares what was announced with what the body gave; returns the checksum to store.
    pub(super) fn verify(&self, values: &DigestValues) -> S3Result<Option<Checksum>> {
        if let Some(announced) = &self.content_md5
            && values.md5.as_deref() != Some(announced)
        {
            return Err(s3_error!(
                BadDigest,
                "The Content-MD5 you specified did not match what we received."
            ));
        }
        let Some(algorithm) = self.algorithm() else {
            return Ok(None);
        };
        let value = algorithm.field(values.fields.clone());
        let computed = value.ok_or_else(|| s3_error!(InternalError, "the announced checksum was not computed"))?;
        let mut announced = self.header.as_ref().map(|checksum| checksum.value.clone());
        if let Some((_, trailing)) = &self.trailer {
            announced = trailing
                .take()
                .and_then(|headers| Some(headers.get(algorithm.header())?.to_str().ok()?.to_owned()));
            if announced.is_none() {
                return Err(s3_error!(
                    InvalidRequest,
                    "The announced trailer {} is missing.",
                    algorithm.header()
                ));
            }
        }
        if announced.is_some_and(|announced| announced != computed) {
            return Err(bad_digest(algorithm));
        }
        Ok(Some(Checksum {
            algorithm,
            value: computed,
        }))
    }
}

pub(super) fn bad_digest(algorithm: Algorithm) -> S3Error {
    s3_error!(
        BadDigest,
        "The {} you specified did not match the calculated checksum.",
        algorithm.name()
    )
}

/// Running digests of one body.
pub(super) struct Digests {
    hasher: ChecksumHasher,
    md5: Option<Md5>,
    length: u64,
}

impl Digests {
    pub(super) fn update(&mut self, piece: &[u8]) {
        self.hasher.update(piece);
        if let Some(md5) = &mut self.md5 {
            md5.update(piece);
        }
        self.length += piece.len() as u64;
    }

    pub(super) fn finish(self) -> DigestValues {
        DigestValues {
            length: self.length,
            fields: self.hasher.finalize(),
            md5: self.md5.map(|md5| BASE64.encode(md5.finalize())),
        }
    }
}

/// Digests of a whole body.
#[derive(Debug)]
pub(super) struct DigestValues {
    pub(super) length: u64,
    fields: dto::Checksum,
    md5: Option<String>,
}

impl DigestValues {
    pub(super) fn crc64nvme(&self) -> Checksum {
        let value = self.fields.checksum_crc64nvme.clone().unwrap_or_default();
        Checksum {
            algorithm: Algorithm::Crc64Nvme,
            value,
        }
    }

    /// Equal bytes have equal ETags. Longer than 32 digits, so that no client takes it for an MD5.
    pub(super) fn etag(&self) -> String {
        format!(
            "{:016x}{:016x}a1",
            decode_number(&self.crc64nvme().value).unwrap_or_default(),
            self.length
        )
    }
}

/// The ETag of an object made of parts.
pub(super) fn multipart_etag<'parts>(part_etags: impl Iterator<Item = &'parts str>) -> String {
    let mut hasher = Crc64Nvme::new();
    let mut count = 0_u32;
    for etag in part_etags {
        hasher.update(etag.as_bytes());
        hasher.update(b"\n");
        count += 1;
    }
    format!("{:016x}{count:016x}a1-{count}", u64::from_be_bytes(hasher.finalize()))
}

/// The checksum of an object from the checksums and lengths of its parts, in order.
pub(super) fn combine(algorithm: Algorithm, kind: Kind, parts: &[(String, u64)]) -> S3Result<Checksum> {
    let value = match kind {
        Kind::FullObject => combine_full(algorithm, parts),
        Kind::Composite => combine_composite(algorithm, parts),
    };
    let value = value.ok_or_else(|| s3_error!(InternalError, "the checksums of the parts cannot be combined"))?;
    Ok(Checksum { algorithm, value })
}

fn combine_full(algorithm: Algorithm, parts: &[(String, u64)]) -> Option<String> {
    let mut numbers = Vec::with_capacity(parts.len());
    for (value, length) in parts {
        numbers.push((decode_number(value)?, *length));
    }
    match algorithm {
        Algorithm::Crc32 => {
            let mut whole = crc32fast::Hasher::new();
            for (number, length) in numbers {
                whole.combine(&crc32fast::Hasher::new_with_initial_len(
                    u32::try_from(number).ok()?,
                    length,
                ));
            }
            Some(BASE64.encode(whole.finalize().to_be_bytes()))
        }
        Algorithm::Crc32c => {
            let whole = combine_numbers(CrcAlgorithm::Crc32Iscsi, &numbers);
            Some(BASE64.encode(u32::try_from(whole).ok()?.to_be_bytes()))
        }
        Algorithm::Crc64Nvme => Some(BASE64.encode(combine_numbers(CrcAlgorithm::Crc64Nvme, &numbers).to_be_bytes())),
        Algorithm::Sha1 | Algorithm::Sha256 => None,
    }
}

fn combine_numbers(algorithm: CrcAlgorithm, parts: &[(u64, u64)]) -> u64 {
    let mut whole = crc_fast::checksum(algorithm, b"");
    for (number, length) in parts {
        whole = crc_fast::checksum_combine(algorithm, whole, *number, *length);
    }
    whole
}

fn combine_composite(algorithm: Algorithm, parts: &[(String, u64)]) -> Option<String> {
    let mut digests = Vec::new();
    for (value, _) in parts {
        digests.extend(BASE64.decode(value).ok()?);
    }
    let digest = match algorithm {
        Algorithm::Crc32 => Crc32::checksum(&digests).to_vec(),
        Algorithm::Crc32c => Crc32c::checksum(&digests).to_vec(),
        Algorithm::Crc64Nvme => return None,
        Algorithm::Sha1 => Sha1::checksum(&digests).as_ref().to_vec(),
        Algorithm::Sha256 => Sha256::checksum(&digests).as_ref().to_vec(),
    };
    Some(format!("{}-{}", BASE64.encode(digest), parts.len()))
}

fn decode_number(value: &str) -> Option<u64> {
    let bytes = BASE64.decode(value).ok()?;
    (bytes.len() <= 8).then(|| bytes.iter().fold(0, |number, byte| (number << 8) | u64::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value_of(algorithm: Algorithm, bytes: &[u8]) -> String {
        let announced = Announced {
            header: None,
            trailer: None,
            named: Some(algorithm),
            content_md5: None,
        };
        let mut digests = announced.digests();
        digests.update(bytes);
        announced.verify(&digests.finish()).unwrap().unwrap().value
    }

    #[test]
    fn full_object_checksums_combine() {
        let bytes: Vec<u8> = (0..10_000_u32).flat_map(u32::to_le_bytes).collect();
        for algorithm in [Algorithm::Crc32, Algorithm::Crc32c, Algorithm::Crc64Nvme] {
            let parts: Vec<_> = bytes
                .chunks(7_000)
                .map(|part| (value_of(algorithm, part), part.len() as u64))
                .collect();
            let whole = combine(algorithm, Kind::FullObject, &parts).unwrap();
            assert_eq!(whole.value, value_of(algorithm, &bytes), "{}", algorithm.name());
        }
    }

    #[test]
    fn a_checksum_of_wrong_size_is_rejected() {
        let checksum = Checksum {
            algorithm: Algorithm::Crc32,
            value: "AAAA".to_owned(),
        };
        assert!(checksum.check_form().is_err());
    }
}
