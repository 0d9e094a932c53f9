//! Files that are not what they were, and a directory that is not there any more.

use std::{
    fs::File,
    os::unix::fs::{FileExt, symlink},
    process::Command,
};

use super::*;

const LENGTH: usize = 100_000;

/// Writes two pieces, does something to the file of the first, and asks for it: at once, and after a restart.
fn is_found_out(what: &str, damage: impl Fn(&Path, &Path)) {
    for is_reopened in [false, true] {
        let root = tempdir().unwrap();
        let (key, other) = (chunk(1, 3), chunk(1, 4));
        let (file, other_file) = (file_of(root.path(), &key), file_of(root.path(), &other));
        let cache = open(root.path());
        for key in [&key, &other] {
            cache.put(key, &bytes_of(key, LENGTH));
        }
        let cache = if is_reopened {
            drop(cache);
            damage(&file, &other_file);
            open(root.path())
        } else {
            damage(&file, &other_file);
            cache
        };
        // What can be seen from the outside is not even taken in after a restart.
        let faults = i64::from(cache.contains(&key));
        assert!(read(&cache, &key).is_none(), "{what}");
        assert_eq!(cache.metrics.faults.get(), faults, "{what}");
        assert!(!cache.contains(&key), "{what}");
        assert!(fs::symlink_metadata(&file).is_err(), "{what}: it was not removed");
        assert_eq!(read(&cache, &other).unwrap(), bytes_of(&other, LENGTH), "{what}");
        assert_eq!(cache.bytes(), taken(root.path()), "{what}");
        cache.put(&key, &bytes_of(&key, 50));
        assert_eq!(read(&cache, &key).unwrap(), bytes_of(&key, 50), "{what}");
    }
}

fn change(file: &Path, position: u64) {
    let file = File::options().read(true).write(true).open(file).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, position).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], position).unwrap();
}

#[test]
fn a_file_that_is_not_what_it_was_is_a_miss_and_is_removed() {
    let set_length =
        |file: &Path, length: u64| File::options().write(true).open(file).unwrap().set_len(length).unwrap();
    let whole = (HEADER_BYTES + LENGTH) as u64;
    for position in [
        0,
        11,
        20,
        HEADER_BYTES as u64 - 1,
        HEADER_BYTES as u64,
        50_000,
        whole - 1,
    ] {
        is_found_out("a changed bit", |file, _| change(file, position));
    }
    for length in [0, 1, HEADER_BYTES as u64, whole - 1, whole + 1, 2 * whole] {
        is_found_out("cut off or grown", |file, _| set_length(file, length));
    }
    is_found_out("of the length it had, without its end", |file, _| {
        set_length(file, whole / 2);
        set_length(file, whole);
    });
    is_found_out("all zeros, as after a power cut", |file, _| {
        set_length(file, 0);
        set_length(file, whole);
    });
    is_found_out("another chunk under its name", |file, other| {
        fs::copy(other, file).unwrap();
    });
    is_found_out("gone", |file, _| fs::remove_file(file).unwrap());
    is_found_out("a directory", |file, _| {
        fs::remove_file(file).unwrap();
        fs::create_dir(file).unwrap();
    });
    is_found_out("a link to its own bytes", |file, _| {
        // Beside our own directory.
        let aside = file.ancestors().nth(3).unwrap().join("aside");
        fs::rename(file, &aside).unwrap();
        symlink(&aside, file).unwrap();
    });
    is_found_out("a pipe", |file, _| {
        fs::remove_file(file).unwrap();
        assert!(Command::new("mkfifo").arg(file).status().unwrap().success());
    });
}

#[test]
fn a_chunk_of_another_segment_under_its_name_is_a_miss() {
    let root = tempdir().unwrap();
    let (key, other) = (chunk(1, 3), chunk(2, 3));
    let cache = open(root.path());
    for key in [&key, &other] {
        cache.put(key, &bytes_of(key, LENGTH));
    }
    fs::copy(file_of(root.path(), &other), file_of(root.path(), &key)).unwrap();
    assert!(read(&cache, &key).is_none());
    assert_eq!((cache.metrics.faults.get(), cache.entries()), (1, 1));
}

#[test]
fn a_piece_that_is_not_as_long_as_its_manifest_says_is_a_miss() {
    let (root, key) = (tempdir().unwrap(), chunk(1, 0));
    let cache = open(root.path());
    cache.put(&key, &bytes_of(&key, 1000));
    let read = cache.read(&key, Some(1001), |_| -> Option<Vec<u8>> {
        panic!("memory was asked for")
    });
    assert!(read.is_none() && !cache.contains(&key));
    assert_eq!((cache.metrics.faults.get(), files(root.path()).len()), (1, 0));
}

#[test]
fn a_file_that_is_evicted_under_a_reader_is_read_to_its_end() {
    let (root, key) = (tempdir().unwrap(), chunk(1, 0));
    let cache = open(root.path());
    cache.put(&key, &bytes_of(&key, LENGTH));
    let (bytes, _) = cache
        .read(&key, None, |length| {
            // Between opening the file and reading it.
            cache.remove_segment(segment(1))();
            cache.put(&key, b"another file of the same piece");
            Some(vec![0; length])
        })
        .unwrap();
    assert_eq!(bytes, bytes_of(&key, LENGTH));
    assert_eq!(read(&cache, &key).unwrap(), b"another file of the same piece");
    assert_eq!(cache.metrics.faults.get(), 0);
}

#[test]
fn a_segment_whose_directory_was_deleted_is_a_miss_and_is_written_again() {
    let (root, key) = (tempdir().unwrap(), chunk(1, 0));
    let cache = open(root.path());
    cache.put(&key, &bytes_of(&key, LENGTH));
    fs::remove_dir_all(file_of(root.path(), &key).parent().unwrap()).unwrap();
    assert!(read(&cache, &key).is_none());
    cache.put(&key, &bytes_of(&key, LENGTH));
    assert_eq!(read(&cache, &key).unwrap(), bytes_of(&key, LENGTH));
    assert_eq!((cache.metrics.faults.get(), cache.bytes()), (1, taken(root.path())));
}

#[test]
fn a_directory_that_was_deleted_is_forgotten_and_not_made_again() {
    for is_read_first in [true, false] {
        let parent = tempdir().unwrap();
        let root = parent.path().join("cache");
        let cache = open(&root);
        for index in 0..10 {
            cache.put(&chunk(1, index), &bytes_of(&chunk(1, index), LENGTH));
        }
        fs::remove_dir_all(&root).unwrap();
        // As a mount point is without its mount.
        fs::create_dir(&root).unwrap();
        if is_read_first {
            assert!(read(&cache, &chunk(1, 0)).is_none());
        } else {
            cache.put(&chunk(2, 0), &bytes_of(&chunk(2, 0), LENGTH));
        }
        assert_eq!((cache.entries(), cache.bytes()), (0, 0));
        assert!(cache.metrics.faults.get() > 0);
        cache.put(&chunk(1, 0), &bytes_of(&chunk(1, 0), LENGTH));
        cache.remove_segment(segment(1))();
        assert!(read(&cache, &chunk(1, 0)).is_none() && !cache.contains(&chunk(1, 0)));
        assert_eq!((cache.metrics.writes.get(), cache.metrics.bytes.get()), (10, 0));
        assert_eq!(
            fs::read_dir(&root).unwrap().count(),
            0,
            "something was made in the place of it"
        );
        // A restart uses it.
        drop(cache);
        let cache = open(&root);
        cache.put(&chunk(1, 0), &bytes_of(&chunk(1, 0), LENGTH));
        assert!(cache.contains(&chunk(1, 0)));
    }
}
