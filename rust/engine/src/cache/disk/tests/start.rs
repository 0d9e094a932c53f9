//! What is recognised at the start, and what is refused.

use std::os::unix::{ffi::OsStrExt, fs::symlink};

use super::*;

#[test]
fn a_directory_of_others_is_refused_and_left_alone() {
    let root = tempdir().unwrap();
    fs::create_dir(root.path().join("segments")).unwrap();
    fs::write(root.path().join("segments/photo"), b"dear").unwrap();
    fs::write(root.path().join("server.properties"), b"a=b").unwrap();
    let error = refusal(try_open(root.path(), MIB));
    assert!(error.message().contains("name an empty directory"), "{error}");
    assert_eq!(fs::read(root.path().join("segments/photo")).unwrap(), b"dear");
    assert_eq!(fs::read(root.path().join("server.properties")).unwrap(), b"a=b");
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 2, "something was made");
}

#[test]
fn what_lies_beside_our_own_directory_is_left_alone() {
    let (root, key) = (tempdir().unwrap(), chunk(1, 0));
    // What the top of a file system has.
    fs::create_dir(root.path().join("lost+found")).unwrap();
    let cache = open(root.path());
    cache.put(&key, &bytes_of(&key, 100));
    drop(cache);
    fs::write(root.path().join("note"), b"mine").unwrap();
    let cache = open(root.path());
    assert!(cache.contains(&key));
    assert_eq!(fs::read(root.path().join("note")).unwrap(), b"mine");
    assert!(root.path().join("lost+found").is_dir());
}

#[test]
fn a_path_that_cannot_be_a_directory_is_refused() {
    let root = tempdir().unwrap();
    let file = root.path().join("file");
    fs::write(&file, b"x").unwrap();
    for path in [&file, &file.join("below"), &root.path().join("missing/cache")] {
        let error = refusal(try_open(path, MIB));
        assert!(error.message().contains(&path.display().to_string()), "{error}");
    }
    assert!(!root.path().join("missing").is_dir(), "a parent was made");
}

#[test]
fn a_mark_that_is_something_else_is_refused() {
    let outside = tempdir().unwrap();
    let target = outside.path().join("target");
    fs::write(&target, b"dear").unwrap();
    for make in [
        (|marker: &Path, _: &Path| fs::write(marker, b"my own notes").unwrap()) as fn(&Path, &Path),
        |marker, target| symlink(target, marker).unwrap(),
        |marker, _| fs::create_dir(marker).unwrap(),
    ] {
        let root = tempdir().unwrap();
        make(&root.path().join(".alluvium-cache"), &target);
        refusal(try_open(root.path(), MIB));
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1, "something was made");
    }
    assert_eq!(fs::read(&target).unwrap(), b"dear");
    // Cut short by a crash it still is ours.
    let root = tempdir().unwrap();
    open(root.path());
    let marker = root.path().join(".alluvium-cache");
    let text = fs::read(&marker).unwrap();
    for length in [0, 10] {
        fs::write(&marker, &text[..length]).unwrap();
        open(root.path());
        assert_eq!(fs::read(&marker).unwrap(), text);
    }
}

#[test]
fn a_second_instance_is_refused_until_the_first_is_closed() {
    let root = tempdir().unwrap();
    let first = open(root.path());
    let error = refusal(try_open(root.path(), MIB));
    assert!(error.message().contains("used by another broker"), "{error}");
    drop(first);
    open(root.path());
}

