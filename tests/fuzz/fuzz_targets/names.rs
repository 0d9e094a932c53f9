//! Text as a prefix of keys, a topic name and an id, a line each.

#![no_main]

use alluvium_format::{FormatError, KEY_PREFIX_BYTES_MAX, KeyPrefix, SegmentMetadata, TopicName, Uuid};
use alluvium_fuzz::{check_error, check_keys};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let mut lines = text.splitn(3, '\n').chain(std::iter::repeat(""));
    let mut line = || lines.next().expect("endless");
    let prefix = accepted(KeyPrefix::new(line())).unwrap_or_default();
    assert!(prefix.as_str().len() <= KEY_PREFIX_BYTES_MAX);
    let topic = accepted(TopicName::new(line()));
    let id = line();
    let segment_id = accepted(Uuid::parse(id));
    if let Some(parsed) = segment_id {
        assert_eq!(parsed.to_string(), id, "an id has one name");
    }
    let segment = SegmentMetadata {
        topic_id: Uuid::from_u64_pair(u64::MAX, 3),
        topic: topic.unwrap_or_else(|| TopicName::new("t").expect("a legal name")),
        partition: i32::MAX,
        segment_id: segment_id.unwrap_or(Uuid::from_u64_pair(1, 2)),
        start_offset: i64::MAX,
        end_offset: i64::MAX,
        max_timestamp_ms: -1,
        broker_id: 0,
        event_timestamp_ms: 0,
        segment_size: 0,
        leader_epochs: Vec::new(),
        transaction_index_empty: false,
    };
    check_keys(&prefix, &segment);
});

fn accepted<T>(result: Result<T, FormatError>) -> Option<T> {
    result.inspect_err(check_error).ok()
}
