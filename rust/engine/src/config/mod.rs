//! Settings: from Kafka's text map to checked types, once.
//!
//! # Purpose
//! [`KEYS`] is the one table of settings; parsing, documentation and the boundary read it.
//!
//! # Invariants
//! * An unknown key is an error that names the nearest known one: Kafka itself checks no `rsm.config.*` key.
//! * Every error names its key. A secret is never part of a message.
//!
//! # Not here
//! Whether the store can be reached: see [`crate::probe`].

mod cache;
mod encryption;
mod store;
mod table;
mod values;

use std::{collections::BTreeMap, fmt, path::PathBuf, time::Duration};

use alluvium_format::{ChunkSize, KeyPrefix};
use alluvium_store::{
    file::FileConfig,
    layer::Policies,
    s3::{CredentialsSource, S3Config, Secret, ServerSideEncryption},
};

pub use cache::DiskCacheConfig;
pub use encryption::{EncryptionConfig, KeyPairFiles};
pub use table::{KEYS, KeyDefinition, Owner, ValueType, markdown};
use values::Settings;

use crate::{Error, Result, write::Workshop};

/// A server that was only slow is done after the first, one that was away is back after the last.
const JANITOR_DISTANCES: [Duration; 3] = [
    Duration::from_secs(30),
    Duration::from_secs(300),
    Duration::from_secs(1800),
];

/// Most threads that compress and encrypt unless told otherwise.
const UPLOAD_THREADS_MAX: usize = 8;

const UPLOAD_RATE: &str = "upload.rate.limit.bytes.per.second";

/// Copies at a time (Kafka's default of `remote.log.manager.copier.thread.pool.size`).
const COPIERS: u64 = 10;

/// Parts that must fit into the memory for uploads: one is sent while the next is read.
const PARTS_MIN: u64 = 2;

/// Chunks that must fit into the memory for loads.
const LOADS_MIN: u64 = 2;

/// What an instance does at its start to see whether its store works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartupProbe {
    /// Writes, reads and deletes a small object under the key prefix.
    Write,
    /// Asks for an object that does not exist.
    Read,
    /// Nothing: the broker starts although the store may be down.
    Off,
}

/// Compression of new segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// None.
    None,
    /// zstd, always.
    Zstd,
    /// zstd where a sample of the segment says that it pays.
    Auto,
}

/// Which store, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "an instance has one")]
pub enum StoreConfig {
    /// S3.
    S3(S3Config),
    /// A directory.
    File(FileConfig),
}

impl fmt::Display for StoreConfig {
    /// Where the store is, for the log.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreConfig::S3(s3) => match &s3.endpoint {
                Some(endpoint) => write!(formatter, "bucket {} at {endpoint}", s3.bucket),
                None => write!(formatter, "bucket {} in {}", s3.bucket, s3.region),
            },
            StoreConfig::File(file) => write!(formatter, "directory {}", file.root.display()),
        }
    }
}

/// All settings of an instance, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The store.
    pub store: StoreConfig,
    /// What all keys begin with.
    pub key_prefix: KeyPrefix,
    /// Bytes of a chunk.
    pub chunk_size: ChunkSize,
    /// Bytes of an upload part before growing for very large segments; a multiple of the chunk size.
    pub part_size: u64,
    /// Parts of one copy that are uploaded at the same time.
    pub upload_concurrency: usize,
    /// Compression of new segments.
    pub compression: Compression,
    /// zstd level.
    pub compression_level: i32,
    /// Threads that compress and encrypt.
    pub upload_threads: usize,
    /// Key pairs.
    pub encryption: EncryptionConfig,
    /// Bytes that compression and encryption may take at once, beside [`Config::upload_memory`]; 0 when new segments are stored plain.
    pub workshop_memory: u64,
    /// Bytes that uploads may hold at once.
    pub upload_memory: u64,
    /// Bytes that loads may hold at once: apart from the uploads', so that a slow upload never holds up a consumer.
    pub load_memory: u64,
    /// Bytes that the cache may hold.
    pub cache_memory: u64,
    /// The disk tier of the cache, where there is one.
    pub disk_cache: Option<DiskCacheConfig>,
    /// Attempts and deadlines of requests.
    pub policies: Policies,
    /// Bytes per second that all uploads send together, where limited.
    pub upload_rate: Option<u64>,
    /// Limit of a copy, without the time that `upload_rate` makes it take.
    pub copy_timeout: Duration,
    /// Limit of opening a stream, and of each chunk it waits for.
    pub fetch_timeout: Duration,
    /// Whether a slow GET of a fetch gets a second request.
    pub fetch_hedging: bool,
    /// Limit of a delete.
    pub delete_timeout: Duration,
    /// Limit of closing.
    pub close_timeout: Duration,
    /// What to do at the start.
    pub startup_probe: StartupProbe,
    /// How long after a copy failed with an unknown outcome its keys are cleaned again, each counted from the one before.
    pub janitor_distances: Vec<Duration>,
    /// Id of the broker; tools have none.
    pub broker_id: Option<i32>,
}

impl Config {
    /// Limit of the copy of a segment of so many bytes. Where uploads are held to a rate, each of Kafka's copier threads has a share of it, and
    /// a copy waits up to three times (for memory, for its parts, for its manifest) behind all that the others have in memory.
    pub(crate) fn copy_limit(&self, bytes: u64) -> Duration {
        let ahead = bytes
            .saturating_mul(COPIERS)
            .saturating_add(self.upload_memory.saturating_mul(3));
        let paced = self.upload_rate.map_or(0, |rate| ahead / rate.max(1));
        self.copy_timeout + Duration::from_secs(paced)
    }

