//! How a segment is cut into chunks, and where each chunk is in the stored object.

use std::ops::Range;

use crate::{Crc32, FormatError};

/// Smallest chunk: below it, the entries of a 2 GiB segment outgrow their use.
pub const CHUNK_SIZE_MIN: u32 = 64 * 1024;

/// Largest chunk: a chunk is read and held whole.
pub const CHUNK_SIZE_MAX: u32 = 64 * 1024 * 1024;

/// A byte position in Kafka's segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PlainPosition(pub u64);

/// A byte position in the stored `.log` object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StoredPosition(pub u64);

/// Number of a chunk in its segment, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChunkIndex(pub u32);

/// Bytes of Kafka's segment in each chunk but the last: a power of two from [`CHUNK_SIZE_MIN`] to [`CHUNK_SIZE_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkSize(u32);

impl ChunkSize {
    /// Checks and wraps a size in bytes.
    ///
    /// # Errors
    /// [`FormatError::Malformed`] when it is not a power of two in the range.
    pub fn new(bytes: u32) -> Result<Self, FormatError> {
        if !bytes.is_power_of_two() || !(CHUNK_SIZE_MIN..=CHUNK_SIZE_MAX).contains(&bytes) {
            return Err(FormatError::malformed(
                "chunk size",
                format!("{bytes} is not a power of two from {CHUNK_SIZE_MIN} to {CHUNK_SIZE_MAX}"),
            ));
        }
        Ok(ChunkSize(bytes))
    }

    /// The size in bytes.
    pub fn bytes(self) -> u64 {
        u64::from(self.0)
    }

    /// How many chunks a segment of this length has.
    pub fn chunks_of(self, plain_length: u64) -> u64 {
        plain_length.div_ceil(self.bytes())
    }
}

/// A chunk as it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Bytes in the stored object.
    pub stored_length: u32,
    /// CRC-32 of the stored bytes.
    pub stored_crc32: u32,
    /// CRC-32 of Kafka's bytes.
    pub plain_crc32: u32,
}

/// All chunks of a segment, in order, with nothing between them in either space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkTable {
    chunk_size: ChunkSize,
    plain_length: u64,
    chunks: Vec<Chunk>,
    /// Where each chunk starts in the stored object, and after the last, where the object ends.
    stored_starts: Vec<u64>,
}

impl ChunkTable {
    /// A table of `chunks` over a segment of `plain_length` bytes.
    ///
    /// # Errors
    /// [`FormatError::Malformed`] when there are more or fewer chunks than the length needs, or an empty one.
    pub fn new(chunk_size: ChunkSize, plain_length: u64, chunks: Vec<Chunk>) -> Result<Self, FormatError> {
        let needed = chunk_size.chunks_of(plain_length);
        if chunks.len() as u64 != needed || u32::try_from(needed).is_err() {
            return Err(FormatError::malformed(
                "chunk table",
                format!("{} chunks for {plain_length} bytes that need {needed}", chunks.len()),
            ));
        }
        let mut stored_starts = Vec::with_capacity(chunks.len() + 1);
        let mut start = 0u64;
        for chunk in &chunks {
            if chunk.stored_length == 0 {
                return Err(FormatError::malformed("chunk table", "a chunk of no bytes"));
            }
            stored_starts.push(start);
            start += u64::from(chunk.stored_length);
        }
        stored_starts.push(start);
        Ok(ChunkTable {
            chunk_size,
            plain_length,
            chunks,
            stored_starts,
        })
    }

    /// Bytes of Kafka's segment.
    pub fn plain_length(&self) -> u64 {
        self.plain_length
    }

    /// Bytes of the stored object.
    pub fn stored_length(&self) -> u64 {
        self.stored_starts.last().copied().unwrap_or(0)
    }

    /// The chunk size.
    pub fn chunk_size(&self) -> ChunkSize {
        self.chunk_size
    }

    /// The chunks.
    pub fn chunks(&self) -> &[Chunk] {
        &self.chunks
    }

    /// The chunk that holds a position; `None` at or after the end of the segment.
    pub fn chunk_at(&self, position: PlainPosition) -> Option<ChunkIndex> {
        if position.0 >= self.plain_length {
            return None;
        }
        u32::try_from(position.0 / self.chunk_size.bytes()).ok().map(ChunkIndex)
    }

    /// Which bytes of the segment a chunk holds; `None` when there is no such chunk.
    pub fn plain_range(&self, index: ChunkIndex) -> Option<Range<PlainPosition>> {
        self.chunks.get(position(index))?;
        let start = u64::from(index.0) * self.chunk_size.bytes();
        Some(PlainPosition(start)..PlainPosition((start + self.chunk_size.bytes()).min(self.plain_length)))
    }

    /// Where a chunk is in the stored object; `None` when there is no such chunk.
    pub fn stored_range(&self, index: ChunkIndex) -> Option<Range<StoredPosition>> {
        let start = *self.stored_starts.get(position(index))?;
        let end = *self.stored_starts.get(position(index) + 1)?;
        Some(StoredPosition(start)..StoredPosition(end))
    }

