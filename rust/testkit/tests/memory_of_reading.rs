//! Native memory of reading: chunks that are decompressed, and manifests that swell. Measured for a whole process, so this is one test in one of its
//! own.

use std::{
    fs,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use alluvium_engine::Engine;
use alluvium_format::IndexType;
use alluvium_testkit::{
    broker::{assert_idle, copy, open_index, open_segment, read_once, read_to_end, settings_at},
    process::{ToolProcess, anonymous_bytes},
    segment::{Content, TestSegment},
};
use tempfile::tempdir;

const MIB: u64 = 1 << 20;

/// What the process may have besides the budget: connections and what has come of bodies that wait, the runtime, the allocator's gaps, and what the
/// readers of the test have in hand.
const BESIDES: u64 = 32 * MIB;

const SEGMENTS: u64 = 8;
const SEGMENT_BYTES: u64 = 32 * MIB;

/// An index that compresses to a hundredth: its manifest takes many times the bytes of its object.
const INDEX_BYTES: usize = 4 << 20;

#[test]
fn readers_of_many_segments_and_indexes_stay_within_the_memory_budget() {
    let server = ToolProcess::s3_server(env!("CARGO_BIN_EXE_alluvium-testkit")).expect("a server");
    let source = tempdir().expect("a directory");
    let segments: Vec<TestSegment> = (0..SEGMENTS)
        .map(|seed| {
            let content = [Content::Noise, Content::Json][usize::from(seed % 2 == 1)];
            let segment = TestSegment::write_content(source.path(), seed, SEGMENT_BYTES, content).expect("a segment");
            let index: Vec<u8> = (0..INDEX_BYTES / 8)
                .flat_map(|entry| (entry as u64).to_be_bytes())
                .collect();
            for file in [&segment.offset_index, &segment.time_index] {
                fs::write(file, &index).expect("an index");
            }
            segment
        })
        .collect();
    for (compression, budget) in [("none", 80 * MIB), ("zstd", 80 * MIB), ("zstd", 256 * MIB)] {
        let (number, prefix) = (budget.to_string(), format!("{compression}-{budget}/"));
        let settings = [
            ("memory.budget.bytes", number.as_str()),
            ("compression.type", compression),
            ("key.prefix", &prefix),
        ];
        let writer = Engine::open(settings_at(server.endpoint(), &settings)).expect("an instance");
        for segment in &segments {
            copy(&writer, segment).expect("a copy");
        }
        writer.close();
        let engine = Engine::open(settings_at(server.endpoint(), &settings)).expect("an instance");
        let over = AtomicBool::new(false);
        let mut most = 0;
        thread::scope(|threads| {
            let (engine, over, segments) = (&engine, &over, &segments);
            threads.spawn(move || {
                // One after the other, and from the begin: few manifests have room beside the chunks.
                for segment in segments.iter().cycle() {
                    if over.load(Ordering::Relaxed) {
                        break;
                    }
                    for index_type in [IndexType::Offset, IndexType::Timestamp] {
                        let index = open_index(engine, segment, index_type).expect("an index");
                        assert_eq!(read_to_end(&index, 1 << 20).expect("its bytes").len(), INDEX_BYTES);
                    }
                }
            });
            let readers: Vec<_> = segments
                .iter()
                .map(|segment| {
                    threads.spawn(move || {
                        let reader = open_segment(engine, segment, 0..u64::MAX).expect("a stream");
                        let mut read = 0;
                        while let Some(bytes) = read_once(&reader, 1 << 20).expect("bytes") {
                            read += bytes.len() as u64;
                        }
                        assert_eq!(read, segment.metadata.segment_size);
                    })
                })
                .collect();
            while !readers.iter().all(thread::ScopedJoinHandle::is_finished) {
                most = most.max(anonymous_bytes().expect("Linux"));
                thread::sleep(Duration::from_millis(2));
            }
            over.store(true, Ordering::Relaxed);
        });
        println!(
            "{compression}: at most {} MiB, with a budget of {} MiB",
            most / MIB,
            budget / MIB
        );
        assert!(most <= budget + BESIDES, "{most} bytes with a budget of {budget}");
        assert_idle(&engine);
        engine.close();
    }
}
