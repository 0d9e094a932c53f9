//! The one table of metrics.

use std::fmt::Write;

use alluvium_store::{ErrorKind as StoreKind, Operation};

use super::{Sources, count, signed};
use crate::ErrorKind;

/// How a value behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
}

/// A metric.
pub struct Definition {
    /// What it belongs to; the `type` of its MBean.
    pub part: &'static str,
    /// Its name, the attribute of the MBean.
    pub name: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// How it behaves.
    pub kind: Kind,
    /// What it means.
    pub help: &'static str,
    pub(super) read: fn(&Sources<'_>) -> i64,
}

const fn counter(
    part: &'static str,
    name: &'static str,
    unit: &'static str,
    help: &'static str,
    read: fn(&Sources<'_>) -> i64,
) -> Definition {
    Definition {
        part,
        name,
        unit,
        kind: Kind::Counter,
        help,
        read,
    }
}

const fn gauge(
    part: &'static str,
    name: &'static str,
    unit: &'static str,
    help: &'static str,
    read: fn(&Sources<'_>) -> i64,
) -> Definition {
    Definition {
        part,
        name,
        unit,
        kind: Kind::Gauge,
        help,
        read,
    }
}

/// All metrics, in the order of a snapshot.
#[rustfmt::skip] // a row each
pub static DEFINITIONS: &[Definition] = &[
    counter("copy", "segments_total", "segments", "Segments copied whole.", |from| from.metrics.copy.succeeded.get()),
    counter("copy", "failures_total", "segments", "Copies that failed; what they had uploaded was removed.", |from| from.metrics.copy.failed.get()),
    counter("copy", "cleanup_failures_total", "segments", "Failed copies whose remains could not be removed; Kafka's delete tries again.", |from| from.metrics.copy_cleanup_failures.get()),
    gauge("copy", "cleanups_pending", "segments", "Failed copies with an unknown outcome, to whose keys the plugin comes back.", |from| signed(from.cleanups_pending)),
    counter("copy", "bytes_total", "bytes", "Bytes of segments copied whole, without indexes.", |from| from.metrics.copy.bytes.get()),
    gauge("copy", "running", "segments", "Copies under way.", |from| from.metrics.copy.running.get()),
    gauge("copy", "last_success_age_ms", "milliseconds", "Time since a copy last succeeded, or since the start.", |from| from.age_ms(&from.metrics.copy)),
    counter("fetch", "streams_total", "streams", "Segment streams opened.", |from| from.metrics.fetch.succeeded.get()),
    counter("fetch", "failures_total", "streams", "Segment streams that could not be opened or ended in an error.", |from| from.metrics.fetch.failed.get()),
    counter("fetch", "bytes_total", "bytes", "Verified bytes of segments handed to Kafka.", |from| from.metrics.fetch.bytes.get()),
    gauge("fetch", "streams_open", "streams", "Segment and index streams that Kafka holds open.", |from| from.metrics.fetch.running.get()),
    gauge("fetch", "last_success_age_ms", "milliseconds", "Time since a segment stream was last opened, or since the start.", |from| from.age_ms(&from.metrics.fetch)),
    counter("index", "streams_total", "streams", "Index streams opened.", |from| from.metrics.index.succeeded.get()),
    counter("index", "failures_total", "streams", "Index streams that could not be opened or ended in an error; absent transaction indexes do not count.", |from| from.metrics.index.failed.get()),
    counter("index", "bytes_total", "bytes", "Verified bytes of indexes handed to Kafka.", |from| from.metrics.index.bytes.get()),
    counter("delete", "segments_total", "segments", "Segments deleted.", |from| from.metrics.delete.succeeded.get()),
    counter("delete", "failures_total", "segments", "Deletes that failed; Kafka tries them again.", |from| from.metrics.delete.failed.get()),
    gauge("delete", "running", "segments", "Deletes under way.", |from| from.metrics.delete.running.get()),
    counter("cache", "hits_total", "lookups", "Chunks and manifests found in the cache.", |from| from.metrics.cache_hits.get()),
    counter("cache", "misses_total", "lookups", "Chunks and manifests that had to be loaded.", |from| from.metrics.cache_misses.get()),
    counter("cache", "load_failures_total", "loads", "Loads from the store that failed.", |from| from.metrics.cache_load_failures.get()),
    gauge("cache", "loads_running", "loads", "Loads under way.", |from| signed(from.cache.loads_running())),
    gauge("cache", "bytes", "bytes", "Bytes held by the cache.", |from| signed(from.cache.bytes())),
    gauge("cache", "entries", "entries", "Chunks and manifests held by the cache.", |from| signed(from.cache.entries())),
    gauge("cache", "capacity_bytes", "bytes", "Most that the cache may hold.", |from| signed(from.cache.capacity())),
    counter("cache", "evictions_total", "entries", "Chunks and manifests that had to make room.", |from| from.metrics.cache_evictions.get()),
    counter("cache", "unused_evictions_total", "entries", "Those of them that were loaded ahead and never used.", |from| from.metrics.cache_unused_evictions.get()),
    counter("read_ahead", "requests_total", "requests", "GETs that were begun before anybody asked for their bytes.", |from| from.metrics.ahead_requests.get()),
    counter("read_ahead", "chunks_total", "chunks", "Chunks asked for by them.", |from| from.metrics.ahead_chunks.get()),
    counter("read_ahead", "abandoned_total", "requests", "GETs that were given up: their readers were gone, or left no memory for them.", |from| from.metrics.ahead_abandoned.get()),
    counter("read_ahead", "memory_waits_total", "waits", "Times that one of these GETs had to wait for memory. Many of them: a larger cache.memory.bytes would let readers be faster.", |from| from.metrics.ahead_memory_waits.get()),
    gauge("read_ahead", "bytes", "bytes", "Bytes that were loaded ahead, or are being loaded, and that nobody has read.", |from| signed(from.cache.ahead_bytes())),
    gauge("read_ahead", "requests_running", "requests", "GETs that read ahead, under way.", |from| from.ahead.requests()),
    counter("disk", "hits_total", "lookups", "Chunks and manifests read from the disk cache.", |from| from.metrics.disk.hits.get()),
    counter("disk", "misses_total", "lookups", "Chunks and manifests that were not in the disk cache, or were of no use.", |from| from.metrics.disk.misses.get()),
    counter("disk", "writes_total", "writes", "Chunks and manifests written to the disk cache.", |from| from.metrics.disk.writes.get()),
    counter("disk", "skipped_writes_total", "writes", "Chunks and manifests not written: too many writes at once, a pause after a fault, no room, or a segment that was deleted meanwhile.", |from| from.metrics.disk.skipped_writes.get()),
    counter("disk", "evictions_total", "entries", "Chunks and manifests that made room for others on disk.", |from| from.metrics.disk.evictions.get()),
    counter("disk", "faults_total", "faults", "Writes that failed, and files that could not be read, were damaged, or could not be removed. None of them fails a fetch.", |from| from.metrics.disk.faults.get()),
    gauge("disk", "bytes", "bytes", "Bytes that the files of the disk cache take, in blocks.", |from| from.metrics.disk.bytes.get()),
    gauge("disk", "entries", "entries", "Chunks and manifests held on disk.", |from| from.metrics.disk.entries.get()),
    gauge("disk", "capacity_bytes", "bytes", "Most that the files of the disk cache may take; 0 without cache.path.", |from| from.metrics.disk.capacity.get()),
    gauge("memory", "upload_bytes", "bytes", "Bytes reserved for uploads now.", |from| signed(from.uploads.in_use())),
    gauge("memory", "upload_capacity_bytes", "bytes", "Most that uploads may reserve.", |from| signed(from.uploads.total())),
    gauge("memory", "coding_capacity_bytes", "bytes", "Most that compression and encryption may take.", |from| signed(from.coding_memory)),
    gauge("memory", "load_bytes", "bytes", "Bytes reserved for loads from the store now, and those that streams hold of what the cache has let go.", |from| signed(from.cache.load_bytes())),
    gauge("memory", "read_capacity_bytes", "bytes", "Most that loads and the cache together may take.", |from| signed(from.cache.memory_bytes_max())),
    counter("store", "put_requests_total", "requests", "PutObject requests, attempts counted singly.", |from| requests(from, Operation::Put)),
    counter("store", "create_upload_requests_total", "requests", "CreateMultipartUpload requests.", |from| requests(from, Operation::CreateUpload)),
    counter("store", "upload_part_requests_total", "requests", "UploadPart requests.", |from| requests(from, Operation::UploadPart)),
    counter("store", "complete_upload_requests_total", "requests", "CompleteMultipartUpload requests.", |from| requests(from, Operation::CompleteUpload)),
    counter("store", "abort_upload_requests_total", "requests", "AbortMultipartUpload requests.", |from| requests(from, Operation::AbortUpload)),
    counter("store", "get_requests_total", "requests", "GetObject requests.", |from| requests(from, Operation::Get)),
    counter("store", "head_requests_total", "requests", "HeadObject requests.", |from| requests(from, Operation::Head)),
    counter("store", "delete_requests_total", "requests", "DeleteObjects requests.", |from| requests(from, Operation::Delete)),
    counter("store", "list_requests_total", "requests", "ListObjectsV2 and ListMultipartUploads requests.", |from| requests(from, Operation::List) + requests(from, Operation::ListUploads)),
    counter("store", "retries_total", "requests", "Requests that were sent again.", |from| signed(from.store.operations.iter().map(|operation| operation.retries).sum())),
    counter("store", "hedged_requests_total", "requests", "Second GETs: for slow ones, and for the rest of bodies that came to a halt. They count among the GetObject requests.", |from| signed(from.store.hedges)),
    counter("store", "hedges_won_total", "requests", "Second GETs that answered before the slow one; those for the rest of a body are not among them.", |from| signed(from.store.hedges_won)),
    counter("store", "sent_bytes_total", "bytes", "Bytes of payloads sent.", |from| signed(from.store.operations.iter().map(|operation| operation.bytes_sent).sum())),
    counter("store", "received_bytes_total", "bytes", "Bytes of bodies received.", |from| signed(from.store.operations.iter().map(|operation| operation.bytes_received).sum())),
    gauge("store", "requests_running", "requests", "Requests under way.", |from| signed(from.store.in_flight())),
    gauge("store", "away", "flag", "1 while the store counts as away: new copies are refused at once, other requests are held until it answers.", |from| i64::from(from.breaker.open)),
    counter("store", "away_total", "outages", "How often the store went away.", |from| signed(from.breaker.opened)),
    gauge("store", "requests_held", "requests", "Requests held until the store answers again.", |from| signed(from.breaker.held)),
    gauge("store", "reads_limit", "requests", "GETs that may be under way at a time; lower than its maximum after the store asked for fewer.", |from| count(from.reads.limit)),
    gauge("store", "reads_running", "requests", "GETs under way, with retries and bodies.", |from| count(from.reads.in_use)),
    gauge("store", "reads_waiting", "requests", "GETs that wait for one under way to end.", |from| count(from.reads.waiting)),
    gauge("store", "writes_limit", "requests", "Puts and parts that may be under way at a time; lower than its maximum after the store asked for fewer.", |from| count(from.writes.limit)),
    gauge("store", "writes_running", "requests", "Puts and parts under way, with retries.", |from| count(from.writes.in_use)),
    gauge("store", "writes_waiting", "requests", "Puts and parts that wait for one under way to end.", |from| count(from.writes.waiting)),
    counter("store", "not_found_errors_total", "errors", "Requests for an object that does not exist.", |from| errors(from, &[StoreKind::NotFound, StoreKind::UploadNotFound])),
    counter("store", "denied_errors_total", "errors", "Requests refused for credentials, rights or clock.", |from| errors(from, &[StoreKind::AccessDenied, StoreKind::InvalidCredentials, StoreKind::ClockSkew])),
    counter("store", "throttled_errors_total", "errors", "Requests answered by a wish for fewer.", |from| errors(from, &[StoreKind::Throttled])),
    counter("store", "unavailable_errors_total", "errors", "Requests that the store could not serve, or that did not reach it.", |from| errors(from, &[StoreKind::Unavailable, StoreKind::Unreachable, StoreKind::NoSpace])),
    counter("store", "timeout_errors_total", "errors", "Requests without an answer in time.", |from| errors(from, &[StoreKind::Timeout])),
    counter("store", "corrupt_errors_total", "errors", "Truncated bodies and wrong checksums.", |from| errors(from, &[StoreKind::Truncated, StoreKind::ChecksumMismatch])),
    counter("store", "other_errors_total", "errors", "All other failures.", |from| errors(from, &[StoreKind::BucketNotFound, StoreKind::WrongRegion, StoreKind::Tls, StoreKind::Invalid, StoreKind::Unexpected])),
    counter("errors", "not_found_total", "errors", "Failures told to Kafka: the segment or index does not exist.", |from| failures(from, ErrorKind::NotFound)),
    counter("errors", "unavailable_total", "errors", "Failures told to Kafka: the store does not serve.", |from| failures(from, ErrorKind::Unavailable)),
    counter("errors", "throttled_total", "errors", "Failures told to Kafka: the store asks for fewer requests.", |from| failures(from, ErrorKind::Throttled)),
    counter("errors", "timeout_total", "errors", "Failures told to Kafka: no result before the deadline.", |from| failures(from, ErrorKind::Timeout)),
    counter("errors", "denied_total", "errors", "Failures told to Kafka: credentials or rights.", |from| failures(from, ErrorKind::Denied)),
    counter("errors", "corrupt_total", "errors", "Failures told to Kafka: stored bytes are not what they must be.", |from| failures(from, ErrorKind::Corrupt)),
    counter("errors", "config_total", "errors", "Failures told to Kafka: a setting is wrong.", |from| failures(from, ErrorKind::Config)),
    counter("errors", "closed_total", "errors", "Calls after the close.", |from| failures(from, ErrorKind::Closed)),
    counter("errors", "internal_total", "errors", "Failures told to Kafka: faults of this plugin or of local files.", |from| failures(from, ErrorKind::Internal)),
    counter("errors", "cancelled_total", "errors", "Operations whose caller gave up.", |from| failures(from, ErrorKind::Cancelled)),
    counter("errors", "invalid_total", "errors", "Calls with impossible arguments.", |from| failures(from, ErrorKind::Invalid)),
    counter("errors", "unsupported_total", "errors", "Segments written by a later release that this one cannot read.", |from| failures(from, ErrorKind::Unsupported)),
];

fn requests(from: &Sources<'_>, operation: Operation) -> i64 {
    signed(from.store.of(operation).requests)
}

fn errors(from: &Sources<'_>, kinds: &[StoreKind]) -> i64 {
    signed(kinds.iter().map(|&kind| from.store.failed(kind)).sum())
}

fn failures(from: &Sources<'_>, kind: ErrorKind) -> i64 {
    from.metrics.failures.of(kind).get()
}

/// `docs/METRICS.md`.
pub fn markdown() -> String {
    let mut page = String::from(
        "# Metrics\n\nEach part is an MBean `io.alluvium:type=<part>,broker=<broker id>`, each metric an attribute of it. For Prometheus the name is \
         `tiered_<part>_<name>`. This page is generated from the table in `rust/engine/src/metrics/definitions.rs` by `alluvium metrics`.\n\n\
         | Part | Attribute | Kind | Unit | Meaning |\n|---|---|---|---|---|\n",
    );
    for definition in DEFINITIONS {
        let kind = match definition.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
        };
        let Definition {
            part, name, unit, help, ..
        } = definition;
        writeln!(page, "| {part} | `{name}` | {kind} | {unit} | {help} |").expect("a String takes everything");
    }
    page
}
