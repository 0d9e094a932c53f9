//! The operations on a directory: what must hold on every store.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{collections::BTreeSet, fs, path::Path, sync::Arc, time::Duration};

use alluvium_engine::{ErrorKind, Read};
use alluvium_format::{IndexType, Uuid};
use alluvium_testkit::{broker::*, segment::TestSegment};
use tempfile::tempdir;

const MIB: u64 = 1 << 20;

/// Small parts and chunks, so that small segments have many.
const SMALL: &[(&str, &str)] = &[
    ("chunk.size.bytes", "65536"),
    ("upload.part.size.bytes", "5242880"),
    ("memory.budget.bytes", "33554432"),
    ("cache.memory.bytes", "8388608"),
];

fn files_under(root: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut directories = vec![root.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
            } else {
                found.insert(path.strip_prefix(root).unwrap().to_str().unwrap().to_owned());
            }
        }
    }
    found
}

#[test]
fn segments_of_all_sizes_come_back_byte_for_byte() {
    let (source, root) = (tempdir().unwrap(), tempdir().unwrap());
    let engine = on_directory(root.path(), SMALL);
    for (seed, size) in [
        (1, 0),
        (2, 1),
        (3, 65_536),
        (4, 65_537),
        (5, 5 * MIB),
        (6, 5 * MIB + 1),
        (7, 23 * MIB + 17),
    ] {
        let segment = TestSegment::write(source.path(), seed, size).unwrap();
        let custom = copy(&engine, &segment).unwrap();
        assert!(custom.len() < 128);
        let bytes = segment.log_bytes().unwrap();
        assert_eq!(
            read_segment(&engine, &segment, 0..u64::MAX).unwrap(),
            bytes,
            "{size} bytes"
        );
        for index_type in IndexType::ALL {
            let expected = match index_type {
                IndexType::Offset => fs::read(&segment.offset_index).unwrap(),
                IndexType::Timestamp => fs::read(&segment.time_index).unwrap(),
                IndexType::Transaction => fs::read(segment.transaction_index.as_ref().unwrap()).unwrap(),
                IndexType::ProducerSnapshot => fs::read(&segment.producer_snapshot).unwrap(),
                IndexType::LeaderEpoch => segment.leader_epochs.to_vec(),
            };
            let index = open_index(&engine, &segment, index_type).unwrap();
            assert_eq!(
                read_to_end(&index, 1000).unwrap(),
                expected,
                "{index_type:?} of {size} bytes"
            );
        }
        delete(&engine, &segment, Some(custom)).unwrap();
    }
    assert_eq!(files_under(root.path()), BTreeSet::new());
    assert_idle(&engine);
}

#[test]
fn the_log_object_is_kafkas_file() {
    let (source, root) = (tempdir().unwrap(), tempdir().unwrap());
    let engine = on_directory(root.path(), SMALL);
    let segment = TestSegment::write(source.path(), 1, 11 * MIB).unwrap();
    copy(&engine, &segment).unwrap();
    let files = files_under(root.path());
    assert_eq!(files.len(), 2, "{files:?}");
    let log = files.iter().find(|name| name.ends_with(".log")).unwrap();
    assert!(fs::read(root.path().join(log)).unwrap() == segment.log_bytes().unwrap());
}

#[test]
fn every_range_is_the_slice_it_names() {
    let (source, root) = (tempdir().unwrap(), tempdir().unwrap());
    let engine = on_directory(root.path(), SMALL);
    let size = 3 * 65_536 + 100;
    let segment = TestSegment::write(source.path(), 1, size).unwrap();
    copy(&engine, &segment).unwrap();
    let bytes = segment.log_bytes().unwrap();
    let edges = [0, 1, 65_535, 65_536, 65_537, 131_072, size - 1, size];
    for start in edges {
        for end in edges
            .into_iter()
            .chain([size + 1, u64::MAX])
            .filter(|&end| end >= start)
        {
            let expected = &bytes[usize::try_from(start).unwrap()..usize::try_from(end.min(size)).unwrap()];
            assert_eq!(
                read_segment(&engine, &segment, start..end).unwrap(),
                expected,
                "{start}..{end}"
            );
        }
    }
    assert_eq!(
        kind(open_segment(&engine, &segment, size + 1..u64::MAX)),
        ErrorKind::Invalid
    );
    assert_idle(&engine);
}

