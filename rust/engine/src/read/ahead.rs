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
//! goes the next one, which one listing finds by the order of keys.
//!
//! # Invariants
//! * A run that does not continue reads nothing ahead: random access costs the chunks that it touches.
//! * All runs together stay within [`Cache::ahead_max`], each within its equal share.
//! * Nobody waits for reading ahead, and it waits for nobody: without memory, or a place in the cache, it does not happen.
//!
//! # Cancel
//! What is on its way for a run that nobody has used for [`FORGOTTEN`] is given up.
//!
//! [`Cache::ahead_max`]: crate::cache::Cache::ahead_max

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use alluvium_format::{ChunkIndex, PlainPosition, SegmentKeys, Uuid};
use alluvium_store::Key;

use super::{
    Source,
    load::{self, Claim, Identity, Memory, start_ahead_load, start_disk_load},
};
use crate::{
    Result,
    cache::EntryKey,
    instance::Shared,
    metrics::{Gauge, GaugeGuard},
};

/// Bytes of one request, as they are in the segment: at most 16 of them for a segment of 256 MiB.
const REQUEST_BYTES: u64 = 16 << 20;

/// The window that a sequential run begins with.
const WINDOW_FIRST: u64 = REQUEST_BYTES;

/// Up to this the window grows without anybody having waited, so that requests get their full size.
const WINDOW_GROWN: u64 = 2 * REQUEST_BYTES;

/// Most requests that a run has on their way.
const REQUESTS_MAX: i64 = 8;

/// Requests that must be possible beside one ahead.
const PLACES_LEFT: usize = 2;

/// How far a stream may begin before the end of what was read: Kafka begins at an index entry before the wanted offset, up to
/// `index.interval.bytes` and one batch of at most 1 MiB (`message.max.bytes`) away.
const OVERLAP: u64 = (1 << 20) + (256 << 10);

/// How near to the end of what was read most streams begin: batches are seldom larger.
const NEAR: u64 = 128 << 10;

/// What shows that a run goes on: a stream that begins near its end counts twice, one that only can be meant to once. Of random reads all over a
/// segment, one in seven begins within [`OVERLAP`] of the end of some other.
const CONTINUED_MIN: u32 = 4;

/// Bytes read in one stream that show the same.
const READ_IN_ONE_STREAM_MIN: u64 = 2 << 20;

/// A run that was not used for so long is not waited for.
const FORGOTTEN: Duration = Duration::from_secs(5);

/// A run that was not used for so long has no share.
const RESTING: Duration = Duration::from_secs(2);

/// Runs of a partition that are remembered: each consumer group that reads it needs one.
const RUNS_MAX: usize = 32;

/// Partitions whose runs are remembered.
const PARTITIONS_MAX: usize = 10_000;

/// Segments looked for behind one: with duplicates, which are normal after a change of leader, the one that follows is among them.
const SIBLINGS_LISTED: u32 = 16;

type Partition = (Uuid, i32);

/// The runs of an instance.
#[derive(Debug)]
pub(crate) struct Ahead {
    partitions: Mutex<HashMap<Partition, Vec<Arc<Run>>>>,
    sharers: Sharers,
    requests: Arc<Gauge>,
}

/// How many segments are read in sequence and share the memory, counted now and then: what consumers of one segment read ahead serves all of
/// them.
#[derive(Debug, Default)]
struct Sharers {
    count: AtomicU64,
    counted_at_ms: AtomicU64,
}

/// How long a count of the sharers is good.
const SHARERS_COUNTED_MS: u64 = 200;

/// Streams that continue each other.
#[derive(Debug)]
pub(crate) struct Run {
    state: Mutex<RunState>,
    clock: crate::clock::Clock,
    used_at_ms: AtomicU64,
    own_requests: Arc<Gauge>,
    all_requests: Arc<Gauge>,
}

#[derive(Debug)]
struct RunState {
    leg: Leg,
    /// End of what was read.
    position: u64,
    continued: u32,
    window: u64,
    /// Whether a reader has waited since the last request.
    waited: bool,
    next: Next,
}

