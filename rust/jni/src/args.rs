//! Java's arguments as the engine's types; nothing else knows how Java writes them.
//!
//! # Invariants
//! * Every length and number is checked before it is used: a wrong one is an error, never a panic.
//! * Kafka's inclusive end position becomes a half-open range here and nowhere else.
//! * Local references made in a loop are given back in it: the JVM promises room for few.

use std::{ops::Range, path::PathBuf, time::Duration};

use alluvium_engine::{SegmentFiles, SegmentRef};
use alluvium_format::{IndexType, LeaderEpoch, SegmentMetadata, TopicName, Uuid};
use bytes::{Buf, Bytes, TryGetError};
use jni::{
    Env,
    objects::{JByteArray, JObjectArray, JString},
    refs::Reference,
    sys::{jint, jlong},
};

use crate::errors::{Result, invalid};

/// The end position that means: to the end of the segment.
const NO_END: jlong = -1;
/// The length that means: no custom metadata.
const NO_CUSTOM_METADATA: i32 = -1;
/// Bytes of one leader epoch: an epoch and an offset.
const LEADER_EPOCH_BYTES: usize = 12;
/// Log, offset index, time index, transaction index, producer snapshot.
const PATHS: usize = 5;

/// Strings; `None` for null.
pub(crate) fn strings(env: &mut Env<'_>, array: &JObjectArray<'_, JString<'_>>) -> Result<Vec<Option<String>>> {
    let length = array.len(env)?;
    let mut strings = Vec::with_capacity(length);
    for index in 0..length {
        let element = array.get_element(env, index)?;
        strings.push(if element.is_null() {
            None
        } else {
            Some(element.try_to_string(env)?)
        });
        env.delete_local_ref(element);
    }
    Ok(strings)
}

/// Keys and values by turns.
pub(crate) fn settings(env: &mut Env<'_>, array: &JObjectArray<'_, JString<'_>>) -> Result<Vec<(String, String)>> {
    let flat = strings(env, array)?;
    let (pairs, rest) = flat.as_chunks::<2>();
    if !rest.is_empty() {
        return Err(invalid("a key without a value"));
    }
    pairs
        .iter()
        .map(|pair| match pair {
            [Some(key), Some(value)] => Ok((key.clone(), value.clone())),
            _ => Err(invalid("a key or value that is null")),
        })
        .collect()
}

/// A segment as `SegmentEncoder` writes it.
pub(crate) fn segment(env: &Env<'_>, array: &JByteArray<'_>) -> Result<SegmentRef> {
    let encoded = env.convert_byte_array(array)?;
    decode_segment(&encoded)
}

fn decode_segment(mut rest: &[u8]) -> Result<SegmentRef> {
    let segment = read_segment(&mut rest)?;
    if !rest.is_empty() {
        return Err(invalid(format!("{} bytes after the segment's metadata", rest.len())));
    }
    segment.metadata.check().map_err(|error| invalid(error.to_string()))?;
    Ok(segment)
}

fn read_segment(rest: &mut &[u8]) -> Result<SegmentRef> {
    let short = |error: TryGetError| invalid(format!("the segment's metadata ends early: {error}"));
    let topic_id = Uuid::from_u64_pair(rest.try_get_u64().map_err(short)?, rest.try_get_u64().map_err(short)?);
    let topic_length = usize::from(rest.try_get_u16().map_err(short)?);
    let topic =
        std::str::from_utf8(take(rest, topic_length)?).map_err(|error| invalid(format!("topic name: {error}")))?;
    let topic = TopicName::new(topic).map_err(|error| invalid(error.to_string()))?;
    let partition = rest.try_get_i32().map_err(short)?;
    let segment_id = Uuid::from_u64_pair(rest.try_get_u64().map_err(short)?, rest.try_get_u64().map_err(short)?);
    let start_offset = rest.try_get_i64().map_err(short)?;
    let end_offset = rest.try_get_i64().map_err(short)?;
    let max_timestamp_ms = rest.try_get_i64().map_err(short)?;
    let broker_id = rest.try_get_i32().map_err(short)?;
    let event_timestamp_ms = rest.try_get_i64().map_err(short)?;
    let size = rest.try_get_i64().map_err(short)?;
    let segment_size = u64::try_from(size).map_err(|_| invalid(format!("a segment of {size} bytes")))?;
    let transaction_index_empty = rest.try_get_u8().map_err(short)? != 0;
    let leader_epochs = read_leader_epochs(rest)?;
    let custom_length = rest.try_get_i32().map_err(short)?;
    let custom_metadata = match custom_length {
        NO_CUSTOM_METADATA => None,
        length => Some(take(rest, length_of(length)?)?.to_vec()),
    };
    let metadata = SegmentMetadata {
        topic_id,
        topic,
        partition,
        segment_id,
        start_offset,
        end_offset,
        max_timestamp_ms,
        broker_id,
        event_timestamp_ms,
        segment_size,
        leader_epochs,
        transaction_index_empty,
    };
    Ok(SegmentRef {
        metadata,
        custom_metadata,
    })
}

