//! Bytes as a stored chunk: a frame of the input's making, or a good frame that the input changes, with or without encryption, under a
//! table that is right except where the input says otherwise.
//!
//! # Invariants
//! * A good frame is restored; whatever is restored has exactly the length that the table announces.

#![no_main]

use alluvium_format::{
    Chunk, ChunkIndex, ChunkSize, ChunkTable, Codec, Coding, DataKey, Encryption, FormatError, Manifest,
    SegmentMetadata, TopicName, Uuid, WrappedKey, on_heap,
};
use alluvium_fuzz::{DATA_KEY, check_error, compress, seal};
use arbitrary::{Arbitrary, Unstructured};
use bytes::Bytes;
use libfuzzer_sys::fuzz_target;

/// Largest chunk.
const PLAIN_LENGTH_MAX: u32 = 64 << 20;

const SEGMENT_ID: [u8; 16] = [9; 16];

/// The first bytes of an input, in this order and always as many; the rest is the frame, or the plain bytes.
#[derive(Arbitrary, Clone, Copy, Debug)]
struct Plan {
    choices: u8,
    level: u8,
    plain_length: u32,
    change: Change,
}

/// Of a byte of what is stored, before or after it is sealed.
#[derive(Arbitrary, Clone, Copy, Debug)]
struct Change {
    position: u16,
    bits: u8,
}

impl Plan {
    fn is_plain(self) -> bool {
        self.choices & 1 != 0
    }
    fn is_encrypted(self) -> bool {
        self.choices & 2 != 0
    }
    fn is_made_here(self) -> bool {
        self.choices & 4 != 0
    }
    fn has_second_frame(self) -> bool {
        !self.is_plain() && self.level >= 128
    }
    fn believes_the_frame(self) -> bool {
        self.choices & 8 == 0
    }
    fn is_second_chunk(self) -> bool {
        self.choices & 16 != 0
    }
    fn changes_sealed(self) -> bool {
        self.choices & 32 != 0
    }
    fn has_wrong_checksum(self) -> bool {
        self.choices & 64 != 0
    }
    fn is_of_other_chunk(self) -> bool {
        self.choices & 128 != 0
    }
}

fuzz_target!(|bytes: &[u8]| {
    let mut input = Unstructured::new(bytes);
    if let Ok(plan) = Plan::arbitrary(&mut input) {
        run(plan, input.take_rest());
    }
});

fn run(plan: Plan, rest: &[u8]) {
    // The plain bytes, where they are known.
    let known = (plan.is_plain() || plan.is_made_here()).then_some(rest);
    let mut stored = match (plan.is_plain(), plan.is_made_here()) {
        (true, _) => rest.to_vec(),
        (false, true) => compress(rest, 1 + i32::from(plan.level % 9)),
        (false, false) => first_frame(rest).to_vec(),
    };
    let plain_length = match (known, content_size(&stored)) {
        (Some(plain), _) if plan.believes_the_frame() => plain.len() as u64,
        (None, Some(told)) if plan.believes_the_frame() => told,
        _ => u64::from(plan.plain_length),
    };
    let Some(plain_length) = u32::try_from(plain_length)
        .ok()
        .filter(|length| (1..=PLAIN_LENGTH_MAX).contains(length))
    else {
        return;
    };
    if plan.has_second_frame() {
        stored.extend_from_slice(&compress(b"", 1));
    }
    let index = ChunkIndex(u32::from(plan.is_second_chunk()));
    let sealed_index = index.0 ^ u32::from(plan.is_of_other_chunk());
    let mut is_changed = false;
    let mut change = |stored: &mut Vec<u8>| {
        let position = usize::from(plan.change.position) % stored.len().max(1);
        if let Some(byte) = stored.get_mut(position) {
            *byte ^= plan.change.bits;
            is_changed |= plan.change.bits != 0;
        }
    };
    if !plan.changes_sealed() {
        change(&mut stored);
    }
    let frame = stored.clone();
    if plan.is_encrypted() {
        seal(SEGMENT_ID, 0, sealed_index, &[], &mut stored);
    }
    if plan.changes_sealed() {
        change(&mut stored);
    }
    if stored.is_empty() {
        return;
    }
    let is_moved = plan.is_encrypted() && plan.is_of_other_chunk();
    let is_changed = is_changed || is_moved || plan.has_second_frame();
    let is_honest = !is_changed && plan.believes_the_frame() && !plan.has_wrong_checksum();

    let restore = |plain_crc32| {
        let manifest = manifest(plan, index, plain_length, &stored, plain_crc32);
        manifest.restore_chunk(index, stored.clone(), on_heap)
    };
    let restored = match known {
        Some(plain) => restore(crc32fast::hash(plain)),
        // The right checksum of foreign bytes is learnt from the error.
        None => match restore(0) {
            Err(FormatError::WrongChecksum { what, found, .. }) if what.ends_with("after decoding") => {
                let restored = restore(found);
                assert!(restored.is_ok(), "{restored:?}");
                restored
            }
            other => other,
        },
    };
    match restored {
        Ok(restored) => {
            assert_eq!(restored.bytes().len() as u64, u64::from(plain_length));
            assert!(!plan.has_wrong_checksum());
            if !plan.is_plain() {
                assert_eq!(
                    content_size(&frame),
                    Some(u64::from(plain_length)),
                    "what the frame tells"
                );
                assert_eq!(first_frame(&frame).len(), frame.len(), "only one frame");
            }
            if let Some(plain) = known {
                assert!(
                    restored.bytes() == plain,
                    "other bytes under the same checksum: {plan:?}"
                );
            }
        }
        Err(error) => {
            check_error(&error);
            assert!(known.is_none() || !is_honest, "{error}: {plan:?}");
        }
    }
}

