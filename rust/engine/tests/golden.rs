//! Compressed and encrypted segments of each format version, for ever: what one release stored, every later one reads.
//!
//! Under `tests/golden/` there is a directory for each coding, as `storage.type=file` leaves it. What zstd makes of the same bytes may
//! change with its version, and keys are random, so only reading is held fast. A missing directory is written when
//! `ALLUVIUM_WRITE_GOLDEN` is set, and never overwritten.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[expect(dead_code, reason = "a part of the helpers is enough here")]
mod common;

use std::{fs, path::PathBuf};

use alluvium_format::{IndexType, Uuid};
use alluvium_testkit::segment::{Content, TestSegment};
use tempfile::tempdir;

use common::*;

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
    for (name, fresh) in [
        ("coded.log", &segment.log),
        ("coded.index", &segment.offset_index),
        ("coded.timeindex", &segment.time_index),
    ] {
        // The bytes are kept too: a generator may change.
        if is_written && !golden.join(name).try_exists().unwrap() {
            fs::copy(fresh, golden.join(name)).unwrap();
        }
    }
    for (name, settings) in [
        ("zstd", [&base[..], &zstd].concat()),
        ("encrypted", [&base[..], &encryption].concat()),
        ("zstd-encrypted", [&base[..], &zstd, &encryption].concat()),
    ] {
        let root = golden.join(name);
        if is_written && !root.try_exists().unwrap() {
            fs::create_dir(&root).unwrap();
            copy(&on_directory(&root, &settings), &segment).unwrap();
        }
        let engine = on_directory(&root, &settings);
        let log = fs::read(golden.join("coded.log")).unwrap();
        assert!(read_segment(&engine, &segment, 0..SIZE).unwrap() == log, "{name}");
        for (index_type, file) in [
            (IndexType::Offset, "coded.index"),
            (IndexType::Timestamp, "coded.timeindex"),
        ] {
            let index = read_to_end(&open_index(&engine, &segment, index_type).unwrap(), 100).unwrap();
            assert!(index == fs::read(golden.join(file)).unwrap(), "{name}");
        }
    }
}
