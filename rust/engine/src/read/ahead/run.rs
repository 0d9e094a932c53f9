//! Streams that continue each other, and what is loaded in front of them.

use std::{
    collections::VecDeque,
    iter,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use alluvium_format::{ChunkIndex, PlainPosition, Uuid};
use tokio::time::Instant;

use super::{
    Share,
    flow::REQUEST_BYTES,
    leg::{Leg, claim},
    lock,
    pace::Pace,
    successor::Next,
    turns::Turns,
};
use crate::{
    cache::Stock,
    clock::Clock,
    completion::contained,
    instance::Shared,
    metrics::{Gauge, GaugeGuard},
    read::{
        Source,
        load::{Claim, start_ahead_load},
    },
};

/// Most requests that a run has on their way. One connection brings 80 to 100 MiB/s from many stores, so that these are enough for 10 Gbit/s.
const REQUESTS_MAX: i64 = 12;

/// How far a stream may begin before the end of what was read: Kafka begins at an index entry before the wanted offset, up to
/// `index.interval.bytes` and one batch of at most 1 MiB (`message.max.bytes`) away.
const OVERLAP: u64 = (1 << 20) + (256 << 10);

/// How near to the end of what was read most streams begin: batches are seldom larger.
const NEAR: u64 = 128 << 10;

/// What shows that a run goes on: a stream that begins near its end counts twice, one that only can be meant to once. Of random reads all over a
/// segment, one in seven begins within [`OVERLAP`] of the end of some other.
const CONTINUED_MIN: u32 = 2 * CONTINUED_NEAR;

/// What a stream counts that begins near the end of a run.
const CONTINUED_NEAR: u32 = 2;

/// Bytes read in one stream that show the same.
const READ_IN_ONE_STREAM_MIN: u64 = 2 << 20;

/// A run that was not used for so long is not waited for.
const FORGOTTEN: Duration = Duration::from_secs(5);

/// A run that was not used for so long has no share.
const RESTING: Duration = Duration::from_secs(2);

/// Streams that continue each other.
#[derive(Debug)]
pub(in crate::read) struct Run {
    state: Mutex<RunState>,
    clock: Clock,
    used_at_ms: AtomicU64,
    own_requests: Arc<Gauge>,
    all_requests: Arc<Gauge>,
    stock: Mutex<Arc<Stock>>,
    rank: Mutex<Rank>,
    turns: Arc<Turns>,
}

#[derive(Debug)]
struct RunState {
    leg: Leg,
    /// End of what was read.
    position: u64,
    continued: u32,
    pace: Pace,
    /// Whether it is counted among those who share the memory.
    is_sharer: bool,
    next: Next,
}

/// Where a run is among those that read a segment one close behind the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::read) enum Rank {
    /// Nobody is in front of it.
    First,
    /// Somebody is in front of it, and somebody behind.
    Middle,
    /// Nobody comes behind it.
    Last,
}

/// A request of a run that is on its way.
#[derive(Debug)]
pub(in crate::read) struct RunningRequest {
    _own: GaugeGuard,
    /// `None`: it brings no chunks from the store.
    _all: Option<GaugeGuard>,
}

impl Run {
    /// A run that begins with a stream from `position` on.
    pub(super) fn new(source: &Source, position: u64, clock: Clock, all_requests: &Arc<Gauge>) -> Arc<Self> {
        Arc::new(Run {
            state: Mutex::new(RunState {
                leg: Leg::of(source),
                position,
                // Nobody gets to the very begin of a segment by chance.
                continued: if position == 0 { CONTINUED_NEAR } else { 0 },
                pace: Pace::first(),
                is_sharer: false,
                next: Next::NotLookedFor,
            }),
            clock,
            used_at_ms: AtomicU64::new(clock.now_ms()),
            own_requests: Arc::default(),
            all_requests: Arc::clone(all_requests),
            stock: Mutex::new(Stock::new()),
            rank: Mutex::new(Rank::First),
            turns: Arc::default(),
        })
    }

    /// Notes that a reader is there.
    pub(in crate::read) fn touch(&self) {
        self.used_at_ms.store(self.clock.now_ms(), Ordering::Relaxed);
        lock(&self.stock).touch();
    }

