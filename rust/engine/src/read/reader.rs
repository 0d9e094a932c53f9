//! A stream over a segment or an index, as the boundary reads it.
//!
//! # Invariants
//! * Every wait ends: after `fetch.timeout.ms` the read fails, and a load that gets on no more is given up.
//! * A chunk that a stream holds between two reads is let go when memory is short, and looked up again.

use std::{
    collections::VecDeque,
    fmt,
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak},
    time::Duration,
};

use alluvium_format::{ChunkIndex, IndexType, PlainPosition};
use bytes::Bytes;
use tokio::time::Instant;

use super::{
    Source,
    ahead::{Rank, Run},
    load::start_chunk_load,
};
use crate::{
    Error, ErrorKind, Result,
    cache::{CachedManifest, Holder, Load, Lookup, Use},
    instance::Shared,
    metrics::GaugeGuard,
};

/// A chunk that was not read from for so long can be let go when somebody waits for memory: Kafka reads a stream at once and closes it, or
/// forgets it.
const HELD: Duration = Duration::from_millis(100);

/// Chunks behind the one that is read: a batch that is asked for again can begin in the one before it.
const PASSED: u32 = 2;

/// What a read gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Read {
    /// The next bytes, at least one.
    Data(Bytes),
    /// The stream is at its end.
    End,
    /// The bytes are still on their way: read again.
    Pending,
}

/// A stream. Meant for one thread; another may close it.
pub struct Reader {
    shared: Arc<Shared>,
    /// `None`: an index.
    segment: Option<Segment>,
    state: Arc<State>,
}

/// A segment that the stream is over.
struct Segment {
    source: Arc<Source>,
    run: Arc<Run>,
}

/// Shared with the cache, which may ask to let go.
#[derive(Debug)]
struct State(Mutex<Position>);

#[derive(Debug)]
struct Position {
    begin: u64,
    at: u64,
    end: u64,
    held: Held,
    closed: bool,
    open: Option<GaugeGuard>,
}

/// What is at hand.
#[derive(Debug)]
enum Held {
    Nothing,
    /// Verified bytes, and where in the stream's space they begin.
    Chunk {
        begin: u64,
        bytes: Bytes,
        used: Instant,
    },
    Loading {
        load: Load,
        since: Instant,
        /// When it was seen that it has ended.
        ended: Option<Instant>,
    },
    /// A whole index: it has no other copy.
    Index {
        bytes: Bytes,
        _manifest: Arc<CachedManifest>,
    },
}

impl Held {
    fn loading(load: Load, since: Instant) -> Self {
        Held::Loading {
            load,
            since,
            ended: None,
        }
    }
}

impl Holder for State {
    fn let_go(&self) {
        let mut position = match self.0.try_lock() {
            Ok(position) => position,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // It is being read.
            Err(TryLockError::WouldBlock) => return,
        };
        let is_idle = match &mut position.held {
            Held::Chunk { used, .. } => used.elapsed() >= HELD,
            // One that has ended holds what it brought.
            Held::Loading { load, .. } if load.completion.is_running() => false,
            Held::Loading { ended, .. } => ended.get_or_insert_with(Instant::now).elapsed() >= HELD,
            Held::Nothing | Held::Index { .. } => false,
        };
        if is_idle {
            position.held = Held::Nothing;
        }
    }
}

impl Reader {
    /// A stream over a range of a segment. What the first read will want begins to load.
    pub(crate) fn over_segment(shared: Arc<Shared>, source: Arc<Source>, range: Range<u64>) -> Self {
        let run = shared.ahead.join(&shared, &source, range.start);
        let reader = Self::new(shared, Some(Segment { source, run }), range, Held::Nothing);
        let holder: Weak<dyn Holder> = Arc::downgrade(&(Arc::clone(&reader.state) as Arc<dyn Holder>));
        reader.shared.cache.watch(holder);
        {
            let mut position = reader.lock();
            if position.at < position.end {
                // A failure is told by the read that needs the chunk.
                let _ = reader.look_up(&mut position, true);
            }
        }
        reader
    }

