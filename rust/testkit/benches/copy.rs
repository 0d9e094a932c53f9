//! What a copy costs, beside the raw limit of the same machine in the same run: `make bench-copy`.
//!
//! Needs the S3 server that `ALLUVIUM_S3_ENDPOINT`, `_BUCKET`, `_ACCESS_KEY` and `_SECRET_KEY` name, in a process of its own: CPU time is that
//! of this process. Prints one table; every row of ours is followed by the plain program that does the same with nothing around it.
//!
//! * `direct`: 256 MiB segments to the store. Plain: the same parts of a buffer, sent in parallel by the AWS SDK, read from the same file.
//! * `proxied`: the same through a proxy that adds 15 ms and caps each connection at 80 MiB/s.
//! * `zstd`: to a directory in memory, so that compressing is nearly all that counts. Plain: as many threads that read the file's chunks and
//!   compress them, and throw the frames away.

#![expect(clippy::unwrap_used, reason = "a benchmark fails by panicking")]
#![expect(clippy::disallowed_methods, reason = "a benchmark measures time")]

use std::{
    env, fs,
    path::Path,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use alluvium_engine::Engine;
use alluvium_format::{Compressor, Uuid};
use alluvium_testkit::{
    broker,
    process::ToolProcess,
    segment::{Content, TestSegment},
};
use aws_sdk_s3::{
    Client, Config,
    config::{BehaviorVersion, Credentials, Region, RequestChecksumCalculation, retry::RetryConfig},
    primitives::ByteStream,
    types::{CompletedMultipartUpload, CompletedPart},
};
use bytes::Bytes;

const MIB: u64 = 1 << 20;
const SEGMENT_BYTES: u64 = 256 * MIB;

/// Kafka's default, so that what a segment costs besides is what it usually is.
const ZSTD_SEGMENT_BYTES: u64 = 1024 * MIB;

/// Segments per measurement: 1 GiB, so that CPU ticks of 10 ms are below one per cent.
const SEGMENTS: u64 = 4;

const PART_BYTES: u64 = 16 * MIB;
const CONCURRENCY: usize = 8;
const PROXY: [&str; 4] = ["--latency-ms", "15", "--bytes-per-second", "83886080"];

/// How often each measurement is made; the median is told.
const ROUNDS: usize = 3;

struct Measured {
    wall: Duration,
    cpu: f64,
}

/// Seconds of user and system time of this process so far.
fn cpu_seconds() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    // utime and stime (proc(5): 14 and 15), in ticks of 10 ms; the first field here is the third.
    let ticks: f64 = fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap();
    ticks / 100.0
}

fn measure(work: impl FnOnce()) -> Measured {
    let (begin, cpu) = (Instant::now(), cpu_seconds());
    work();
    Measured {
        wall: begin.elapsed(),
        cpu: cpu_seconds() - cpu,
    }
}

/// Measures alternately, so that both sides see the same state of the machine, and prints the medians.
fn compare(name: &str, bytes: u64, mut ours: impl FnMut(), mut plain: impl FnMut()) {
    let mut rows = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        rows[0].push(measure(&mut ours));
        rows[1].push(measure(&mut plain));
    }
    let mut rates = Vec::new();
    for (who, mut row) in ["Alluvium", "plain"].into_iter().zip(rows) {
        row.sort_by_key(|measured| measured.wall);
        let middle = &row[ROUNDS / 2];
        let rate = bytes as f64 / MIB as f64 / middle.wall.as_secs_f64();
        let cpu = middle.cpu / (bytes as f64 / 1024.0 / MIB as f64);
        println!("| {name} | {who} | {rate:.0} | {cpu:.2} |");
        rates.push(rate);
    }
    println!("| {name} | ratio | {:.0} % | |", rates[0] / rates[1] * 100.0);
}

struct Target {
    endpoint: String,
    bucket: String,
    access_key: String,
    secret_key: String,
}

