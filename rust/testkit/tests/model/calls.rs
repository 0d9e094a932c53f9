//! The calls of Kafka, waited for.

use std::{fs, ops::Range, time::Duration};

use alluvium_engine::{Outcome, Read, Reader, Result, SegmentRef, Task};
use alluvium_testkit::segment::TestSegment;

/// Longest that any operation may take: all deadlines of the instance are far below.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn reference(segment: &TestSegment, custom_metadata: Option<Vec<u8>>) -> SegmentRef {
    SegmentRef {
        metadata: segment.metadata.clone(),
        custom_metadata,
    }
}

pub(crate) fn finish(task: &Task) -> Result<Outcome> {
    task.wait(PATIENCE).expect("an operation that ends")
}

pub(crate) fn reader(outcome: Outcome) -> Reader {
    match outcome {
        Outcome::Opened(reader) => reader,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn read_to_end(reader: &Reader) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    for _ in 0..PATIENCE.as_millis() / 50 {
        match reader.read(1 << 20, Duration::from_millis(50))? {
            Read::Data(data) => bytes.extend_from_slice(&data),
            Read::End => return Ok(bytes),
            Read::Pending => {}
        }
    }
    panic!("a read that does not end");
}

pub(crate) fn range(range: Range<u64>) -> Range<usize> {
    usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap()
}

/// Files that this process has open.
pub(crate) fn open_files() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}
