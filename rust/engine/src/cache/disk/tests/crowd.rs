//! Many threads at once.

use std::{sync::Barrier, thread};

use super::*;

const SEGMENTS: u64 = 10;
const CHUNKS: u64 = 20;

#[test]
fn eight_threads_see_right_bytes_only_and_the_limit_holds() {
    const LIMIT: u64 = 512 * 4096;
    const THREADS: usize = 8;
    let root = tempdir().unwrap();
    let cache = open_with(root.path(), LIMIT);
    let barrier = Barrier::new(THREADS);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (cache, barrier, root) = (&cache, &barrier, root.path());
            scope.spawn(move || {
                let mut state = thread as u64 + 100;
                for _ in 0..10 {
                    for _ in 0..400 {
                        state = next(state);
                        let key = chunk(state % SEGMENTS, u32::try_from((state >> 8) % CHUNKS).unwrap());
                        match (state >> 20) % 64 {
                            0 => cache.remove_segment(segment(state % SEGMENTS))(),
                            1 => cache.remove(&key),
                            2..24 => cache.put(&key, &bytes_of(&key, length_of(&key))),
                            _ => {
                                if let Some(bytes) = read(cache, &key) {
                                    assert_eq!(bytes, bytes_of(&key, length_of(&key)));
                                }
                            }
                        }
                        assert!(cache.bytes() <= LIMIT);
                    }
                    // While nobody works, the files are what is counted.
                    barrier.wait();
                    let counted = cache.bytes();
                    assert_eq!((taken(root), files(root).len() as u64), (counted, cache.entries()));
                    barrier.wait();
                }
            });
        }
    });
    assert!(
        cache.metrics.hits.get() > 300 && cache.metrics.evictions.get() > 100,
        "{:?}",
        cache.metrics
    );
    for number in 0..SEGMENTS {
        cache.remove_segment(segment(number))();
    }
    assert_eq!((cache.bytes(), cache.entries(), directories(root.path())), (0, 0, 0));
}

/// Each chunk has a length of its own.
fn length_of(key: &EntryKey) -> usize {
    Piece::from(key).chunk.unwrap() as usize * 3000
}

#[test]
fn writes_of_a_segment_that_is_purged_meanwhile_leave_nothing() {
    let root = tempdir().unwrap();
    let cache = open(root.path());
    for _ in 0..50 {
        thread::scope(|scope| {
            for index in 0..3 {
                let (cache, key) = (&cache, chunk(1, index));
                scope.spawn(move || cache.put(&key, &bytes_of(&key, 300_000)));
            }
            scope.spawn(|| cache.remove_segment(segment(1))());
        });
        assert_eq!(cache.bytes(), taken(root.path()));
        cache.remove_segment(segment(1))();
        assert_eq!((cache.bytes(), directories(root.path())), (0, 0));
    }
    assert_eq!(cache.metrics.faults.get(), 0);
}

#[test]
fn what_was_on_its_way_when_its_segment_went_is_not_kept_and_what_comes_later_is() {
    let (root, key, other) = (tempdir().unwrap(), chunk(1, 0), chunk(2, 0));
    let cache = open(root.path());
    let since = cache.now();
    cache.remove_segment(segment(1))();
    cache.write(&key, &bytes_of(&key, 100), since);
    cache.write(&other, &bytes_of(&other, 100), since);
    assert!(!cache.contains(&key) && cache.contains(&other));
    assert_eq!(files(root.path()).len(), 1);
    // Only a copy with the same id could be there again: what is loaded from it is right.
    cache.put(&key, &bytes_of(&key, 100));
    assert!(cache.contains(&key));
}

#[test]
fn a_write_too_many_is_skipped_and_never_waits() {
    let (root, key) = (tempdir().unwrap(), chunk(1, 0));
    let cache = open(root.path());
    let turns: Vec<Turn<'_>> = (0..WRITES_MAX)
        .map(|_| Turn::take(&cache.writes_running).unwrap())
        .collect();
    assert!(!cache.takes(&key));
    cache.put(&key, &bytes_of(&key, 100));
    assert_eq!((cache.metrics.skipped_writes.get(), cache.entries()), (1, 0));
    drop(turns);
    assert!(cache.takes(&key));
    cache.put(&key, &bytes_of(&key, 100));
    assert!(cache.contains(&key));
}

#[test]
fn two_writers_of_one_piece_make_one_file() {
    let (root, key) = (tempdir().unwrap(), chunk(1, 0));
    let cache = open(root.path());
    let bytes = bytes_of(&key, 1 << 20);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| cache.put(&key, &bytes));
        }
    });
    assert_eq!((cache.metrics.writes.get(), cache.metrics.skipped_writes.get()), (1, 0));
    assert_eq!((files(root.path()).len(), cache.bytes()), (1, taken(root.path())));
}

/// Prints what a write and a hit of a chunk of 4 MiB cost; the bytes come from the page cache.
#[test]
fn chunks_of_four_mebibytes_are_read_in_less_than_a_request_takes() {
    const COUNT: u32 = 32;
    let root = tempdir().unwrap();
    let cache = open_with(root.path(), 1 << 30);
    let bytes = bytes_of(&chunk(1, 0), 4 << 20);
    let begin = tokio::time::Instant::now();
    for index in 0..COUNT {
        cache.put(&chunk(1, index), &bytes);
    }
    let writes = begin.elapsed() / COUNT;
    let mut room = vec![0; 4 << 20];
    let begin = tokio::time::Instant::now();
    for index in (0..COUNT).chain(0..COUNT) {
        let (_, length) = cache
            .read(&chunk(1, index), Some(4 << 20), |_| Some(&mut room))
            .unwrap();
        assert_eq!(length, 4 << 20);
    }
    let reads = begin.elapsed() / (2 * COUNT);
    let begin = tokio::time::Instant::now();
    for index in 0..100_000 {
        assert_eq!(
            cache.contains(&chunk(1, index % (2 * COUNT))),
            index % (2 * COUNT) < COUNT
        );
    }
    println!(
        "4 MiB: a write {writes:?}, a hit {reads:?}; a look at the index {:?}",
        begin.elapsed() / 100_000
    );
    assert!(reads < Duration::from_millis(100), "{reads:?}");
}
