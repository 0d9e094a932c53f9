//! Each operation as one request.

use std::{
    error::Error,
    fmt,
    future::Future,
    ops::Range,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError, RwLock},
};

use async_trait::async_trait;
use aws_credential_types::provider::{ProvideCredentials, SharedCredentialsProvider};
use aws_sdk_s3::{
    Client,
    error::{ProvideErrorMetadata, SdkError},
    primitives::ByteStream,
    types::{ChecksumMode, ChecksumType},
};
use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use base64::{Engine, prelude::BASE64_STANDARD};
use tokio::time::Instant;

use super::{
    attributes::Attributes,
    body, client,
    config::S3Config,
    credentials::KeySource,
    errors::{self, Target},
    limit,
    names::Names,
    watched::FileStamp,
};
use crate::{
    ErrorKind, GetObject, Key, ListPage, ObjectInfo, ObjectStore, Operation, Payload, StoreError, StoreResult,
    UploadId, UploadedPart, pace::Pace,
};

/// A bucket.
pub struct S3Store {
    pub(super) config: S3Config,
    pub(super) target: Target,
    pub(super) attributes: Attributes,
    client: RwLock<Client>,
    pace: Option<Arc<Pace>>,
    keys: SharedCredentialsProvider,
    key_source: Arc<KeySource>,
    authorities: Option<Authorities>,
    names: Option<Names>,
}

/// The certificate file, its state when the client was built, and when that was.
struct Authorities {
    path: PathBuf,
    seen: Mutex<(FileStamp, Instant)>,
}

impl fmt::Debug for S3Store {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("S3Store")
            .field("target", &self.target)
            .finish_non_exhaustive()
    }
}

impl S3Store {
    /// Reads what the settings name, finds credentials, and makes the client. Sends nothing to the bucket.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for an unusable certificate file, [`ErrorKind::InvalidCredentials`] when no credentials are found;
    /// the detail names the file or all places looked at.
    pub async fn open(config: S3Config) -> StoreResult<S3Store> {
        Self::open_with(config, None).await
    }

    /// The same, for tests of names that move: where hosts are, `names` says.
    ///
    /// # Errors
    /// As [`S3Store::open`].
    pub async fn open_with_names(config: S3Config, names: Names) -> StoreResult<S3Store> {
        Self::open_with(config, Some(names)).await
    }

