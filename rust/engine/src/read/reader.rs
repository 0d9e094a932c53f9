//! A stream over a segment or an index, as the boundary reads it.

use std::{
    fmt,
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use alluvium_format::{ChunkIndex, Manifest, PlainPosition};
use alluvium_store::Key;
use bytes::Bytes;

use super::lookup_chunk;
use crate::{
    Error, ErrorKind, Result,
    cache::{Load, Lookup},
    instance::Shared,
    metrics::GaugeGuard,
};

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
    source: Source,
    state: Mutex<State>,
}

enum Source {
    Segment { key: Key, manifest: Arc<Manifest> },
    Index,
}

struct State {
    position: u64,
    end: u64,
    /// Verified bytes at hand, and where in the stream's space they begin.
    current: Option<(u64, Bytes)>,
    loading: Option<Load>,
    closed: bool,
    open: Option<GaugeGuard>,
}

impl Reader {
    pub(crate) fn over_segment(shared: Arc<Shared>, key: Key, manifest: Arc<Manifest>, range: Range<u64>) -> Self {
        Self::new(shared, Source::Segment { key, manifest }, range, None)
    }

    pub(crate) fn over_index(shared: Arc<Shared>, bytes: Bytes) -> Self {
        let range = 0..bytes.len() as u64;
        Self::new(shared, Source::Index, range, Some((0, bytes)))
    }

    fn new(shared: Arc<Shared>, source: Source, range: Range<u64>, current: Option<(u64, Bytes)>) -> Self {
        let open = Some(shared.metrics.fetch.running.enter());
        let state = State {
            position: range.start,
            end: range.end,
            current,
            loading: None,
            closed: false,
            open,
        };
        Reader {
            shared,
            source,
            state: Mutex::new(state),
        }
    }

    /// Begins to load what the first read will want.
    pub(crate) fn prime(&self) {
        let mut state = self.lock();
        if state.position < state.end {
            // A failure is told by the read that needs the chunk.
            let _ = self.look_up(&mut state);
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
            self.shared.metrics.fetch.failed.add(1);
            self.shared.metrics.failed(error);
        }
        outcome
    }

    fn read_or_wait(&self, max: usize, wait: Duration) -> Result<Read> {
        let mut waited = false;
        loop {
            let mut state = self.lock();
            if state.closed || self.shared.closing.is_cancelled() {
                return Err(Error::new(ErrorKind::Closed, "the stream is closed"));
            }
            if state.position >= state.end {
                state.current = None;
                return Ok(Read::End);
            }
            if let Some(bytes) = state.take(max) {
                self.count(bytes.len() as u64);
                return Ok(Read::Data(bytes));
            }
            let Some(load) = state.loading.clone() else {
                self.look_up(&mut state)?;
                continue;
            };
            match load.peek() {
                Some(outcome) => {
                    state.loading = None;
                    let chunk = outcome
                        .and_then(|entry| entry.chunk())
                        .map_err(|error| self.say_where(error))?;
                    self.use_chunk(&mut state, chunk.into_bytes())?;
                }
                None if waited => return Ok(Read::Pending),
                None => {
                    drop(state);
                    load.wait(wait);
                    waited = true;
                }
            }
        }
    }

    /// Takes the chunk at the position out of the cache, or joins or starts its load.
    fn look_up(&self, state: &mut State) -> Result<()> {
        let Source::Segment { key, manifest } = &self.source else {
            return Err(Error::new(ErrorKind::Internal, "an index ended before its length"));
        };
        let index = self.chunk_index(state.position)?;
        match lookup_chunk(&self.shared, key, manifest, index) {
            Lookup::Hit(entry) => self.use_chunk(state, entry.chunk()?.into_bytes()),
            Lookup::Loading(load) => {
                state.loading = Some(load);
                Ok(())
            }
        }
    }

    fn use_chunk(&self, state: &mut State, bytes: Bytes) -> Result<()> {
        let Source::Segment { manifest, .. } = &self.source else {
            return Ok(());
        };
        let index = self.chunk_index(state.position)?;
        let range = manifest
            .chunks()
            .plain_range(index)
            .ok_or_else(|| outside(state.position))?;
        if bytes.len() as u64 != range.end.0 - range.start.0 {
            let reason = format!("chunk {} has {} bytes", index.0, bytes.len());
            return Err(self.say_where(Error::new(ErrorKind::Corrupt, reason)));
        }
        state.current = Some((range.start.0, bytes));
        Ok(())
    }

    fn chunk_index(&self, position: u64) -> Result<ChunkIndex> {
        let Source::Segment { manifest, .. } = &self.source else {
            return Err(outside(position));
        };
        manifest
            .chunks()
            .chunk_at(PlainPosition(position))
            .ok_or_else(|| outside(position))
    }

    fn say_where(&self, error: Error) -> Error {
        match &self.source {
            Source::Segment { manifest, .. } => error.during(format_args!("cannot read {}", manifest.segment())),
            Source::Index => error,
        }
    }

    fn count(&self, bytes: u64) {
        match self.source {
            Source::Segment { .. } => self.shared.metrics.fetch.bytes.add(bytes),
            Source::Index => self.shared.metrics.index.bytes.add(bytes),
        }
    }

    /// Lets go of everything. Idempotent; a load under way goes on for others.
    pub fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.current = None;
        state.loading = None;
        state.open = None;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic between two fields leaves at worst a stale position, and the boundary closes a stream that panicked.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Up to `max` bytes at the position out of what is at hand.
    fn take(&mut self, max: usize) -> Option<Bytes> {
        let (begin, bytes) = self.current.as_ref()?;
        let from = usize::try_from(self.position.checked_sub(*begin)?)
            .ok()
            .filter(|&from| from < bytes.len())?;
        let wanted = usize::try_from(self.end - self.position)
            .unwrap_or(usize::MAX)
            .min(max)
            .min(bytes.len() - from);
        let taken = bytes.slice(from..from + wanted);
        self.position += wanted as u64;
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
