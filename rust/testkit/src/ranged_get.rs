//! Purpose: the raw limit of reading an object: parallel GETs of ranges, and nothing else done.
//!
//! Flow: as many threads as requests may be in flight, each with one connection that it keeps; each takes the next range, asks for
//! it, and reads the answer into a buffer that is never looked at.
//!
//! Invariants: every range must be answered 206 with exactly its bytes. The CPU time is that of the reading threads. What signs the
//! request is given as headers, since S3 does not need the range signed.
//!
//! Not here: TLS, chunked answers, retries, checksums.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs as _};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// What is read with one system call at most.
const BUFFER_BYTES: usize = 256 * 1024;
/// No server of objects writes longer heads.
const HEAD_BYTES_MAX: usize = 16 * 1024;
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// What to read.
#[derive(Clone, Debug)]
pub struct RangedGet {
    /// `http://host:port/bucket/key`, encoded as it was signed.
    pub url: String,
    /// Lines of the head, such as those of the signature: `Name: value`.
    pub headers: Vec<String>,
    pub object_bytes: u64,
    pub range_bytes: u64,
    pub in_flight: usize,
    /// How often the whole object is read.
    pub times: u64,
}

/// What reading it took.
#[derive(Clone, Copy, Debug)]
pub struct Taken {
    pub bytes: u64,
    pub requests: u64,
    pub wall: Duration,
    pub cpu: Duration,
}

/// Why it could not be read.
#[derive(Debug, thiserror::Error)]
pub enum RangedGetError {
    #[error("not a URL of the form http://host:port/path: {0}")]
    Url(String),
    #[error("the object, its ranges and what is in flight must not be 0")]
    Nothing,
    #[error("cannot read: {0}")]
    Io(#[from] io::Error),
    #[error("answered {0:?}")]
    Answer(String),
}

impl RangedGet {
    /// Reads the object.
    pub fn run(&self) -> Result<Taken, RangedGetError> {
        if self.object_bytes == 0 || self.range_bytes == 0 || self.in_flight == 0 {
            return Err(RangedGetError::Nothing);
        }
        let source = Source::of(self)?;
        let ranges_each_time = self.object_bytes.div_ceil(self.range_bytes);
        let ranges = ranges_each_time * self.times;
        let next = AtomicU64::new(0);
        let begin = now();
        let cpu = thread::scope(|scope| {
            let reader = || {
                let mut connection = Connection::open(&source)?;
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= ranges {
                        return cpu_of_this_thread();
                    }
                    let start = index % ranges_each_time * self.range_bytes;
                    connection.get(start..self.object_bytes.min(start + self.range_bytes))?;
                }
            };
            let readers: Vec<_> = (0..self.in_flight).map(|_| scope.spawn(reader)).collect();
            let mut cpu = Duration::ZERO;
            for reader in readers {
                cpu += reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            }
            Ok::<_, RangedGetError>(cpu)
        })?;
        Ok(Taken {
            bytes: self.object_bytes * self.times,
            requests: ranges,
            wall: now() - begin,
            cpu,
        })
    }
}

#[expect(clippy::disallowed_methods, reason = "a measurement measures time")]
fn now() -> Instant {
    Instant::now()
}

/// Time that this thread has run so far; the kernel tells nanoseconds in the first field (Documentation/scheduler/sched-stats).
fn cpu_of_this_thread() -> Result<Duration, RangedGetError> {
    let told = fs::read_to_string("/proc/thread-self/schedstat")?;
    let nanoseconds = told.split(' ').next().and_then(|number| number.parse().ok());
    let nanoseconds = nanoseconds.ok_or_else(|| io::Error::other("the kernel does not tell the time of a thread"))?;
    Ok(Duration::from_nanos(nanoseconds))
}

struct Source {
    address: SocketAddr,
    /// Of every request, up to its range.
    head: String,
}

impl Source {
    fn of(wanted: &RangedGet) -> Result<Self, RangedGetError> {
        let refused = || RangedGetError::Url(wanted.url.clone());
        let rest = wanted.url.strip_prefix("http://").ok_or_else(refused)?;
        let (authority, path) = rest.split_once('/').ok_or_else(refused)?;
        let mut addresses = authority.to_socket_addrs().map_err(|_| refused())?;
        let address = addresses.next().ok_or_else(refused)?;
        let mut head = format!("GET /{path} HTTP/1.1\r\nHost: {authority}\r\n");
        for header in &wanted.headers {
            head.push_str(header);
            head.push_str("\r\n");
        }
        Ok(Self { address, head })
    }
}

struct Connection<'source> {
    source: &'source Source,
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl<'source> Connection<'source> {
    fn open(source: &'source Source) -> io::Result<Self> {
        let stream = TcpStream::connect(source.address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(SILENCE_MAX))?;
        Ok(Self {
            source,
            stream,
            buffer: vec![0; BUFFER_BYTES],
        })
    }

    fn get(&mut self, range: Range<u64>) -> Result<(), RangedGetError> {
        let request = format!(
            "{}Range: bytes={}-{}\r\n\r\n",
            self.source.head,
            range.start,
            range.end - 1
        );
        self.stream.write_all(request.as_bytes())?;
        let (head, begun) = self.head()?;
        let wanted = range.end - range.start;
        if !head.starts_with("HTTP/1.1 206 ") || content_length(&head) != Some(wanted) {
            return Err(RangedGetError::Answer(head));
        }
        let mut left = wanted.checked_sub(begun as u64).ok_or(RangedGetError::Answer(head))?;
        while left > 0 {
            let most = usize::try_from(left).unwrap_or(usize::MAX).min(BUFFER_BYTES);
            let room = self.buffer.get_mut(..most).unwrap_or_default();
            match self.stream.read(room)? {
                0 => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                count => left -= count as u64,
            }
        }
        Ok(())
    }

    /// The head of the answer, and how many bytes of its body came with it.
    fn head(&mut self) -> Result<(String, usize), RangedGetError> {
        let mut filled = 0;
        loop {
            let room = self.buffer.get_mut(filled..).unwrap_or_default();
            let count = self.stream.read(room)?;
            if count == 0 || filled > HEAD_BYTES_MAX {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
            filled += count;
            let came = self.buffer.get(..filled).unwrap_or_default();
            if let Some(end) = came.windows(4).position(|four| four == b"\r\n\r\n") {
                let head = String::from_utf8_lossy(came.get(..end).unwrap_or_default()).into_owned();
                return Ok((head, filled - end - 4));
            }
        }
    }
}

fn content_length(head: &str) -> Option<u64> {
    head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length")
            .then(|| value.trim().parse().ok())?
    })
}
