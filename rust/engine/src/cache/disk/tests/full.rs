//! A disk that is full, read-only, or without a descriptor to spare.

use std::{
    env,
    process::{Command, Stdio},
    thread,
};

use super::*;

/// Set for a process that runs one of the tests below under a limit: the directory it uses.
const LIMITED: &str = "ALLUVIUM_TEST_LIMITED_CACHE";

/// Runs `test`, which is in this module, in a process of its own after `limits`, commands of a shell.
fn run_limited(test: &str, limits: &str, root: &Path) {
    let script = format!("{limits}; exec \"$0\" --ignored --exact --nocapture \"$1\"");
    let output = Command::new("sh")
        .args(["-c", &script])
        .arg(env::current_exe().unwrap())
        .arg(format!("cache::disk::tests::full::{test}"))
        .env(LIMITED, root)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn a_write_for_which_there_is_no_space_is_bypassed_and_tried_again_later() {
    let root = tempdir().unwrap();
    // A longer write ends in an error (EFBIG) after a part of it, as on a full disk (ENOSPC).
    run_limited(
        "with_files_of_a_megabyte_at_most",
        "trap '' XFSZ; ulimit -f 2048",
        root.path(),
    );
}

/// Not a test by itself: it runs under a limit of what a file may have.
#[test]
#[ignore = "run by another test, in a process of its own"]
fn with_files_of_a_megabyte_at_most() {
    let Some(root) = env::var_os(LIMITED).map(PathBuf::from) else {
        return;
    };
    let cache = open(&root);
    let (small, large, later) = (chunk(1, 0), chunk(2, 0), chunk(1, 1));
    cache.put(&small, &bytes_of(&small, 1000));
    cache.put(&large, &bytes_of(&large, 3 << 20));
    assert_eq!((cache.metrics.faults.get(), cache.metrics.writes.get()), (1, 1));
    assert_eq!(
        (cache.bytes(), files(&root).len(), directories(&root)),
        (4096, 1, 1),
        "something is left"
    );
    assert!(!cache.contains(&large));
    // For a while nothing is written; what is there is served.
    cache.put(&later, &bytes_of(&later, 1000));
    assert_eq!((cache.metrics.skipped_writes.get(), cache.entries()), (1, 1));
    assert_eq!(read(&cache, &small).unwrap(), bytes_of(&small, 1000));
    cache.faults.end_pause();
    cache.put(&later, &bytes_of(&later, 1000));
    assert_eq!(read(&cache, &later).unwrap(), bytes_of(&later, 1000));
    assert_eq!(cache.metrics.faults.get(), 1);
}

#[test]
fn a_process_without_descriptors_keeps_its_files() {
    let root = tempdir().unwrap();
    run_limited("without_a_descriptor_to_spare", "ulimit -n 64", root.path());
}

/// Not a test by itself: it runs under a limit of open files.
#[test]
#[ignore = "run by another test, in a process of its own"]
fn without_a_descriptor_to_spare() {
    let Some(root) = env::var_os(LIMITED).map(PathBuf::from) else {
        return;
    };
    let (cache, key, other) = (open(&root), chunk(1, 0), chunk(1, 1));
    cache.put(&key, &bytes_of(&key, 1000));
    let mut taken = Vec::new();
    while let Ok(file) = fs::File::open("/dev/null") {
        taken.push(file);
    }
    assert!(read(&cache, &key).is_none());
    cache.put(&other, &bytes_of(&other, 1000));
    assert_eq!((cache.metrics.faults.get(), cache.entries()), (2, 1));
    drop(taken);
    assert_eq!(read(&cache, &key).unwrap(), bytes_of(&key, 1000));
}

/// A file system of a size of its own, unmounted at the end.
struct Mount(TempDir);

impl Mount {
    /// `None`, and a word about it, where this user may not mount.
    fn of(bytes: u64) -> Option<Self> {
        let root = tempdir().unwrap();
        let options = format!("size={bytes},mode=0700");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &options, "tmpfs"])
            .arg(root.path())
            .stderr(Stdio::null())
            .status();
        if mounted.is_ok_and(|status| status.success()) {
            return Some(Mount(root));
        }
        println!(
            "SKIPPED: a file system could not be mounted, so nothing was tried on a full one; run as root to try it"
        );
        None
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.path()).status();
    }
}

/// The limit of a cache that is filled by eight threads.
const LIMIT: u64 = 512 * 4096;

#[test]
fn the_limit_is_never_exceeded_by_one_block() {
    // One block more than the limit is for the marker: any file too many is a write that fails.
    let Some(mount) = Mount::of(LIMIT + 4096) else { return };
    // While another test starts a process, that one has files open as well, which take space until it has begun.
    run_limited("on_a_file_system_of_just_the_limit", "true", mount.path());
}