    /// Parses Kafka's map.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Config`], naming the key.
    pub fn parse(settings: Vec<(String, String)>) -> Result<Self> {
        let settings = Settings::new(settings)?;
        let chunk_size = ChunkSize::new(settings.number("chunk.size.bytes")?)
            .map_err(|error| Error::config("chunk.size.bytes", error))?;
        let part_size: u64 = settings.number("upload.part.size.bytes")?;
        if !part_size.is_multiple_of(chunk_size.bytes()) {
            return Err(Error::config(
                "upload.part.size.bytes",
                format!(
                    "{part_size} is not a multiple of chunk.size.bytes, which is {}",
                    chunk_size.bytes()
                ),
            ));
        }
        let memory: u64 = settings.number("memory.budget.bytes")?;
        let cache_setting: Option<u64> = settings.optional_number("cache.memory.bytes")?;
        let shares = |memory: u64| Shares::of(memory, cache_setting, chunk_size);
        let cache_memory = shares(memory).cache;
        if (1..2 * chunk_size.bytes()).contains(&cache_memory) {
            let reason = format!(
                "{cache_memory} holds less than two chunks of {} bytes; 0 turns the cache off",
                chunk_size.bytes()
            );
            return Err(Error::config("cache.memory.bytes", reason));
        }
        let Shares {
            loads: load_memory,
            uploads: for_uploads,
            ..
        } = shares(memory);
        let compression = match settings.text("compression.type")? {
            "zstd" => Compression::Zstd,
            "auto" => Compression::Auto,
            _ => Compression::None,
        };
        let compression_level = settings.number("compression.level")?;
        let upload_threads = settings
            .optional_number("upload.threads")?
            .unwrap_or_else(upload_threads);
        let encryption = encryption::encryption(&settings)?;
        let is_coded = compression != Compression::None || encryption.active.is_some();
        let bench = if is_coded {
            Workshop::memory_min(chunk_size, compression_level)
        } else {
            0
        };
        let least = PARTS_MIN * part_size + bench;
        if for_uploads < least {
            let mut least_in_all = memory;
            while shares(least_in_all).uploads < least {
                least_in_all = least_in_all.saturating_add(least - shares(least_in_all).uploads);
            }
            let reason = format!(
                "{memory} is too little: cache.memory.bytes takes {cache_memory}, loads {load_memory}, compression and encryption at least \
                 {bench}, and uploads need {PARTS_MIN} parts of upload.part.size.bytes ({part_size}); set it to at least {least_in_all}"
            );
            return Err(Error::config("memory.budget.bytes", reason));
        }
        let workshop_memory = if is_coded {
            let most = (for_uploads / 2).min(for_uploads - PARTS_MIN * part_size);
            Workshop::memory_for(upload_threads, most, chunk_size, compression_level)
        } else {
            0
        };
        let upload_memory = for_uploads - workshop_memory;
        let upload_rate = settings.optional_number(UPLOAD_RATE)?;
        let policies = Policies {
            attempt_timeout: settings.duration("request.attempt.timeout.ms")?,
            operation_timeout: settings.duration("request.timeout.ms")?,
            ..Policies::default()
        };
        let broker_id = settings
            .optional("broker.id")
            .or(settings.optional("node.id"))
            .and_then(|id| id.parse().ok());
        Ok(Config {
            broker_id,
            janitor_distances: JANITOR_DISTANCES.to_vec(),
            store: store::store(&settings)?,
            key_prefix: KeyPrefix::new(settings.text("key.prefix")?)
                .map_err(|error| Error::config("key.prefix", error))?,
            chunk_size,
            part_size,
            upload_concurrency: settings.number("upload.concurrency")?,
            compression,
            compression_level,
            upload_threads,
            encryption,
            workshop_memory,
            upload_memory,
            load_memory,
            cache_memory,
            disk_cache: cache::disk(&settings, chunk_size)?,
            policies: match upload_rate {
                Some(rate) => policies.paced(rate),
                None => policies,
            },
            upload_rate,
            copy_timeout: settings.duration("copy.timeout.ms")?,
            fetch_timeout: settings.duration("fetch.timeout.ms")?,
            fetch_hedging: settings.flag("fetch.hedging.enabled")?,
            delete_timeout: settings.duration("delete.timeout.ms")?,
            close_timeout: settings.duration("close.timeout.ms")?,
            startup_probe: match settings.text("startup.probe")? {
                "read" => StartupProbe::Read,
                "off" => StartupProbe::Off,
                _ => StartupProbe::Write,
            },
        })
    }
}

/// How the memory budget is divided.
struct Shares {
    cache: u64,
    loads: u64,
    uploads: u64,
}

impl Shares {
    /// The cache has what is set, or three eighths; of the rest loads have a fifth and uploads the others; two chunks at least for cache and loads.
    fn of(memory: u64, cache_setting: Option<u64>, chunk_size: ChunkSize) -> Self {
        let cache = cache_setting.unwrap_or((memory / 8 * 3).max(2 * chunk_size.bytes()));
        let transfers = memory.saturating_sub(cache);
        let loads = (transfers / 5).max(LOADS_MIN * chunk_size.bytes());
        Shares {
            cache,
            loads,
            uploads: transfers.saturating_sub(loads),
        }
    }
}

/// Half of the processors: the other half is the broker's.
fn upload_threads() -> usize {
    let processors = std::thread::available_parallelism().map_or(2, usize::from);
    (processors / 2).clamp(1, UPLOAD_THREADS_MAX)
}

#[cfg(test)]
mod tests;
