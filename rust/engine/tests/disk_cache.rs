//! The disk tier behind real reads: what it saves, what it survives, and that it never gives a wrong byte.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    fs,
    path::{Path, PathBuf},
};

use alluvium_engine::{Engine, ErrorKind};
use alluvium_format::IndexType;
use alluvium_testkit::{
    broker::*,
    s3_server::{Operation, S3Server},
    segment::{Content, TestSegment},
};
use tempfile::{TempDir, tempdir};

const MIB: u64 = 1 << 20;

/// A server with a segment, and a directory for the cache.
struct Bench {
    server: S3Server,
    segment: TestSegment,
    log: Vec<u8>,
    cache: TempDir,
    _source: TempDir,
}

impl Bench {
    fn new(coding: &[(&str, &str)]) -> Self {
        let (server, source) = (server(), tempdir().unwrap());
        let segment = TestSegment::write_content(source.path(), 5, 6 * MIB + 1, Content::Json).unwrap();
        let settings = [coding, &[("chunk.size.bytes", "1048576")]].concat();
        copy(&on_server(&server, &settings), &segment).unwrap();
        Bench {
            server,
            log: segment.log_bytes().unwrap(),
            segment,
            cache: tempdir().unwrap(),
            _source: source,
        }
    }

    /// An instance that finds what an earlier one left on disk, and nothing in memory.
    fn engine(&self, extra: &[(&str, &str)]) -> std::sync::Arc<Engine> {
        let path = self.cache.path().to_str().unwrap();
        let settings = [&[("chunk.size.bytes", "1048576"), ("cache.path", path)], extra].concat();
        on_server(&self.server, &settings)
    }

    /// Reads everything, and gives the number of GETs that it took.
    fn read(&self, engine: &Engine) -> u64 {
        self.server.counters().reset();
        let index = read_to_end(&open_index(engine, &self.segment, IndexType::Offset).unwrap(), 8192).unwrap();
        assert!(index == fs::read(&self.segment.offset_index).unwrap());
        assert!(read_segment(engine, &self.segment, 0..u64::MAX).unwrap() == self.log);
        self.server.counters().requests(Operation::GetObject)
    }

    /// Reads everything with an instance that then waits until all of it is on disk.
    fn fill(&self, extra: &[(&str, &str)]) {
        let engine = self.engine(extra);
        assert!(self.read(&engine) >= 2);
        assert!(
            soon(|| metric(&engine, "disk", "entries") == 8),
            "{}",
            metric(&engine, "disk", "entries")
        );
        assert_idle(&engine);
        engine.close();
    }

    fn files(&self) -> Vec<PathBuf> {
        let mut files = Vec::new();
        let mut folders = vec![self.cache.path().join("segments")];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let entry = entry.unwrap();
                if entry.file_type().unwrap().is_dir() {
                    folders.push(entry.path());
                } else {
                    files.push(entry.path());
                }
            }
        }
        files.sort();
        files
    }
}

fn key_settings(key: &Path) -> Vec<(&str, &str)> {
    vec![
        ("encryption.enabled", "true"),
        ("encryption.key.pair.id", "a"),
        ("encryption.key.pairs.a.private.key.file", key.to_str().unwrap()),
    ]
}

#[test]
fn what_was_read_before_a_restart_costs_no_request_after_it() {
    let key = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/v1/private-key.pem");
    let encryption = key_settings(&key);
    let zstd = vec![("compression.type", "zstd")];
    for coding in [vec![], zstd.clone(), encryption.clone(), [zstd, encryption].concat()] {
        let bench = Bench::new(&coding);
        bench.fill(&coding);
        let engine = bench.engine(&coding);
        assert_eq!(bench.read(&engine), 0, "{coding:?}");
        assert_eq!(metric(&engine, "disk", "faults_total"), 0, "{coding:?}");
        assert_idle(&engine);
        if coding.iter().any(|(name, _)| *name == "encryption.enabled") {
            let word = b"user_agent";
            for file in bench.files() {
                let bytes = fs::read(&file).unwrap();
                assert!(
                    !bytes.windows(word.len()).any(|window| window == word),
                    "{}",
                    file.display()
                );
            }
        }
    }
}

