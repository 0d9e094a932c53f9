//! Compressed and encrypted segments of each format version, for ever: what one release stored, every later one reads.
//!
//! Under `tests/golden/` there is a directory for each coding, as `storage.type=file` leaves it. What zstd makes of the same bytes may
//! change with its version, and keys are random, so only reading is held fast. A missing directory is written when
//! `ALLUVIUM_WRITE_GOLDEN` is set, and never overwritten.

use std::{fs, path::PathBuf};

use alluvium_format::{IndexType, Uuid};
use alluvium_testkit::{
    broker::*,
    segment::{Content, TestSegment},
};
use tempfile::tempdir;

const SIZE: u64 = 150_000;

#[test]
fn coded_segments_of_version_1_are_read() {
    let is_written = std::env::var_os("ALLUVIUM_WRITE_GOLDEN").is_some();
    let golden = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/v1");
    let private_key = golden.join("private-key.pem");
    let encryption = [
        ("encryption.enabled", "true"),
        ("encryption.key.pair.id", "golden"),
        (
            "encryption.key.pairs.golden.private.key.file",
            private_key.to_str().unwrap(),
        ),
    ];
    let base = [("chunk.size.bytes", "65536"), ("startup.probe", "off")];
    let zstd = [("compression.type", "zstd")];
    let source = tempdir().unwrap();
    let mut segment = TestSegment::write_content(source.path(), 77, SIZE, Content::Json).unwrap();
    segment.metadata.segment_id = Uuid::from_u64_pair(0xfedc_ba98_7654_3210, 0x0123_4567_89ab_cdef);
    // The same with an index that gets smaller by zstd, one without a byte, and one that is missing.
    let mut indexed = segment.clone();
    indexed.offset_index = source.path().join("large.index");
    indexed.time_index = source.path().join("empty.timeindex");
    indexed.transaction_index = None;
    let entries = (0..512u32).flat_map(|number| [number.to_be_bytes(), (4096 * number).to_be_bytes()]);
    fs::write(&indexed.offset_index, entries.flatten().collect::<Vec<u8>>()).unwrap();
    fs::write(&indexed.time_index, "").unwrap();
    for (name, fresh) in [
        ("coded.log", &segment.log),
        ("coded.index", &segment.offset_index),
        ("coded.timeindex", &segment.time_index),
        ("large.index", &indexed.offset_index),
        ("empty.timeindex", &indexed.time_index),
    ] {
        // The bytes are kept too: a generator may change.
        if is_written && !golden.join(name).try_exists().unwrap() {
            fs::copy(fresh, golden.join(name)).unwrap();
        }
    }
    let both = [&base[..], &zstd, &encryption].concat();
    let of_coded = (&segment, "coded.index", "coded.timeindex");
    let of_large = (&indexed, "large.index", "empty.timeindex");
    for (name, settings, (segment, offset_index, time_index)) in [
        ("zstd", [&base[..], &zstd].concat(), of_coded),
        ("encrypted", [&base[..], &encryption].concat(), of_coded),
        ("zstd-encrypted", both.clone(), of_coded),
        ("indexes", base.to_vec(), of_large),
        ("indexes-encrypted", both, of_large),
    ] {
        let root = golden.join(name);
        if is_written && !root.try_exists().unwrap() {
            fs::create_dir(&root).unwrap();
            copy(&on_directory(&root, &settings), segment).unwrap();
        }
        let engine = on_directory(&root, &settings);
        let log = fs::read(golden.join("coded.log")).unwrap();
        assert!(read_segment(&engine, segment, 0..SIZE).unwrap() == log, "{name}");
        let index_of = |index_type| read_to_end(&open_index(&engine, segment, index_type)?, 100);
        for (index_type, file) in [(IndexType::Offset, offset_index), (IndexType::Timestamp, time_index)] {
            assert!(
                index_of(index_type).unwrap() == fs::read(golden.join(file)).unwrap(),
                "{name}"
            );
        }
        let transactions = index_of(IndexType::Transaction);
        assert_eq!(transactions.is_ok(), segment.transaction_index.is_some(), "{name}");
    }
}
