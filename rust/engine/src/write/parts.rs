//! A segment's file as the parts of its `.log` object.
//!
//! # Flow
//! Plain: a part's chunks are read straight into its buffer and summed while they are warm. Coded: chunks are made side by side on the
//! [`super::workshop`]'s benches and appended in order; a chunk may lie across two parts, so all parts but the last have the same length, as some
//! stores demand.
//!
//! # Invariants
//! * A part's whole memory is reserved before its first byte, and nobody waits for memory while he holds benches: any number of copies
//!   gets on with any budget.
//! * Checksums of parts and of the object are combined from those of the chunks.
//! * A chunk that had to be made twice (there was no memory for the part its end belongs to) must come out the same.
//!
//! # Cancel
//! Dropping a future here leaves nothing behind but threads that finish their chunk.

use std::{collections::VecDeque, sync::Arc};

use alluvium_format::{Chunk, ChunkIndex, ChunkTable, Codec, Coding, Crc32, Uuid};
use alluvium_store::{PART_NUMBER_MAX, Payload};
use futures::{StreamExt, stream::FuturesOrdered};

use super::{
    SegmentFile,
    workshop::{Bench, ChunkWork},
};
use crate::{Error, ErrorKind, Result, budget::PooledBuffer, completion::blocking, instance::Shared};

/// Chunks by which the next is judged.
const CHUNKS_JUDGED: usize = 16;

/// A part, ready to be sent.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) payload: Payload,
    /// Whether no other follows.
    pub(crate) is_last: bool,
}

/// The parts of a segment, one after the other.
pub(crate) struct Parts {
    shared: Arc<Shared>,
    file: Arc<SegmentFile>,
    coding: Arc<Coding>,
    segment_id: Uuid,
    part_size: u64,
    /// Chunks whose bytes, or at least the first of them, are in parts.
    chunks: Vec<Chunk>,
    /// Bytes of the last of `chunks` that are in parts; the rest belongs to the next one.
    sent_of_last: usize,
    /// Chunks being made, in order; the first may be the rest of the last of `chunks`.
    making: Making,
    next_buffer: Option<PooledBuffer>,
}

/// Chunks on benches, in order.
struct Making {
    ready: VecDeque<Made>,
    running: FuturesOrdered<futures::future::BoxFuture<'static, Result<Made>>>,
    /// The next chunk to begin.
    next: u32,
}

struct Made {
    index: u32,
    bench: Bench,
    chunk: Chunk,
}

impl Parts {
    pub(crate) fn new(shared: Arc<Shared>, file: Arc<SegmentFile>, coding: Coding, segment_id: Uuid) -> Self {
        let chunk_size = shared.config.chunk_size;
        let stored_max = chunk_size.chunks_of(file.length()) * coding.stored_length_max(chunk_size.bytes());
        let part_size = part_size(stored_max, shared.config.part_size, chunk_size.bytes());
        Parts {
            shared,
            file,
            coding: Arc::new(coding),
            segment_id,
            part_size,
            chunks: Vec::new(),
            sent_of_last: 0,
            making: Making {
                ready: VecDeque::new(),
                running: FuturesOrdered::new(),
                next: 0,
            },
            next_buffer: None,
        }
    }

    /// Whether it is certain, before anything is read, that there are several.
    pub(crate) fn are_several(&self) -> bool {
        self.coding.is_plain() && self.file.length() > self.part_size
    }

    /// The next part. There is at least one; none may be asked for after the last. `look_ahead` allows to begin the one after it: not
    /// when the caller will wait for something before he asks for that.
    pub(crate) async fn next(&mut self, look_ahead: bool) -> Result<Part> {
        if self.coding.is_plain() {
            self.next_plain().await
        } else {
            self.next_coded(look_ahead).await
        }
    }

    /// The table of all chunks.
    pub(crate) fn into_table(self) -> Result<ChunkTable> {
        Ok(ChunkTable::new(
            self.shared.config.chunk_size,
            self.file.length(),
            self.chunks,
        )?)
    }

