//! `list` and `verify` on a store of each state that an operator meets.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use alluvium_format::{KeyPrefix, SegmentKeys};
use alluvium_testkit::{
    broker::{copy, on_directory},
    segment::TestSegment,
};
use tempfile::{TempDir, tempdir};

const SIZE: u64 = 100_000;

struct Bucket {
    root: TempDir,
    source: TempDir,
}

impl Bucket {
    fn new() -> Self {
        Bucket {
            root: tempdir().unwrap(),
            source: tempdir().unwrap(),
        }
    }

    /// Copies a segment; the path of its `.log` object.
    fn copy(&self, seed: u64, settings: &[(&str, &str)]) -> PathBuf {
        let segment = TestSegment::write(self.source.path(), seed, SIZE).unwrap();
        copy(&on_directory(self.root.path(), settings), &segment).unwrap();
        self.root
            .path()
            .join(SegmentKeys::new(&KeyPrefix::new("").unwrap(), &segment.metadata).log)
    }

    /// The exit code of a command, and what it said.
    fn run(&self, command: &str) -> (i32, String) {
        let root = format!("file.path={}", self.root.path().display());
        let output = Command::new(env!("CARGO_BIN_EXE_alluvium"))
            .args([command, "--set", "storage.type=file", "--set", &root])
            .output()
            .unwrap();
        let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        (output.status.code().unwrap(), said)
    }
}

fn manifest(log: &Path) -> PathBuf {
    log.with_extension("manifest")
}

#[test]
fn verify_tells_right_bytes_from_wrong_ones_and_from_those_it_cannot_read() {
    let bucket = Bucket::new();
    let right = bucket.copy(1, &[]);
    let (code, said) = bucket.run("verify");
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("1 segments: 1 Ok"), "{said}");

    let key = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/v1/private-key.pem");
    let encryption = [
        ("encryption.enabled", "true"),
        ("encryption.key.pair.id", "a"),
        ("encryption.key.pairs.a.private.key.file", key.to_str().unwrap()),
    ];
    bucket.copy(2, &encryption);
    let (code, said) = bucket.run("verify");
    assert_eq!(code, 2, "{said}");
    assert!(
        said.contains("2 segments: 1 Ok, 1 Unchecked") && said.contains("encryption.key.pairs.a"),
        "{said}"
    );

    let changed = bucket.copy(3, &[]);
    let mut bytes = fs::read(&changed).unwrap();
    bytes[50_000] ^= 1;
    fs::write(&changed, bytes).unwrap();
    fs::remove_file(bucket.copy(4, &[])).unwrap();
    let torn = manifest(&bucket.copy(5, &[]));
    let whole = fs::read(&torn).unwrap();
    fs::write(&torn, &whole[..whole.len() - 1]).unwrap();
    let (code, said) = bucket.run("verify");
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("5 segments: 1 Ok, 3 Bad, 1 Unchecked"), "{said}");
    assert!(said.contains("no .log"), "{said}");
    assert_eq!(fs::metadata(right).unwrap().len(), SIZE);
}

#[test]
fn list_tells_stored_bytes_and_needs_no_key_pair() {
    let bucket = Bucket::new();
    let log = bucket.copy(1, &[("compression.type", "zstd")]);
    let lost = bucket.copy(2, &[]);
    let unfinished = bucket.copy(3, &[]);
    fs::remove_file(&lost).unwrap();
    fs::remove_file(manifest(&unfinished)).unwrap();
    let (code, said) = bucket.run("list");
    assert_eq!(code, 0, "{said}");
    let lengths: Vec<&str> = said
        .lines()
        .filter_map(|line| line.split_once('\t'))
        .map(|(length, _)| length)
        .collect();
    assert_eq!(
        lengths,
        [fs::metadata(&log).unwrap().len().to_string().as_str(), "no .log"],
        "{said}"
    );
    let bytes = [&log, &manifest(&log), &manifest(&lost)].map(|path| fs::metadata(path).unwrap().len());
    assert!(
        said.ends_with(&format!("2 segments, {} bytes\n", bytes.iter().sum::<u64>())),
        "{said}"
    );
}
