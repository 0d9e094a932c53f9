//! Reading ahead of consumers that read in sequence.
//!
//! # Purpose
//! A consumer of old data asks for one mebibyte after the other, each in a stream of its own, and waits for the store every time. Whoever
//! reads in sequence gets what follows loaded before he asks, in few large requests side by side.
//!
//! # Flow
//! Streams of a partition that continue each other are a [`Run`]. A stream that is opened joins the run that ends just there, or begins
//! one; what it reads moves the run on. Once a run is known to be sequential, [`Run::plan`] keeps a window in front of it loaded or on its way: it
//! doubles with every request until requests have their full size, and beyond that whenever a reader has had to wait. Behind the segment's end
//! goes the next one ([`successor`]). What is asked for takes memory when it comes, as far as the run has its [`Share`] of it.
//!
//! # Invariants
//! * A run that does not continue reads nothing ahead: random access costs the chunks that it touches.
//! * What all runs together have in memory stays within [`Cache::ahead_max`]; segments have equal shares of it, and those who follow each other
//!   through a segment one together.
//! * Reading ahead waits for memory, and nobody for it: it gives way to whoever wants its place, and what somebody comes to wait for is no reading
//!   ahead any more.
//!
//! # Cancel
//! What is on its way for a run that nobody has used for [`FORGOTTEN`] is given up.
//!
//! [`Cache::ahead_max`]: crate::cache::Cache::ahead_max

mod flow;
mod leg;
mod pace;
mod run;
mod successor;
mod turns;

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use alluvium_format::Uuid;

pub(super) use flow::{Flow, Paused, Receiving};
use leg::Leg;
use pace::Pace;
pub(super) use run::{Rank, Run};
use successor::Successors;

use super::Source;
use crate::{instance::Shared, metrics::Gauge};

/// Runs of a partition that are remembered: each consumer group that reads it needs one.
const RUNS_MAX: usize = 32;

/// Runs that nobody has used for so long are dropped.
const REMEMBERED: Duration = Duration::from_secs(60);

/// Requests that must be possible beside one ahead.
const PLACES_LEFT: usize = 2;

type Partition = (Uuid, i32);

/// The runs of an instance.
#[derive(Debug)]
pub(crate) struct Ahead {
    partitions: Mutex<HashMap<Partition, Vec<Arc<Run>>>>,
    /// When those that nobody uses were dropped.
    swept_at_ms: AtomicU64,
    successors: Successors,
    sharers: Sharers,
    requests: Arc<Gauge>,
    flow: Arc<Flow>,
}

/// Runs that read ahead and share the memory.
#[derive(Debug, Default)]
struct Sharers {
    runs: Mutex<Vec<Weak<Run>>>,
    /// Segments that they are in.
    segments: AtomicU64,
    /// Bytes between the first and the last of those that are in the same segment, in all.
    lag: AtomicU64,
    counted_at_ms: AtomicU64,
}

/// Bytes that may be in memory in front of readers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Share {
    /// Of one run.
    pub(super) own: u64,
    /// Of all.
    pub(super) all: u64,
}

/// How long a count of the sharers is good.
const SHARERS_COUNTED_MS: u64 = 10;

impl Ahead {
    /// No run yet.
    pub(crate) fn new() -> Self {
        Ahead {
            partitions: Mutex::default(),
            swept_at_ms: AtomicU64::new(0),
            successors: Successors::new(),
            sharers: Sharers::default(),
            requests: Arc::default(),
            flow: Flow::new(),
        }
    }

    /// Requests that read ahead now.
    pub(crate) fn requests(&self) -> i64 {
        self.requests.get()
    }

    /// What is received of bodies.
    pub(super) fn flow(&self) -> &Arc<Flow> {
        &self.flow
    }

    /// Whether another request can be of use beside those that read ahead now.
    fn may_begin_another(&self) -> bool {
        let begun = u64::try_from(self.requests.get()).unwrap_or(0);
        begun.saturating_sub(self.flow.paused()) < self.flow.requests_max()
    }

    /// Whether there is a place among the store's requests: those that somebody waits for find one, also where the store has asked for fewer. What
    /// was begun just now counts as well, although it has not taken its place yet.
    fn has_place(&self, shared: &Shared) -> bool {
        let reads = shared.guards.limits.reads();
        let begun = usize::try_from(self.requests.get()).unwrap_or(0);
        reads.waiting == 0 && reads.in_use.max(begun) + PLACES_LEFT <= reads.limit
    }

