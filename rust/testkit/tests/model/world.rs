//! The system under test, and beside it what Kafka may expect of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::PathBuf,
    sync::Arc,
    thread,
    time::Duration,
};

use alluvium_engine::{
    Engine, Error, ErrorKind, Outcome, Result, SegmentRef, Task,
    config::{Config, StartupProbe},
};
use alluvium_format::{IndexType, KeyPrefix, SegmentKeys};
use alluvium_testkit::{
    broker::{
        PATIENCE, assert_idle, copy_request, finish, metric, opened, read_to_end, segment_ref, server, settings_at,
        soon,
    },
    proxy::{Availability, Chaos, FaultProxy, HttpFault, ProxyConfig},
    s3_server::S3Server,
    segment::{Content, TestSegment},
};
use rand::{RngExt, rngs::StdRng, seq::IndexedRandom};
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// Bytes asked for at a time: as Kafka does.
const PIECE: usize = 1 << 20;

/// When the instance comes back to the keys of copies with an unknown outcome.
const JANITOR_DISTANCES: [Duration; 3] = [
    Duration::from_millis(100),
    Duration::from_millis(400),
    Duration::from_millis(1500),
];

/// What the bucket must hold of a segment once all is quiet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Both objects, whole.
    Stored,
    /// Nothing.
    Absent,
    /// Whatever a crash or a failed delete left; Kafka will delete it.
    Unknown,
}

struct Known {
    segment: TestSegment,
    log: Vec<u8>,
    fate: Fate,
    custom: Option<Vec<u8>>,
    copy: Option<Task>,
}

pub(crate) struct World {
    segments: Vec<Known>,
    failures: BTreeMap<ErrorKind, u64>,
    errors: Vec<Error>,
    settings: Vec<(String, String)>,
    engine: Option<Arc<Engine>>,
    proxy: FaultProxy,
    server: S3Server,
    runtime: Runtime,
    source: TempDir,
}

impl World {
    /// The seed chooses how segments are stored.
    pub(crate) fn new(seed: u64) -> Self {
        let server = server();
        let upstream = server.endpoint().strip_prefix("http://").unwrap().parse().unwrap();
        let proxy = FaultProxy::start_blocking(ProxyConfig::http(upstream)).unwrap();
        let key = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/v1/private-key.pem");
        let mut extra = vec![
            ("key.prefix", "model/"),
            ("chunk.size.bytes", "65536"),
            ("upload.part.size.bytes", "5242880"),
            ("upload.threads", "2"),
            ("request.attempt.timeout.ms", "500"),
            ("request.timeout.ms", "2000"),
            ("copy.timeout.ms", "20000"),
            ("fetch.timeout.ms", "5000"),
            ("delete.timeout.ms", "5000"),
            ("close.timeout.ms", "5000"),
        ];
        if seed % 2 == 1 {
            extra.push(("compression.type", "zstd"));
        }
        if seed % 4 >= 2 {
            extra.push(("encryption.enabled", "true"));
            extra.push(("encryption.key.pair.id", "model"));
            extra.push(("encryption.key.pairs.model.private.key.file", key.to_str().unwrap()));
        }
        if seed % 4 == 3 {
            // So little that chunks have to be given up between two parts and made again.
            extra.push(("cache.memory.bytes", "0"));
            extra.push(("memory.budget.bytes", "18874368"));
        }
        let settings = settings_at(&proxy.endpoint(), &extra);
        let mut world = World {
            segments: Vec::new(),
            failures: BTreeMap::new(),
            errors: Vec::new(),
            settings,
            engine: None,
            proxy,
            server,
            runtime: tokio::runtime::Builder::new_multi_thread()
                .worker_threads(1)
                .enable_all()
                .build()
                .unwrap(),
            source: tempfile::tempdir().unwrap(),
        };
        world.open();
        world
    }

