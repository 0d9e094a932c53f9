//! What a read costs that needs no store: `make bench-parts`.
//!
//! Streams are opened and read as a broker does, on segments in a directory: `memory` finds its chunk in the cache in memory, `disk` in the one on disk
//! only, `store` in neither and reads it from the directory. The disk is the machine's page cache: its own speed is not measured.

#![expect(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

use std::{path::Path, sync::Arc};

use alluvium_engine::Engine;
use alluvium_testkit::{
    broker::{copy, metric, on_directory, open_segment, read_once, read_to_end, soon},
    segment::TestSegment,
};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use tempfile::{TempDir, tempdir};

const MIB: u64 = 1 << 20;
const SEGMENT_BYTES: u64 = 64 * MIB;

/// The header of a batch, that a broker reads first.
const HEADER_BYTES: usize = 17;

struct Bench {
    engine: Arc<Engine>,
    segment: TestSegment,
    _directories: [TempDir; 2],
}

impl Bench {
    fn new(settings: impl Fn(&Path) -> Vec<(String, String)>) -> Self {
        let directories = [tempdir().unwrap(), tempdir().unwrap()];
        let [root, other] = [directories[0].path(), directories[1].path()];
        let settings = settings(other);
        let pairs: Vec<(&str, &str)> = settings
            .iter()
            .map(|(key, value)| (key.as_str(), value.as_str()))
            .collect();
        let engine = on_directory(root, &pairs);
        let source = tempdir().unwrap();
        let segment = TestSegment::write(source.path(), 1, SEGMENT_BYTES).unwrap();
        copy(&engine, &segment).unwrap();
        Bench {
            engine,
            segment,
            _directories: directories,
        }
    }

    fn read(&self, chunk: u64) -> usize {
        let reader = open_segment(&self.engine, &self.segment, chunk * MIB..(chunk + 1) * MIB).unwrap();
        read_to_end(&reader, 1 << 20).unwrap().len()
    }
}

/// Every third chunk, so that nothing is loaded ahead.
fn scattered() -> impl FnMut() -> u64 {
    let mut chunk = 0;
    move || {
        chunk = (chunk + 27) % (SEGMENT_BYTES / MIB);
        chunk
    }
}

fn memory(criterion: &mut Criterion) {
    let bench = Bench::new(|_| Vec::new());
    for chunk in 0..SEGMENT_BYTES / MIB {
        bench.read(chunk);
    }
    let mut group = criterion.benchmark_group("memory");
    group.bench_function("open, 17 bytes, close", |bencher| {
        bencher.iter(|| {
            let reader = open_segment(&bench.engine, &bench.segment, 5 * MIB..u64::MAX).unwrap();
            read_once(&reader, HEADER_BYTES).unwrap()
        });
    });
    let open = || open_segment(&bench.engine, &bench.segment, 0..u64::MAX).unwrap();
    group.bench_function("17 bytes of an open stream", |bencher| {
        let mut reader = open();
        bencher.iter(|| {
            let bytes = read_once(&reader, HEADER_BYTES).unwrap();
            if bytes.is_none() {
                reader = open();
            }
            bytes
        });
    });
    group.throughput(Throughput::Bytes(MIB));
    group.bench_function("1 MiB", |bencher| {
        let mut next = scattered();
        bencher.iter(|| bench.read(next()));
    });
    group.finish();
}

fn behind_memory(criterion: &mut Criterion) {
    let small = || {
        [("cache.memory.bytes", "8388608"), ("memory.budget.bytes", "268435456")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .to_vec()
    };
    let mut group = criterion.benchmark_group("behind memory");
    group.throughput(Throughput::Bytes(MIB));
    let bench = Bench::new(|cache| {
        let mut settings = small();
        settings.push((
            "cache.path".to_owned(),
            cache.join("cache").to_str().unwrap().to_owned(),
        ));
        settings
    });
    let chunks = SEGMENT_BYTES / MIB;
    // Writes are left out when many are waiting, so it takes more than one pass.
    let all_on_disk = || {
        for chunk in 0..chunks {
            bench.read(chunk);
        }
        metric(&bench.engine, "disk", "entries") > i64::try_from(chunks).unwrap()
    };
    assert!(soon(all_on_disk));
    group.bench_function("disk, 1 MiB", |bencher| {
        let mut next = scattered();
        bencher.iter(|| bench.read(next()));
    });
    assert!(metric(&bench.engine, "disk", "hits_total") > 0);
    let bench = Bench::new(|_| small());
    group.bench_function("store, 1 MiB", |bencher| {
        let mut next = scattered();
        bencher.iter(|| bench.read(next()));
    });
    group.finish();
}

criterion_group!(benches, memory, behind_memory);
criterion_main!(benches);