#[test]
fn what_does_not_exist_is_told_at_once() {
    let (source, root) = (tempdir().unwrap(), tempdir().unwrap());
    let engine = on_directory(root.path(), &[]);
    let mut segment = TestSegment::write(source.path(), 1, 1000).unwrap();
    assert_eq!(kind(open_segment(&engine, &segment, 0..1)), ErrorKind::NotFound);
    for index_type in IndexType::ALL {
        assert_eq!(kind(open_index(&engine, &segment, index_type)), ErrorKind::NotFound);
    }
    delete(&engine, &segment, None).unwrap();
    segment.transaction_index = None;
    let custom = copy(&engine, &segment).unwrap();
    assert_eq!(
        kind(open_index(&engine, &segment, IndexType::Transaction)),
        ErrorKind::NotFound
    );
    assert!(open_index(&engine, &segment, IndexType::Offset).is_ok());
    delete(&engine, &segment, Some(custom.clone())).unwrap();
    delete(&engine, &segment, Some(custom)).unwrap();
    assert_eq!(kind(open_segment(&engine, &segment, 0..1)), ErrorKind::NotFound);
}

#[test]
fn the_same_segment_copied_twice_is_there_once() {
    let (source, root) = (tempdir().unwrap(), tempdir().unwrap());
    let engine = on_directory(root.path(), SMALL);
    let segment = TestSegment::write(source.path(), 1, 6 * MIB).unwrap();
    copy(&engine, &segment).unwrap();
    copy(&engine, &segment).unwrap();
    assert_eq!(files_under(root.path()).len(), 2);
    assert!(read_segment(&engine, &segment, 0..u64::MAX).unwrap() == segment.log_bytes().unwrap());
}

#[test]
fn a_copy_under_the_same_id_replaces_what_was_cached() {
    let (source, root) = (tempdir().unwrap(), tempdir().unwrap());
    let engine = on_directory(root.path(), SMALL);
    let first = TestSegment::write(source.path(), 1, 200_000).unwrap();
    copy(&engine, &first).unwrap();
    assert!(read_segment(&engine, &first, 0..u64::MAX).unwrap() == first.log_bytes().unwrap());
    let mut second = TestSegment::write(&subdirectory(source.path(), 2), 2, 200_000).unwrap();
    second.metadata = first.metadata.clone();
    copy(&engine, &second).unwrap();
    assert!(read_segment(&engine, &second, 0..u64::MAX).unwrap() == second.log_bytes().unwrap());
    let index = read_to_end(&open_index(&engine, &second, IndexType::Offset).unwrap(), 8192).unwrap();
    assert_eq!(index, fs::read(&second.offset_index).unwrap());
}

#[test]
fn custom_metadata_of_a_later_release_is_refused_and_not_guessed_at() {
    let (source, root) = (tempdir().unwrap(), tempdir().unwrap());
    let engine = on_directory(root.path(), &[]);
    let segment = TestSegment::write(source.path(), 1, 1000).unwrap();
    copy(&engine, &segment).unwrap();
    let later = Some(vec![0xa2, 1, 2, 3]);
    assert_eq!(kind(delete(&engine, &segment, later.clone())), ErrorKind::Unsupported);
    let opening = engine.start_open_segment(segment_ref(&segment, later), 0..1);
    assert_eq!(kind(finish(&opening)), ErrorKind::Unsupported);
}

#[test]
fn a_manifest_of_a_later_release_is_named_as_such() {
    let (source, root) = (tempdir().unwrap(), tempdir().unwrap());
    let segment = TestSegment::write(source.path(), 1, 1000).unwrap();
    copy(&on_directory(root.path(), &[]), &segment).unwrap();
    let files = files_under(root.path());
    let path = root
        .path()
        .join(files.iter().find(|name| name.ends_with(".manifest")).unwrap());
    let mut bytes = fs::read(&path).unwrap();
    bytes[5] = 2;
    fs::write(&path, bytes).unwrap();
    let error = open_segment(&on_directory(root.path(), &[]), &segment, 0..1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.message().contains("version 2"), "{error}");
}

