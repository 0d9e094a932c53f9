//! What the tests of the engine share: an instance on a store, and the four operations as plain calls.

use std::{path::Path, sync::Arc, time::Duration};

use alluvium_engine::{CopyRequest, Engine, Error, Outcome, Read, Reader, Result, SegmentFiles, SegmentRef, Task};
use alluvium_format::IndexType;
use alluvium_testkit::{
    s3_server::{S3Server, S3ServerConfig},
    segment::TestSegment,
};

/// Longest that any operation of a test may take.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn on_directory(root: &Path, extra: &[(&str, &str)]) -> Arc<Engine> {
    let root = root.to_str().unwrap();
    Engine::open(merged(
        &[&[("storage.type", "file"), ("file.path", root)], extra].concat(),
    ))
    .unwrap()
}

pub(crate) fn server() -> S3Server {
    S3Server::start_blocking(S3ServerConfig::default()).unwrap()
}

pub(crate) fn on_server(server: &S3Server, extra: &[(&str, &str)]) -> Arc<Engine> {
    Engine::open(settings_for(server, extra)).unwrap()
}

/// Settings of the S3 store that the environment names (as `tests/tools/with-s3` does), else of the `server` that is started for it.
pub(crate) fn environment_or(server: &mut Option<S3Server>) -> Vec<(String, String)> {
    let Ok(endpoint) = std::env::var("ALLUVIUM_S3_ENDPOINT") else {
        return settings_for(server.insert(self::server()), &[]);
    };
    let named =
        |name: &str| std::env::var(name).unwrap_or_else(|_| panic!("{name} is needed with ALLUVIUM_S3_ENDPOINT"));
    [
        ("s3.endpoint", endpoint),
        ("s3.bucket", named("ALLUVIUM_S3_BUCKET")),
        ("s3.access.key.id", named("ALLUVIUM_S3_ACCESS_KEY")),
        ("s3.secret.access.key", named("ALLUVIUM_S3_SECRET_KEY")),
    ]
    .map(|(key, value)| (key.to_owned(), value))
    .to_vec()
}

/// Settings of an instance on `server`.
pub(crate) fn settings_for(server: &S3Server, extra: &[(&str, &str)]) -> Vec<(String, String)> {
    settings_at(server.endpoint(), extra)
}

/// Settings of an instance on the embedded server at this address.
pub(crate) fn settings_at(endpoint: &str, extra: &[(&str, &str)]) -> Vec<(String, String)> {
    let defaults = S3ServerConfig::default();
    let settings = [
        ("s3.endpoint", endpoint),
        ("s3.bucket", defaults.buckets[0].as_str()),
        ("s3.access.key.id", defaults.access_key.as_str()),
        ("s3.secret.access.key", defaults.secret_key.as_str()),
        ("key.prefix", "tier/"),
    ];
    merged(&[&settings, extra].concat())
}

/// A key that comes twice counts as the later says.
fn merged(settings: &[(&str, &str)]) -> Vec<(String, String)> {
    let merged: std::collections::BTreeMap<_, _> = settings.iter().copied().collect();
    merged
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}

pub(crate) fn metric(engine: &Engine, part: &str, name: &str) -> i64 {
    let position = alluvium_engine::metrics::DEFINITIONS
        .iter()
        .position(|definition| definition.part == part && definition.name == name)
        .unwrap_or_else(|| panic!("no metric {part} {name}"));
    engine.metrics()[position]
}

/// Asserts that nothing is in use any more, waiting a little for what ends by itself.
pub(crate) fn assert_idle(engine: &Engine) {
    let gauges = [
        ("copy", "running"),
        ("delete", "running"),
        ("fetch", "streams_open"),
        ("cache", "loads_running"),
        ("memory", "upload_bytes"),
        ("memory", "load_bytes"),
        ("store", "requests_running"),
        ("store", "requests_held"),
        ("store", "reads_running"),
        ("store", "reads_waiting"),
        ("store", "writes_running"),
        ("store", "writes_waiting"),
    ];
    for _ in 0..100 {
        if gauges.iter().all(|(part, name)| metric(engine, part, name) == 0) {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    for (part, name) in gauges {
        assert_eq!(metric(engine, part, name), 0, "{part} {name}");
    }
}

pub(crate) fn finish(task: &Task) -> Result<Outcome> {
    task.wait(PATIENCE).expect("an operation that ends")
}

pub(crate) fn segment_ref(segment: &TestSegment, custom_metadata: Option<Vec<u8>>) -> SegmentRef {
    SegmentRef {
        metadata: segment.metadata.clone(),
        custom_metadata,
    }
}

pub(crate) fn copy_request(segment: &TestSegment) -> CopyRequest {
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

pub(crate) fn copy(engine: &Engine, segment: &TestSegment) -> Result<Vec<u8>> {
    match finish(&engine.start_copy(copy_request(segment)))? {
        Outcome::Copied(custom) => Ok(custom),
        other => panic!("{other:?}"),
    }
}

pub(crate) fn open_segment(engine: &Engine, segment: &TestSegment, range: std::ops::Range<u64>) -> Result<Reader> {
    opened(&engine.start_open_segment(segment_ref(segment, None), range))
}

pub(crate) fn open_index(engine: &Engine, segment: &TestSegment, index_type: IndexType) -> Result<Reader> {
    opened(&engine.start_open_index(segment_ref(segment, None), index_type))
}

fn opened(task: &Task) -> Result<Reader> {
    match finish(task)? {
        Outcome::Opened(reader) => Ok(reader),
        other => panic!("{other:?}"),
    }
}

pub(crate) fn delete(engine: &Engine, segment: &TestSegment, custom_metadata: Option<Vec<u8>>) -> Result<()> {
    finish(&engine.start_delete(segment_ref(segment, custom_metadata))).map(drop)
}

/// Reads a stream to its end in pieces of at most `piece` bytes.
pub(crate) fn read_to_end(reader: &Reader, piece: usize) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    loop {
        match read_once(reader, piece)? {
            Some(data) => bytes.extend_from_slice(&data),
            None => return Ok(bytes),
        }
    }
}

/// The next bytes, or `None` at the end.
pub(crate) fn read_once(reader: &Reader, piece: usize) -> Result<Option<bytes::Bytes>> {
    for _ in 0..PATIENCE.as_millis() / 50 {
        match reader.read(piece, Duration::from_millis(50))? {
            Read::Data(data) => return Ok(Some(data)),
            Read::End => return Ok(None),
            Read::Pending => {}
        }
    }
    panic!("a read that does not end");
}

pub(crate) fn read_segment(engine: &Engine, segment: &TestSegment, range: std::ops::Range<u64>) -> Result<Vec<u8>> {
    read_to_end(&open_segment(engine, segment, range)?, 1 << 20)
}

pub(crate) fn kind<T: std::fmt::Debug>(result: Result<T>) -> alluvium_engine::ErrorKind {
    let error: Error = result.expect_err("a failure");
    error.kind()
}