/// A segment on the way of a run. Holds no manifest: it takes memory, and runs are remembered for long.
#[derive(Clone, Debug)]
struct Leg {
    key: Key,
    segment_id: Uuid,
    start_offset: i64,
    end_offset: i64,
    length: u64,
    chunk_size: u64,
    chunk_count: u32,
    /// The first chunk that was not asked for.
    next: u32,
}

/// What comes behind the segment.
#[derive(Debug)]
enum Next {
    NotLookedFor,
    LookedFor,
    Found(Leg),
    None,
}

/// A request of a run that is on its way.
#[derive(Debug)]
pub(super) struct RunningRequest {
    _own: GaugeGuard,
    _all: GaugeGuard,
}

impl Ahead {
    /// No run yet.
    pub(crate) fn new() -> Self {
        Ahead {
            partitions: Mutex::default(),
            sharers: Sharers::default(),
            requests: Arc::default(),
        }
    }

    /// Requests that read ahead now.
    pub(crate) fn requests(&self) -> i64 {
        self.requests.get()
    }

    /// The run that a stream from `position` on continues, or a new one.
    pub(super) fn join(&self, shared: &Shared, source: &Arc<Source>, position: u64) -> Arc<Run> {
        let clock = shared.metrics.clock;
        let segment = source.manifest.segment();
        let mut partitions = lock(&self.partitions);
        if partitions.len() >= PARTITIONS_MAX {
            partitions.retain(|_, runs| runs.iter().any(|run| !run.is_forgotten()));
        }
        let runs = partitions.entry((segment.topic_id, segment.partition)).or_default();
        if let Some(place) = runs.iter().position(|run| run.continues(source, position)) {
            // The last used are looked at first.
            let run = runs.remove(place);
            runs.insert(0, Arc::clone(&run));
            run.touch();
            return run;
        }
        let run = Arc::new(Run {
            state: Mutex::new(RunState {
                leg: Leg::of(source),
                position,
                continued: 0,
                window: WINDOW_FIRST,
                waited: false,
                next: Next::NotLookedFor,
            }),
            clock,
            used_at_ms: AtomicU64::new(clock.now_ms()),
            own_requests: Arc::default(),
            all_requests: Arc::clone(&self.requests),
        });
        runs.insert(0, Arc::clone(&run));
        runs.truncate(RUNS_MAX);
        run
    }

    /// Forgets what leads to a segment that is deleted.
    pub(crate) fn purge(&self, partition: Partition, segment_id: Uuid) {
        let mut partitions = lock(&self.partitions);
        if let Some(runs) = partitions.get_mut(&partition) {
            runs.retain(|run| !run.leads_to(segment_id));
            if runs.is_empty() {
                partitions.remove(&partition);
            }
        }
    }

    /// Bytes that a run may have in front of it, besides the chunk that its reader holds and the one before, where a batch can begin that he
    /// asks for again.
    fn share(&self, shared: &Shared, chunk_size: u64) -> u64 {
        let now = shared.metrics.clock.now_ms();
        let counted_at = self.sharers.counted_at_ms.load(Ordering::Relaxed);
        if now.saturating_sub(counted_at) >= SHARERS_COUNTED_MS || counted_at == 0 {
            let count = {
                let partitions = lock(&self.partitions);
                let runs = partitions.values().flatten();
                let segments: HashSet<Uuid> = runs.filter_map(|run| run.active_segment()).collect();
                segments.len() as u64
            };
            self.sharers.count.store(count, Ordering::Relaxed);
            self.sharers.counted_at_ms.store(now.max(1), Ordering::Relaxed);
        }
        let share = shared.cache.ahead_max() / self.sharers.count.load(Ordering::Relaxed).max(1);
        share.saturating_sub(2 * chunk_size)
    }
}

impl Run {
    /// Notes that a reader is there.
    pub(super) fn touch(&self) {
        self.used_at_ms.store(self.clock.now_ms(), Ordering::Relaxed);
    }

    fn rested(&self) -> Duration {
        let used_at = self.used_at_ms.load(Ordering::Relaxed);
        Duration::from_millis(self.clock.now_ms().saturating_sub(used_at))
    }

    /// Whether nobody has used it for so long that nobody is expected any more.
    pub(super) fn is_forgotten(&self) -> bool {
        self.rested() > FORGOTTEN
    }