#[test]
fn a_segment_is_found_under_the_prefix_it_was_written_with() {
    let (source, root) = (tempdir().unwrap(), tempdir().unwrap());
    let segment = TestSegment::write(source.path(), 1, 1000).unwrap();
    let before = on_directory(root.path(), &[("key.prefix", "old name +/ü-")]);
    let custom = copy(&before, &segment).unwrap();
    before.close();
    let after = on_directory(root.path(), &[("key.prefix", "new/")]);
    let task = after.start_open_segment(segment_ref(&segment, Some(custom.clone())), 0..u64::MAX);
    let alluvium_engine::Outcome::Opened(reader) = finish(&task).unwrap() else {
        panic!("a stream")
    };
    assert_eq!(read_to_end(&reader, 100).unwrap(), segment.log_bytes().unwrap());
    delete(&after, &segment, Some(custom)).unwrap();
    assert_eq!(files_under(root.path()), BTreeSet::new());
}

#[test]
fn foreign_custom_metadata_changes_nothing() {
    let (source, root) = (tempdir().unwrap(), tempdir().unwrap());
    let engine = on_directory(root.path(), &[]);
    let segment = TestSegment::write(source.path(), 1, 1000).unwrap();
    copy(&engine, &segment).unwrap();
    for foreign in [vec![], vec![0xff; 40], b"\x01\x00\x04\xcc\xab\xfa\x0f".to_vec()] {
        let task = engine.start_open_segment(segment_ref(&segment, Some(foreign.clone())), 0..10);
        assert!(finish(&task).is_ok(), "{foreign:?}");
    }
    delete(&engine, &segment, Some(vec![0xff; 40])).unwrap();
    assert_eq!(files_under(root.path()), BTreeSet::new());
}

#[test]
fn a_file_that_is_missing_or_too_short_fails_the_copy_and_leaves_nothing() {
    let (source, root) = (tempdir().unwrap(), tempdir().unwrap());
    let engine = on_directory(root.path(), SMALL);
    for size in [1000, 12 * MIB] {
        let mut segment = TestSegment::write(source.path(), size, size).unwrap();
        segment.metadata.segment_size += 1;
        let error = copy(&engine, &segment).unwrap_err();
        assert!(error.message().contains("instead of"), "{error}");
        segment.metadata.segment_size -= 1;
        let index = segment.time_index.clone();
        segment.time_index = source.path().join("absent.timeindex");
        let error = copy(&engine, &segment).unwrap_err();
        assert!(error.message().contains("absent.timeindex"), "{error}");
        segment.time_index = index;
        segment.producer_snapshot = source.path().to_owned();
        let error = copy(&engine, &segment).unwrap_err();
        assert!(error.message().contains("not a regular file"), "{error}");
        segment.log = source.path().join("absent.log");
        assert_eq!(kind(copy(&engine, &segment)), ErrorKind::Internal);
    }
    assert_eq!(files_under(root.path()), BTreeSet::new());
    assert_idle(&engine);
}

#[test]
fn a_flipped_byte_is_an_error_and_never_data() {
    let (source, root) = (tempdir().unwrap(), tempdir().unwrap());
    let segment = TestSegment::write(source.path(), 1, 200_000).unwrap();
    copy(&on_directory(root.path(), SMALL), &segment).unwrap();
    for name in files_under(root.path()) {
        let path = root.path().join(name);
        let good = fs::read(&path).unwrap();
        for position in [0, 9, good.len() / 2, good.len() - 1] {
            let mut bad = good.clone();
            bad[position] ^= 0x40;
            fs::write(&path, &bad).unwrap();
            let engine = on_directory(root.path(), SMALL);
            let outcome = read_segment(&engine, &segment, 0..u64::MAX);
            assert_eq!(
                kind(outcome),
                ErrorKind::Corrupt,
                "byte {position} of {}",
                path.display()
            );
            assert_idle(&engine);
        }
        for length in [0, 1, good.len() / 2, good.len() - 1] {
            fs::write(&path, &good[..length]).unwrap();
            let engine = on_directory(root.path(), SMALL);
            assert_eq!(
                kind(read_segment(&engine, &segment, 0..u64::MAX)),
                ErrorKind::Corrupt,
                "{length} bytes left"
            );
        }
        fs::write(&path, good).unwrap();
    }
    assert!(read_segment(&on_directory(root.path(), SMALL), &segment, 0..u64::MAX).is_ok());
}