    /// A stream over an index; `None` when the segment has none of this type.
    pub(crate) fn over_index(
        shared: Arc<Shared>,
        manifest: Arc<CachedManifest>,
        index_type: IndexType,
    ) -> Option<Self> {
        let bytes = manifest.index(index_type)?.bytes().clone();
        let range = 0..bytes.len() as u64;
        let held = Held::Index {
            bytes,
            _manifest: manifest,
        };
        Some(Self::new(shared, None, range, held))
    }

    fn new(shared: Arc<Shared>, segment: Option<Segment>, range: Range<u64>, held: Held) -> Self {
        let open = Some(shared.metrics.fetch.running.enter());
        let position = Position {
            begin: range.start,
            at: range.start,
            end: range.end,
            held,
            closed: false,
            open,
        };
        Reader {
            shared,
            segment,
            state: Arc::new(State(Mutex::new(position))),
        }
    }

    /// Up to `max` verified bytes, waiting at most `wait` for a load under way. A failed read closes the stream: Kafka does not
    /// always close one that failed.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] after a close of the stream or the instance, else what the load failed with.
    pub fn read(&self, max: usize, wait: Duration) -> Result<Read> {
        let outcome = self.read_or_wait(max, wait);
        if let Err(error) = &outcome {
            self.close();
            let metrics = match self.segment {
                Some(_) => &self.shared.metrics.fetch,
                None => &self.shared.metrics.index,
            };
            metrics.failed.add(1);
            self.shared.metrics.failed(error);
        }
        outcome
    }

    fn read_or_wait(&self, max: usize, wait: Duration) -> Result<Read> {
        let mut waited = false;
        loop {
            let mut position = self.lock();
            if position.closed || self.shared.closing.is_cancelled() {
                return Err(Error::new(ErrorKind::Closed, "the stream is closed"));
            }
            if position.at >= position.end {
                position.held = Held::Nothing;
                return Ok(Read::End);
            }
            if let Some(bytes) = position.take(max) {
                self.count(&position, bytes.len() as u64);
                return Ok(Read::Data(bytes));
            }
            let Held::Loading { load, since, .. } = &position.held else {
                self.look_up(&mut position, true)?;
                continue;
            };
            let (load, since) = (load.clone(), *since);
            match load.completion.peek() {
                Some(Ok(entry)) => {
                    let chunk = entry.chunk().map_err(|error| self.say_where(error))?;
                    self.hold(&mut position, chunk.into_bytes())?;
                }
                // It was begun for nobody, and given up: that says nothing.
                Some(Err(_)) if load.is_ahead && !self.is_out_of_time(since) => {
                    self.look_up(&mut position, false)?;
                    if let Held::Loading { since: later, .. } = &mut position.held {
                        *later = since;
                    }
                }
                Some(Err(_)) if load.is_ahead => return Err(self.out_of_time(position.at, &load)),
                Some(Err(error)) => return Err(self.say_where(error)),
                None if self.is_out_of_time(since) => return Err(self.out_of_time(position.at, &load)),
                None if waited => return Ok(Read::Pending),
                None => {
                    drop(position);
                    if let Some(Segment { run, .. }) = &self.segment {
                        run.touch();
                    }
                    load.completion.wait(wait);
                    waited = true;
                }
            }
        }
    }

    /// Takes the chunk at the position out of the cache, or joins or starts its load.
    fn look_up(&self, position: &mut Position, plan: bool) -> Result<()> {
        let Some(Segment { source, run }) = &self.segment else {
            return Err(Error::new(ErrorKind::Internal, "an index ended before its length"));
        };
        let at = position.at;
        let index = source
            .manifest
            .chunks()
            .chunk_at(PlainPosition(at))
            .ok_or_else(|| outside(at))?;
        let key = source.chunk_key(index);
        let since = Instant::now();
        let rank = run.rank();
        if rank == Rank::Last
            && let Some(passed) = index.0.checked_sub(PASSED)
        {
            self.shared.cache.passed(&source.chunk_key(ChunkIndex(passed)));
        }
        let used = Use {
            place: at,
            follows: rank != Rank::First,
        };
        match self.shared.cache.look_up(key, used) {
            Lookup::Hit(entry) => self.hold(position, entry.chunk()?.into_bytes())?,
            Lookup::Loading(load) => {
                if load.completion.is_running() {
                    run.waits();
                }
                position.held = Held::loading(load, since);
            }
            Lookup::Missing(ticket, load) => {
                run.waits();
                let is_on_disk = self.shared.disk().is_some_and(|disk| disk.contains(&key));
                let behind = if is_on_disk {
                    VecDeque::new()
                } else {
                    run.claim_behind(&self.shared, source, index)
                };
                start_chunk_load(&self.shared, source, index, ticket, behind, run);
                position.held = Held::loading(load, since);
            }
        }
        if plan {
            run.plan(&self.shared, source, at);
        }
        Ok(())
    }