    async fn open_with(config: S3Config, names: Option<Names>) -> StoreResult<S3Store> {
        let seen = config.ca_file.as_deref().map(FileStamp::of);
        let http = {
            let (config, names) = (config.clone(), names.clone());
            blocking(move || client::http_client(&config, names.as_ref())).await?
        };
        let key_source = KeySource::new(config.credentials.clone(), &config.region, &limit::all(http.clone()));
        let key_source = Arc::new(key_source);
        let keys = SharedCredentialsProvider::new(Shared(Arc::clone(&key_source)));
        let limit = config.connect_timeout + config.read_timeout;
        let invalid = |detail: String| StoreError::new(ErrorKind::InvalidCredentials, Operation::Open, detail);
        match tokio::time::timeout(limit, keys.provide_credentials()).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => return Err(invalid(format!("no credentials: {}", errors::chain(&error)))),
            Err(_) => {
                return Err(invalid(format!(
                    "no credentials within {limit:?} from {:?}",
                    config.credentials
                )));
            }
        }
        let endpoint = match &config.endpoint {
            Some(endpoint) => endpoint.clone(),
            None => format!("AWS S3 in {}", config.region),
        };
        let target = Target {
            endpoint,
            bucket: config.bucket.clone(),
            region: config.region.clone(),
        };
        let authorities = config.ca_file.clone().zip(seen).map(|(path, stamp)| Authorities {
            path,
            seen: Mutex::new((stamp, Instant::now())),
        });
        let pace = config.upload_bytes_per_second.map(Pace::new).map(Arc::new);
        let client = RwLock::new(client::s3_client(&config, http, keys.clone(), pace.clone()));
        Ok(S3Store {
            attributes: Attributes::new(&config),
            config,
            target,
            client,
            pace,
            keys,
            key_source,
            authorities,
            names,
        })
    }

    pub(super) fn client(&self) -> Client {
        self.client.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits for the answer to a request and maps its failure. How long to wait is the timeout layer's to say.
    pub(super) async fn answer<T, E>(
        &self,
        operation: Operation,
        key: Option<&Key>,
        request: impl Future<Output = Result<T, SdkError<E, HttpResponse>>>,
    ) -> StoreResult<T>
    where
        E: ProvideErrorMetadata + Error + 'static,
    {
        let begin = Instant::now();
        match Box::pin(request).await {
            Ok(answer) => Ok(answer),
            Err(error) => Err(self.mended(self.target.error(operation, key, &error), begin).await),
        }
    }

    /// Looks whether what the server or we refused has been replaced on disk since the request began; then another attempt makes
    /// sense.
    async fn mended(&self, error: StoreError, begin: Instant) -> StoreError {
        let mended = match error.kind() {
            ErrorKind::InvalidCredentials => self.key_source.changed(begin).await,
            ErrorKind::Tls => self.authorities_changed(begin).await,
            _ => false,
        };
        if mended { error.with_retryable(true) } else { error }
    }

    async fn authorities_changed(&self, begin: Instant) -> bool {
        let Some(authorities) = &self.authorities else {
            return false;
        };
        let path = authorities.path.clone();
        let (config, names) = (self.config.clone(), self.names.clone());
        let look = move || Ok((FileStamp::of(&path), client::http_client(&config, names.as_ref())));
        let Ok((stamp, http)) = blocking(look).await else {
            return false;
        };
        let mut seen = authorities.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let (seen_stamp, read) = *seen;
        if seen_stamp == stamp {
            // Another request that was refused may have read it in the meantime.
            return read > begin;
        }
        match http {
            Ok(http) => {
                *seen = (stamp, Instant::now());
                let client = client::s3_client(&self.config, http, self.keys.clone(), self.pace.clone());
                *self.client.write().unwrap_or_else(PoisonError::into_inner) = client;
                tracing::info!(file = %authorities.path.display(), "certificate authorities were read again");
                true
            }
            Err(error) => {
                *seen = (stamp, read);
                tracing::warn!(%error, "cannot read certificate authorities again, keeping the present ones");
                false
            }
        }
    }
}

/// The provider in the shape that the SDK wants.
#[derive(Debug)]
struct Shared(Arc<KeySource>);

impl ProvideCredentials for Shared {
    fn provide_credentials<'a>(&'a self) -> aws_credential_types::provider::future::ProvideCredentials<'a>
    where
        Self: 'a,
    {
        self.0.provide_credentials()
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> StoreResult<T> + Send + 'static) -> StoreResult<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| {
        Err(StoreError::new(
            ErrorKind::Unexpected,
            Operation::Open,
            format!("reading files: {error}"),
        ))
    })
}

/// CRC-32 as S3 writes it.
pub(super) fn crc32_text(crc32: u32) -> String {
    BASE64_STANDARD.encode(crc32.to_be_bytes())
}

/// CRC-32 of a whole object, as S3 returns it. One of parts' checksums (`…-3`) says nothing of the bytes.
pub(super) fn whole_crc32(text: Option<&str>, kind: Option<&ChecksumType>) -> Option<u32> {
    if kind == Some(&ChecksumType::Composite) {
        return None;
    }
    let bytes = BASE64_STANDARD.decode(text?).ok()?;
    Some(u32::from_be_bytes(bytes.try_into().ok()?))
}

/// An answer outside the protocol. Something in between may have given it, so the next one may be the store's.
pub(super) fn unexpected(operation: Operation, key: &Key, detail: impl Into<String>) -> StoreError {
    StoreError::new(ErrorKind::Unexpected, operation, detail)
        .with_retryable(true)
        .with_key(key)
}

/// What shows that the store itself has answered a write: the ETag of what it has stored.
pub(super) fn proper_etag<'answer>(
    operation: Operation,
    key: &Key,
    etag: Option<&'answer str>,
) -> StoreResult<&'answer str> {
    etag.filter(|etag| !etag.is_empty())
        .ok_or_else(|| unexpected(operation, key, "the answer has no ETag"))
}