fn read_leader_epochs(rest: &mut &[u8]) -> Result<Vec<LeaderEpoch>> {
    let count = rest
        .try_get_i32()
        .map_err(|error| invalid(format!("leader epochs: {error}")))?;
    // As many bytes as are there bound the count before anything is allocated for it.
    let length = length_of(count)?
        .checked_mul(LEADER_EPOCH_BYTES)
        .ok_or_else(|| invalid("too many leader epochs"))?;
    let epochs = take(rest, length)?.chunks_exact(LEADER_EPOCH_BYTES);
    Ok(epochs
        .map(|mut epoch| LeaderEpoch {
            epoch: epoch.get_i32(),
            start_offset: epoch.get_i64(),
        })
        .collect())
}

fn take<'rest>(rest: &mut &'rest [u8], length: usize) -> Result<&'rest [u8]> {
    let (taken, left) = rest.split_at_checked(length).ok_or_else(|| {
        invalid(format!(
            "the segment's metadata ends early: {length} bytes wanted, {} there",
            rest.len()
        ))
    })?;
    *rest = left;
    Ok(taken)
}

fn length_of(number: i32) -> Result<usize> {
    usize::try_from(number).map_err(|_| invalid(format!("a length of {number}")))
}

/// The files of a copy, in the order that `Native.startCopy` documents.
pub(crate) fn files(
    env: &mut Env<'_>,
    paths: &JObjectArray<'_, JString<'_>>,
    leader_epochs: &JByteArray<'_>,
) -> Result<SegmentFiles> {
    let paths: [Option<String>; PATHS] = strings(env, paths)?
        .try_into()
        .map_err(|_| invalid("a segment has five paths"))?;
    let leader_epochs = Bytes::from(env.convert_byte_array(leader_epochs)?);
    let [log, offset_index, time_index, transaction_index, producer_snapshot] = paths;
    let required = |path: Option<String>, what: &str| {
        path.map(PathBuf::from)
            .ok_or_else(|| invalid(format!("the segment has no {what}")))
    };
    Ok(SegmentFiles {
        log: required(log, "log file")?,
        offset_index: required(offset_index, "offset index")?,
        time_index: required(time_index, "time index")?,
        transaction_index: transaction_index.map(PathBuf::from),
        producer_snapshot: required(producer_snapshot, "producer snapshot")?,
        leader_epochs,
    })
}

/// Kafka's inclusive positions as a half-open range; `u64::MAX` as its end means the segment's end.
pub(crate) fn range(start: jlong, end_inclusive: jlong) -> Result<Range<u64>> {
    let wrong = || invalid(format!("positions {start} to {end_inclusive}"));
    let first = u64::try_from(start).map_err(|_| wrong())?;
    if end_inclusive == NO_END {
        return Ok(first..u64::MAX);
    }
    let last = u64::try_from(end_inclusive).map_err(|_| wrong())?;
    if last < first {
        return Err(wrong());
    }
    // At most i64::MAX + 1.
    Ok(first..last + 1)
}

/// The index type of a number.
pub(crate) fn index_type(number: jint) -> Result<IndexType> {
    IndexType::from_number(number).ok_or_else(|| invalid(format!("index type {number}")))
}