impl Target {
    fn from_environment() -> Self {
        let needed = |name: &str| env::var(name).unwrap_or_else(|_| panic!("{name} is not set: see `make bench-copy`"));
        Target {
            endpoint: needed("ALLUVIUM_S3_ENDPOINT"),
            bucket: needed("ALLUVIUM_S3_BUCKET"),
            access_key: needed("ALLUVIUM_S3_ACCESS_KEY"),
            secret_key: needed("ALLUVIUM_S3_SECRET_KEY"),
        }
    }

    fn engine(&self) -> Arc<Engine> {
        let settings = [
            ("s3.endpoint", self.endpoint.as_str()),
            ("s3.bucket", &self.bucket),
            ("s3.access.key.id", &self.access_key),
            ("s3.secret.access.key", &self.secret_key),
            ("key.prefix", "bench/"),
        ];
        broker::open(&settings)
    }

    fn client(&self) -> Client {
        let keys = Credentials::new(&self.access_key, &self.secret_key, None, None, "bench");
        let http = aws_smithy_http_client::Builder::new().build_http();
        let config = Config::builder()
            .behavior_version(BehaviorVersion::latest())
            .region(Region::new("us-east-1"))
            .endpoint_url(&self.endpoint)
            .force_path_style(true)
            .credentials_provider(keys)
            .http_client(http)
            .retry_config(RetryConfig::disabled())
            .request_checksum_calculation(RequestChecksumCalculation::WhenRequired)
            .build();
        Client::from_conf(config)
    }
}

/// Copies the segment so many times, each time under another id, and deletes it after each: what was written is not part of the time.
fn copy(engine: &Engine, segment: &TestSegment, times: u64) {
    for time in 0..times {
        let mut segment = segment.clone();
        segment.metadata.segment_id = Uuid::from_u64_pair(time, u64::from(std::process::id()));
        broker::copy(engine, &segment).unwrap();
        broker::delete(engine, &segment, None).unwrap();
    }
}

/// The parts of a file, read and sent in parallel, with nothing else.
async fn plain_upload(client: &Client, bucket: &str, path: &Path, time: u64) {
    let key = format!("bench/plain-{time}");
    let created = client
        .create_multipart_upload()
        .bucket(bucket)
        .key(&key)
        .send()
        .await
        .unwrap();
    let upload_id = created.upload_id().unwrap().to_owned();
    let permits = Arc::new(tokio::sync::Semaphore::new(CONCURRENCY));
    let mut parts = tokio::task::JoinSet::new();
    for part in 0..SEGMENT_BYTES / PART_BYTES {
        let permit = Arc::clone(&permits).acquire_owned().await.unwrap();
        let path = path.to_owned();
        let request = client
            .upload_part()
            .bucket(bucket)
            .key(&key)
            .upload_id(&upload_id)
            .part_number(i32::try_from(part + 1).unwrap());
        let bytes = tokio::task::spawn_blocking(move || {
            use std::os::unix::fs::FileExt;
            let mut buffer = vec![0; usize::try_from(PART_BYTES).unwrap()];
            fs::File::open(path)
                .unwrap()
                .read_exact_at(&mut buffer, part * PART_BYTES)
                .unwrap();
            Bytes::from(buffer)
        });
        let bytes = bytes.await.unwrap();
        parts.spawn(async move {
            let answer = request
                .body(ByteStream::from(bytes))
                .customize()
                .disable_payload_signing()
                .send()
                .await
                .unwrap();
            drop(permit);
            CompletedPart::builder()
                .part_number(i32::try_from(part + 1).unwrap())
                .e_tag(answer.e_tag().unwrap())
                .build()
        });
    }
    let mut parts = parts.join_all().await;
    parts.sort_by_key(CompletedPart::part_number);
    client
        .complete_multipart_upload()
        .bucket(bucket)
        .key(&key)
        .upload_id(&upload_id)
        .multipart_upload(CompletedMultipartUpload::builder().set_parts(Some(parts)).build())
        .send()
        .await
        .unwrap();
    client.delete_object().bucket(bucket).key(&key).send().await.unwrap();
}

