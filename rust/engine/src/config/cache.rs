//! The settings of the disk tier of the cache.

use super::*;

const PATH: &str = "cache.path";
const SIZE: &str = "cache.size.bytes";

/// Chunks that must fit in: with fewer, each one that is read would push out one that is read next.
const CHUNKS_MIN: u64 = 16;

/// How long a full or broken disk is left alone: long enough to cost nothing, short enough to use it again soon.
const FAULT_PAUSE: Duration = Duration::from_secs(10);

/// A cache on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskCacheConfig {
    /// Its directory.
    pub path: PathBuf,
    /// Most bytes that its files take.
    pub size: u64,
    /// How long there is no write after one that failed.
    pub fault_pause: Duration,
}

pub(super) fn disk(settings: &Settings, chunk_size: ChunkSize) -> Result<Option<DiskCacheConfig>> {
    let Some(path) = settings.optional(PATH) else {
        return match settings.optional(SIZE) {
            Some(_) => Err(Error::config(SIZE, format!("it is for {PATH}, which is not set"))),
            None => Ok(None),
        };
    };
    let size = settings.number(SIZE)?;
    let least = CHUNKS_MIN * chunk_size.bytes();
    if size < least {
        return Err(Error::config(
            SIZE,
            format!(
                "{size} holds less than {CHUNKS_MIN} chunks of {} bytes; set it to at least {least}",
                chunk_size.bytes()
            ),
        ));
    }
    Ok(Some(DiskCacheConfig {
        path: PathBuf::from(path),
        size,
        fault_pause: FAULT_PAUSE,
    }))
}