    fn open(&mut self) {
        let config = Config {
            janitor_distances: JANITOR_DISTANCES.to_vec(),
            startup_probe: StartupProbe::Off,
            ..Config::parse(self.settings.clone()).unwrap()
        };
        self.engine = Some(Engine::with_config(config).unwrap());
    }

    fn engine(&self) -> &Engine {
        self.engine.as_deref().expect("open between the steps")
    }

    /// Each request is hit with that probability, by one of the faults that stores and networks really show.
    pub(crate) fn chaos(&mut self, seed: u64, probability: f64) {
        let (late, longest) = (HttpFault::Delay { ms: 200 }, HttpFault::SlowReply { ms: 1000 });
        let chaos = Chaos::new(seed, probability)
            .action(4, HttpFault::error(503, "SlowDown"))
            .action(4, HttpFault::error(500, "InternalError"))
            .action(
                1,
                HttpFault::Error {
                    status: 502,
                    code: String::new(),
                    retry_after: None,
                    html: true,
                },
            )
            .action(
                1,
                HttpFault::Error {
                    status: 503,
                    code: "SlowDown".to_owned(),
                    retry_after: Some(1),
                    html: false,
                },
            )
            .action(
                2,
                HttpFault::OkWithError {
                    code: "InternalError".to_owned(),
                    commit: false,
                },
            )
            .action(
                2,
                HttpFault::OkWithError {
                    code: "InternalError".to_owned(),
                    commit: true,
                },
            )
            .action(3, late)
            .action(1, longest)
            .action(1, HttpFault::Stall)
            .action(3, HttpFault::DropRequest { reset: false })
            .action(3, HttpFault::DropRequest { reset: true })
            .action(4, HttpFault::DropReply { reset: false })
            .action(4, HttpFault::DropReply { reset: true })
            .action(
                3,
                HttpFault::TruncateBody {
                    bytes: 100_000,
                    reset: false,
                },
            )
            .action(
                2,
                HttpFault::TruncateBody {
                    bytes: 100_000,
                    reset: true,
                },
            )
            .action(1, HttpFault::StallBody { bytes: 100_000 })
            .action(2, HttpFault::CorruptBody { at: 100_000 });
        self.proxy.chaos().start(chaos).unwrap();
    }

    pub(crate) fn chaos_off(&mut self) {
        self.proxy.chaos().pause();
    }

    /// Faults that chance has chosen since it was told how likely they are.
    pub(crate) fn faults_of_this_weather(&self) -> u64 {
        self.proxy.chaos().status().map_or(0, |status| status.all_hits())
    }

    pub(crate) fn new_segment(&mut self, random: &mut StdRng) -> usize {
        let number = self.segments.len();
        let size = match random.random_range(0..20) {
            0 => 1,
            1..=2 => random.random_range(5 << 20..12 << 20),
            _ => random.random_range(1..300_000),
        };
        let content = *[Content::Json, Content::Noise].choose(random).unwrap();
        let segment = TestSegment::write_content(self.source.path(), number as u64, size, content).unwrap();
        self.segments.push(Known {
            log: segment.log_bytes().unwrap(),
            segment,
            fate: Fate::Absent,
            custom: None,
            copy: None,
        });
        number
    }

    /// A segment whose copy has ended, at random.
    pub(crate) fn any_finished(&mut self, random: &mut StdRng) -> Option<usize> {
        self.collect(Duration::ZERO);
        let finished: Vec<usize> = (0..self.segments.len())
            .filter(|number| self.segments[*number].copy.is_none())
            .collect();
        finished.choose(random).copied()
    }

    pub(crate) fn begin_copy(&mut self, number: usize) {
        let segment = &self.segments[number].segment;
        let request = copy_request(segment);
        self.segments[number].copy = Some(self.engine().start_copy(request));
    }

    /// Kafka's thread is interrupted, as at a change of leader.
    pub(crate) fn cancel_soon(&mut self, number: usize, after: Duration) {
        thread::sleep(after);
        if let Some(copy) = &self.segments[number].copy {
            copy.cancel();
        }
    }

