//! Compression of chunks and indexes: one zstd frame each.
//!
//! # Invariants
//! * A frame carries its content size, so that the stock `zstd -d` restores Kafka's `.log` from a downloaded object.
//! * Output is capped by a length that is known beforehand: no input makes more of itself than that.

use crate::{FormatError, seal::TAG_BYTES};

/// How stored bytes are compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Codec {
    /// Not at all.
    #[default]
    None,
    /// One zstd frame.
    Zstd,
}

impl Codec {
    /// Most bytes that `length` bytes become.
    pub(crate) fn bound(self, length: u64) -> u64 {
        match self {
            Codec::None => length,
            // Over ZSTD_COMPRESSBOUND, which adds at most 64 to the first two terms.
            Codec::Zstd => length + (length >> 8) + 128,
        }
    }
}

/// First bytes of a zstd frame (RFC 8878, 3.1.1).
const FRAME_MAGIC: [u8; 4] = 0xfd2f_b528_u32.to_le_bytes();

/// Lowest and highest compression level. Above 9 zstd gets so slow (7 MB/s a thread at level 13) that segments come faster than they go.
pub const COMPRESSION_LEVELS: std::ops::RangeInclusive<i32> = 1..=9;

/// Makes zstd frames; keeps its tables between them.
pub struct Compressor {
    level: i32,
    context: Option<zstd::bulk::Compressor<'static>>,
}

impl Compressor {
    /// A compressor of this level, clamped to [`COMPRESSION_LEVELS`]. The tables are made at its first use.
    pub fn new(level: i32) -> Self {
        Compressor {
            level: level.clamp(*COMPRESSION_LEVELS.start(), *COMPRESSION_LEVELS.end()),
            context: None,
        }
    }

    /// Bytes that the tables take now.
    pub fn memory_bytes(&mut self) -> u64 {
        self.context
            .as_mut()
            .map_or(0, |context| context.context_mut().sizeof() as u64)
    }

    /// Replaces `frame` by the frame of `plain`.
    ///
    /// # Errors
    /// [`FormatError::Malformed`] when zstd fails, which it does only without memory.
    pub fn compress(&mut self, plain: &[u8], frame: &mut Vec<u8>) -> Result<(), FormatError> {
        frame.clear();
        // With the tag that encryption appends, so that nothing is moved for it.
        frame.reserve_exact(zstd::zstd_safe::compress_bound(plain.len()) + TAG_BYTES);
        let compressed = self
            .context()
            .and_then(|context| context.compress_to_buffer(plain, frame));
        compressed
            .map(drop)
            .map_err(|error| FormatError::malformed("compression", error.to_string()))
    }

    /// Writes the frame of `plain` to the begin of `room`, if it fits in; how many bytes it has.
    pub(crate) fn compress_within(&mut self, plain: &[u8], room: &mut [u8]) -> Option<usize> {
        let context = self.context().ok()?;
        context.compress_to_buffer(plain, room).ok()
    }

    fn context(&mut self) -> std::io::Result<&mut zstd::bulk::Compressor<'static>> {
        match &mut self.context {
            Some(context) => Ok(context),
            empty => Ok(empty.insert(zstd::bulk::Compressor::new(self.level)?)),
        }
    }
}

impl std::fmt::Debug for Compressor {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Compressor")
            .field("level", &self.level)
            .finish_non_exhaustive()
    }
}

/// Fills `plain` with the bytes of exactly one frame, which must be as many.
pub(crate) fn decompress(frame: &[u8], plain: &mut [u8]) -> Result<(), FormatError> {
    let malformed = |reason: String| FormatError::malformed("zstd frame", reason);
    // A skippable frame would pass for one of no bytes.
    if !frame.starts_with(&FRAME_MAGIC) {
        return Err(malformed("it does not begin with a frame".to_owned()));
    }
    match zstd::zstd_safe::get_frame_content_size(frame) {
        Ok(Some(told)) if told == plain.len() as u64 => {}
        Ok(told) => return Err(malformed(format!("it tells {told:?} bytes instead of {}", plain.len()))),
        Err(_) => return Err(malformed("its header is wrong".to_owned())),
    }
    let frame_length = zstd::zstd_safe::find_frame_compressed_size(frame)
        .map_err(|code| malformed(zstd::zstd_safe::get_error_name(code).to_owned()))?;
    if frame_length != frame.len() {
        return Err(malformed(format!("a frame of {frame_length} bytes in {}", frame.len())));
    }
    let held = zstd::bulk::decompress_to_buffer(frame, plain).map_err(|error| malformed(error.to_string()))?;
    if held == plain.len() {
        Ok(())
    } else {
        Err(malformed(format!("it holds {held} bytes instead of {}", plain.len())))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn restored(frame: &[u8], length: usize) -> Result<Vec<u8>, FormatError> {
        let mut plain = vec![0; length];
        decompress(frame, &mut plain).map(|()| plain)
    }

    fn frame(plain: &[u8]) -> Vec<u8> {
        let mut frame = Vec::new();
        Compressor::new(1).compress(plain, &mut frame).unwrap();
        frame
    }

    #[test]
    fn a_frame_gives_back_its_bytes_and_fits_the_bound() {
        let noise: Vec<u8> = (0..300_000u32)
            .map(|number| number.wrapping_mul(2_654_435_761).to_be_bytes()[0])
            .collect();
        let mut compressor = Compressor::new(3);
        let mut stored = Vec::new();
        for plain in [&noise[..0], &noise[..1], &noise[..130_000], &noise, &vec![7; 1 << 20]] {
            compressor.compress(plain, &mut stored).unwrap();
            assert!(stored.len() as u64 <= Codec::Zstd.bound(plain.len() as u64));
            assert_eq!(restored(&stored, plain.len()).unwrap(), plain);
        }
        assert!(compressor.memory_bytes() > 0);
        for length in (0..300_000).step_by(4999).chain([131_071, 131_072, 131_073]) {
            let bound = zstd::zstd_safe::compress_bound(length) as u64;
            assert!(Codec::Zstd.bound(length as u64) >= bound, "{length}");
        }
    }

    #[test]
    fn a_frame_that_holds_more_or_less_than_expected_is_refused() {
        let bomb = frame(&vec![0; 64 << 20]);
        assert!(bomb.len() < 10_000);
        for expected in [0, 1, 1 << 20, (64 << 20) - 1, (64 << 20) + 1] {
            assert!(restored(&bomb, expected).is_err(), "{expected}");
        }
        let good = frame(b"some bytes");
        assert!(restored(&good[..good.len() - 1], 10).is_err());
        assert!(restored(&[&good[..], b"x"].concat(), 10).is_err());
        assert!(
            restored(&[&good[..], &frame(b"")[..]].concat(), 10).is_err(),
            "two frames"
        );
        assert!(restored(b"", 0).is_err());
        // A skippable frame, which zstd takes for one of no bytes.
        assert!(restored(b"\x50\x2a\x4d\x18\x02\0\0\0hi", 0).is_err());
        assert_eq!(restored(&frame(b""), 0).unwrap(), b"");
    }

    proptest! {
        #[test]
        fn foreign_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300), length in 0usize..100_000) {
            let _ = restored(&bytes, length);
        }

        #[test]
        fn a_damaged_frame_never_gives_more_than_it_may(place in 0usize..200, bit in 0u8..8) {
            let mut damaged = frame(&b"to be or not to be ".repeat(100));
            let place = place % damaged.len();
            damaged[place] ^= 1 << bit;
            if let Ok(plain) = restored(&damaged, 1900) {
                prop_assert_eq!(plain.len(), 1900);
            }
        }
    }
}
