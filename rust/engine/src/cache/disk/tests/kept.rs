//! What is kept, for how long, and what goes first.

use super::*;

#[test]
fn a_piece_comes_back_as_it_was_also_after_a_restart() {
    let root = tempdir().unwrap();
    let manifest = EntryKey::Manifest(segment(1));
    let pieces = [
        (manifest, 70_000),
        (chunk(1, 0), 1 << 20),
        (chunk(1, 1), 17),
        (chunk(2, 0), 0),
    ];
    let cache = open(root.path());
    for (key, length) in &pieces {
        assert!(!cache.contains(key) && read(&cache, key).is_none());
        cache.put(key, &bytes_of(key, *length));
        // Again: it is here already.
        cache.put(key, b"other bytes");
    }
    assert_eq!((cache.metrics.writes.get(), cache.metrics.misses.get()), (4, 4));
    drop(cache);
    for round in 0..2 {
        let cache = open(root.path());
        assert_eq!(cache.entries(), 4, "in round {round}");
        for (key, length) in &pieces {
            assert!(cache.contains(key));
            assert_eq!(read(&cache, key).unwrap(), bytes_of(key, *length), "{key:?}");
        }
        assert_eq!(cache.bytes(), taken(root.path()));
        assert_eq!((cache.metrics.hits.get(), cache.metrics.faults.get()), (4, 0));
        assert_eq!(
            (cache.metrics.bytes.get(), cache.metrics.entries.get()),
            (taken(root.path()) as i64, 4)
        );
    }
}

#[test]
fn memory_is_asked_for_exactly_and_may_be_refused() {
    let (root, key) = (tempdir().unwrap(), chunk(1, 0));
    let cache = open(root.path());
    cache.put(&key, &bytes_of(&key, 1000));
    let mut asked = 0;
    let refused = cache.read(&key, Some(1000), |length| {
        asked = length;
        None::<Vec<u8>>
    });
    assert!(refused.is_none() && asked == 1000);
    // Room that is larger than asked for is filled at its beginning, room that is smaller is a refusal.
    let (larger, length) = cache.read(&key, Some(1000), |_| Some(vec![7; 4096])).unwrap();
    assert_eq!(
        (&larger[..1000], &larger[1000..]),
        (&bytes_of(&key, 1000)[..], &[7; 3096][..])
    );
    assert_eq!(length, 1000);
    assert!(cache.read(&key, Some(1000), |_| Some(vec![7; 999])).is_none());
    assert_eq!((cache.metrics.faults.get(), cache.metrics.misses.get()), (0, 2));
    assert!(cache.contains(&key));
}

#[test]
fn what_only_the_owner_may_read_is_kept_from_others() {
    let (root, key) = (tempdir().unwrap(), chunk(1, 0));
    let path = root.path().join("made");
    let cache = open(&path);
    cache.put(&key, &bytes_of(&key, 100));
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let file = file_of(&path, &key);
    for directory in [&path, &path.join("segments"), file.parent().unwrap()] {
        assert_eq!(mode(directory), 0o700, "{}", directory.display());
    }
    assert_eq!((mode(&file), mode(&path.join(".alluvium-cache"))), (0o600, 0o600));
}

#[test]
fn the_least_recently_used_goes_first_and_no_more_than_needed() {
    let root = tempdir().unwrap();
    // A header and 4,000 bytes are one block.
    let cache = open_with(root.path(), 10 * 4096);
    for index in 0..10 {
        cache.put(&chunk(1, index), &bytes_of(&chunk(1, index), 4000));
    }
    assert_eq!((cache.bytes(), cache.metrics.evictions.get()), (10 * 4096, 0));
    read(&cache, &chunk(1, 0)).unwrap();
    cache.put(&chunk(1, 10), &bytes_of(&chunk(1, 10), 4000));
    assert_eq!(cache.metrics.evictions.get(), 1);
    assert!(cache.contains(&chunk(1, 0)) && !cache.contains(&chunk(1, 1)));
    // Three blocks for one piece.
    cache.put(&chunk(2, 0), &bytes_of(&chunk(2, 0), 12_000));
    assert_eq!((cache.metrics.evictions.get(), cache.bytes()), (4, 10 * 4096));
    let left = (0..11)
        .filter(|&index| cache.contains(&chunk(1, index)))
        .collect::<Vec<_>>();
    assert_eq!(left, [0, 5, 6, 7, 8, 9, 10]);
    assert_eq!(taken(root.path()), 10 * 4096);
    // One that would not fit alone pushes nothing out.
    cache.put(&chunk(3, 0), &vec![0; 10 * 4096]);
    assert_eq!(
        (cache.metrics.skipped_writes.get(), cache.metrics.evictions.get()),
        (1, 4)
    );
    assert_eq!(cache.entries(), 8);
}