    pub(crate) fn copies_running(&mut self) -> usize {
        self.collect(Duration::ZERO);
        self.segments.iter().filter(|known| known.copy.is_some()).count()
    }

    pub(crate) fn wait_for_a_copy(&mut self) {
        let before = self.copies_running();
        for _ in 0..PATIENCE.as_millis() / 2 {
            if before == 0 || self.copies_running() < before {
                return;
            }
            thread::sleep(Duration::from_millis(2));
        }
        panic!("no copy ends");
    }

    pub(crate) fn wait_for_copies(&mut self) {
        self.collect(PATIENCE);
        assert_eq!(self.copies_running(), 0, "copies that do not end");
    }

    /// Takes the results of copies that have ended, waiting for each at most so long.
    fn collect(&mut self, at_most: Duration) {
        for known in &mut self.segments {
            let Some(outcome) = known.copy.as_ref().and_then(|copy| copy.wait(at_most)) else {
                continue;
            };
            known.copy = None;
            match outcome {
                Ok(Outcome::Copied(custom)) => {
                    known.fate = Fate::Stored;
                    known.custom = Some(custom);
                }
                Ok(other) => panic!("{other:?}"),
                // Nothing may be left, although nobody calls delete: Kafka does not after a copy that it cancelled.
                Err(error) => {
                    *self.failures.entry(error.kind()).or_default() += 1;
                    self.errors.push(error);
                    known.fate = Fate::Absent;
                }
            }
        }
    }

    pub(crate) fn fetch(&mut self, number: usize, random: &mut StdRng) {
        let known = &self.segments[number];
        let size = known.segment.metadata.segment_size;
        let begin = random.random_range(0..size);
        let end = random.random_range(begin..size) + 1;
        let opened = opened(&self.engine().start_open_segment(known.reference(), begin..end));
        let read = opened.and_then(|reader| read_to_end(&reader, PIECE));
        let expected = &known.log[usize::try_from(begin).unwrap()..usize::try_from(end).unwrap()];
        self.judge(number, read, expected);
    }

    pub(crate) fn fetch_index(&mut self, number: usize) {
        let known = &self.segments[number];
        let opened = opened(&self.engine().start_open_index(known.reference(), IndexType::Timestamp));
        let read = opened.and_then(|reader| read_to_end(&reader, PIECE));
        let expected = fs::read(&known.segment.time_index).unwrap();
        self.judge(number, read, &expected);
    }

    fn judge(&self, number: usize, read: Result<Vec<u8>>, expected: &[u8]) {
        let known = &self.segments[number];
        match (read, known.fate) {
            (Ok(bytes), Fate::Stored | Fate::Unknown) => assert!(bytes == expected, "wrong bytes of segment {number}"),
            (Ok(_), Fate::Absent) => panic!("segment {number} does not exist, and was read"),
            (Err(error), Fate::Stored) => {
                // A failure passes; a wrong verdict would not.
                let kinds = [
                    ErrorKind::NotFound,
                    ErrorKind::Invalid,
                    ErrorKind::Unsupported,
                    ErrorKind::Closed,
                ];
                assert!(!kinds.contains(&error.kind()), "segment {number} is stored: {error}");
            }
            (Err(_), Fate::Absent | Fate::Unknown) => {}
        }
    }

    pub(crate) fn delete(&mut self, number: usize) {
        let outcome = finish(&self.engine().start_delete(self.segments[number].reference()));
        let known = &mut self.segments[number];
        match outcome {
            Ok(_) => {
                known.fate = Fate::Absent;
                known.custom = None;
            }
            Err(_) if known.fate == Fate::Absent => {}
            Err(_) => known.fate = Fate::Unknown,
        }
    }