    /// How long nobody has used it.
    pub(super) fn rested(&self) -> Duration {
        let used_at = self.used_at_ms.load(Ordering::Relaxed);
        Duration::from_millis(self.clock.now_ms().saturating_sub(used_at))
    }

    /// Whether nobody has used it for so long that nobody is expected any more.
    pub(in crate::read) fn is_forgotten(&self) -> bool {
        self.rested() > FORGOTTEN
    }

    /// The segment in which it reads ahead now, its position there, and its pace; if it does not, it is no sharer until it begins again.
    pub(super) fn place_as_sharer(&self) -> Option<(Uuid, u64, Pace)> {
        let mut state = self.lock();
        state.is_sharer = self.rested() < RESTING && !state.is_at_end();
        state
            .is_sharer
            .then_some((state.leg.segment_id, state.position, state.pace))
    }

    /// Takes over the pace of those that it reads a segment with: any of them may be the first next.
    pub(super) fn keep_pace(&self, pace: Pace) {
        let mut state = self.lock();
        state.pace = state.pace.max(pace);
    }

    /// The chunk that its reader holds, and the one before, where a batch can begin that he asks for again.
    pub(super) fn in_use_bytes(&self) -> u64 {
        2 * self.lock().leg.chunk_size
    }

    /// Where it is among those that read the segment.
    pub(in crate::read) fn rank(&self) -> Rank {
        *lock(&self.rank)
    }

    pub(super) fn set_rank(&self, rank: Rank) {
        *lock(&self.rank) = rank;
    }

    /// Notes a request on its way until the guard is dropped.
    pub(in crate::read) fn begin_request(&self) -> RunningRequest {
        RunningRequest {
            _own: self.own_requests.enter(),
            _all: Some(self.all_requests.enter()),
        }
    }

    /// The same of what takes nothing from the others: a read from disk, or the search for the next segment.
    pub(in crate::read) fn begin_beside(&self) -> RunningRequest {
        RunningRequest {
            _own: self.own_requests.enter(),
            _all: None,
        }
    }

    /// What is in front of its readers.
    pub(in crate::read) fn stock(&self) -> Arc<Stock> {
        Arc::clone(&lock(&self.stock))
    }

    /// Requests of it that wait for memory.
    pub(in crate::read) fn turns(&self) -> &Arc<Turns> {
        &self.turns
    }

    /// Notes that its readers are slower than was thought.
    pub(in crate::read) fn slow_down(&self) {
        self.lock().pace.slow_down();
    }

    /// Notes that a request was given up from a chunk on.
    pub(in crate::read) fn gave_up(&self, source: &Source, chunk: ChunkIndex) {
        let mut state = self.lock();
        let RunState { leg, next, .. } = &mut *state;
        let next = if let Next::Found(leg) = next { Some(leg) } else { None };
        for leg in iter::once(leg).chain(next).filter(|leg| leg.is_of(source)) {
            leg.next = leg.next.min(chunk.0);
        }
    }

    /// Whether a stream that begins there goes on where this run is; if so, it moves there.
    pub(super) fn continues(&self, source: &Arc<Source>, position: u64) -> bool {
        let mut state = self.lock();
        let segment = source.manifest.segment();
        if state.is_at(source) {
            let goes_on = position <= state.position && position + OVERLAP >= state.position;
            if goes_on {
                let weight = if position + NEAR >= state.position {
                    CONTINUED_NEAR
                } else {
                    1
                };
                state.continued = state.continued.saturating_add(weight);
            }
            return goes_on;
        }
        let at_end = state.position + OVERLAP >= state.leg.length;
        // Only what repeats a part of this segment is begun in its middle.
        let at_begin = position <= OVERLAP || segment.start_offset <= state.leg.end_offset;
        if !(at_end && at_begin && state.leg.goes_on_at(segment.start_offset)) {
            return false;
        }
        let next = std::mem::replace(&mut state.next, Next::NotLookedFor);
        state.leg = match next {
            Next::Found(leg) if leg.segment_id == segment.segment_id => leg,
            next => {
                if let Next::Found(_) = next {
                    // Nobody comes for what was loaded of another one.
                    *lock(&self.stock) = Stock::new();
                }
                Leg::of(source)
            }
        };
        state.position = position;
        true
    }