    async fn next_plain(&mut self) -> Result<Part> {
        let chunk_size = self.shared.config.chunk_size.bytes();
        let position = self.chunks.len() as u64 * chunk_size;
        let length = self.part_size.min(self.file.length() - position);
        let mut buffer = new_buffer(&self.shared, length).await?;
        let file = Arc::clone(&self.file);
        let (buffer, crc32, chunks) = blocking(move || {
            let mut whole = Crc32::default();
            let mut chunks = Vec::new();
            while whole.length() < length {
                let wanted = chunk_size.min(length - whole.length());
                let crc32 = buffer.fill(in_memory(wanted)?, |room| {
                    file.read_at(position + whole.length(), room)?;
                    Ok(Crc32::of(room))
                })?;
                chunks.push(Chunk {
                    stored_length: u32::try_from(wanted).expect("a chunk size is a u32"),
                    stored_crc32: crc32.value(),
                    plain_crc32: crc32.value(),
                });
                whole = whole.then(crc32);
            }
            Ok((buffer, whole, chunks))
        })
        .await?;
        self.chunks.extend(chunks);
        Ok(Part {
            payload: Payload::with_crc32(buffer.share(), crc32.value()),
            is_last: position + length == self.file.length(),
        })
    }

    async fn next_coded(&mut self, look_ahead: bool) -> Result<Part> {
        let at_hand = match self.next_buffer.take() {
            Some(buffer) => Some(buffer),
            None => self.try_buffer()?,
        };
        let mut buffer = match at_hand {
            Some(buffer) => buffer,
            None => {
                self.pause();
                new_buffer(&self.shared, self.buffer_size()).await?
            }
        };
        let mut part_crc32 = Crc32::default();
        while buffer.room() > 0 {
            self.begin_chunks(buffer.room(), look_ahead)?;
            let Some(made) = self.making.take().await? else { break };
            self.append(made, &mut buffer, &mut part_crc32)?;
        }
        let is_last = self.is_at_end();
        if is_last {
            self.next_buffer = None;
        }
        Ok(Part {
            payload: Payload::with_crc32(buffer.share(), part_crc32.value()),
            is_last,
        })
    }

    /// Begins as many chunks as there are benches, but none whose bytes would have no place: the chunks so far tell how long they get.
    fn begin_chunks(&mut self, room: usize, look_ahead: bool) -> Result<()> {
        let expected = self.expected_length();
        while u64::from(self.making.next) < self.chunk_count() && self.making.len() < self.shared.workshop.benches() {
            let under_way = self.making.len() as u64 * expected;
            if under_way >= room as u64 && self.next_buffer.is_none() {
                if look_ahead {
                    self.next_buffer = self.try_buffer()?;
                }
                if self.next_buffer.is_none() && self.making.len() > 0 {
                    return Ok(());
                }
            }
            self.begin_chunk();
        }
        Ok(())
    }

    fn begin_chunk(&mut self) {
        let index = self.making.next;
        let chunk_size = self.shared.config.chunk_size.bytes();
        let position = u64::from(index) * chunk_size;
        let length = chunk_size.min(self.file.length() - position);
        let workshop = Arc::clone(&self.shared.workshop);
        let (file, coding, segment_id) = (Arc::clone(&self.file), Arc::clone(&self.coding), self.segment_id);
        self.making.next += 1;
        self.making.running.push_back(Box::pin(async move {
            let work = ChunkWork {
                file,
                coding,
                segment_id,
                index: ChunkIndex(index),
                position,
                length: in_memory(length)?,
            };
            let (bench, chunk) = workshop.make(work).await?;
            Ok(Made { index, bench, chunk })
        }));
    }

    /// Moves as much of a chunk into the part as it has room for. The rest stays where it is until the next part.
    fn append(&mut self, made: Made, buffer: &mut PooledBuffer, part_crc32: &mut Crc32) -> Result<()> {
        let is_rest = u64::from(made.index) + 1 == self.chunks.len() as u64;
        if is_rest && self.chunks.last() != Some(&made.chunk) {
            let reason = format!(
                "chunk {} came out otherwise the second time: was the file changed?",
                made.index
            );
            return Err(Error::new(ErrorKind::Internal, reason));
        }
        if !is_rest {
            self.chunks.push(made.chunk);
            self.sent_of_last = 0;
        }
        let stored = made.bench.stored();
        let rest = stored.get(self.sent_of_last..).unwrap_or_default();
        let piece = rest.get(..buffer.room()).unwrap_or(rest);
        let crc32 = if piece.len() == stored.len() {
            Crc32::recorded(made.chunk.stored_crc32, u64::from(made.chunk.stored_length))
        } else {
            Crc32::of(piece)
        };
        buffer.fill(piece.len(), |room| {
            room.copy_from_slice(piece);
            Ok(())
        })?;
        *part_crc32 = part_crc32.then(crc32);
        self.sent_of_last += piece.len();
        if self.sent_of_last < stored.len() {
            self.making.ready.push_front(made);
        }
        Ok(())
    }

