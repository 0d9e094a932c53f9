//! The bytes of each format version, for ever: what was written once is read, and written the same, by every later release.
//!
//! The files are in `tests/golden/`; `docs/FORMAT.md` uses them as its examples. A missing file is written when
//! `ALLUVIUM_WRITE_GOLDEN` is set, and never overwritten.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{fs, path::PathBuf};

use alluvium_format::{
    Chunk, ChunkIndex, ChunkSize, ChunkTable, Coding, Crc32, CustomMetadata, IndexPayload, IndexType, KeyPrefix,
    LeaderEpoch, Manifest, NoKeys, SegmentKeys, SegmentMetadata, TopicName, Uuid, on_heap,
};
use bytes::Bytes;

const CHUNK_SIZE: u32 = 65_536;

/// One full chunk and a bit.
const SEGMENT_SIZE: usize = 70_000;

fn golden(name: &str, fresh: &[u8]) -> Bytes {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/golden/v1")
        .join(name);
    if std::env::var_os("ALLUVIUM_WRITE_GOLDEN").is_some() && !path.try_exists().unwrap() {
        fs::write(&path, fresh).unwrap();
    }
    Bytes::from(fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())))
}

/// Bytes that can be made anew in any language: a linear congruential generator, its highest byte each time.
fn pattern(length: usize, seed: u32) -> Bytes {
    let mut state = seed;
    (0..length)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state.to_be_bytes()[0]
        })
        .collect()
}

fn segment() -> SegmentMetadata {
    SegmentMetadata {
        topic_id: Uuid::from_u64_pair(0x0011_2233_4455_6677, 0x8899_aabb_ccdd_eeff),
        topic: TopicName::new("golden.topic-1_a").unwrap(),
        partition: 12,
        segment_id: Uuid::from_u64_pair(0xfedc_ba98_7654_3210, 0x0123_4567_89ab_cdef),
        start_offset: 1_234_567,
        end_offset: 1_240_000,
        max_timestamp_ms: -1,
        broker_id: 3,
        event_timestamp_ms: 1_700_000_000_123,
        segment_size: SEGMENT_SIZE as u64,
        leader_epochs: vec![
            LeaderEpoch {
                epoch: 0,
                start_offset: 1_234_567,
            },
            LeaderEpoch {
                epoch: 4,
                start_offset: 1_239_000,
            },
        ],
        transaction_index_empty: false,
    }
}

fn manifest(log: &Bytes) -> Manifest {
    let chunks = log
        .chunks(CHUNK_SIZE as usize)
        .map(|piece| {
            let crc32 = Crc32::of(piece).value();
            Chunk {
                stored_length: u32::try_from(piece.len()).unwrap(),
                stored_crc32: crc32,
                plain_crc32: crc32,
            }
        })
        .collect();
    let chunks = ChunkTable::new(ChunkSize::new(CHUNK_SIZE).unwrap(), log.len() as u64, chunks).unwrap();
    let indexes = vec![
        IndexPayload::new(IndexType::Offset, pattern(136, 2)),
        IndexPayload::new(IndexType::Timestamp, pattern(204, 3)),
        IndexPayload::new(IndexType::ProducerSnapshot, pattern(77, 4)),
        IndexPayload::new(IndexType::Transaction, Bytes::new()),
        IndexPayload::new(
            IndexType::LeaderEpoch,
            Bytes::from_static(b"0\n2\n0 1234567\n4 1239000\n"),
        ),
    ];
    Manifest::new(segment(), chunks, Coding::default(), indexes, "alluvium golden").unwrap()
}

#[test]
fn version_1_is_read_and_written_as_ever() {
    let fresh_log = pattern(SEGMENT_SIZE, 1);
    let log = golden("segment.log", &fresh_log);
    assert!(log == fresh_log, "the log object is the segment's bytes");

    let expected = manifest(&log);
    let object = golden("segment.manifest", &expected.encode(None).unwrap().object);
    assert_eq!(Manifest::decode(object.clone(), &NoKeys, on_heap).unwrap(), expected);
    assert_eq!(expected.encode(None).unwrap().object, object);

    let custom = CustomMetadata {
        features: 0,
        manifest_length: u32::try_from(object.len()).unwrap(),
        log_length: log.len() as u64,
        prefix: KeyPrefix::new("tier/").unwrap(),
    };
    let custom_bytes = golden("custom-metadata.bin", &custom.encode());
    assert_eq!(CustomMetadata::decode(&custom_bytes).unwrap(), custom);
    assert_eq!(custom.encode(), custom_bytes);

    let keys = SegmentKeys::new(&custom.prefix, &segment());
    let keys_text = golden("keys.txt", format!("{}\n{}\n", keys.log, keys.manifest).as_bytes());
    assert_eq!(keys_text, format!("{}\n{}\n", keys.log, keys.manifest));
}

#[test]
fn the_golden_chunks_verify_against_the_golden_manifest() {
    let log = golden("segment.log", &[]);
    let manifest = Manifest::decode(golden("segment.manifest", &[]), &NoKeys, on_heap).unwrap();
    let chunks = manifest.chunks();
    let mut position = 0;
    for index in (0..2).map(ChunkIndex) {
        let range = chunks.stored_range(index).unwrap();
        assert_eq!(range.start.0, position);
        position = range.end.0;
        let stored = log.slice(usize::try_from(range.start.0).unwrap()..usize::try_from(range.end.0).unwrap());
        let plain = manifest.restore_chunk(index, stored.to_vec(), on_heap).unwrap();
        assert!(plain.bytes() == &stored);
    }
    assert_eq!(position, log.len() as u64);
    assert_eq!(chunks.object_crc32(), Crc32::of(&log));
}