#[test]
fn links_and_foreign_names_are_removed_and_lead_nowhere() {
    let (root, outside) = (tempdir().unwrap(), tempdir().unwrap());
    let (kept, linked, moved) = (chunk(1, 0), chunk(1, 1), chunk(2, 0));
    let cache = open(root.path());
    for key in [&kept, &linked, &moved] {
        cache.put(key, &bytes_of(key, 100));
    }
    drop(cache);
    // Whole files, but outside: a chunk, and the directory of a segment.
    let (linked_file, moved_directory) = (file_of(root.path(), &linked), file_of(root.path(), &moved));
    let moved_directory = moved_directory.parent().unwrap();
    fs::rename(&linked_file, outside.path().join("chunk")).unwrap();
    symlink(outside.path().join("chunk"), &linked_file).unwrap();
    fs::rename(moved_directory, outside.path().join("segment")).unwrap();
    symlink(outside.path().join("segment"), moved_directory).unwrap();
    let segments = root.path().join("segments");
    let of_kept = file_of(root.path(), &kept);
    let directory = of_kept.parent().unwrap();
    fs::create_dir_all(segments.join("unknown/deep/er")).unwrap();
    fs::write(segments.join("unknown/deep/file"), b"x").unwrap();
    symlink(outside.path(), segments.join("unknown/deep/link")).unwrap();
    fs::write(segments.join("file"), b"x").unwrap();
    fs::create_dir(segments.join(segment(9).to_string())).unwrap();
    fs::create_dir(directory.join("chunk-00009")).unwrap();
    for foreign in [".tmp-17", "chunk-1", "notes"] {
        fs::copy(&of_kept, directory.join(foreign)).unwrap();
    }
    fs::write(directory.join("chunk-00008"), b"shorter than a header").unwrap();
    fs::write(segments.join(std::ffi::OsStr::from_bytes(b"\xff\xfe")), b"x").unwrap();

    let cache = open(root.path());
    assert_eq!(
        (cache.entries(), files(root.path()).len(), directories(root.path())),
        (1, 1, 1)
    );
    assert_eq!(read(&cache, &kept).unwrap(), bytes_of(&kept, 100));
    assert!(read(&cache, &linked).is_none() && read(&cache, &moved).is_none());
    assert!(outside.path().join("chunk").is_file() && outside.path().join("segment/chunk-00000").is_file());

    // The same while it runs.
    fs::rename(directory, outside.path().join("kept")).unwrap();
    symlink(outside.path().join("kept"), directory).unwrap();
    assert!(read(&cache, &kept).is_none());
    cache.put(&kept, b"bytes that must not get out");
    cache.put(&chunk(1, 5), b"bytes that must not get out");
    cache.remove_segment(segment(1))();
    assert_eq!(fs::read_dir(outside.path().join("kept")).unwrap().count(), 1);
    assert_eq!(
        fs::metadata(outside.path().join("kept/chunk-00000")).unwrap().len(),
        152
    );
}

#[test]
fn a_lowered_limit_holds_from_the_start_and_the_newest_stay() {
    let root = tempdir().unwrap();
    let cache = open_with(root.path(), 100 * 4096);
    for index in 0..100 {
        let key = chunk(u64::from(index % 7), index);
        cache.put(&key, &bytes_of(&key, 4000));
        // Files in the same tick of the file system's clock have no order.
        let time = fs::FileTimes::new().set_modified(std::time::UNIX_EPOCH + Duration::from_secs(u64::from(index)));
        let file = fs::File::options()
            .write(true)
            .open(file_of(root.path(), &key))
            .unwrap();
        file.set_times(time).unwrap();
    }
    drop(cache);
    let cache = open_with(root.path(), 30 * 4096 + 4095);
    assert_eq!(
        (cache.entries(), cache.bytes(), taken(root.path())),
        (30, 30 * 4096, 30 * 4096)
    );
    assert_eq!(
        (cache.metrics.evictions.get(), cache.metrics.capacity.get()),
        (70, 30 * 4096 + 4095)
    );
    assert!((70..100).all(|index| cache.contains(&chunk(u64::from(index % 7), index))));
    drop(cache);
    assert_eq!(open_with(root.path(), 4095).entries(), 0);
    assert_eq!((files(root.path()).len(), directories(root.path())), (0, 0));
}

/// Prints what the start costs with many files.
#[test]
fn a_hundred_thousand_files_are_found_at_once() {
    const SEGMENTS: u64 = 400;
    const CHUNKS: u32 = 250;
    // In memory where there is such a place: ext4 takes minutes to make so many files after it has removed as many.
    let root = tempfile::tempdir_in("/dev/shm").or_else(|_| tempdir()).unwrap();
    drop(open(root.path()));
    for number in 0..SEGMENTS {
        let directory = file_of(root.path(), &chunk(number, 0));
        fs::create_dir(directory.parent().unwrap()).unwrap();
        for index in 0..CHUNKS {
            // Without blocks: contents are not looked at.
            let file = fs::File::create(file_of(root.path(), &chunk(number, index))).unwrap();
            file.set_len(HEADER_BYTES as u64 + 1).unwrap();
        }
    }
    let begin = tokio::time::Instant::now();
    let cache = open_with(root.path(), 1 << 40);
    let elapsed = begin.elapsed();
    println!("{} files were found in {elapsed:?}", cache.entries());
    assert_eq!(cache.entries(), SEGMENTS * u64::from(CHUNKS));
    assert_eq!(cache.bytes(), SEGMENTS * u64::from(CHUNKS) * 4096);
    assert!(elapsed < Duration::from_secs(10), "{elapsed:?}");
    // Contents are looked at when they are asked for.
    assert!(read(&cache, &chunk(5, 5)).is_none());
    assert_eq!(
        (cache.metrics.faults.get(), cache.entries()),
        (1, SEGMENTS * u64::from(CHUNKS) - 1)
    );
}