    /// Gives all benches back: whoever waits with some in hand could wait for someone who waits for one. What was on them is made again.
    pub(crate) fn pause(&mut self) {
        self.making.ready.clear();
        self.making.running = FuturesOrdered::new();
        let complete = self.chunks.last().is_none_or(|last| self.is_sent(last));
        self.making.next = u32::try_from(self.chunks.len() - usize::from(!complete)).unwrap_or(u32::MAX);
    }

    fn is_sent(&self, last: &Chunk) -> bool {
        u64::from(last.stored_length) == self.sent_of_last as u64
    }

    fn is_at_end(&self) -> bool {
        self.chunks.len() as u64 == self.chunk_count() && self.chunks.last().is_none_or(|last| self.is_sent(last))
    }

    fn chunk_count(&self) -> u64 {
        self.shared.config.chunk_size.chunks_of(self.file.length())
    }

    /// Stored bytes of a chunk to come, judged by the last ones.
    fn expected_length(&self) -> u64 {
        // A few: this is asked for every chunk, and a segment may have ten thousands.
        let last = self.chunks.iter().rev().take(CHUNKS_JUDGED);
        let stored: u64 = last.clone().map(|chunk| u64::from(chunk.stored_length)).sum();
        match last.len() as u64 {
            // Half, as of text: the first part decides how many are begun at once, and no more.
            0 if self.coding.codec == Codec::Zstd => self.shared.config.chunk_size.bytes() / 2,
            0 => self.shared.config.chunk_size.bytes(),
            count => stored / count,
        }
    }

    /// Room for a part, or for all that can still come.
    fn buffer_size(&self) -> u64 {
        let chunk_size = self.shared.config.chunk_size.bytes();
        let left = self.chunk_count() - self.chunks.len() as u64;
        let begun = self
            .chunks
            .last()
            .map_or(0, |last| u64::from(last.stored_length) - self.sent_of_last as u64);
        let plain = self.file.length() - (self.chunks.len() as u64 * chunk_size).min(self.file.length());
        let most = begun + self.coding.stored_length_max(chunk_size.min(plain)) * left;
        self.part_size.min(most)
    }

    /// A buffer for the next part when there is memory at once.
    fn try_buffer(&self) -> Result<Option<PooledBuffer>> {
        let size = self.buffer_size();
        match self.shared.uploads.try_reserve(size) {
            Some(reservation) => self.shared.buffers.take(in_memory(size)?, reservation).map(Some),
            None => Ok(None),
        }
    }
}

impl Making {
    fn len(&self) -> usize {
        self.ready.len() + self.running.len()
    }

    /// The next chunk in order, when it is made.
    async fn take(&mut self) -> Result<Option<Made>> {
        if let Some(made) = self.ready.pop_front() {
            return Ok(Some(made));
        }
        self.running.next().await.transpose()
    }
}

async fn new_buffer(shared: &Shared, length: u64) -> Result<PooledBuffer> {
    let reservation = shared.uploads.reserve(length).await?;
    shared.buffers.take(in_memory(length)?, reservation)
}

fn in_memory(length: u64) -> Result<usize> {
    usize::try_from(length).map_err(|_| Error::new(ErrorKind::Internal, "a part over the address space"))
}

/// Parts of this size are enough for S3's limit of 10,000; always whole chunks.
fn part_size(length: u64, configured: u64, chunk_size: u64) -> u64 {
    let needed = length.div_ceil(u64::from(PART_NUMBER_MAX)).next_multiple_of(chunk_size);
    needed.max(configured)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_thousand_parts_always_suffice_and_hold_whole_chunks() {
        const MIB: u64 = 1 << 20;
        assert_eq!(part_size(1, 16 * MIB, 4 * MIB), 16 * MIB);
        for length in [1 << 31, 200_000 * MIB, 200_000 * MIB + 1, 50 * MIB * 10_000] {
            let size = part_size(length, 16 * MIB, 4 * MIB);
            assert!(
                length.div_ceil(size) <= 10_000 && size.is_multiple_of(4 * MIB),
                "{length}: {size}"
            );
        }
    }
}