    pub(super) fn leads_to(&self, segment_id: Uuid) -> bool {
        let state = self.lock();
        let is_it = |leg: &Leg| leg.segment_id == segment_id;
        is_it(&state.leg) || matches!(&state.next, Next::Found(leg) if is_it(leg))
    }

    /// Notes what a stream has read: up to `position`, and how many bytes in all.
    pub(in crate::read) fn moved(&self, source: &Source, position: u64, read_in_stream: u64) {
        self.touch();
        let mut state = self.lock();
        if !state.is_at(source) {
            return;
        }
        let further = position.saturating_sub(state.position);
        state.pace.has_read(further);
        state.position = state.position.max(position);
        if read_in_stream >= READ_IN_ONE_STREAM_MIN {
            state.continued = state.continued.max(CONTINUED_MIN);
        }
    }

    /// Notes that a reader has to wait.
    pub(in crate::read) fn waits(&self) {
        self.lock().pace.has_waited();
    }

    /// Chunks behind one that is missed, to be loaded with the same request.
    pub(in crate::read) fn claim_behind(
        self: &Arc<Self>,
        shared: &Arc<Shared>,
        source: &Arc<Source>,
        missed: ChunkIndex,
    ) -> VecDeque<Claim> {
        let chunk_size = source.chunk_size();
        let share = shared.ahead.share(shared, chunk_size);
        let mut state = self.lock();
        if !state.is_sequential() || !state.is_at(source) {
            return VecDeque::new();
        }
        state.pace.grow();
        let request = request_bytes(shared, source).min(state.pace.within(share.own));
        let wanted = (request / chunk_size).saturating_sub(1);
        let claimed = claim(shared, source, missed.0 + 1, wanted, self, share);
        // Back to here, where it was further: as this one is missed, others may be that were asked for once.
        state.leg.next = missed.0 + 1 + claimed.count;
        claimed.of_store
    }

    /// Begins what should be on its way in front of a reader at `position`.
    pub(in crate::read) fn plan(self: &Arc<Self>, shared: &Arc<Shared>, source: &Arc<Source>, position: u64) {
        {
            let mut state = self.lock();
            if !state.is_sequential() || !state.is_at(source) {
                return;
            }
            if !std::mem::replace(&mut state.is_sharer, true) {
                drop(state);
                shared.ahead.sharers.add(self);
            }
        }
        let share = shared.ahead.share(shared, source.chunk_size());
        let mut state = self.lock();
        if !state.is_at(source) {
            return;
        }
        state.pace.grow_if_waited();
        let window = state.pace.within(share.own);
        let chunks = source.manifest.chunks();
        let Some(current) = chunks.chunk_at(PlainPosition(position)) else {
            return;
        };
        state.leg.next = state.leg.next.max(current.0 + 1);
        let mut in_front = InFront {
            window,
            share,
            ahead: state.leg.bytes_from(current.0 + 1),
            begun: false,
        };
        if let Next::Found(leg) = &state.next {
            in_front.ahead += leg.bytes_from(0);
        }
        while self.may_begin(shared) {
            let RunState { leg, next, .. } = &mut *state;
            let begun = match (leg.is_done(), next) {
                (false, _) => self.begin(shared, source, leg, &mut in_front),
                (true, next) if next.is_to_be_looked_for() => {
                    *next = Next::LookedFor;
                    self.look_for_next(shared, source);
                    false
                }
                (true, next @ Next::Found(_)) => self.begin_in_next(shared, next, &mut in_front),
                (true, _) => false,
            };
            if !begun {
                break;
            }
        }
        if in_front.begun {
            state.pace.grow();
        }
    }

