//! What the format costs a chunk and a manifest: `make bench-parts`.
//!
//! * `store`: a chunk of 1 MiB as it is in a segment, to the bytes that are stored. `restore`: back, checksums verified.
//! * `manifest`: of a segment of 256 MiB with its indexes, to the object and back.
//! * `crc32`: the raw limit of everything here: one checksum over a chunk.

#![expect(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

use std::{fs, hint::black_box, path::Path};

use alluvium_format::{
    Chunk, ChunkIndex, ChunkSize, ChunkTable, Codec, Coding, Compressor, Crc32, DataKey, Encryption, IndexPayload,
    IndexType, Manifest, NoKeys, WrappedKey, on_heap,
};
use alluvium_testkit::segment::{Content, TestSegment};
use bytes::Bytes;
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};

const CHUNK_BYTES: u32 = 1 << 20;
const SEGMENT_BYTES: u64 = 256 << 20;

/// The level that segments are compressed with by default.
const LEVEL: i32 = 1;

fn encryption() -> Encryption {
    Encryption {
        wrapped: WrappedKey {
            key_id: "key-1".to_owned(),
            bytes: vec![7; 256],
        },
        data_key: DataKey::new([7; 32]),
    }
}

/// A segment's manifest, and the stored bytes of its first chunk.
fn stored(segment: &TestSegment, coding: &Coding) -> (Manifest, Vec<u8>) {
    let log = segment.log_bytes().unwrap();
    let mut compressor = Compressor::new(LEVEL);
    let (mut first, mut bytes) = (Vec::new(), Vec::new());
    let chunks: Vec<Chunk> = (0..)
        .zip(log.chunks(CHUNK_BYTES as usize))
        .map(|(index, plain)| {
            let (segment_id, index) = (segment.metadata.segment_id, ChunkIndex(index));
            let chunk = coding.store_chunk(segment_id, index, plain, &mut compressor, &mut bytes);
            if index.0 == 0 {
                first.clone_from(&bytes);
            }
            chunk.unwrap()
        })
        .collect();
    let table = ChunkTable::new(ChunkSize::new(CHUNK_BYTES).unwrap(), log.len() as u64, chunks).unwrap();
    let index = |index_type, path: &Path| IndexPayload::new(index_type, Bytes::from(fs::read(path).unwrap()));
    let indexes = vec![
        index(IndexType::Offset, &segment.offset_index),
        index(IndexType::Timestamp, &segment.time_index),
        index(IndexType::ProducerSnapshot, &segment.producer_snapshot),
        IndexPayload::new(IndexType::LeaderEpoch, segment.leader_epochs.clone()),
    ];
    let metadata = segment.metadata.clone();
    (
        Manifest::new(metadata, table, coding.clone(), indexes, "bench").unwrap(),
        first,
    )
}

fn chunks(criterion: &mut Criterion) {
    let directory = tempfile::tempdir().unwrap();
    let segment = TestSegment::write_content(directory.path(), 1, 4 << 20, Content::Json).unwrap();
    let log = segment.log_bytes().unwrap();
    let plain = &log[..CHUNK_BYTES as usize];
    let mut group = criterion.benchmark_group("chunk");
    group.throughput(Throughput::Bytes(u64::from(CHUNK_BYTES)));
    group.bench_function("crc32", |bencher| bencher.iter(|| Crc32::of(black_box(plain))));
    let codings = [
        ("plain", Codec::None, None),
        ("zstd", Codec::Zstd, None),
        ("encrypted", Codec::None, Some(encryption())),
        ("zstd encrypted", Codec::Zstd, Some(encryption())),
    ];
    for (name, codec, encryption) in codings {
        let coding = Coding { codec, encryption };
        let (manifest, first) = stored(&segment, &coding);
        let (mut compressor, mut bytes) = (Compressor::new(LEVEL), Vec::new());
        group.bench_function(format!("store {name}"), |bencher| {
            bencher.iter(|| {
                let id = segment.metadata.segment_id;
                coding.store_chunk(id, ChunkIndex(0), black_box(plain), &mut compressor, &mut bytes)
            });
        });
        group.bench_function(format!("restore {name}"), |bencher| {
            bencher.iter_batched(
                || first.clone(),
                |stored| manifest.restore_chunk(ChunkIndex(0), stored, on_heap).unwrap(),
                BatchSize::LargeInput,
            );
        });
    }
    group.finish();
}

fn manifests(criterion: &mut Criterion) {
    let directory = tempfile::tempdir().unwrap();
    let segment = TestSegment::write(directory.path(), 2, SEGMENT_BYTES).unwrap();
    let (manifest, _) = stored(&segment, &Coding::default());
    let object = manifest.encode(None).unwrap().object;
    let mut group = criterion.benchmark_group("manifest");
    group.throughput(Throughput::Bytes(object.len() as u64));
    group.bench_function("encode", |bencher| {
        bencher.iter(|| black_box(&manifest).encode(None).unwrap())
    });
    group.bench_function("decode", |bencher| {
        bencher.iter(|| Manifest::decode(black_box(object.clone()), &NoKeys, on_heap).unwrap());
    });
    group.finish();
}

criterion_group!(benches, chunks, manifests);
criterion_main!(benches);