fn uploads(name: &str, target: &Target, segment: &TestSegment) {
    let engine = target.engine();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let client = target.client();
    let plain = |times| {
        runtime.block_on(async {
            for time in 0..times {
                plain_upload(&client, &target.bucket, &segment.log, time).await;
            }
        })
    };
    copy(&engine, segment, 1);
    plain(1);
    compare(
        name,
        SEGMENTS * SEGMENT_BYTES,
        || copy(&engine, segment, SEGMENTS),
        || plain(SEGMENTS),
    );
    println!("| {name} | requests a segment | {} | |", requests(&engine));
    engine.close();
}

/// Requests of each kind that a copy took.
fn requests(engine: &Engine) -> String {
    let value = |part: &str, name: &str| broker::metric(engine, part, name);
    let copies = value("copy", "segments_total");
    // The start wrote, read and deleted an object of its own.
    let of = |name: &str, besides: i64| (value("store", name) - besides) as f64 / copies as f64;
    format!(
        "{} create, {} part, {} complete, {} put, {} head",
        of("create_upload_requests_total", 0),
        of("upload_part_requests_total", 0),
        of("complete_upload_requests_total", 0),
        of("put_requests_total", 1),
        of("head_requests_total", 0),
    )
}

/// Reads and compresses a share of the file's chunks, as a plain program would.
fn plain_zstd(level: i32, path: &Path, share: usize, shares: usize) {
    use std::os::unix::fs::FileExt;
    let file = fs::File::open(path).unwrap();
    let mut compressor = Compressor::new(level);
    let mut chunk = vec![0; 4 << 20];
    let mut frame = Vec::new();
    for index in (0..ZSTD_SEGMENT_BYTES / (4 * MIB)).skip(share).step_by(shares) {
        file.read_exact_at(&mut chunk, index * 4 * MIB).unwrap();
        compressor.compress(&chunk, &mut frame).unwrap();
    }
}

fn zstd(level: i32, threads: usize, segment: &TestSegment, memory_directory: &Path) {
    let engine = broker::open(&[
        ("storage.type", "file"),
        ("file.path", memory_directory.to_str().unwrap()),
        ("compression.type", "zstd"),
        ("compression.level", &level.to_string()),
        ("upload.threads", &threads.to_string()),
    ]);
    copy(&engine, segment, 1);
    compare(
        &format!("zstd level {level}, threads: {threads}"),
        ZSTD_SEGMENT_BYTES,
        || copy(&engine, segment, 1),
        || {
            thread::scope(|scope| {
                for share in 0..threads {
                    let path = &segment.log;
                    scope.spawn(move || plain_zstd(level, path, share, threads));
                }
            });
        },
    );
    engine.close();
}

fn main() {
    let wanted: Vec<String> = env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with('-'))
        .collect();
    let is_wanted = |name: &str| wanted.is_empty() || wanted.iter().any(|word| word == name);
    let directory = tempfile::tempdir().unwrap();
    println!("| case | who | MiB/s | CPU s/GiB |\n|---|---|---|---|");
    if is_wanted("direct") || is_wanted("proxied") {
        let mut target = Target::from_environment();
        let segment = TestSegment::write(directory.path(), 1, SEGMENT_BYTES).unwrap();
        if is_wanted("direct") {
            uploads("direct", &target, &segment);
        }
        if is_wanted("proxied") {
            let upstream = target.endpoint.strip_prefix("http://").expect("a plain endpoint");
            let arguments = [&["fault-proxy", "--upstream", upstream], &PROXY[..]].concat();
            let proxy = ToolProcess::start(env!("CARGO_BIN_EXE_alluvium-testkit"), &arguments).unwrap();
            target.endpoint = proxy.endpoint().to_owned();
            uploads("15 ms, 80 MiB/s a connection", &target, &segment);
        }
    }
    if is_wanted("zstd") {
        let segment = TestSegment::write_content(directory.path(), 2, ZSTD_SEGMENT_BYTES, Content::Json).unwrap();
        let memory_directory = tempfile::tempdir_in("/dev/shm").unwrap();
        for level in [1, 3] {
            for threads in [1, 2] {
                zstd(level, threads, &segment, memory_directory.path());
            }
        }
    }
}