#[test]
fn a_file_that_is_not_what_it_was_costs_a_request_and_never_a_wrong_byte() {
    let bench = Bench::new(&[]);
    bench.fill(&[]);
    let files = bench.files();
    for (number, file) in files.iter().enumerate() {
        let mut bytes = fs::read(file).unwrap();
        match number % 4 {
            0 => bytes.truncate(bytes.len() / 2),
            1 => bytes.clear(),
            2 => bytes.reverse(),
            _ => {
                let middle = bytes.len() / 2;
                bytes[middle] ^= 1;
            }
        }
        fs::write(file, bytes).unwrap();
    }
    let engine = bench.engine(&[]);
    assert!(bench.read(&engine) >= 2);
    assert!(metric(&engine, "disk", "faults_total") + metric(&engine, "disk", "misses_total") > 0);
    assert!(soon(|| metric(&engine, "disk", "entries") == 8));
    engine.close();
    // The right bytes are in their place again.
    assert_eq!(bench.read(&bench.engine(&[])), 0);
}

#[test]
fn a_deleted_segment_leaves_nothing_on_disk() {
    let bench = Bench::new(&[]);
    bench.fill(&[]);
    let engine = bench.engine(&[]);
    bench.read(&engine);
    delete(&engine, &bench.segment, None).unwrap();
    assert!(soon(|| bench.files().is_empty()), "{:?}", bench.files());
    assert_eq!(metric(&engine, "disk", "bytes"), 0);
    assert_eq!(kind(open_segment(&engine, &bench.segment, 0..1)), ErrorKind::NotFound);
}

#[test]
fn a_cache_directory_that_is_deleted_or_foreign_is_no_failed_read() {
    let bench = Bench::new(&[]);
    bench.fill(&[]);
    let engine = bench.engine(&[("cache.memory.bytes", "0")]);
    fs::remove_dir_all(bench.cache.path()).unwrap();
    for _ in 0..2 {
        assert!(bench.read(&engine) >= 1);
    }
    assert_idle(&engine);
    engine.close();

    let foreign = tempdir().unwrap();
    fs::write(foreign.path().join("somebody's data"), "precious").unwrap();
    let settings = settings_for(&bench.server, &[("cache.path", foreign.path().to_str().unwrap())]);
    let error = Engine::open(settings).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.message().contains("cache.path"), "{error}");
    assert_eq!(
        fs::read_to_string(foreign.path().join("somebody's data")).unwrap(),
        "precious"
    );
}

/// Writes are skipped when too many come at once, so what is on disk has holes.
#[test]
fn holes_on_disk_cost_what_they_hold_and_no_more() {
    let bench = Bench::new(&[]);
    bench.fill(&[]);
    for hole in [1, 3, 4] {
        let name = format!("chunk-{hole:05}");
        let file = bench.files().into_iter().find(|file| file.ends_with(&name)).unwrap();
        fs::remove_file(file).unwrap();
    }
    let engine = bench.engine(&[]);
    bench.server.counters().reset();
    // As a broker reads, so that it is known to go on.
    let step = 256 * 1024;
    for (position, expected) in (0u64..).step_by(step).zip(bench.log.chunks(step)) {
        let end = position + expected.len() as u64;
        assert!(
            read_segment(&engine, &bench.segment, position..end).unwrap() == expected,
            "{position}"
        );
    }
    assert_idle(&engine);
    let bytes = bench.server.counters().bytes_out();
    assert!(
        (3 * MIB..3 * MIB + 100_000).contains(&bytes),
        "{bytes} bytes for three chunks"
    );
    assert_eq!(metric(&engine, "errors", "corrupt_total"), 0);
}