    /// Whether one more request can be of use: none that waits for memory already, and none that only takes from the others.
    fn may_begin(&self, shared: &Shared) -> bool {
        let own = self.own_requests.get();
        let is_of_use = own == 0 || (own < REQUESTS_MAX && shared.ahead.may_begin_another());
        is_of_use && self.turns.are_free()
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
        while !leg.is_done() && in_front.ahead < in_front.window && shared.cache.has(&leg.next_key()) {
            leg.next += 1;
            in_front.ahead += chunk_size;
        }
        let left = u64::from(leg.chunk_count.saturating_sub(leg.next));
        let free = in_front.window.saturating_sub(in_front.ahead) / chunk_size;
        let full = (request_bytes(shared, source) / chunk_size).max(1);
        let wanted = full.min(free).min(left);
        let worth = match self.rank() {
            Rank::First => full.min((in_front.window / 2 / chunk_size).max(1)),
            // What is in front of the first is in front of all: a little from each of them makes many small requests.
            Rank::Middle | Rank::Last => full.min((in_front.share.own / chunk_size).max(1)),
        };
        let worth = worth.min(left);
        if left == 0 {
            return true;
        }
        if wanted < worth || !shared.ahead.has_place(shared) {
            return false;
        }
        let claimed = claim(shared, source, leg.next, wanted, self, in_front.share);
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

    /// The same in the segment behind, as long as its manifest is cached.
    fn begin_in_next(self: &Arc<Self>, shared: &Arc<Shared>, next: &mut Next, in_front: &mut InFront) -> bool {
        let Next::Found(leg) = next else { return false };
        if leg.is_done() {
            return false;
        }
        match leg.source(shared) {
            Some(source) => self.begin(shared, &source, leg, in_front),
            None => {
                *next = Next::NotLookedFor;
                false
            }
        }
    }

    /// Finds the segment behind this one, and gets its manifest.
    fn look_for_next(self: &Arc<Self>, shared: &Arc<Shared>, source: &Arc<Source>) {
        let (instance, run, source) = (Arc::clone(shared), Arc::clone(self), Arc::clone(source));
        let running = self.begin_beside();
        shared.spawn(async move {
            let found = match contained(instance.ahead.successors.of(&instance, &source)).await {
                Ok(found) => found,
                Err(error) => {
                    tracing::debug!(key = %source.key, %error, "the next segment was not found");
                    None
                }
            };
            drop(running);
            {
                let mut state = run.lock();
                if !state.is_at(&source) {
                    return;
                }
                state.next = found.map_or_else(|| Next::None(Instant::now()), |found| Next::Found(Leg::of(&found)));
            }
            run.go_on(&instance);
        });
    }

    /// Begins what should be on its way in front of a reader, wherever he is: something that was in the way has ended.
    pub(in crate::read) fn go_on(self: &Arc<Self>, shared: &Arc<Shared>) {
        let (source, position) = {
            let state = self.lock();
            (state.leg.source(shared), state.position)
        };
        if let Some(source) = source
            && !self.is_forgotten()
        {
            // The chunk behind what was read may be nobody's yet.
            self.plan(shared, &source, position.saturating_sub(1));
        }
    }

    fn lock(&self) -> MutexGuard<'_, RunState> {
        lock(&self.state)
    }
}

/// Bytes of a request, as they are in the segment: as they come, compressed chunks are fewer.
fn request_bytes(shared: &Shared, source: &Source) -> u64 {
    let chunks = source.manifest.chunks();
    let come = u128::from(shared.ahead.flow().request_bytes());
    let plain = come * u128::from(chunks.plain_length()) / u128::from(chunks.stored_length().max(1));
    u64::try_from(plain).map_or(REQUEST_BYTES, |plain| plain.min(REQUEST_BYTES))
}

/// Bytes in front of the reader, and how many there may be.
struct InFront {
    window: u64,
    share: Share,
    ahead: u64,
    /// Whether a request was begun.
    begun: bool,
}

impl RunState {
    fn is_sequential(&self) -> bool {
        self.continued >= CONTINUED_MIN
    }

    /// Whether all was read, and nothing is known to follow.
    fn is_at_end(&self) -> bool {
        self.position >= self.leg.length && !matches!(self.next, Next::Found(_))
    }

    fn is_at(&self, source: &Source) -> bool {
        self.leg.is_of(source)
    }
}
