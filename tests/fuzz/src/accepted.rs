//! What must be true of everything that was accepted, and of what is said of the rest.

use alluvium_format::{
    ChunkIndex, Compressor, Crc32, FormatError, INDEX_BYTES_MAX, IndexType, KeyPrefix, MANIFEST_BYTES_MAX, Manifest,
    PlainPosition, SegmentKeys, SegmentMetadata, Uuid, on_heap,
};
use bytes::Bytes;

use crate::{Keys, TAG_BYTES};

/// Above this many bytes of indexes a manifest is not written again: that would only be slow.
const WRITTEN_AGAIN_MAX: u64 = 4 << 20;

/// The longest text of an error: it is logged, and may hold a name or custom metadata, but never what somebody made long.
const ERROR_TEXT_BYTES_MAX: usize = 1200;

/// Errors are told to people.
pub fn check_error(error: &FormatError) {
    let length = error.to_string().len();
    assert!(length <= ERROR_TEXT_BYTES_MAX, "an error text of {length} bytes");
}

/// The rules of `docs/FORMAT.md`, asked of a manifest that was read; then it is written again and read again.
pub fn check_accepted(object: &Bytes, manifest: &Manifest) {
    assert!(object.len() as u64 <= MANIFEST_BYTES_MAX);
    assert_eq!(Manifest::check_header(&object[..24], object.len() as u64), Ok(()));
    check_segment(manifest.segment());
    check_chunks(manifest);
    let mut total = 0;
    for index in IndexType::ALL {
        let length = manifest.index(index).map_or(0, |index| index.bytes().len() as u64);
        assert!(length <= INDEX_BYTES_MAX);
        total += length;
    }
    assert!(total <= manifest.memory_bytes());
    assert!(total <= MANIFEST_BYTES_MAX);
    if total <= WRITTEN_AGAIN_MAX {
        for compressor in [None, Some(&mut Compressor::new(1))] {
            let again = manifest.encode(compressor).expect("what was read can be written");
            assert_eq!(manifest.coding().features() & !again.features, 0);
            assert_eq!(Manifest::decode(again.object, &Keys, on_heap).as_ref(), Ok(manifest));
        }
    }
}

fn check_segment(segment: &SegmentMetadata) {
    assert!(segment.partition >= 0);
    assert!(0 <= segment.start_offset && segment.start_offset <= segment.end_offset);
    assert!(
        segment
            .leader_epochs
            .is_sorted_by(|left, right| left.epoch < right.epoch)
    );
    check_keys(&KeyPrefix::default(), segment);
}

fn check_chunks(manifest: &Manifest) {
    let (table, coding) = (manifest.chunks(), manifest.coding());
    let size = table.chunk_size().bytes();
    assert!(size.is_power_of_two() && (65_536..=67_108_864).contains(&size));
    let plain_length = manifest.segment().segment_size;
    assert_eq!(table.plain_length(), plain_length);
    assert_eq!(table.chunks().len() as u64, plain_length.div_ceil(size));
    let (mut plain, mut stored, mut whole) = (0, 0, Crc32::default());
    for (index, chunk) in (0..).map(ChunkIndex).zip(table.chunks()) {
        let plain_range = table.plain_range(index).expect("a chunk of the table");
        let stored_range = table.stored_range(index).expect("a chunk of the table");
        assert_eq!((plain_range.start.0, stored_range.start.0), (plain, stored), "a gap");
        (plain, stored) = (plain_range.end.0, stored_range.end.0);
        assert_eq!(table.chunk_at(plain_range.start), Some(index));
        assert_eq!(table.chunk_at(PlainPosition(plain - 1)), Some(index));
        let of_plain = table.plain_crc32_of(index).expect("a chunk of the table");
        let of_stored = table.stored_crc32(index).expect("a chunk of the table");
        assert_eq!(of_plain.length(), plain - plain_range.start.0);
        assert_eq!(of_stored.length(), u64::from(chunk.stored_length));
        let tag = coding.encryption.as_ref().map_or(0, |_| TAG_BYTES as u64);
        assert!(tag < of_stored.length() && of_stored.length() <= coding.stored_length_max(of_plain.length()));
        if coding.is_plain() {
            assert_eq!(of_plain, of_stored);
        }
        whole = whole.then(of_stored);
        let nothing = manifest.restore_chunk(index, Vec::new(), on_heap);
        assert!(matches!(nothing, Err(FormatError::WrongLength { .. })), "{nothing:?}");
    }
    assert_eq!((plain, stored), (plain_length, table.stored_length()));
    assert_eq!(table.object_crc32(), whole);
    assert_eq!(table.plain_crc32().length(), plain_length);
    assert_eq!(table.chunk_at(PlainPosition(plain_length)), None);
    let no_chunk = table.chunks().len() as u64;
    if let Ok(no_chunk) = u32::try_from(no_chunk) {
        assert_eq!(table.stored_range(ChunkIndex(no_chunk)), None);
        assert_eq!(table.plain_range(ChunkIndex(no_chunk)), None);
    }
}

/// Keys are short enough for every store, and what they are made of can be read out of them again.
pub fn check_keys(prefix: &KeyPrefix, segment: &SegmentMetadata) {
    let keys = SegmentKeys::new(prefix, segment);
    let stem = keys.log.strip_suffix(".log").expect("the suffix of a log");
    assert_eq!(keys.manifest.strip_suffix(".manifest"), Some(stem));
    assert!(keys.manifest.len() <= 1024);
    assert!(
        !keys
            .log
            .split('/')
            .any(|component| matches!(component, "" | "." | ".."))
    );
    let own = stem.strip_prefix(prefix.as_str()).expect("the prefix comes first");
    let parts: Vec<&str> = own.split('/').collect();
    let [topic, topic_id, partition, name] = parts[..] else {
        panic!("{own} has not four components");
    };
    assert_eq!(topic, segment.topic.as_str());
    assert_eq!(Uuid::parse(topic_id), Ok(segment.topic_id));
    assert_eq!(partition.parse(), Ok(segment.partition));
    let (offset, segment_id) = name.split_at(20);
    assert_eq!(offset.parse(), Ok(segment.start_offset));
    assert_eq!(Uuid::parse(&segment_id[1..]), Ok(segment.segment_id));
}
