//! `kill -9` of a process that writes, and what the next one finds.

use std::{
    env,
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    thread,
};

use super::*;

/// Set for the process that is killed: the directory it writes to.
const VICTIM: &str = "ALLUVIUM_TEST_VICTIM_CACHE";

/// What it says when it is about to write.
const OPEN: &str = "the cache is open";

const LIMIT: u64 = 64 * MIB;
const LENGTH: usize = 2 << 20;
const CHUNKS: u32 = 1000;

/// Not a test: the process that is killed.
#[test]
#[ignore = "run by the other test, in a process of its own"]
fn victim() {
    let Some(root) = env::var_os(VICTIM).map(PathBuf::from) else {
        return;
    };
    let cache = open_with(&root, LIMIT);
    println!("{OPEN}");
    thread::scope(|scope| {
        for thread in 0..4 {
            let cache = &cache;
            scope.spawn(move || {
                for index in (0..CHUNKS).cycle() {
                    let key = chunk(thread, index);
                    cache.put(&key, &bytes_of(&key, LENGTH));
                }
            });
        }
    });
}

/// Starts it, and waits until it writes.
fn start_victim(root: &Path) -> Child {
    let mut victim = Command::new(env::current_exe().unwrap())
        .args([
            "--ignored",
            "--exact",
            "--nocapture",
            "cache::disk::tests::killed::victim",
        ])
        .env(VICTIM, root)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let said = BufReader::new(victim.stdout.as_mut().unwrap()).lines();
    assert!(
        said.map_while(|line| line.ok()).any(|line| line.contains(OPEN)),
        "it did not open the cache"
    );
    victim
}

#[test]
fn after_a_kill_in_the_midst_of_writes_nothing_partial_is_served() {
    let (root, mut temporaries) = (tempdir().unwrap(), 0);
    for round in 0..8 {
        let mut victim = start_victim(root.path());
        // Long enough to evict as well.
        thread::sleep(Duration::from_millis(200 + 7 * round));
        let error = refusal(try_open(root.path(), LIMIT));
        assert!(error.message().contains("used by another broker"), "{error}");
        victim.kill().unwrap();
        victim.wait().unwrap();
        temporaries += files(root.path()).iter().filter(|(path, _)| is_temporary(path)).count();

        let cache = open_with(root.path(), LIMIT);
        assert!(!files(root.path()).iter().any(|(path, _)| is_temporary(path)));
        assert!(cache.entries() > 0 && cache.bytes() <= LIMIT);
        assert_eq!(cache.bytes(), taken(root.path()));
        let mut hits = 0;
        for (thread, index) in (0..4).flat_map(|thread| (0..CHUNKS).map(move |index| (thread, index))) {
            let key = chunk(thread, index);
            if let Some(bytes) = read(&cache, &key) {
                assert!(bytes == bytes_of(&key, LENGTH), "{key:?}");
                hits += 1;
            }
        }
        // All that is there is whole.
        assert_eq!((hits, cache.metrics.faults.get()), (cache.entries(), 0));
    }
    assert!(temporaries > 0, "no write was under way at any kill");
}

fn is_temporary(path: &Path) -> bool {
    path.file_name().unwrap().to_string_lossy().starts_with(".tmp-")
}
