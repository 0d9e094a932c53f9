//! Purpose: what a broker does with the plugin, without one: an instance on a store, and Kafka's calls, waited for.
//!
//! Failure: what the plugin answers is given back; whatever else goes wrong ends the test that asked, by a panic.

use std::{collections::BTreeMap, env, fmt::Debug, ops::Range, path::Path, sync::Arc, thread, time::Duration};

use alluvium_engine::{
    CopyRequest, Engine, ErrorKind, Outcome, Read, Reader, Result, SegmentFiles, SegmentRef, Task, metrics::DEFINITIONS,
};
use alluvium_format::IndexType;
use bytes::Bytes;

use crate::{
    s3_server::{S3Server, S3ServerConfig},
    segment::TestSegment,
};

/// Longest that any call may take: all deadlines of an instance under test are far below.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Slice of a wait.
const SLICE: Duration = Duration::from_millis(20);

/// Metrics of what is in use: all are zero when nothing goes on.
const GAUGES: [(&str, &str); 13] = [
    ("copy", "running"),
    ("delete", "running"),
    ("fetch", "streams_open"),
    ("cache", "loads_running"),
    ("read_ahead", "requests_running"),
    ("memory", "upload_bytes"),
    ("memory", "load_bytes"),
    ("store", "requests_running"),
    ("store", "requests_held"),
    ("store", "reads_running"),
    ("store", "reads_waiting"),
    ("store", "writes_running"),
    ("store", "writes_waiting"),
];

/// Settings as the plugin is given them; a key that comes twice counts as the later says.
#[must_use]
pub fn settings(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    let merged: BTreeMap<_, _> = pairs.iter().copied().collect();
    merged
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}

/// Settings of an instance on the S3 server at this address, which must have been started with the default configuration.
#[must_use]
pub fn settings_at(endpoint: &str, extra: &[(&str, &str)]) -> Vec<(String, String)> {
    let defaults = S3ServerConfig::default();
    let at_server = [
        ("s3.endpoint", endpoint),
        ("s3.bucket", defaults.buckets[0].as_str()),
        ("s3.access.key.id", defaults.access_key.as_str()),
        ("s3.secret.access.key", defaults.secret_key.as_str()),
        ("key.prefix", "tier/"),
    ];
    settings(&[&at_server, extra].concat())
}

/// Settings of an instance on `server`.
#[must_use]
pub fn settings_for(server: &S3Server, extra: &[(&str, &str)]) -> Vec<(String, String)> {
    settings_at(server.endpoint(), extra)
}

/// Settings of the S3 store that the environment names (as `tests/tools/with-s3` does), else of the `server` that is started for it.
pub fn environment_or(server: &mut Option<S3Server>) -> Vec<(String, String)> {
    let Ok(endpoint) = env::var("ALLUVIUM_S3_ENDPOINT") else {
        return settings_for(server.insert(self::server()), &[]);
    };
    let named = |name: &str| env::var(name).unwrap_or_else(|_| panic!("{name} is needed with ALLUVIUM_S3_ENDPOINT"));
    settings(&[
        ("s3.endpoint", &endpoint),
        ("s3.bucket", &named("ALLUVIUM_S3_BUCKET")),
        ("s3.access.key.id", &named("ALLUVIUM_S3_ACCESS_KEY")),
        ("s3.secret.access.key", &named("ALLUVIUM_S3_SECRET_KEY")),
    ])
}

/// An S3 server in this process.
#[must_use]
pub fn server() -> S3Server {
    S3Server::start_blocking(S3ServerConfig::default()).expect("a server")
}

/// An instance on a directory.
#[must_use]
pub fn on_directory(root: &Path, extra: &[(&str, &str)]) -> Arc<Engine> {
    let root = root.to_str().expect("a path of UTF-8");
    open(&[&[("storage.type", "file"), ("file.path", root)], extra].concat())
}

/// An instance on `server`.
#[must_use]
pub fn on_server(server: &S3Server, extra: &[(&str, &str)]) -> Arc<Engine> {
    Engine::open(settings_for(server, extra)).expect("an instance")
}

/// An instance with exactly these settings.
#[must_use]
pub fn open(pairs: &[(&str, &str)]) -> Arc<Engine> {
    Engine::open(settings(pairs)).expect("an instance")
}

/// The value of a metric.
#[must_use]
pub fn metric(engine: &Engine, part: &str, name: &str) -> i64 {
    let position = DEFINITIONS
        .iter()
        .position(|definition| definition.part == part && definition.name == name)
        .unwrap_or_else(|| panic!("no metric {part} {name}"));
    engine.metrics()[position]
}