    /// The run that a stream from `position` on continues, or a new one.
    pub(super) fn join(&self, shared: &Shared, source: &Arc<Source>, position: u64) -> Arc<Run> {
        let segment = source.manifest.segment();
        let mut partitions = lock(&self.partitions);
        let now_ms = shared.metrics.clock.now_ms();
        let since_sweep = now_ms.saturating_sub(self.swept_at_ms.load(Ordering::Relaxed));
        if u128::from(since_sweep) >= REMEMBERED.as_millis() {
            self.swept_at_ms.store(now_ms, Ordering::Relaxed);
            partitions.retain(|_, runs| {
                runs.retain(|run| run.rested() < REMEMBERED);
                !runs.is_empty()
            });
        }
        let runs = partitions.entry((segment.topic_id, segment.partition)).or_default();
        if let Some(place) = runs.iter().position(|run| run.continues(source, position)) {
            // The last used are looked at first.
            let run = runs.remove(place);
            runs.insert(0, Arc::clone(&run));
            run.touch();
            return run;
        }
        let run = Run::new(source, position, shared.metrics.clock, &self.requests);
        runs.insert(0, Arc::clone(&run));
        runs.truncate(RUNS_MAX);
        run
    }

    /// Forgets what leads to a segment that is deleted.
    pub(crate) fn purge(&self, partition: Partition, segment_id: Uuid) {
        self.successors.purge(segment_id);
        let mut partitions = lock(&self.partitions);
        if let Some(runs) = partitions.get_mut(&partition) {
            runs.retain(|run| !run.leads_to(segment_id));
            if runs.is_empty() {
                partitions.remove(&partition);
            }
        }
    }

    /// What a run may have in front of it, besides the chunk that its reader holds and the one before, where a batch can begin that he
    /// asks for again.
    ///
    /// What consumers of one segment read ahead serves all of them, so that they have one share; and what the first of them has read is kept
    /// for those who are not far behind.
    pub(super) fn share(&self, shared: &Shared, chunk_size: u64) -> Share {
        let most = shared.cache.ahead_max();
        let (segments, lag) = self.sharers.count(shared.metrics.clock.now_ms(), most);
        let all = most.saturating_sub(lag);
        Share {
            own: (all / segments).saturating_sub(2 * chunk_size),
            all,
        }
    }
}

impl Sharers {
    fn add(&self, run: &Arc<Run>) {
        let mut runs = lock(&self.runs);
        runs.push(Arc::downgrade(run));
        // Counted again for the next who asks.
        self.counted_at_ms.store(0, Ordering::Relaxed);
    }

    /// Looks which segments are read, and who follows whom.
    fn survey(&self, most: u64) -> (u64, u64) {
        let mut by_segment: HashMap<Uuid, Vec<(Arc<Run>, u64, Pace)>> = HashMap::new();
        lock(&self.runs).retain(|run| {
            let Some(run) = run.upgrade() else { return false };
            let Some((segment_id, position, pace)) = run.place_as_sharer() else {
                run.set_rank(Rank::First);
                return false;
            };
            by_segment.entry(segment_id).or_default().push((run, position, pace));
            true
        });
        let segments = (by_segment.len() as u64).max(1);
        let near = most / segments / 2;
        let mut lag = 0;
        for runs in by_segment.values() {
            let first = runs.iter().map(|(_, position, _)| *position).max().unwrap_or(0);
            let together = || runs.iter().filter(|(_, position, _)| first - position <= near);
            let last = together().map(|(_, position, _)| *position).min().unwrap_or(first);
            if let Some(pace) = together().map(|(_, _, pace)| *pace).reduce(Pace::max) {
                together().for_each(|(run, _, _)| run.keep_pace(pace));
            }
            for (run, position, _) in runs {
                run.set_rank(match *position {
                    // Whoever is too far behind is on his own.
                    position if position == first || first - position > near => Rank::First,
                    position if position == last => Rank::Last,
                    _ => Rank::Middle,
                });
            }
            lag += first - last;
            // What the last of them holds and may ask for again, as for the first.
            lag += together().nth(1).map_or(0, |(run, _, _)| run.in_use_bytes());
        }
        (segments, lag)
    }

    /// Segments that are read in sequence, at least one, and how far in them the last are behind the first: those who are further behind than half
    /// of a share do not count, since it would cost the first more than it saves.
    fn count(&self, now_ms: u64, most: u64) -> (u64, u64) {
        let counted_at = self.counted_at_ms.load(Ordering::Relaxed);
        if counted_at == 0 || now_ms.saturating_sub(counted_at) >= SHARERS_COUNTED_MS {
            let (segments, lag) = self.survey(most);
            self.segments.store(segments, Ordering::Relaxed);
            self.lag.store(lag, Ordering::Relaxed);
            self.counted_at_ms.store(now_ms.max(1), Ordering::Relaxed);
        }
        (
            self.segments.load(Ordering::Relaxed).max(1),
            self.lag.load(Ordering::Relaxed),
        )
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every change under a lock is whole in itself.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
