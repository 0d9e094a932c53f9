//! Segments to copy: files like Kafka's, from a seed.

use std::{
    fs,
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
};

use alluvium_format::{LeaderEpoch, SegmentMetadata, TopicName, Uuid};
use bytes::Bytes;
use rand::{Rng, SeedableRng, rngs::StdRng};

/// Bytes written at a time.
const PIECE: usize = 1 << 20;

/// What a `.log` holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Random bytes, as of producers that compress.
    Noise,
    /// Lines of JSON, as of producers that do not: zstd makes them about five times smaller.
    Json,
}

/// A segment's files in a directory of the caller's, and what Kafka would say of it.
#[derive(Clone, Debug)]
pub struct TestSegment {
    /// Kafka's metadata.
    pub metadata: SegmentMetadata,
    /// `.log`.
    pub log: PathBuf,
    /// `.index`.
    pub offset_index: PathBuf,
    /// `.timeindex`.
    pub time_index: PathBuf,
    /// `.txnindex`.
    pub transaction_index: Option<PathBuf>,
    /// `.snapshot`.
    pub producer_snapshot: PathBuf,
    /// Leader epoch checkpoint.
    pub leader_epochs: Bytes,
}

impl TestSegment {
    /// Writes a segment of `size` random bytes with indexes of plausible sizes; the same seed gives the same bytes and ids.
    ///
    /// # Errors
    /// What the file system answers.
    pub fn write(directory: &Path, seed: u64, size: u64) -> io::Result<Self> {
        Self::write_content(directory, seed, size, Content::Noise)
    }

    /// The same with a `.log` of that content.
    ///
    /// # Errors
    /// What the file system answers.
    pub fn write_content(directory: &Path, seed: u64, size: u64, content: Content) -> io::Result<Self> {
        let mut random = StdRng::seed_from_u64(seed);
        let base_offset = i64::try_from(seed % 1_000_000).unwrap_or(0) * 1000;
        let file = |suffix: &str| directory.join(format!("{base_offset:020}{suffix}"));
        match content {
            Content::Noise => write_random(&file(".log"), size, &mut random)?,
            Content::Json => write_json(&file(".log"), size, &mut random)?,
        }
        // Kafka writes an index entry for every 4 KiB: 8 bytes an offset entry, 12 a time entry; a small segment has none.
        write_random(&file(".index"), size / 4096 * 8, &mut random)?;
        write_random(&file(".timeindex"), size / 4096 * 12, &mut random)?;
        write_random(&file(".txnindex"), 34 * (seed % 3), &mut random)?;
        write_random(&file(".snapshot"), 200, &mut random)?;
        Ok(TestSegment {
            metadata: SegmentMetadata {
                topic_id: Uuid::from_u64_pair(seed, 1),
                topic: TopicName::new("test-topic").map_err(io::Error::other)?,
                partition: 3,
                segment_id: Uuid::from_u64_pair(random.next_u64(), random.next_u64()),
                start_offset: base_offset,
                end_offset: base_offset + 999,
                max_timestamp_ms: 1_700_000_000_000,
                broker_id: 1,
                event_timestamp_ms: 1_700_000_000_001,
                segment_size: size,
                leader_epochs: vec![LeaderEpoch {
                    epoch: 0,
                    start_offset: base_offset,
                }],
                transaction_index_empty: false,
            },
            log: file(".log"),
            offset_index: file(".index"),
            time_index: file(".timeindex"),
            transaction_index: Some(file(".txnindex")),
            producer_snapshot: file(".snapshot"),
            leader_epochs: Bytes::from(format!("0\n1\n0 {base_offset}\n")),
        })
    }

    /// The bytes of the `.log` file.
    ///
    /// # Errors
    /// What the file system answers.
    pub fn log_bytes(&self) -> io::Result<Vec<u8>> {
        fs::read(&self.log)
    }
}

fn write_json(path: &Path, size: u64, random: &mut StdRng) -> io::Result<()> {
    const ACTIONS: [&str; 5] = ["view", "buy", "search", "login", "remove-from-cart"];
    let mut file = BufWriter::with_capacity(PIECE, fs::File::create(path)?);
    let mut left = size;
    let mut sequence = 0u64;
    while left > 0 {
        sequence += 1 + random.next_u64() % 3;
        let user = random.next_u64() % 1_000_000;
        let action = ACTIONS[usize::try_from(random.next_u64() % 5).unwrap_or(0)];
        let price = random.next_u64() % 100_000;
        let line = format!(
            "{{\"sequence\":{sequence},\"user_id\":\"user-{user:07}\",\"action\":\"{action}\",\"price_cents\":{price},\
             \"currency\":\"EUR\",\"country\":\"DE\",\"user_agent\":\"Mozilla/5.0 (X11; Linux x86_64)\",\"successful\":true}}\n"
        );
        let length = usize::try_from(left).unwrap_or(usize::MAX).min(line.len());
        file.write_all(&line.as_bytes()[..length])?;
        left -= length as u64;
    }
    file.flush()
}

fn write_random(path: &Path, size: u64, random: &mut StdRng) -> io::Result<()> {
    let mut file = BufWriter::new(fs::File::create(path)?);
    let mut piece = vec![0; PIECE];
    let mut left = size;
    while left > 0 {
        let length = usize::try_from(left).unwrap_or(PIECE).min(PIECE);
        let filled = piece.get_mut(..length).unwrap_or_default();
        random.fill_bytes(filled);
        file.write_all(filled)?;
        left -= length as u64;
    }
    file.flush()
}