    /// Holds the chunk at the position.
    fn hold(&self, position: &mut Position, bytes: Bytes) -> Result<()> {
        let Some(Segment { source, .. }) = &self.segment else {
            return Ok(());
        };
        let chunks = source.manifest.chunks();
        let index = chunks.chunk_at(PlainPosition(position.at));
        let range = index.and_then(|index| chunks.plain_range(index));
        let range = range.ok_or_else(|| outside(position.at))?;
        if bytes.len() as u64 != range.end.0 - range.start.0 {
            let number = index.map_or(0, |ChunkIndex(number)| number);
            let reason = format!("chunk {number} has {} bytes", bytes.len());
            return Err(self.say_where(Error::new(ErrorKind::Corrupt, reason)));
        }
        position.held = Held::Chunk {
            begin: range.start.0,
            bytes,
            used: Instant::now(),
        };
        Ok(())
    }

    fn is_out_of_time(&self, since: Instant) -> bool {
        since.elapsed() >= self.shared.config.fetch_timeout
    }

    /// Gives a load up that gets on no more: the next who asks for the chunk begins another one. One whose bytes are coming is left to him.
    fn out_of_time(&self, at: u64, load: &Load) -> Error {
        if let Some(Segment { source, .. }) = &self.segment
            && !load.gets_on()
            && let Some(index) = source.manifest.chunks().chunk_at(PlainPosition(at))
        {
            self.shared.cache.give_up(&source.chunk_key(index), load);
        }
        let limit = self.shared.config.fetch_timeout;
        self.say_where(Error::new(
            ErrorKind::Timeout,
            format!("nothing was loaded within {limit:?}"),
        ))
    }

    fn say_where(&self, error: Error) -> Error {
        match &self.segment {
            Some(Segment { source, .. }) => error.during(format_args!("cannot read {}", source.manifest.segment())),
            None => error,
        }
    }

    fn count(&self, position: &Position, bytes: u64) {
        match &self.segment {
            Some(Segment { source, run }) => {
                self.shared.metrics.fetch.bytes.add(bytes);
                run.moved(source, position.at, position.at - position.begin);
            }
            None => self.shared.metrics.index.bytes.add(bytes),
        }
    }

    /// Lets go of everything. Idempotent; a load under way goes on for others.
    pub fn close(&self) {
        let mut position = self.lock();
        position.closed = true;
        position.held = Held::Nothing;
        position.open = None;
    }

    fn lock(&self) -> MutexGuard<'_, Position> {
        // A panic between two fields leaves at worst a stale position, and the boundary closes a stream that panicked.
        self.state.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Position {
    /// Up to `max` bytes at the position out of what is at hand.
    fn take(&mut self, max: usize) -> Option<Bytes> {
        let (begin, bytes) = match &mut self.held {
            Held::Chunk { begin, bytes, used } => {
                *used = Instant::now();
                (*begin, bytes)
            }
            Held::Index { bytes, .. } => (0, bytes),
            Held::Nothing | Held::Loading { .. } => return None,
        };
        let from = usize::try_from(self.at.checked_sub(begin)?)
            .ok()
            .filter(|&from| from < bytes.len())?;
        let wanted = usize::try_from(self.end - self.at)
            .unwrap_or(usize::MAX)
            .min(max)
            .min(bytes.len() - from);
        let taken = bytes.slice(from..from + wanted);
        self.at += wanted as u64;
        Some(taken)
    }
}

impl fmt::Debug for Reader {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Reader").finish_non_exhaustive()
    }
}

fn outside(position: u64) -> Error {
    Error::new(ErrorKind::Internal, format!("position {position} is in no chunk"))
}