#[test]
fn a_manifest_in_the_place_of_another_is_refused() {
    let (source, root) = (tempdir().unwrap(), tempdir().unwrap());
    let engine = on_directory(root.path(), &[]);
    let segment = TestSegment::write(source.path(), 1, 1000).unwrap();
    copy(&engine, &segment).unwrap();
    let mut other = segment.clone();
    other.metadata.segment_id = Uuid::from_u64_pair(9, 9);
    for name in files_under(root.path()) {
        let renamed = name.replace(
            &segment.metadata.segment_id.to_string(),
            &other.metadata.segment_id.to_string(),
        );
        fs::rename(root.path().join(&name), root.path().join(renamed)).unwrap();
    }
    assert_eq!(kind(open_segment(&engine, &other, 0..1)), ErrorKind::Corrupt);
}

#[test]
fn an_impossible_segment_is_refused_before_anything_is_written() {
    let (source, root) = (tempdir().unwrap(), tempdir().unwrap());
    let engine = on_directory(root.path(), &[]);
    let mut segment = TestSegment::write(source.path(), 1, 1000).unwrap();
    segment.metadata.partition = -1;
    assert!(copy(&engine, &segment).is_err());
    assert_eq!(files_under(root.path()), BTreeSet::new());
}

#[test]
fn after_the_close_everything_is_refused_and_open_streams_end() {
    let (source, root) = (tempdir().unwrap(), tempdir().unwrap());
    let engine = on_directory(root.path(), &[]);
    let segment = TestSegment::write(source.path(), 1, 1000).unwrap();
    copy(&engine, &segment).unwrap();
    let reader = open_segment(&engine, &segment, 0..u64::MAX).unwrap();
    assert!(read_once(&reader, 10).unwrap().is_some());
    engine.close();
    engine.close();
    assert_eq!(kind(read_once(&reader, 10)), ErrorKind::Closed);
    assert_eq!(kind(copy(&engine, &segment)), ErrorKind::Closed);
    assert_eq!(kind(open_segment(&engine, &segment, 0..1)), ErrorKind::Closed);
    assert_eq!(
        kind(open_index(&engine, &segment, IndexType::Offset)),
        ErrorKind::Closed
    );
    assert_eq!(kind(delete(&engine, &segment, None)), ErrorKind::Closed);
}

#[test]
fn a_closed_stream_refuses_and_another_thread_may_close_it() {
    let (source, root) = (tempdir().unwrap(), tempdir().unwrap());
    let engine = on_directory(root.path(), SMALL);
    let segment = TestSegment::write(source.path(), 1, MIB).unwrap();
    copy(&engine, &segment).unwrap();
    let reader = Arc::new(open_segment(&engine, &segment, 0..u64::MAX).unwrap());
    let reading = std::thread::spawn({
        let reader = Arc::clone(&reader);
        move || loop {
            match reader.read(17, Duration::from_millis(5)) {
                Ok(Read::End) | Err(_) => return,
                Ok(_) => {}
            }
        }
    });
    reader.close();
    reading.join().unwrap();
    reader.close();
    assert_eq!(kind(reader.read(1, Duration::ZERO)), ErrorKind::Closed);
    assert_idle(&engine);
}

#[test]
fn ten_copies_at_once_share_the_memory_and_all_end() {
    let (source, root) = (tempdir().unwrap(), tempdir().unwrap());
    let engine = on_directory(root.path(), SMALL);
    let segments: Vec<_> = (0..10)
        .map(|seed| TestSegment::write(&subdirectory(source.path(), seed), seed, 17 * MIB + seed).unwrap())
        .collect();
    let tasks: Vec<_> = segments
        .iter()
        .map(|segment| engine.start_copy(copy_request(segment)))
        .collect();
    let capacity = metric(&engine, "memory", "upload_capacity_bytes");
    let mut most = 0;
    for task in &tasks {
        while task
            .wait(Duration::from_millis(1))
            .map(|outcome| outcome.unwrap())
            .is_none()
        {
            most = most.max(metric(&engine, "memory", "upload_bytes"));
        }
    }
    assert!(most > 0 && most <= capacity, "{most} of {capacity}");
    for segment in &segments {
        assert!(read_segment(&engine, segment, 0..u64::MAX).unwrap() == segment.log_bytes().unwrap());
    }
    assert_eq!(metric(&engine, "copy", "segments_total"), 10);
    assert_idle(&engine);
}

fn subdirectory(directory: &Path, number: u64) -> std::path::PathBuf {
    let path = directory.join(number.to_string());
    fs::create_dir(&path).unwrap();
    path
}
