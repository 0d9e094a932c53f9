//! Faults of the store, of the network and of credentials, as the operations meet them: behind a fault proxy, on real sockets.
//!
//! The bucket is looked at past the proxy. Upper bounds of times have slack for a loaded machine.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod away;
mod cancels;
mod cleanup;
mod copies;
mod credentials;
mod fetches;
mod log;
mod start;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use alluvium_engine::{Engine, config::Config};
use alluvium_testkit::{
    broker::*,
    proxy::{Availability, FaultKind, FaultProxy, HttpFault, ProxyConfig},
    s3_server::{FaultRule, Operation, S3Server},
    segment::TestSegment,
};
use tempfile::{TempDir, tempdir};

const MIB: u64 = 1 << 20;

/// Parts of 5 MiB, chunks of 1 MiB, and deadlines that a test can wait for.
const QUICK: &[(&str, &str)] = &[
    ("chunk.size.bytes", "1048576"),
    ("upload.part.size.bytes", "5242880"),
    ("request.attempt.timeout.ms", "1000"),
    ("request.timeout.ms", "4000"),
    ("fetch.timeout.ms", "5000"),
    ("copy.timeout.ms", "30000"),
];

/// Longest that anything is waited for which happens by itself.
const LONG: Duration = Duration::from_secs(30);

/// An instance, a server, and what lies between them.
struct Bench {
    engine: Arc<Engine>,
    /// Another one, past the proxy.
    witness: Arc<Engine>,
    proxy: FaultProxy,
    server: S3Server,
    source: TempDir,
}

impl Bench {
    fn new() -> Self {
        Self::with(&[], |_| {})
    }

    fn with(extra: &[(&str, &str)], change: impl FnOnce(&mut Config)) -> Self {
        let server = server();
        let address = server.endpoint().trim_start_matches("http://").parse().unwrap();
        let proxy = FaultProxy::start_blocking(ProxyConfig::http(address)).unwrap();
        let endpoint = proxy.endpoint();
        let settings = [QUICK, &[("s3.endpoint", endpoint.as_str())], extra].concat();
        let mut config = Config::parse(settings_for(&server, &settings)).unwrap();
        // A part that hangs is given up as soon as anything else.
        config.policies.min_bytes_per_second = 16 << 20;
        config.policies.pause_first = Duration::from_millis(20);
        config.policies.probe_interval = Duration::from_millis(200);
        config.policies.probe_interval_max = Duration::from_millis(400);
        change(&mut config);
        Bench {
            engine: Engine::with_config(config).unwrap(),
            witness: on_server(&server, &[]),
            proxy,
            server,
            source: tempdir().unwrap(),
        }
    }

    fn segment(&self, seed: u64, size: u64) -> TestSegment {
        let directory = self.source.path().join(format!("{seed}"));
        std::fs::create_dir_all(&directory).unwrap();
        TestSegment::write(&directory, seed, size).unwrap()
    }

    /// The only rule from now on.
    fn fault(&self, rule: FaultRule<HttpFault>) {
        self.proxy.faults().set(vec![rule]).unwrap();
    }

    /// What is in the bucket: keys, and the number of multipart uploads.
    fn left(&self) -> (Vec<String>, u64) {
        let page = self
            .witness
            .block_on(self.witness.store().list("", None, 1000))
            .unwrap();
        let keys = page.objects.into_iter().map(|object| object.key).collect();
        (keys, self.server.counters().multipart_uploads_open())
    }

    fn assert_empty(&self, what: impl std::fmt::Debug) {
        assert_eq!(self.left(), (Vec::new(), 0), "{what:?}");
    }

    fn assert_one_segment(&self, segment: &TestSegment, what: impl std::fmt::Debug) {
        let (keys, uploads) = self.left();
        assert_eq!((keys.len(), uploads), (2, 0), "{what:?}: {keys:?}");
        let bytes = read_segment(&self.witness, segment, 0..u64::MAX).unwrap();
        assert!(bytes == segment.log_bytes().unwrap(), "{what:?}");
    }

    fn set_availability(&self, availability: Availability) {
        self.witness
            .block_on(self.proxy.set_availability(availability))
            .unwrap();
    }

    /// Nobody listens any more, and connections are reset.
    fn take_away(&self) {
        self.set_availability(Availability::Down);
        self.proxy.reset_connections();
    }

    fn struck(&self, kind: FaultKind) -> u64 {
        self.proxy.counters().faults(kind)
    }

    fn requests(&self, operation: Operation) -> u64 {
        self.proxy.counters().requests(operation)
    }

    fn metric(&self, part: &str, name: &str) -> i64 {
        metric(&self.engine, part, name)
    }
}

/// Waits for what happens by itself.
fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = now();
    while !holds() {
        assert!(begin.elapsed() < LONG, "not within {LONG:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Runs the test for all cases at the same time: each has a bench of its own, and most of its time is waiting.
fn side_by_side<Case: Send>(cases: impl IntoIterator<Item = Case>, test: impl Fn(Case) + Sync) {
    let test = &test;
    std::thread::scope(|scope| {
        for case in cases {
            scope.spawn(move || test(case));
        }
    });
}

#[expect(
    clippy::disallowed_methods,
    reason = "how long a call takes on real sockets is what is looked at"
)]
fn now() -> Instant {
    Instant::now()
}