/// An error when the store tells another checksum than that of the bytes sent.
pub(super) fn same_crc32(operation: Operation, key: &Key, told: u32, sent: u32) -> StoreResult<()> {
    if told == sent {
        return Ok(());
    }
    let detail = format!("the store answers with CRC-32 {told:08x}, {sent:08x} was sent");
    Err(StoreError::new(ErrorKind::ChecksumMismatch, operation, detail).with_key(key))
}

fn length_of(operation: Operation, key: &Key, length: Option<i64>) -> StoreResult<u64> {
    length
        .and_then(|length| u64::try_from(length).ok())
        .ok_or_else(|| unexpected(operation, key, format!("the answer has the length {length:?}")))
}

/// `bytes 5-9/20` as (5..10, 20).
fn parse_content_range(text: &str) -> Option<(Range<u64>, u64)> {
    let (range, total) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    Some((
        first.parse().ok()?..last.parse::<u64>().ok()?.checked_add(1)?,
        total.parse().ok()?,
    ))
}

#[async_trait]
impl ObjectStore for S3Store {
    async fn put(&self, key: &Key, payload: Payload) -> StoreResult<()> {
        let request = self.attributes.of_put(self.client().put_object());
        let request = request
            .bucket(&self.config.bucket)
            .key(key.as_str())
            .checksum_crc32(crc32_text(payload.crc32()))
            .body(ByteStream::from(payload.bytes().clone()))
            .customize();
        let request = if self.config.payload_signing {
            request
        } else {
            request.disable_payload_signing()
        };
        let answer = self.answer(Operation::Put, Some(key), request.send()).await?;
        proper_etag(Operation::Put, key, answer.e_tag())?;
        let crc32 = payload.crc32();
        match whole_crc32(answer.checksum_crc32(), answer.checksum_type()) {
            Some(told) => same_crc32(Operation::Put, key, told, crc32),
            None => self.prove(Operation::Put, key, payload.length(), crc32, None).await,
        }
    }

    async fn create_upload(&self, key: &Key) -> StoreResult<UploadId> {
        self.begin_upload(key).await
    }

    async fn upload_part(
        &self,
        key: &Key,
        upload: &UploadId,
        number: u32,
        payload: Payload,
    ) -> StoreResult<UploadedPart> {
        self.send_part(key, upload, number, payload).await
    }

    async fn complete_upload(
        &self,
        key: &Key,
        upload: &UploadId,
        parts: &[UploadedPart],
        crc32: u32,
    ) -> StoreResult<()> {
        self.finish_upload(key, upload, parts, crc32).await
    }

    async fn abort_upload(&self, key: &Key, upload: &UploadId) -> StoreResult<()> {
        self.drop_upload(key, upload).await
    }

    async fn list_uploads(&self, key: &Key) -> StoreResult<Vec<UploadId>> {
        self.uploads_of(key).await
    }