/// Not a test by itself: it runs in a process that starts no others.
#[test]
#[ignore = "run by another test, in a process of its own"]
fn on_a_file_system_of_just_the_limit() {
    const THREADS: u64 = 8;
    let Some(root) = env::var_os(LIMITED).map(PathBuf::from) else {
        return;
    };
    let cache = open_with(&root, LIMIT);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let cache = &cache;
            scope.spawn(move || {
                let mut state = thread + 1;
                for _ in 0..4000 {
                    state = next(state);
                    let key = chunk(state % 20, u32::try_from((state >> 8) % 40).unwrap());
                    match (state >> 20) % 16 {
                        0 => cache.remove_segment(segment(state % 20))(),
                        1 | 2 => cache.remove(&key),
                        _ => cache.put(&key, &bytes_of(&key, usize::try_from((state >> 30) % 60_000).unwrap())),
                    }
                    assert!(cache.bytes() <= LIMIT);
                }
            });
        }
    });
    // Pieces that were said to be wrong are faults; a write that failed would have made the others pause.
    assert!(
        cache.metrics.evictions.get() > 300 && cache.metrics.writes.get() > 1000,
        "{:?}",
        cache.metrics
    );
    assert!(!cache.faults.has_paused(), "{:?}", cache.metrics);
    assert_eq!(cache.bytes(), taken(&root));
}

#[test]
fn a_full_disk_is_gone_around_and_used_when_there_is_room_again() {
    let Some(mount) = Mount::of(64 * 4096) else { return };
    let cache = open_with(mount.path(), 1000 * 4096);
    let write = |index| cache.put(&chunk(1, index), &bytes_of(&chunk(1, index), 40_000));
    (0..5).for_each(write);
    assert_eq!((cache.entries(), cache.metrics.faults.get()), (5, 0));
    // Somebody else fills it.
    let other = mount.path().join("other");
    let _ = fs::write(&other, vec![0; 64 * 4096]);
    write(5);
    write(6);
    assert_eq!(
        (
            cache.entries(),
            cache.metrics.faults.get(),
            cache.metrics.skipped_writes.get()
        ),
        (5, 1, 1)
    );
    assert_eq!(cache.bytes(), taken(mount.path()), "a part of a file is left");
    assert!((0..5).all(|index| read(&cache, &chunk(1, index)) == Some(bytes_of(&chunk(1, index), 40_000))));
    // It opens on a full disk as well.
    drop(cache);
    let cache = open_with(mount.path(), 1000 * 4096);
    assert_eq!(cache.entries(), 5);
    fs::remove_file(&other).unwrap();
    cache.put(&chunk(1, 6), &bytes_of(&chunk(1, 6), 40_000));
    assert_eq!(read(&cache, &chunk(1, 6)).unwrap(), bytes_of(&chunk(1, 6), 40_000));
}

/// Makes a file, or what is in a directory, impossible to change and to remove, as on a disk that has become read-only.
fn set_immutable(path: &Path, is_immutable: bool) -> bool {
    let flag = if is_immutable { "+i" } else { "-i" };
    let changed = Command::new("chattr")
        .arg(flag)
        .arg(path)
        .stderr(Stdio::null())
        .status();
    changed.is_ok_and(|status| status.success())
}

#[test]
fn files_that_cannot_be_removed_stay_counted_and_are_served_if_they_are_good() {
    let root = tempdir().unwrap();
    let cache = open_with(root.path(), 20 * 4096);
    for index in 0..20 {
        cache.put(&chunk(1, index), &bytes_of(&chunk(1, index), 4000));
    }
    let directory = file_of(root.path(), &chunk(1, 0)).parent().unwrap().to_path_buf();
    if !set_immutable(&directory, true) {
        println!("SKIPPED: files could not be made immutable; run as root, on ext4 or XFS, to try it");
        return;
    }
    let write = |key: EntryKey| cache.put(&key, &bytes_of(&key, 4000));
    write(chunk(2, 0));
    write(chunk(2, 1));
    assert_eq!((cache.metrics.faults.get(), cache.metrics.skipped_writes.get()), (1, 1));
    assert_eq!(
        (cache.entries(), cache.bytes(), cache.metrics.evictions.get()),
        (20, 20 * 4096, 0)
    );
    assert!((0..20).all(|index| read(&cache, &chunk(1, index)) == Some(bytes_of(&chunk(1, index), 4000))));
    // A wrong one is not served again, and its place is not taken.
    cache.remove(&chunk(1, 7));
    assert!(read(&cache, &chunk(1, 7)).is_none());
    cache.faults.end_pause();
    write(chunk(1, 7));
    assert_eq!((cache.entries(), cache.bytes()), (19, 20 * 4096));
    assert!(set_immutable(&directory, false));
    cache.faults.end_pause();
    write(chunk(2, 0));
    assert_eq!(read(&cache, &chunk(2, 0)).unwrap(), bytes_of(&chunk(2, 0), 4000));
    assert_eq!((cache.bytes(), taken(root.path())), (20 * 4096, 20 * 4096));
}