    /// Length and checksum of a chunk's stored bytes; `None` when there is no such chunk.
    pub fn stored_crc32(&self, index: ChunkIndex) -> Option<Crc32> {
        let chunk = self.chunks.get(position(index))?;
        Some(Crc32::recorded(chunk.stored_crc32, u64::from(chunk.stored_length)))
    }

    /// Length and checksum of Kafka's bytes in a chunk; `None` when there is no such chunk.
    pub fn plain_crc32_of(&self, index: ChunkIndex) -> Option<Crc32> {
        let chunk = self.chunks.get(position(index))?;
        let range = self.plain_range(index)?;
        Some(Crc32::recorded(chunk.plain_crc32, range.end.0 - range.start.0))
    }

    /// Length and checksum of the whole stored object, combined from the chunks.
    pub fn object_crc32(&self) -> Crc32 {
        self.chunks.iter().fold(Crc32::default(), |so_far, chunk| {
            so_far.then(Crc32::recorded(chunk.stored_crc32, u64::from(chunk.stored_length)))
        })
    }

    /// Length and checksum of Kafka's whole segment, combined from the chunks.
    pub fn plain_crc32(&self) -> Crc32 {
        let mut whole = Crc32::default();
        let mut left = self.plain_length;
        for chunk in &self.chunks {
            let length = left.min(self.chunk_size.bytes());
            whole = whole.then(Crc32::recorded(chunk.plain_crc32, length));
            left -= length;
        }
        whole
    }
}

fn position(index: ChunkIndex) -> usize {
    // Lossless on every platform that Kafka runs on; a saturated value is simply out of range.
    usize::try_from(index.0).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn table(plain_length: u64, stored_lengths: &[u32]) -> Result<ChunkTable, FormatError> {
        let chunks = stored_lengths
            .iter()
            .map(|&stored_length| Chunk {
                stored_length,
                stored_crc32: 1,
                plain_crc32: 2,
            })
            .collect();
        ChunkTable::new(ChunkSize::new(CHUNK_SIZE_MIN).unwrap(), plain_length, chunks)
    }

    #[test]
    fn only_powers_of_two_in_range_are_chunk_sizes() {
        for good in [CHUNK_SIZE_MIN, 1 << 20, CHUNK_SIZE_MAX] {
            assert!(ChunkSize::new(good).is_ok());
        }
        for bad in [0, 1, CHUNK_SIZE_MIN - 1, CHUNK_SIZE_MIN + 1, CHUNK_SIZE_MAX * 2] {
            assert!(ChunkSize::new(bad).is_err());
        }
    }

    #[test]
    fn both_spaces_are_walked_without_gaps() {
        let table = table(65_536 * 2 + 1, &[10, 20, 30]).unwrap();
        assert_eq!(table.stored_length(), 60);
        assert_eq!(table.chunk_at(PlainPosition(0)), Some(ChunkIndex(0)));
        assert_eq!(table.chunk_at(PlainPosition(65_535)), Some(ChunkIndex(0)));
        assert_eq!(table.chunk_at(PlainPosition(65_536)), Some(ChunkIndex(1)));
        assert_eq!(table.chunk_at(PlainPosition(131_072)), Some(ChunkIndex(2)));
        assert_eq!(table.chunk_at(PlainPosition(131_073)), None);
        assert_eq!(
            table.plain_range(ChunkIndex(2)),
            Some(PlainPosition(131_072)..PlainPosition(131_073))
        );
        assert_eq!(
            table.stored_range(ChunkIndex(1)),
            Some(StoredPosition(10)..StoredPosition(30))
        );
        assert_eq!(table.stored_range(ChunkIndex(3)), None);
        assert_eq!(table.plain_range(ChunkIndex(u32::MAX)), None);
    }

    #[test]
    fn a_table_must_fit_the_length() {
        assert!(table(0, &[]).is_ok());
        for (length, lengths) in [(0, &[1][..]), (1, &[]), (65_536, &[1, 1]), (65_537, &[1]), (1, &[0])] {
            assert!(table(length, lengths).is_err(), "{length} {lengths:?}");
        }
    }

    proptest! {
        #[test]
        fn whole_checksums_equal_one_pass(bytes in proptest::collection::vec(any::<u8>(), 0..200_000)) {
            let size = ChunkSize::new(CHUNK_SIZE_MIN).unwrap();
            let chunks = bytes.chunks(65_536).map(|piece| {
                let crc32 = Crc32::of(piece).value();
                Chunk { stored_length: u32::try_from(piece.len()).unwrap(), stored_crc32: crc32, plain_crc32: crc32 }
            }).collect();
            let table = ChunkTable::new(size, bytes.len() as u64, chunks).unwrap();
            prop_assert_eq!(table.object_crc32(), Crc32::of(&bytes));
            prop_assert_eq!(table.plain_crc32(), Crc32::of(&bytes));
        }
    }
}