    async fn get(&self, key: &Key, range: Option<Range<u64>>) -> StoreResult<GetObject> {
        if let Some(range) = &range
            && range.is_empty()
        {
            let detail = format!("the range {range:?} is empty");
            return Err(StoreError::new(ErrorKind::Invalid, Operation::Get, detail).with_key(key));
        }
        let header = range.as_ref().map(|range| match i64::try_from(range.end) {
            Ok(_) => format!("bytes={}-{}", range.start, range.end - 1),
            // Past any object, and past what servers can count to.
            Err(_) => format!("bytes={}-", range.start),
        });
        let request = self
            .client()
            .get_object()
            .bucket(&self.config.bucket)
            .key(key.as_str())
            .set_range(header)
            .send();
        let answer = self.answer(Operation::Get, Some(key), request).await?;
        let length = length_of(Operation::Get, key, answer.content_length())?;
        let content_range = answer.content_range().map(str::to_owned);
        let (given, object_length) = match (&range, &content_range) {
            (None, None) => (0..length, length),
            (Some(asked), Some(text)) => {
                let (given, total) = parse_content_range(text)
                    .ok_or_else(|| unexpected(Operation::Get, key, format!("Content-Range {text:?}")))?;
                let wanted = asked.start..asked.end.min(total);
                if given != wanted || given.end - given.start != length {
                    let detail = format!("asked for bytes {wanted:?}, got {text:?} with {length} bytes");
                    return Err(unexpected(Operation::Get, key, detail));
                }
                (given, total)
            }
            // Status 200 to a range: the server sends the whole object.
            (Some(asked), None) => {
                let detail = format!("asked for bytes {asked:?}, got an answer without Content-Range");
                return Err(unexpected(Operation::Get, key, detail));
            }
            (None, Some(text)) => {
                return Err(unexpected(
                    Operation::Get,
                    key,
                    format!("a whole object with Content-Range {text:?}"),
                ));
            }
        };
        let request_id = aws_sdk_s3::operation::RequestId::request_id(&answer).map(str::to_owned);
        let tag = answer.e_tag().map(str::to_owned);
        let body = body::exactly(answer.body, length, self.config.read_timeout, key.clone(), request_id);
        Ok(GetObject {
            range: given,
            object_length,
            tag,
            body,
        })
    }

    async fn head(&self, key: &Key) -> StoreResult<ObjectInfo> {
        let request = self
            .client()
            .head_object()
            .bucket(&self.config.bucket)
            .key(key.as_str())
            .checksum_mode(ChecksumMode::Enabled)
            .send();
        let answer = self.answer(Operation::Head, Some(key), request).await?;
        Ok(ObjectInfo {
            key: key.as_str().to_owned(),
            length: length_of(Operation::Head, key, answer.content_length())?,
            crc32: whole_crc32(answer.checksum_crc32(), answer.checksum_type()),
        })
    }

    async fn delete(&self, keys: &[Key]) -> StoreResult<()> {
        self.delete_all(keys).await
    }

    async fn list(&self, prefix: &str, start_after: Option<&str>, max_keys: u32) -> StoreResult<ListPage> {
        let request = self
            .client()
            .list_objects_v2()
            .bucket(&self.config.bucket)
            .prefix(prefix)
            .set_start_after(start_after.map(str::to_owned))
            .max_keys(i32::try_from(max_keys.clamp(1, 1000)).unwrap_or(1000))
            .send();
        let answer = self.answer(Operation::List, None, request).await?;
        let has_more = answer.is_truncated().unwrap_or(false);
        let mut objects = Vec::with_capacity(answer.contents().len());
        for object in answer.contents() {
            let (Some(key), Some(length)) = (object.key(), object.size().and_then(|size| u64::try_from(size).ok()))
            else {
                let detail = "a listed object without key or size";
                let error = StoreError::new(ErrorKind::Unexpected, Operation::List, detail);
                return Err(error.with_retryable(true));
            };
            objects.push(ObjectInfo {
                key: key.to_owned(),
                length,
                crc32: None,
            });
        }
        Ok(ListPage { objects, has_more })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_ranges() {
        assert_eq!(parse_content_range("bytes 5-9/20"), Some((5..10, 20)));
        assert_eq!(parse_content_range("bytes 5-9/*"), None);
        assert_eq!(parse_content_range("bytes */20"), None);
        assert_eq!(parse_content_range(&format!("bytes 0-{}/1", u64::MAX)), None);
    }

    #[test]
    fn checksums_are_big_endian_base64_and_composites_do_not_count() {
        let text = crc32_text(0xCBF4_3926);
        assert_eq!(text, "y/Q5Jg==");
        assert_eq!(
            whole_crc32(Some(&text), Some(&ChecksumType::FullObject)),
            Some(0xCBF4_3926)
        );
        assert_eq!(whole_crc32(Some(&text), None), Some(0xCBF4_3926));
        assert_eq!(whole_crc32(Some(&text), Some(&ChecksumType::Composite)), None);
        assert_eq!(whole_crc32(Some("y/Q5Jg==-3"), None), None);
    }
}