/// Asserts that soon nothing is in use any more.
pub fn assert_idle(engine: &Engine) {
    let busy = || -> Vec<_> {
        let values = GAUGES.map(|(part, name)| (part, name, metric(engine, part, name)));
        values.into_iter().filter(|(.., value)| *value != 0).collect()
    };
    if !soon(|| busy().is_empty()) {
        panic!("not back at zero: {:?}", busy());
    }
}

/// Whether it comes to hold while one may wait for it.
#[must_use]
pub fn soon(mut holds: impl FnMut() -> bool) -> bool {
    for _ in 0..PATIENCE.as_millis() / SLICE.as_millis() {
        if holds() {
            return true;
        }
        thread::sleep(SLICE);
    }
    holds()
}

/// Waits for an operation.
///
/// # Errors
/// What it ended with.
pub fn finish(task: &Task) -> Result<Outcome> {
    task.wait(PATIENCE).expect("an operation that ends")
}

/// A segment as Kafka names it in a call.
#[must_use]
pub fn segment_ref(segment: &TestSegment, custom_metadata: Option<Vec<u8>>) -> SegmentRef {
    SegmentRef {
        metadata: segment.metadata.clone(),
        custom_metadata,
    }
}

/// What Kafka hands over to a copy.
#[must_use]
pub fn copy_request(segment: &TestSegment) -> CopyRequest {
    CopyRequest {
        segment: segment_ref(segment, None),
        files: SegmentFiles {
            log: segment.log.clone(),
            offset_index: segment.offset_index.clone(),
            time_index: segment.time_index.clone(),
            transaction_index: segment.transaction_index.clone(),
            producer_snapshot: segment.producer_snapshot.clone(),
            leader_epochs: segment.leader_epochs.clone(),
        },
    }
}

/// `copyLogSegmentData`; gives the custom metadata.
///
/// # Errors
/// As the operation's.
pub fn copy(engine: &Engine, segment: &TestSegment) -> Result<Vec<u8>> {
    match finish(&engine.start_copy(copy_request(segment)))? {
        Outcome::Copied(custom) => Ok(custom),
        other => panic!("{other:?}"),
    }
}

/// `fetchLogSegment` of a half-open range.
///
/// # Errors
/// As the operation's.
pub fn open_segment(engine: &Engine, segment: &TestSegment, range: Range<u64>) -> Result<Reader> {
    opened(&engine.start_open_segment(segment_ref(segment, None), range))
}

/// `fetchIndex`.
///
/// # Errors
/// As the operation's.
pub fn open_index(engine: &Engine, segment: &TestSegment, index_type: IndexType) -> Result<Reader> {
    opened(&engine.start_open_index(segment_ref(segment, None), index_type))
}

/// Waits for an operation that gives a stream.
///
/// # Errors
/// As the operation's.
pub fn opened(task: &Task) -> Result<Reader> {
    match finish(task)? {
        Outcome::Opened(reader) => Ok(reader),
        other => panic!("{other:?}"),
    }
}

/// `deleteLogSegmentData`.
///
/// # Errors
/// As the operation's.
pub fn delete(engine: &Engine, segment: &TestSegment, custom_metadata: Option<Vec<u8>>) -> Result<()> {
    finish(&engine.start_delete(segment_ref(segment, custom_metadata))).map(drop)
}

/// Reads a stream to its end in pieces of at most `piece` bytes.
///
/// # Errors
/// As the stream's.
pub fn read_to_end(reader: &Reader, piece: usize) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    while let Some(data) = read_once(reader, piece)? {
        bytes.extend_from_slice(&data);
    }
    Ok(bytes)
}

/// The next bytes of a stream, or `None` at the end.
///
/// # Errors
/// As the stream's.
pub fn read_once(reader: &Reader, piece: usize) -> Result<Option<Bytes>> {
    for _ in 0..PATIENCE.as_millis() / SLICE.as_millis() {
        match reader.read(piece, SLICE)? {
            Read::Data(data) => return Ok(Some(data)),
            Read::End => return Ok(None),
            Read::Pending => {}
        }
    }
    panic!("a read that does not end");
}

/// Fetches a half-open range of a segment.
///
/// # Errors
/// As the operation's, or the stream's.
pub fn read_segment(engine: &Engine, segment: &TestSegment, range: Range<u64>) -> Result<Vec<u8>> {
    read_to_end(&open_segment(engine, segment, range)?, 1 << 20)
}

/// The kind of the error that was expected.
pub fn kind<T: Debug>(result: Result<T>) -> ErrorKind {
    result.expect_err("a failure").kind()
}