    /// The segment in which it reads ahead now.
    fn active_segment(&self) -> Option<Uuid> {
        let state = self.lock();
        (self.rested() < RESTING && state.is_sequential()).then_some(state.leg.segment_id)
    }

    /// Notes a request on its way until the guard is dropped.
    pub(super) fn begin_request(&self) -> RunningRequest {
        RunningRequest {
            _own: self.own_requests.enter(),
            _all: self.all_requests.enter(),
        }
    }

    /// Whether a stream that begins there goes on where this run is; if so, it moves there.
    fn continues(&self, source: &Arc<Source>, position: u64) -> bool {
        let mut state = self.lock();
        let segment = source.manifest.segment();
        if state.is_at(source) {
            let goes_on = position <= state.position && position + OVERLAP >= state.position;
            if goes_on {
                let weight = if position + NEAR >= state.position { 2 } else { 1 };
                state.continued = state.continued.saturating_add(weight);
            }
            return goes_on;
        }
        let at_end = state.position + OVERLAP >= state.leg.length;
        if !(at_end && state.leg.goes_on_at(segment.start_offset)) {
            return false;
        }
        let next = std::mem::replace(&mut state.next, Next::NotLookedFor);
        state.leg = match next {
            Next::Found(leg) if leg.segment_id == segment.segment_id => leg,
            _ => Leg::of(source),
        };
        state.position = position;
        true
    }

    fn leads_to(&self, segment_id: Uuid) -> bool {
        let state = self.lock();
        let is_it = |leg: &Leg| leg.segment_id == segment_id;
        is_it(&state.leg) || matches!(&state.next, Next::Found(leg) if is_it(leg))
    }

    /// Notes what a stream has read: up to `position`, and how many bytes in all.
    pub(super) fn moved(&self, source: &Source, position: u64, read_in_stream: u64) {
        self.touch();
        let mut state = self.lock();
        if !state.is_at(source) {
            return;
        }
        state.position = state.position.max(position);
        if read_in_stream >= READ_IN_ONE_STREAM_MIN {
            state.continued = state.continued.max(CONTINUED_MIN);
        }
    }

    /// Notes that a reader has to wait.
    pub(super) fn waits(&self) {
        self.lock().waited = true;
    }

    /// Chunks behind one that is missed, to be loaded with the same request.
    pub(super) fn claim_behind(
        self: &Arc<Self>,
        shared: &Arc<Shared>,
        source: &Arc<Source>,
        missed: ChunkIndex,
    ) -> Vec<Claim> {
        let chunk_size = source.manifest.chunks().chunk_size().bytes();
        let share = shared.ahead.share(shared, chunk_size);
        let mut state = self.lock();
        if !state.is_sequential() || !state.is_at(source) {
            return Vec::new();
        }
        state.grow();
        let request = REQUEST_BYTES.min(state.window).min(share);
        let wanted = (request / chunk_size).saturating_sub(1);
        let claimed = claim(shared, source, missed.0 + 1, wanted, self);
        state.leg.next = state.leg.next.max(missed.0 + 1 + claimed.count);
        claimed.of_store
    }

    /// Begins what should be on its way in front of a reader at `position`.
    pub(super) fn plan(self: &Arc<Self>, shared: &Arc<Shared>, source: &Arc<Source>, position: u64) {
        {
            let state = self.lock();
            if !state.is_sequential() || !state.is_at(source) {
                return;
            }
        }
        let share = shared
            .ahead
            .share(shared, source.manifest.chunks().chunk_size().bytes());
        let mut state = self.lock();
        if !state.is_at(source) {
            return;
        }
        let window = state.window.min(share);
        let chunks = source.manifest.chunks();
        let Some(current) = chunks.chunk_at(PlainPosition(position)) else {
            return;
        };
        state.leg.next = state.leg.next.max(current.0 + 1);
        let mut in_front = InFront {
            window,
            ahead: state.leg.bytes_from(current.0 + 1),
            begun: false,
        };
        if let Next::Found(leg) = &state.next {
            in_front.ahead += leg.bytes_from(0);
        }
        while self.own_requests.get() < REQUESTS_MAX {
            let RunState { leg, next, .. } = &mut *state;
            let begun = match (leg.is_done(), next) {
                (false, _) => self.begin(shared, source, leg, &mut in_front),
                (true, Next::Found(leg)) if !leg.is_done() => match leg.source(shared) {
                    Some(source) => self.begin(shared, &source, leg, &mut in_front),
                    None => false,
                },
                (true, next @ Next::NotLookedFor) => {
                    *next = Next::LookedFor;
                    self.look_for_next(shared, source);
                    false
                }
                (true, Next::LookedFor | Next::Found(_) | Next::None) => false,
            };
            if !begun {
                break;
            }
        }
        if in_front.begun {
            state.grow();
        }
    }