    /// The network goes, and the broker with it before it comes back: no clean-up gets through. Then a new broker starts.
    pub(crate) fn crash(&mut self) {
        self.available(Availability::Down);
        let engine = self.engine.take().expect("open between the steps");
        engine.close();
        for known in &mut self.segments {
            if let Some(copy) = known.copy.take() {
                known.fate = match copy.wait(PATIENCE).expect("a closed instance ends its copies") {
                    Ok(Outcome::Copied(custom)) => {
                        known.custom = Some(custom);
                        Fate::Stored
                    }
                    _ => Fate::Unknown,
                };
            }
            // What the janitor had still to do is lost with it.
            if known.fate == Fate::Absent {
                known.fate = Fate::Unknown;
            }
        }
        self.available(Availability::Up);
        self.open();
    }

    pub(crate) fn cut_off(&mut self, so_long: Duration) {
        self.available(Availability::Down);
        thread::sleep(so_long);
        self.available(Availability::Up);
    }

    fn available(&self, availability: Availability) {
        self.runtime
            .block_on(self.proxy.set_availability(availability))
            .unwrap();
    }

    /// With a store that works again, Kafka deletes what it is not sure of; then the bucket is compared.
    pub(crate) fn assert_as_the_model_says(&mut self) {
        self.wait_for_copies();
        self.wait_until_idle();
        for number in 0..self.segments.len() {
            if self.segments[number].fate == Fate::Unknown {
                let outcome = finish(&self.engine().start_delete(self.segments[number].reference()));
                outcome.expect("a delete without faults");
                self.segments[number].fate = Fate::Absent;
            }
        }
        let prefix = KeyPrefix::new("model/").unwrap();
        let mut expected = BTreeSet::new();
        for known in self.segments.iter().filter(|known| known.fate == Fate::Stored) {
            let keys = SegmentKeys::new(&prefix, &known.segment.metadata);
            expected.extend([keys.log, keys.manifest]);
        }
        assert_eq!(self.objects(), expected);
        assert_eq!(self.server.counters().multipart_uploads_open(), 0);
        for (number, known) in self.segments.iter().enumerate() {
            if known.fate == Fate::Stored {
                let whole = 0..known.segment.metadata.segment_size;
                let reader = opened(&self.engine().start_open_segment(known.reference(), whole)).unwrap();
                assert!(read_to_end(&reader, PIECE).unwrap() == known.log, "segment {number}");
            }
        }
        self.wait_until_idle();
    }

    fn objects(&self) -> BTreeSet<String> {
        let store = self.engine().store();
        let mut keys = BTreeSet::new();
        loop {
            let last = keys.last().cloned();
            let page = self.engine().block_on(store.list("", last.as_deref(), 1000)).unwrap();
            keys.extend(page.objects.into_iter().map(|object| object.key));
            if !page.has_more {
                return keys;
            }
        }
    }

    /// Waits for the janitor and for what goes on behind the calls; then every gauge must be back at zero.
    fn wait_until_idle(&self) {
        assert!(
            soon(|| metric(self.engine(), "copy", "cleanups_pending") == 0),
            "clean-ups that do not end"
        );
        assert_idle(self.engine());
    }

    pub(crate) fn count(&self, fate: Fate) -> usize {
        self.segments.iter().filter(|known| known.fate == fate).count()
    }

    /// Copies that failed, by kind.
    pub(crate) fn failures(&self) -> &BTreeMap<ErrorKind, u64> {
        &self.failures
    }

    pub(crate) fn last_error(&self, kind: ErrorKind) -> Option<&Error> {
        self.errors.iter().rev().find(|error| error.kind() == kind)
    }

    pub(crate) fn close(&mut self) {
        if let Some(engine) = self.engine.take() {
            engine.close();
        }
        self.proxy.reset_connections();
    }
}

impl Known {
    fn reference(&self) -> SegmentRef {
        segment_ref(&self.segment, self.custom.clone())
    }
}
