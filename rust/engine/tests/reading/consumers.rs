//! Consumers as a broker's fetches are, and what they cost the store.

use std::sync::Arc;

use alluvium_engine::Engine;
use alluvium_format::Uuid;
use alluvium_testkit::{
    broker::*,
    proxy::{Direction, FaultProxy, LinkShape, ProxyConfig},
    s3_server::{Operation, S3Server},
    segment::TestSegment,
};
use tempfile::{TempDir, tempdir};

use super::FETCH;

/// A server with segments of one partition that follow each other, and an instance that has seen none of them.
pub(crate) struct Bench {
    pub(crate) engine: Arc<Engine>,
    pub(crate) server: S3Server,
    pub(crate) segments: Vec<(TestSegment, Vec<u8>)>,
    /// On the way to the server.
    pub(crate) proxy: FaultProxy,
    _source: TempDir,
}

impl Bench {
    /// Segments of one partition.
    pub(crate) fn new(sizes: &[u64], settings: &[(&str, &str)]) -> Self {
        Self::with_partitions(sizes, settings, |_| 0)
    }

    /// Segments of a partition each.
    pub(crate) fn of_partitions(sizes: &[u64], settings: &[(&str, &str)]) -> Self {
        Self::with_partitions(sizes, settings, |number| i32::try_from(number).unwrap())
    }

    /// The same, read over such a link from now on.
    pub(crate) fn behind(self, link: LinkShape) -> Self {
        self.proxy.set_link(link);
        self
    }

    fn with_partitions(sizes: &[u64], settings: &[(&str, &str)], partition: impl Fn(u64) -> i32) -> Self {
        let (server, source) = (server(), tempdir().unwrap());
        let writer = on_server(&server, settings);
        let mut segments = Vec::new();
        for (number, &size) in (1..).zip(sizes) {
            let directory = source.path().join(number.to_string());
            std::fs::create_dir(&directory).unwrap();
            // Base offsets are a thousand apart, and each segment ends where the next begins.
            let mut segment = TestSegment::write(&directory, number, size).unwrap();
            segment.metadata.topic_id = Uuid::from_u64_pair(7, 7);
            segment.metadata.partition = partition(number);
            copy(&writer, &segment).unwrap();
            let log = segment.log_bytes().unwrap();
            segments.push((segment, log));
        }
        writer.close();
        let upstream = server.endpoint().trim_start_matches("http://").parse().unwrap();
        let proxy = FaultProxy::start_blocking(ProxyConfig::tcp(upstream)).unwrap();
        let engine = Engine::open(settings_at(&proxy.endpoint(), settings)).unwrap();
        server.counters().reset();
        Bench {
            engine,
            server,
            segments,
            proxy,
            _source: source,
        }
    }

    /// A fetch as a broker's: 17 bytes, a batch, the rest, and the stream is closed.
    pub(crate) fn fetch(&self, segment: usize, position: u64) -> u64 {
        let (segment, log) = &self.segments[segment];
        let reader = open_segment(&self.engine, segment, position..u64::MAX).unwrap();
        let mut read = Vec::new();
        for wanted in [17, 16_000, FETCH - 16_017] {
            let end = read.len() + wanted;
            while read.len() < end
                && let Some(bytes) = read_once(&reader, end - read.len()).unwrap()
            {
                read.extend_from_slice(&bytes);
            }
        }
        let begin = usize::try_from(position).unwrap();
        assert!(read == log[begin..begin + read.len()], "wrong bytes at {position}");
        position + read.len() as u64
    }

    /// Reads a segment as one consumer does, each stream a little before the end of the last one.
    pub(crate) fn consume(&self, segment: usize) {
        let size = self.segments[segment].0.metadata.segment_size;
        let mut position = 0;
        while position < size {
            let end = self.fetch(segment, position);
            position = if end == size { size } else { end - 4000 };
        }
    }

    /// GETs until now.
    pub(crate) fn gets(&self) -> u64 {
        self.server.counters().requests(Operation::GetObject)
    }

    /// Bytes that have come over the link until now.
    pub(crate) fn bytes(&self) -> u64 {
        self.proxy.counters().bytes(Direction::Down)
    }
}