/// A segment of one or two chunks, of which only the last is asked for.
fn manifest(plan: Plan, index: ChunkIndex, plain_length: u32, stored: &[u8], plain_crc32: u32) -> Manifest {
    let chunk_size = plain_length.next_power_of_two().max(65_536);
    let segment_size = u64::from(index.0) * u64::from(chunk_size) + u64::from(plain_length);
    let before = Chunk {
        stored_length: 1,
        stored_crc32: 1,
        plain_crc32: 1,
    };
    let mut chunks = vec![before; index.0 as usize];
    chunks.push(Chunk {
        stored_length: u32::try_from(stored.len()).expect("an input of libFuzzer is short"),
        stored_crc32: crc32fast::hash(stored) ^ u32::from(plan.has_wrong_checksum()),
        plain_crc32,
    });
    let table = ChunkTable::new(
        ChunkSize::new(chunk_size).expect("a power of two in the range"),
        segment_size,
        chunks,
    );
    let segment = SegmentMetadata {
        topic_id: Uuid::from_u64_pair(1, 2),
        topic: TopicName::new("fuzz").expect("a legal name"),
        partition: 0,
        segment_id: Uuid::from_bytes(SEGMENT_ID),
        start_offset: 0,
        end_offset: 0,
        max_timestamp_ms: -1,
        broker_id: 0,
        event_timestamp_ms: 0,
        segment_size,
        leader_epochs: Vec::new(),
        transaction_index_empty: false,
    };
    let coding = Coding {
        codec: if plan.is_plain() { Codec::None } else { Codec::Zstd },
        encryption: plan.is_encrypted().then(|| Encryption {
            wrapped: WrappedKey {
                key_id: "fuzz".to_owned(),
                bytes: Vec::new(),
            },
            data_key: DataKey::new(DATA_KEY),
        }),
    };
    let table = table.expect("as many chunks as the length needs");
    Manifest::new(segment, table, coding, Vec::new(), "fuzz").expect("a possible segment")
}

/// The golden objects hold several frames, of which each is a chunk.
fn first_frame(bytes: &[u8]) -> &[u8] {
    zstd::zstd_safe::find_frame_compressed_size(bytes)
        .ok()
        .and_then(|length| bytes.get(..length))
        .unwrap_or(bytes)
}

fn content_size(frame: &[u8]) -> Option<u64> {
    zstd::zstd_safe::get_frame_content_size(frame).ok().flatten()
}
