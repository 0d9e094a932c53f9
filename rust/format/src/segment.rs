//! What Kafka knows of a segment: all fields of `RemoteLogSegmentMetadata`, checked once.

use std::fmt;

use crate::{FormatError, Uuid, error::quoted};

/// Longest topic name (Kafka: `Topic.MAX_NAME_LENGTH`).
const TOPIC_NAME_BYTES_MAX: usize = 249;

/// A legal topic name: 1 to 249 of `[a-zA-Z0-9._-]`, not `.` or `..` (Kafka: `Topic.validate`).
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TopicName(String);

impl TopicName {
    /// Checks and wraps a name.
    ///
    /// # Errors
    /// [`FormatError::Malformed`] when Kafka would refuse the name.
    pub fn new(name: impl Into<String>) -> Result<Self, FormatError> {
        let name = name.into();
        let legal = name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'));
        if !legal || name.is_empty() || name.len() > TOPIC_NAME_BYTES_MAX || name == "." || name == ".." {
            return Err(FormatError::malformed("topic name", quoted(&name)));
        }
        Ok(TopicName(name))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TopicName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl fmt::Debug for TopicName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, formatter)
    }
}

/// A leader epoch that the segment has records of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaderEpoch {
    /// The epoch.
    pub epoch: i32,
    /// First offset of the epoch in the segment.
    pub start_offset: i64,
}

/// A segment of a partition, as `RemoteLogSegmentMetadata` describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentMetadata {
    /// Id of the topic.
    pub topic_id: Uuid,
    /// Name of the topic.
    pub topic: TopicName,
    /// Partition, from 0.
    pub partition: i32,
    /// Id of the segment, new for every attempt to copy it.
    pub segment_id: Uuid,
    /// First offset (base offset).
    pub start_offset: i64,
    /// Last offset, inclusive.
    pub end_offset: i64,
    /// Greatest timestamp of a record, milliseconds since 1970; -1 when there is none.
    pub max_timestamp_ms: i64,
    /// Broker that copied it.
    pub broker_id: i32,
    /// When the copy began, milliseconds since 1970.
    pub event_timestamp_ms: i64,
    /// Bytes of Kafka's `.log` file.
    pub segment_size: u64,
    /// Leader epochs, ascending.
    pub leader_epochs: Vec<LeaderEpoch>,
    /// Whether the transaction index is known to be empty (Kafka 4.0 and later tell).
    pub transaction_index_empty: bool,
}

impl SegmentMetadata {
    /// Checks what Kafka guarantees and the keys rely on.
    ///
    /// # Errors
    /// [`FormatError::Malformed`] names the field.
    pub fn check(&self) -> Result<(), FormatError> {
        let malformed = |reason: String| Err(FormatError::malformed("segment metadata", reason));
        if self.partition < 0 {
            return malformed(format!("partition {}", self.partition));
        }
        if self.start_offset < 0 || self.end_offset < self.start_offset {
            return malformed(format!("offsets {} to {}", self.start_offset, self.end_offset));
        }
        Ok(())
    }
}

impl fmt::Display for SegmentMetadata {
    /// Topic-partition, base offset and id: what an operator looks for.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "segment {} of {}-{} at offset {}",
            self.segment_id, self.topic, self.partition, self.start_offset
        )
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn example() -> SegmentMetadata {
        SegmentMetadata {
            topic_id: Uuid::from_u64_pair(1, 2),
            topic: TopicName::new("orders").unwrap(),
            partition: 7,
            segment_id: Uuid::from_u64_pair(3, 4),
            start_offset: 1_000_000,
            end_offset: 1_018_927,
            max_timestamp_ms: 1_700_000_018_774,
            broker_id: 1,
            event_timestamp_ms: 1_796_035_111_015,
            segment_size: 0,
            leader_epochs: vec![LeaderEpoch {
                epoch: 0,
                start_offset: 1_000_000,
            }],
            transaction_index_empty: true,
        }
    }

    #[test]
    fn topic_names_are_those_that_kafka_takes() {
        for good in ["a", "a.b_c-D9", "...", "a..b", &"x".repeat(249)] {
            assert!(TopicName::new(good).is_ok(), "{good}");
        }
        for bad in ["", ".", "..", "a/b", "a b", "é", "a\0", &"x".repeat(250)] {
            assert!(TopicName::new(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn impossible_positions_are_refused() {
        assert_eq!(example().check(), Ok(()));
        assert!(
            SegmentMetadata {
                partition: -1,
                ..example()
            }
            .check()
            .is_err()
        );
        assert!(
            SegmentMetadata {
                start_offset: -1,
                ..example()
            }
            .check()
            .is_err()
        );
        assert!(
            SegmentMetadata {
                end_offset: 999_999,
                ..example()
            }
            .check()
            .is_err()
        );
    }
}