#[test]
fn a_scan_leaves_what_is_read_again_and_again() {
    let root = tempdir().unwrap();
    let cache = open_with(root.path(), 100 * 4096);
    let popular: Vec<EntryKey> = (0..50).map(|index| chunk(1, index)).collect();
    for key in &popular {
        cache.put(key, &bytes_of(key, 4000));
        read(&cache, key).unwrap();
        read(&cache, key).unwrap();
    }
    // A consumer reads ten times as much as fits, each chunk once from disk.
    for index in 0..1000 {
        let key = chunk(2, index);
        cache.put(&key, &bytes_of(&key, 4000));
        read(&cache, &key).unwrap();
        assert!(cache.bytes() <= cache.capacity());
    }
    assert!(popular.iter().all(|key| cache.contains(key)));
    // What nobody wants any more is not protected for ever: others are read twice, and take its place.
    for index in 1000..1200 {
        let key = chunk(2, index);
        cache.put(&key, &bytes_of(&key, 4000));
        read(&cache, &key).unwrap();
        read(&cache, &key).unwrap();
    }
    assert!(!popular.iter().any(|key| cache.contains(key)));
    assert_eq!(taken(root.path()), cache.bytes());
}

#[test]
fn a_purge_takes_all_of_a_segment_and_nothing_else() {
    let root = tempdir().unwrap();
    let cache = open(root.path());
    let write = |key: EntryKey| cache.put(&key, &bytes_of(&key, 5000));
    for number in 1..=3 {
        write(EntryKey::Manifest(segment(number)));
        for index in [0, 1, 2, u32::MAX] {
            write(chunk(number, index));
        }
    }
    cache.remove_segment(segment(2))();
    assert_eq!(
        (cache.entries(), files(root.path()).len(), directories(root.path())),
        (10, 10, 2)
    );
    assert!(!cache.contains(&EntryKey::Manifest(segment(2))) && read(&cache, &chunk(2, 1)).is_none());
    assert_eq!(read(&cache, &chunk(3, 1)).unwrap(), bytes_of(&chunk(3, 1), 5000));
    cache.remove_segment(segment(2))();
    cache.remove_segment(segment(1))();
    cache.remove_segment(segment(3))();
    assert_eq!((cache.entries(), cache.bytes(), directories(root.path())), (0, 0, 0));
    assert_eq!((cache.metrics.faults.get(), cache.metrics.evictions.get()), (0, 0));
}

#[test]
fn a_write_under_way_at_a_purge_is_not_taken_in() {
    let metrics = Arc::new(DiskMetrics::default());
    let mut index = Index::new(1 << 20, Arc::clone(&metrics));
    let piece = Piece::from(&chunk(1, 7));
    let before = index.now();
    assert!(index.begin(piece, before) && !index.begin(piece, before));
    assert!(matches!(index.reserve(8192), Room::Reserved));
    assert!(index.take_segment(segment(1)).is_empty());
    assert!(!index.begin(piece, index.now()), "somebody is still at its file");
    assert!(!index.commit(piece, 8000));
    assert_eq!((metrics.bytes.get(), index.entries()), (8192, 0));
    assert!(index.removed(piece, 8192));
    assert_eq!(metrics.bytes.get(), 0);
    assert!(!index.begin(piece, before) && index.begin(piece, index.now()));
}

#[test]
fn bytes_that_turned_out_wrong_are_dropped() {
    let (root, key) = (tempdir().unwrap(), chunk(1, 0));
    let cache = open(root.path());
    cache.put(&key, b"wrong, as their manifest says");
    cache.remove(&key);
    cache.remove(&key);
    assert_eq!((cache.metrics.faults.get(), cache.entries(), cache.bytes()), (1, 0, 0));
    assert_eq!(directories(root.path()), 0);
    cache.put(&key, &bytes_of(&key, 100));
    assert_eq!(read(&cache, &key).unwrap(), bytes_of(&key, 100));
}