    /// Begins one request in a segment, if the window has room for one that is worth it. Whether there may be another one.
    fn begin(
        self: &Arc<Self>,
        shared: &Arc<Shared>,
        source: &Arc<Source>,
        leg: &mut Leg,
        in_front: &mut InFront,
    ) -> bool {
        let chunk_size = leg.chunk_size;
        while !leg.is_done() && shared.cache.has(&leg.next_key()) {
            leg.next += 1;
            in_front.ahead += chunk_size;
        }
        let left = u64::from(leg.chunk_count.saturating_sub(leg.next));
        let free = in_front.window.saturating_sub(in_front.ahead) / chunk_size;
        let full = (REQUEST_BYTES / chunk_size).max(1);
        let wanted = full.min(free).min(left);
        let worth = full.min((in_front.window / 2 / chunk_size).max(1)).min(left);
        if left == 0 {
            return true;
        }
        let reads = shared.guards.limits.reads();
        // Those that somebody waits for find a place, also where the store has asked for fewer.
        if wanted < worth || reads.waiting > 0 || reads.in_use + PLACES_LEFT > reads.limit {
            return false;
        }
        let claimed = claim(shared, source, leg.next, wanted, self);
        if claimed.count == 0 {
            return false;
        }
        leg.next += claimed.count;
        in_front.ahead += u64::from(claimed.count) * chunk_size;
        in_front.begun = true;
        if !claimed.of_store.is_empty() {
            shared.metrics.ahead_requests.add(1);
            shared.metrics.ahead_chunks.add(claimed.of_store.len() as u64);
            start_ahead_load(shared, source, claimed.of_store, self);
        }
        // Fewer than wanted: there is no memory, or what follows is here already.
        true
    }

    /// Finds the segment behind this one, and gets its manifest.
    fn look_for_next(self: &Arc<Self>, shared: &Arc<Shared>, source: &Arc<Source>) {
        let (instance, run, source) = (Arc::clone(shared), Arc::clone(self), Arc::clone(source));
        let running = self.begin_request();
        shared.spawn(async move {
            let found = match next_segment(&instance, &source).await {
                Ok(found) => found,
                Err(error) => {
                    tracing::debug!(key = %source.key, %error, "the next segment was not found");
                    None
                }
            };
            drop(running);
            let next = found.map_or(Next::None, |found| Next::Found(Leg::of(&found)));
            let position = {
                let mut state = run.lock();
                if !state.is_at(&source) {
                    return;
                }
                state.next = next;
                state.position
            };
            run.plan(
                &instance,
                &source,
                position.min(source.manifest.chunks().plain_length().saturating_sub(1)),
            );
        });
    }

    fn lock(&self) -> MutexGuard<'_, RunState> {
        lock(&self.state)
    }
}

/// Bytes in front of the reader, and how many there may be.
struct InFront {
    window: u64,
    ahead: u64,
    /// Whether a request was begun.
    begun: bool,
}

impl RunState {
    fn is_sequential(&self) -> bool {
        self.continued >= CONTINUED_MIN
    }

    fn is_at(&self, source: &Source) -> bool {
        self.leg.segment_id == source.manifest.segment().segment_id
    }

    fn grow(&mut self) {
        if self.window < WINDOW_GROWN || self.waited {
            self.window = self.window.saturating_mul(2);
        }
        self.waited = false;
    }
}

impl Leg {
    fn of(source: &Source) -> Self {
        let (segment, chunks) = (source.manifest.segment(), source.manifest.chunks());
        Leg {
            key: source.key.clone(),
            segment_id: segment.segment_id,
            start_offset: segment.start_offset,
            end_offset: segment.end_offset,
            length: chunks.plain_length(),
            chunk_size: chunks.chunk_size().bytes(),
            chunk_count: u32::try_from(chunks.chunks().len()).unwrap_or(u32::MAX),
            next: 0,
        }
    }