/// Checks that the part of the array exists and is not empty; gives its length.
pub(crate) fn part(env: &Env<'_>, array: &JByteArray<'_>, offset: jint, length: jint) -> Result<usize> {
    let size = array.len(env)?;
    let wrong = || invalid(format!("{length} bytes at {offset} of an array of {size}"));
    let (Ok(from), Ok(wanted)) = (usize::try_from(offset), usize::try_from(length)) else {
        return Err(wrong());
    };
    let fits = from.checked_add(wanted).is_some_and(|end| end <= size);
    if wanted == 0 || !fits {
        return Err(wrong());
    }
    Ok(wanted)
}

/// A wait; none when it is negative.
pub(crate) fn wait(milliseconds: jint) -> Duration {
    Duration::from_millis(u64::try_from(milliseconds).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use bytes::BufMut;

    use super::*;

    fn encoded() -> Vec<u8> {
        let mut out = Vec::new();
        out.put_u64(1);
        out.put_u64(2);
        out.put_u16(6);
        out.put_slice(b"orders");
        out.put_i32(7);
        out.put_u64(3);
        out.put_u64(4);
        out.put_i64(100);
        out.put_i64(199);
        out.put_i64(1_700_000_000_000);
        out.put_i32(5);
        out.put_i64(1_700_000_000_001);
        out.put_i64(4096);
        out.put_u8(1);
        out.put_i32(2);
        out.put_i32(0);
        out.put_i64(100);
        out.put_i32(3);
        out.put_i64(150);
        out.put_i32(2);
        out.put_slice(&[8, 9]);
        out
    }

    #[test]
    fn a_segment_is_read_field_by_field() {
        let segment = decode_segment(&encoded()).unwrap();
        let metadata = &segment.metadata;
        assert_eq!(metadata.topic_id, Uuid::from_u64_pair(1, 2));
        assert_eq!((metadata.topic.as_str(), metadata.partition), ("orders", 7));
        assert_eq!(metadata.segment_id, Uuid::from_u64_pair(3, 4));
        assert_eq!((metadata.start_offset, metadata.end_offset), (100, 199));
        assert_eq!((metadata.broker_id, metadata.segment_size), (5, 4096));
        assert_eq!(
            (metadata.max_timestamp_ms, metadata.event_timestamp_ms),
            (1_700_000_000_000, 1_700_000_000_001)
        );
        assert!(metadata.transaction_index_empty);
        assert_eq!(
            metadata.leader_epochs,
            [
                LeaderEpoch {
                    epoch: 0,
                    start_offset: 100
                },
                LeaderEpoch {
                    epoch: 3,
                    start_offset: 150
                }
            ]
        );
        assert_eq!(segment.custom_metadata.as_deref(), Some(&[8, 9][..]));
    }

    #[test]
    fn a_segment_cut_anywhere_or_too_long_is_an_error() {
        let whole = encoded();
        for length in 0..whole.len() {
            assert!(decode_segment(&whole[..length]).is_err(), "{length} bytes");
        }
        assert!(decode_segment(&[&whole[..], &[0]].concat()).is_err());
    }

    #[test]
    fn no_byte_of_a_segment_can_make_the_reader_panic() {
        let whole = encoded();
        for position in 0..whole.len() {
            for value in [0x00, 0x7f, 0x80, 0xff] {
                let mut damaged = whole.clone();
                damaged[position] = value;
                let _ = decode_segment(&damaged);
            }
        }
    }

    #[test]
    fn an_inclusive_end_becomes_a_half_open_range() {
        assert_eq!(range(0, NO_END).unwrap(), 0..u64::MAX);
        assert_eq!(range(5, 5).unwrap(), 5..6);
        assert_eq!(range(0, i64::MAX).unwrap(), 0..1 << 63);
        assert!(range(-1, 5).is_err());
        assert!(range(6, 5).is_err());
        assert!(range(0, -2).is_err());
    }

    #[test]
    fn index_types_are_numbered_as_in_kafka() {
        assert_eq!(index_type(0).unwrap(), IndexType::Offset);
        assert_eq!(index_type(4).unwrap(), IndexType::LeaderEpoch);
        assert!(index_type(5).is_err());
        assert!(index_type(-1).is_err());
    }
}
