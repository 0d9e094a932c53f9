//! The largest and smallest segments that Kafka can have, and the oddest names.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{fs, os::unix::fs::FileExt, path::Path};

use alluvium_engine::Engine;
use alluvium_format::{CustomMetadata, IndexType, TopicName};
use alluvium_testkit::{broker::*, segment::TestSegment};
use tempfile::tempdir;

/// Kafka's segment size is an int: `Integer.MAX_VALUE`.
const LARGEST: u64 = 2_147_483_647;

/// A sparse segment of the largest size, with a few bytes that are not zero: at both ends and around the middle.
fn largest(directory: &Path) -> (TestSegment, Vec<u64>) {
    let mut segment = TestSegment::write(directory, 1, 1).unwrap();
    segment.metadata.segment_size = LARGEST;
    let log = fs::OpenOptions::new().write(true).open(&segment.log).unwrap();
    log.set_len(LARGEST).unwrap();
    let marks = vec![
        0,
        1,
        (1 << 30) - 1,
        1 << 30,
        (4 << 20) - 1,
        4 << 20,
        LARGEST - 2,
        LARGEST - 1,
    ];
    for (number, position) in (1u8..).zip(&marks) {
        log.write_all_at(&[number], *position).unwrap();
    }
    (segment, marks)
}

fn assert_marks(engine: &Engine, segment: &TestSegment, marks: &[u64]) {
    for (number, position) in (1u8..).zip(marks) {
        let around = position.saturating_sub(1)..(position + 2).min(LARGEST);
        let expected = around
            .clone()
            .map(|at| match marks.iter().position(|mark| *mark == at) {
                Some(index) => u8::try_from(index + 1).unwrap(),
                None => 0,
            });
        let expected: Vec<u8> = expected.collect();
        assert_eq!(
            read_segment(engine, segment, around).unwrap(),
            expected,
            "around mark {number}"
        );
    }
}

#[test]
fn the_largest_segment_of_kafka_goes_up_and_comes_back() {
    let source = tempdir().unwrap();
    let (segment, marks) = largest(source.path());
    let server = server();
    for compression in ["none", "zstd"] {
        let engine = on_server(&server, &[("compression.type", compression), ("upload.threads", "2")]);
        let custom = CustomMetadata::decode(&copy(&engine, &segment).unwrap()).unwrap();
        if compression == "none" {
            assert_eq!(custom.log_length, LARGEST);
        }
        assert_marks(&engine, &segment, &marks);
        delete(&engine, &segment, None).unwrap();
        assert_idle(&engine);
    }
}

#[test]
fn segments_whose_indexes_are_all_empty_are_normal() {
    let (source, root) = (tempdir().unwrap(), tempdir().unwrap());
    let engine = on_directory(root.path(), &[]);
    for size in [1, 2, 61] {
        let mut segment = TestSegment::write(source.path(), size, size).unwrap();
        for path in [&segment.offset_index, &segment.time_index, &segment.producer_snapshot] {
            fs::write(path, []).unwrap();
        }
        fs::write(segment.transaction_index.as_ref().unwrap(), []).unwrap();
        segment.leader_epochs = bytes::Bytes::new();
        copy(&engine, &segment).unwrap();
        assert_eq!(
            read_segment(&engine, &segment, 0..size).unwrap(),
            segment.log_bytes().unwrap()
        );
        for index_type in IndexType::ALL {
            let reader = open_index(&engine, &segment, index_type).unwrap();
            assert_eq!(read_to_end(&reader, 10).unwrap(), Vec::<u8>::new(), "{index_type:?}");
        }
    }
}

#[test]
fn odd_prefixes_and_the_longest_topic_can_be_copied_read_and_deleted() {
    let source = tempdir().unwrap();
    let mut server = None;
    let settings = environment_or(&mut server);
    for (seed, prefix) in (1..).zip(ODD_PREFIXES) {
        let mut settings: Vec<_> = settings
            .iter()
            .filter(|(key, _)| key != "key.prefix")
            .cloned()
            .collect();
        settings.push(("key.prefix".to_owned(), (*prefix).to_owned()));
        let engine = Engine::open(settings).unwrap();
        let mut segment = TestSegment::write(source.path(), seed, 70_000).unwrap();
        segment.metadata.topic = TopicName::new("t".repeat(249)).unwrap();
        let custom = copy(&engine, &segment).unwrap();
        assert_eq!(
            read_segment(&engine, &segment, 0..70_000).unwrap(),
            segment.log_bytes().unwrap(),
            "{prefix}"
        );
        delete(&engine, &segment, Some(custom)).unwrap();
        assert!(open_segment(&engine, &segment, 0..1).is_err(), "{prefix}");
    }
}

/// Each a trap of signing or of XML; all end in a folder, so that the topic's 249 letters are a path component of their own.
const ODD_PREFIXES: &[&str] = &[
    "with space/",
    "plus+and%20percent/",
    "umlaut-äöü-ß/",
    "日本語/кириллица/",
    "emoji-🦀/",
    "a&b<c>\"d'/",
    "semi;colon:at@eq=comma,/",
    "tilde~star*paren()!/",
    "back\\slash|pipe^caret`tick{}[]/",
    "question?hash#dollar$/",
];