    /// The segment, as long as its manifest is cached.
    fn source(&self, shared: &Shared) -> Option<Arc<Source>> {
        let manifest = shared.cache.manifest(self.segment_id)?;
        Some(Arc::new(Source {
            key: self.key.clone(),
            manifest: manifest.without_indexes(),
        }))
    }

    /// Whether a segment that begins there can be the next one. A duplicate begins somewhere in this one, and goes further.
    fn goes_on_at(&self, start_offset: i64) -> bool {
        start_offset > self.start_offset && start_offset <= self.end_offset.saturating_add(1)
    }

    fn is_done(&self) -> bool {
        self.next >= self.chunk_count
    }

    fn next_key(&self) -> EntryKey {
        EntryKey::Chunk(self.segment_id, ChunkIndex(self.next))
    }

    /// Bytes that were asked for from a chunk on.
    fn bytes_from(&self, chunk: u32) -> u64 {
        u64::from(self.next.saturating_sub(chunk)) * self.chunk_size
    }
}

/// What was claimed of chunks in a row.
struct Claimed {
    count: u32,
    /// Those that one request will bring. Those before them are being read from disk.
    of_store: Vec<Claim>,
}

/// Claims up to `wanted` chunks from `first` on that nobody has or loads, as far as there is memory for them.
fn claim(shared: &Arc<Shared>, source: &Arc<Source>, first: u32, wanted: u64, run: &Arc<Run>) -> Claimed {
    let chunk_count = source.manifest.chunks().chunks().len() as u64;
    let end = u64::from(first).saturating_add(wanted).min(chunk_count);
    let mut claimed = Claimed {
        count: 0,
        of_store: Vec::new(),
    };
    for index in u64::from(first)..end {
        let index = ChunkIndex(u32::try_from(index).unwrap_or(u32::MAX));
        let key = EntryKey::Chunk(source.manifest.segment().segment_id, index);
        let is_on_disk = shared.disk().is_some_and(|disk| disk.contains(&key));
        if is_on_disk && !claimed.of_store.is_empty() {
            break;
        }
        // The ticket first: it costs nothing, and memory may have to be made.
        let Some(ticket) = shared.cache.claim_ahead(key) else {
            break;
        };
        let Some(memory) = Memory::ahead(shared, source, index) else {
            break;
        };
        let claim = Claim { index, ticket, memory };
        claimed.count += 1;
        if is_on_disk {
            start_disk_load(shared, source, claim, run);
        } else {
            claimed.of_store.push(claim);
        }
    }
    claimed
}

/// The segment that goes on where this one ends: of those that begin in it or just behind it, the one that begins last, since others of
/// them are duplicates.
async fn next_segment(shared: &Arc<Shared>, source: &Source) -> Result<Option<Source>> {
    let segment = source.manifest.segment();
    let Some((folder, _)) = source.key.as_str().rsplit_once('/') else {
        return Ok(None);
    };
    let folder = format!("{folder}/");
    let page = shared
        .fetch_store
        .list(&folder, Some(source.key.as_str()), 2 * SIBLINGS_LISTED)
        .await?;
    let leg = Leg::of(source);
    let follows = page
        .objects
        .iter()
        .filter_map(|object| Some((SegmentKeys::of_manifest(&folder, &object.key)?, object)))
        .filter(|((offset, _), _)| leg.goes_on_at(*offset))
        .max_by_key(|((offset, _), _)| *offset);
    let Some((found, object)) = follows else {
        return Ok(None);
    };
    let stem = object.key.strip_suffix(".manifest").unwrap_or(&object.key);
    let (Ok(manifest_key), Ok(key)) = (Key::new(object.key.clone()), Key::new(format!("{stem}.log"))) else {
        return Ok(None);
    };
    let manifest = load::manifest(
        shared,
        &manifest_key,
        Identity::sibling(segment, found),
        Some(object.length),
    )
    .await?;
    Ok(Some(Source {
        key,
        manifest: manifest.without_indexes(),
    }))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every change under a lock is whole in itself.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
