//! Many readers at once, in sequence and at random, over a store that fails now and then, with segments that are deleted under them and a
//! cache that is too small for all: every byte right, no limit exceeded, and nothing left in use at the end.
//!
//! `ALLUVIUM_STRESS_SECONDS` and `ALLUVIUM_STRESS_SEGMENT_MIB` make it longer and larger (`make stress`), `ALLUVIUM_SEED` another one.

use std::{
    env,
    fs::File,
    os::unix::fs::FileExt,
    path::Path,
    sync::{
        Mutex, RwLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use alluvium_engine::{Engine, ErrorKind, Result};
use alluvium_format::{IndexType, Uuid};
use alluvium_testkit::{
    broker::{
        assert_idle, copy, delete, metric, open_index, open_segment, read_once, read_to_end, server, settings_at,
    },
    proxy::{Chaos, FaultProxy, HttpFault, ProxyConfig},
    segment::{Content, TestSegment},
};
use rand::{Rng, RngExt, SeedableRng, rngs::StdRng};
use tempfile::tempdir;

const READERS: u64 = 24;
const SEGMENTS: u64 = 16;
const MIB: u64 = 1 << 20;

/// What a fetch of Kafka's asks for.
const FETCH: usize = 1 << 20;

fn setting(name: &str, usual: u64) -> u64 {
    env::var(name).map_or(usual, |text| text.parse().expect("a number"))
}

/// A segment of the test, which may be deleted and copied again under another id.
struct Stored {
    segment: RwLock<TestSegment>,
    log: File,
    index: Vec<u8>,
}

struct Stress {
    engine: std::sync::Arc<Engine>,
    segments: Vec<Stored>,
    over: AtomicBool,
    bytes: AtomicU64,
    failures: Mutex<Vec<ErrorKind>>,
}

impl Stress {
    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Failures that faults of the store and deletes explain. What they must not do is tell wrong bytes, or an early end.
    fn failed(&self, kind: ErrorKind) {
        let explained = [
            ErrorKind::NotFound,
            ErrorKind::Unavailable,
            ErrorKind::Throttled,
            ErrorKind::Timeout,
            ErrorKind::Corrupt,
        ];
        assert!(explained.contains(&kind), "{kind:?}");
        self.failures.lock().expect("a list").push(kind);
    }

    /// Reads `length` bytes as a broker does, each byte compared.
    fn fetch(&self, stored: &Stored, segment: &TestSegment, position: u64, length: usize) -> Result<()> {
        let reader = open_segment(&self.engine, segment, position..u64::MAX)?;
        let (mut at, mut expected) = (position, vec![0; FETCH]);
        let end = segment.metadata.segment_size.min(position + length as u64);
        let mut wanted = 17;
        while at < end {
            let Some(bytes) = read_once(&reader, wanted)? else {
                panic!("an end at {at} of {end}");
            };
            let expected = &mut expected[..bytes.len()];
            stored.log.read_exact_at(expected, at).expect("the file");
            assert!(bytes == *expected, "wrong bytes at {at} of {}", segment.metadata);
            at += bytes.len() as u64;
            wanted = FETCH;
        }
        self.bytes.fetch_add(at - position, Ordering::Relaxed);
        Ok(())
    }

    fn read_something(&self, random: &mut StdRng) -> Result<()> {
        let stored = &self.segments[random.random_range(0..self.segments.len())];
        let segment = stored.segment.read().expect("a segment").clone();
        let size = segment.metadata.segment_size;
        match random.random_range(0..10) {
            0 => {
                let reader = open_index(&self.engine, &segment, IndexType::Offset)?;
                assert!(read_to_end(&reader, 8192)? == stored.index, "a wrong index");
                Ok(())
            }
            1..5 => self.fetch(stored, &segment, random.random_range(0..size), FETCH),
            5 => {
                // A stream that nobody reads to its end, nor closes.
                std::mem::drop(open_segment(
                    &self.engine,
                    &segment,
                    random.random_range(0..size)..size,
                )?);
                Ok(())
            }
            _ => {
                let mut position = random.random_range(0..size);
                for _ in 0..random.random_range(4..24) {
                    if position >= size || self.is_over() {
                        break;
                    }
                    self.fetch(stored, &segment, position, FETCH)?;
                    position += FETCH as u64 - 4000;
                }
                Ok(())
            }
        }
    }

    fn delete_something(&self, random: &mut StdRng) {
        let stored = &self.segments[random.random_range(0..self.segments.len())];
        let mut segment = stored.segment.write().expect("a segment");
        // A failed one leaves objects that nobody asks for any more.
        let _ = delete(&self.engine, &segment, None);
        loop {
            segment.metadata.segment_id = Uuid::from_u64_pair(random.next_u64(), random.next_u64());
            if copy(&self.engine, &segment).is_ok() {
                return;
            }
        }
    }

    fn assert_limits(&self) {
        let of = |part, name| metric(&self.engine, part, name);
        let entries = of("cache", "bytes");
        assert!(entries <= of("cache", "capacity_bytes"), "{entries} bytes cached");
        let files = of("disk", "bytes");
        assert!(files <= of("disk", "capacity_bytes"), "{files} bytes on disk");
    }
}

fn segments(directory: &Path, engine: &Engine, size: u64) -> Vec<Stored> {
    let write = |seed: u64| {
        let content = [Content::Noise, Content::Json][usize::from(seed % 2 == 1)];
        let mut segment = TestSegment::write_content(directory, seed, size - seed * 1000, content).expect("a segment");
        // Two partitions, in which segments follow each other.
        segment.metadata.topic_id = Uuid::from_u64_pair(1, seed % 2);
        copy(engine, &segment).expect("a copy");
        Stored {
            log: File::open(&segment.log).expect("a log"),
            index: std::fs::read(&segment.offset_index).expect("an index"),
            segment: RwLock::new(segment),
        }
    };
    (0..SEGMENTS).map(write).collect()
}

fn chaos(seed: u64) -> Chaos {
    Chaos::new(seed, 0.03)
        .action(3, HttpFault::error(503, "SlowDown"))
        .action(3, HttpFault::error(500, "InternalError"))
        .action(3, HttpFault::Delay { ms: 200 })
        .action(2, HttpFault::DropReply { reset: true })
        .action(
            3,
            HttpFault::TruncateBody {
                bytes: 300_000,
                reset: false,
            },
        )
        .action(
            2,
            HttpFault::TruncateBody {
                bytes: 2_000_000,
                reset: true,
            },
        )
        .action(1, HttpFault::StallBody { bytes: 700_000 })
        .action(2, HttpFault::CorruptBody { at: 400_000 })
}

#[test]
#[expect(clippy::disallowed_methods, reason = "it runs for so long")]
fn many_readers_see_right_bytes_only_and_no_limit_is_exceeded() {
    let seed = setting("ALLUVIUM_SEED", 1);
    let seconds = setting("ALLUVIUM_STRESS_SECONDS", 8);
    let segment_mib = setting("ALLUVIUM_STRESS_SEGMENT_MIB", 8);
    eprintln!("ALLUVIUM_SEED={seed}");
    let (source, cache, server) = (
        tempdir().expect("a directory"),
        tempdir().expect("a directory"),
        server(),
    );
    let upstream = server
        .endpoint()
        .strip_prefix("http://")
        .expect("plain")
        .parse()
        .expect("an address");
    let proxy = FaultProxy::start_blocking(ProxyConfig::http(upstream)).expect("a proxy");
    let all = SEGMENTS * segment_mib * MIB;
    // Half of it is for fetches: a sixteenth of all in memory, a quarter on disk.
    let budget = (all / 8).max(48 * MIB).to_string();
    let disk = (all / 4).max(64 * MIB).to_string();
    let settings = settings_at(
        &proxy.endpoint(),
        &[
            ("memory.budget.bytes", budget.as_str()),
            ("cache.path", cache.path().to_str().expect("a path")),
            ("cache.size.bytes", disk.as_str()),
            ("upload.part.size.bytes", "5242880"),
            ("compression.type", "auto"),
            ("request.attempt.timeout.ms", "1000"),
            ("request.timeout.ms", "4000"),
            ("fetch.timeout.ms", "10000"),
        ],
    );
    let engine = Engine::open(settings).expect("an instance");
    let stress = Stress {
        segments: segments(source.path(), &engine, segment_mib * MIB),
        engine,
        over: AtomicBool::new(false),
        bytes: AtomicU64::new(0),
        failures: Mutex::default(),
    };
    proxy.chaos().start(chaos(seed)).expect("chaos");
    let begin = Instant::now();
    thread::scope(|scope| {
        let stress = &stress;
        let readers: Vec<_> = (0..READERS)
            .map(|reader| {
                scope.spawn(move || {
                    let mut random = StdRng::seed_from_u64(seed * 1000 + reader);
                    while !stress.is_over() {
                        if let Err(error) = stress.read_something(&mut random) {
                            stress.failed(error.kind());
                        }
                    }
                })
            })
            .collect();
        let deleter = scope.spawn(move || {
            let mut random = StdRng::seed_from_u64(seed);
            while !stress.is_over() {
                stress.delete_something(&mut random);
                thread::sleep(Duration::from_millis(200));
            }
        });
        while begin.elapsed() < Duration::from_secs(seconds) && !readers.iter().any(|reader| reader.is_finished()) {
            stress.assert_limits();
            thread::sleep(Duration::from_millis(10));
        }
        proxy.chaos().pause();
        stress.over.store(true, Ordering::Relaxed);
        deleter.join().expect("a deleter");
    });
    let failures = stress.failures.into_inner().expect("a list").len();
    let mib = stress.bytes.load(Ordering::Relaxed) / MIB;
    let hits = metric(&stress.engine, "disk", "hits_total");
    eprintln!("{mib} MiB read, {failures} reads failed, {hits} read from disk");
    assert!(mib > 100 && hits > 0, "{mib} MiB, {hits} from disk");
    assert_idle(&stress.engine);
    // What is stored is read whole.
    for stored in &stress.segments {
        let segment = stored.segment.read().expect("a segment").clone();
        let size = usize::try_from(segment.metadata.segment_size).expect("a length");
        let reader = open_segment(&stress.engine, &segment, 0..u64::MAX).expect("a stream");
        assert!(read_to_end(&reader, FETCH).expect("all of it").len() == size);
    }
    assert_idle(&stress.engine);
    stress.engine.close();
}
