//! Whether compressing a segment pays: `compression.type=auto`.
//!
//! Windows from all over the segment are compressed for trial, since what producers send changes within a segment: a first batch tells
//! nothing of the others, and a batch that its producer compressed may still shrink or not.

use std::sync::Arc;

use alluvium_format::{Codec, Compressor};

use super::SegmentFile;
use crate::{Result, completion::blocking};

/// Windows of a segment, evenly spread from its begin to its end.
const WINDOWS: u64 = 16;

/// Bytes of a window: some batches of a producer with the default `batch.size` (16 KiB).
const WINDOW_BYTES: u64 = 64 << 10;

/// The codec for a segment: zstd when the sample gets at least an eighth smaller.
pub(crate) async fn choose_codec(file: &Arc<SegmentFile>, level: i32) -> Result<Codec> {
    let file = Arc::clone(file);
    blocking(move || {
        let mut compressor = Compressor::new(level);
        let mut window = vec![0; usize::try_from(WINDOW_BYTES).unwrap_or_default()];
        let mut stored = Vec::new();
        let (mut plain_bytes, mut stored_bytes) = (0, 0);
        for position in positions(file.length()) {
            let wanted = usize::try_from(WINDOW_BYTES.min(file.length() - position)).unwrap_or_default();
            let plain = window.get_mut(..wanted).unwrap_or_default();
            file.read_at(position, plain)?;
            compressor.compress(plain, &mut stored)?;
            plain_bytes += plain.len();
            stored_bytes += stored.len();
        }
        let pays = stored_bytes * 8 <= plain_bytes * 7;
        Ok(if pays && plain_bytes > 0 {
            Codec::Zstd
        } else {
            Codec::None
        })
    })
    .await
}

/// Where the windows begin; all of a small segment is covered by windows that do not overlap.
fn positions(length: u64) -> impl Iterator<Item = u64> {
    let windows = length.div_ceil(WINDOW_BYTES).min(WINDOWS);
    let span = length.saturating_sub(WINDOW_BYTES);
    (0..windows).map(move |window| match windows {
        _ if length <= WINDOWS * WINDOW_BYTES => window * WINDOW_BYTES,
        _ => span * window / (windows - 1),
    })
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    async fn choice(directory: &Path, content: &[u8]) -> Codec {
        let path = directory.join("segment.log");
        fs::write(&path, content).unwrap();
        let file = SegmentFile::open(&path, content.len() as u64).await.unwrap();
        choose_codec(&Arc::new(file), 1).await.unwrap()
    }

    fn noise(length: u32) -> Vec<u8> {
        let mut state = 1u64;
        (0..length)
            .map(|_| {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                state.to_be_bytes()[0]
            })
            .collect()
    }

    #[tokio::test]
    async fn the_whole_segment_decides_and_not_its_first_batch() {
        let directory = tempfile::tempdir().unwrap();
        let text = b"{\"user\": 17, \"action\": \"buy\", \"items\": [1, 2, 3]}\n".repeat(50_000);
        let noise = noise(2_500_000);
        let path = directory.path();
        assert_eq!(choice(path, &text).await, Codec::Zstd);
        assert_eq!(choice(path, &noise).await, Codec::None);
        assert_eq!(
            choice(path, &[&noise[..200_000], &text].concat()).await,
            Codec::Zstd,
            "a first batch of noise"
        );
        assert_eq!(
            choice(path, &[&text[..200_000], &noise].concat()).await,
            Codec::None,
            "a first batch of text"
        );
        assert_eq!(choice(path, &text[..1000]).await, Codec::Zstd);
        assert_eq!(choice(path, b"x").await, Codec::None);
        assert_eq!(choice(path, b"").await, Codec::None);
    }

    #[test]
    fn windows_lie_in_the_segment_from_its_begin_to_its_end() {
        for length in [
            1,
            WINDOW_BYTES,
            WINDOW_BYTES + 1,
            16 * WINDOW_BYTES,
            16 * WINDOW_BYTES + 1,
            1 << 31,
        ] {
            let all: Vec<u64> = positions(length).collect();
            assert_eq!(all.first(), Some(&0));
            assert!(all.is_sorted() && all.len() <= 16);
            let last = *all.last().unwrap();
            assert!(last < length && last + WINDOW_BYTES >= length, "{length}: {all:?}");
        }
    }
}
