//! How fast bytes come, and how many requests side by side bring more of them.
//!
//! # Purpose
//! Over a link that is narrow for all, each request ahead takes from the one that somebody waits for, and brings nothing more. Where each
//! connection is slow, only many are fast.
//!
//! # Flow
//! Bodies tell what they receive; the rate is noted every [`SLICE`]. There may be as many requests as come within [`OUTLOOK_SECONDS`], which on a fast
//! link seldom is the limit. Where that is few, more are tried step by step ([`STEPS`]), as long as each step brings more than the one before. All
//! runs have these requests together, and each run one in any case.
//!
//! # Invariants
//! * A body that waits for memory receives nothing, and what the network has kept for it meanwhile tells nothing of what more of them would bring.
//! * What was seen long ago of few bodies does not stand against what is seen now of more.
//!
//! # Not here
//! How much a run may ask for ([`super::pace`]).

use std::{
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use tokio::time::Instant;

use super::lock;

/// Bytes of a request, as they are in the segment: at most 16 of them for a segment of 256 MiB.
pub(super) const REQUEST_BYTES: u64 = 16 << 20;

/// How often the rate is noted: the first few requests of a fast link are counted by then.
const SLICE: Duration = Duration::from_millis(50);

/// Requests are on their way for what comes within so long a time: who waits for one chunk among them hardly notices.
const OUTLOOK_SECONDS: u64 = 1;

/// How long one request takes on a slow connection: its first chunks wait in memory until its reader has got to them.
const REQUEST_SECONDS: u64 = 2;

/// Numbers of requests that are tried one after the other; up to 64 fetches may be under way by default.
const STEPS: [u64; 7] = [1, 2, 4, 8, 12, 24, 48];

/// Requests that there may be in any case: while one ends, the next is on its way.
const REQUESTS_MIN: u64 = 2;

/// A body of fewer bytes tells nothing of its rate. A chunk as small as this makes the smallest request.
const BODY_MIN: u64 = 64 << 10;

/// Slices that a step is measured by; the last one weighs as one of them.
const SAMPLES_MIN: u64 = 5;

/// A step that brought nothing is tried again after so long a time.
const REFUSED: Duration = Duration::from_secs(60);

/// For so long, what comes after a wait for memory has lain in buffers, and a connection that is new takes its start.
const SETTLED: Duration = Duration::from_millis(200);

/// What an instance receives of bodies.
#[derive(Debug)]
pub(in crate::read) struct Flow(Mutex<State>);

#[derive(Debug)]
struct State {
    /// Bodies that are being received.
    bodies: u64,
    slice: Slice,
    /// When a body began, went on, or stopped for want of memory.
    changed: Option<Instant>,
    /// Bodies that wait for memory.
    paused: u64,
    /// Bytes a second, of late.
    rate: u64,
    /// Bytes a second of one body among others, of late.
    rate_of_one: u64,
    steps: [Step; STEPS.len()],
}

#[derive(Clone, Copy, Debug)]
struct Slice {
    /// Since when there have been bodies; `None`: there are none.
    since: Option<Instant>,
    /// Time with bodies before that.
    before: Duration,
    bytes: u64,
    /// Bodies that were received, at least and at most.
    least: u64,
    most: u64,
}

/// What so many bodies bring.
#[derive(Clone, Copy, Debug, Default)]
struct Step {
    samples: u64,
    /// Bytes a second of one of them.
    rate_of_one: u64,
    bodies: u64,
    /// What one brought in the step before this, at the same time.
    of_one_before: u64,
    at: Option<Instant>,
}

/// A body that is being received, until this is dropped.
#[derive(Debug)]
pub(in crate::read) struct Receiving {
    flow: Arc<Flow>,
    since: Instant,
    bytes: u64,
    /// What the network has kept for it tells nothing.
    was_paused: bool,
}

/// A body that waits for memory, until this is dropped.
#[derive(Debug)]
pub(in crate::read) struct Paused(Arc<Flow>);

impl Flow {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Flow(Mutex::new(State {
            bodies: 0,
            slice: Slice::new(0),
            changed: None,
            paused: 0,
            rate: 0,
            rate_of_one: 0,
            steps: Default::default(),
        })))
    }

    /// A body begins, or goes on after a wait for memory.
    pub(in crate::read) fn receive(self: &Arc<Self>, was_paused: bool) -> Receiving {
        let now = Instant::now();
        let mut state = self.lock();
        state.bodies += 1;
        state.slice.most = state.slice.most.max(state.bodies);
        state.slice.since.get_or_insert(now);
        state.changed = Some(now);
        Receiving {
            flow: Arc::clone(self),
            since: now,
            bytes: 0,
            was_paused,
        }
    }

    /// Bodies that wait for memory, and take nothing from the others.
    pub(super) fn paused(&self) -> u64 {
        self.lock().paused
    }

    /// Most requests that may be on their way ahead, where they are not the only one of their run.
    pub(super) fn requests_max(&self) -> u64 {
        let state = self.lock();
        let soon = state.rate * OUTLOOK_SECONDS / REQUEST_BYTES;
        state.tried().max(soon).max(REQUESTS_MIN)
    }

    /// Bytes of a request, as they come.
    pub(super) fn request_bytes(&self) -> u64 {
        match self.lock().rate_of_one {
            0 => REQUEST_BYTES,
            rate => (rate * REQUEST_SECONDS).min(REQUEST_BYTES),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.0)
    }
}

impl Receiving {
    /// So many bytes have come.
    pub(in crate::read) fn arrived(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
        let mut state = self.flow.lock();
        state.slice.bytes += bytes as u64;
        if state.slice.elapsed() >= SLICE {
            state.note();
        }
    }

    /// It stops for want of memory.
    pub(in crate::read) fn pause(self) -> Paused {
        let mut state = self.flow.lock();
        state.paused += 1;
        state.changed = Some(Instant::now());
        drop(state);
        Paused(Arc::clone(&self.flow))
    }
}

impl Drop for Receiving {
    fn drop(&mut self) {
        let mut state = self.flow.lock();
        state.bodies -= 1;
        state.slice.least = state.slice.least.min(state.bodies);
        if state.bodies == 0 {
            state.slice.before = state.slice.elapsed();
            state.slice.since = None;
        }
        // Where bodies are so short that no slice is settled, each of them tells by itself.
        if !self.was_paused && self.bytes >= BODY_MIN {
            state.note_one(rate(self.bytes, self.since.elapsed()));
        }
    }
}

impl Drop for Paused {
    fn drop(&mut self) {
        self.0.lock().paused -= 1;
    }
}

impl State {
    /// Notes the slice that ends now.
    fn note(&mut self) {
        let now = Instant::now();
        let slice = std::mem::replace(&mut self.slice, Slice::new(self.bodies));
        let rate = rate(slice.bytes, slice.elapsed());
        self.rate = rate.max(u64::midpoint(self.rate, rate));
        let is_settled = self.changed.is_none_or(|changed| now - changed >= SETTLED);
        if !is_settled || slice.least != slice.most || slice.least == 0 {
            return;
        }
        let (bodies, rate_of_one) = (slice.least, rate / slice.least);
        self.note_one(rate_of_one);
        let number = STEPS.iter().position(|&most| bodies <= most).unwrap_or(STEPS.len() - 1);
        let before = self.steps.iter().take(number).rfind(|step| step.is_current());
        let of_one_before = before.map_or(0, |step| step.rate_of_one);
        if let Some(step) = self.steps.get_mut(number) {
            step.add(rate_of_one, bodies, of_one_before, now);
        }
    }

    /// Notes what one body among others has brought a second.
    fn note_one(&mut self, rate: u64) {
        self.rate_of_one = match self.rate_of_one {
            0 => rate,
            before => averaged(before, rate),
        };
    }

    /// The step that brings more than those before, or is to be tried.
    fn tried(&self) -> u64 {
        let mut most = 0;
        let mut before: Option<&Step> = None;
        // Several runs may have passed a step from the start, or be past one that was seen long ago.
        let seen = self.steps.iter().rposition(Step::is_current);
        let passed = seen
            .or_else(|| self.steps.iter().rposition(Step::is_known))
            .unwrap_or(0);
        for (number, (step, requests)) in self.steps.iter().zip(STEPS).enumerate() {
            if seen.is_some_and(|seen| number < seen) && !step.is_fresh() {
                most = requests;
                continue;
            }
            let is_of_no_use = before.is_some_and(|before| step.brings_little_more_than(before));
            if is_of_no_use && step.is_fresh() {
                break;
            }
            most = requests;
            if is_of_no_use || (!step.is_known() && number >= passed) {
                // To be seen first.
                break;
            }
            if step.is_known() {
                before = Some(step);
            }
        }
        most
    }
}

impl Slice {
    fn new(bodies: u64) -> Self {
        Slice {
            since: (bodies > 0).then(Instant::now),
            before: Duration::ZERO,
            bytes: 0,
            least: bodies,
            most: bodies,
        }
    }

    /// The time in it with bodies.
    fn elapsed(&self) -> Duration {
        self.before + self.since.map_or(Duration::ZERO, |since| since.elapsed())
    }
}

impl Step {
    fn is_known(&self) -> bool {
        self.samples >= SAMPLES_MIN
    }

    fn is_fresh(&self) -> bool {
        self.at.is_some_and(|at| at.elapsed() < REFUSED)
    }

    /// Whether what is known was seen of late.
    fn is_current(&self) -> bool {
        self.is_known() && self.is_fresh()
    }

    fn add(&mut self, rate_of_one: u64, bodies: u64, of_one_before: u64, now: Instant) {
        if self.at.is_none_or(|at| now - at >= REFUSED) {
            *self = Step {
                rate_of_one,
                ..Step::default()
            };
        }
        self.samples += 1;
        self.rate_of_one = averaged(self.rate_of_one, rate_of_one);
        self.bodies = bodies;
        self.of_one_before = of_one_before;
        self.at = Some(now);
    }

    /// Whether it brings less than 30 % of the growth that there would be if each connection kept its rate.
    fn brings_little_more_than(&self, before: &Step) -> bool {
        // Fewer than 40 % more of them say nothing.
        let is_larger = 5 * self.bodies >= 7 * before.bodies;
        // When the step before brings half as much again as it did then, the link has become another one.
        let is_another = 2 * before.rate_of_one > 3 * self.of_one_before;
        let rate = self.rate_of_one.saturating_mul(10 * self.bodies);
        let least = before.rate_of_one.saturating_mul(7 * before.bodies + 3 * self.bodies);
        self.is_known() && is_larger && !is_another && rate < least
    }
}

/// Bytes a second.
fn rate(bytes: u64, time: Duration) -> u64 {
    let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    bytes.saturating_mul(1_000_000) / micros.max(1)
}

fn averaged(before: u64, sample: u64) -> u64 {
    ((SAMPLES_MIN - 1) * before + sample) / SAMPLES_MIN
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Receives from as many bodies as it may, for so long, over such a link; how many they are at the end.
    async fn receive(flow: &Arc<Flow>, time: Duration, per_second: impl Fn(u64) -> u64) -> u64 {
        let mut bodies = vec![flow.receive(false)];
        let begin = Instant::now();
        while begin.elapsed() < time {
            let wanted = flow.requests_max().min(12);
            while (bodies.len() as u64) < wanted {
                bodies.push(flow.receive(false));
            }
            bodies.truncate(usize::try_from(wanted).unwrap());
            tokio::time::advance(Duration::from_millis(10)).await;
            for body in &mut bodies {
                body.arrived(usize::try_from(per_second(wanted) / wanted / 100).unwrap());
            }
        }
        bodies.len() as u64
    }

    #[tokio::test(start_paused = true)]
    async fn a_fast_link_gets_all_requests_at_once() {
        let flow = Flow::new();
        let bodies = receive(&flow, Duration::from_millis(250), |bodies| bodies * 80 * MIB).await;
        assert_eq!((bodies, flow.request_bytes()), (12, REQUEST_BYTES));
    }

    #[tokio::test(start_paused = true)]
    async fn a_link_that_is_narrow_for_all_gets_few_until_it_is_wide() {
        let flow = Flow::new();
        let narrow = |_| 10 * MIB;
        for _ in 0..40 {
            assert!(receive(&flow, Duration::from_secs(2), narrow).await <= 2);
        }
        assert!(
            (4 * MIB..=11 * MIB).contains(&(flow.request_bytes() / 2)),
            "{}",
            flow.request_bytes()
        );
        // Now it is wide.
        assert_eq!(
            receive(&flow, Duration::from_secs(1), |bodies| bodies * 80 * MIB).await,
            12
        );
        // And narrow again: each step down shows that it was one too many.
        assert_eq!(receive(&flow, Duration::from_secs(5), narrow).await, 2);
    }

    #[tokio::test(start_paused = true)]
    async fn slow_connections_get_many_small_requests() {
        let flow = Flow::new();
        let bodies = receive(&flow, Duration::from_secs(2), |bodies| bodies * MIB).await;
        assert_eq!((bodies, flow.request_bytes() / (MIB / 10)), (12, 19));
    }

    #[tokio::test(start_paused = true)]
    async fn what_waited_for_memory_tells_nothing_of_the_link() {
        let flow = Flow::new();
        receive(&flow, Duration::from_millis(500), |bodies| bodies * MIB).await;
        let before = flow.request_bytes();
        flow.receive(false).pause();
        let mut again = flow.receive(true);
        tokio::time::advance(2 * SLICE).await;
        again.arrived(64 << 20);
        assert_eq!(flow.request_bytes(), before);
        let paused = again.pause();
        assert_eq!(flow.lock().bodies, 0);
        assert_eq!(flow.paused(), 1);
        assert_eq!(flow.request_bytes(), before);
        drop(paused);
        assert_eq!(flow.paused(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn several_runs_that_begin_with_one_request_each_get_more() {
        let flow = Flow::new();
        let mut bodies: Vec<Receiving> = (0..6).map(|_| flow.receive(false)).collect();
        for _ in 0..100 {
            tokio::time::advance(Duration::from_millis(10)).await;
            bodies.iter_mut().for_each(|body| body.arrived(20_000));
        }
        assert_eq!(flow.requests_max(), 12);
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_seen_of_one_run_does_not_hold_several_back_for_ever() {
        let flow = Flow::new();
        receive(&flow, Duration::from_secs(10), |_| 20 * MIB).await;
        assert!(flow.requests_max() <= 2);
        // Over slow connections, which six runs use with one request each in any case.
        let mut bodies: Vec<Receiving> = (0..6).map(|_| flow.receive(false)).collect();
        for _ in 0..7000 {
            tokio::time::advance(Duration::from_millis(10)).await;
            bodies.iter_mut().for_each(|body| body.arrived(40_000));
        }
        assert_eq!(flow.requests_max(), 12);
    }

    #[tokio::test(start_paused = true)]
    async fn requests_become_large_again_after_a_body_that_halted() {
        let flow = Flow::new();
        let mut halted = flow.receive(false);
        tokio::time::advance(Duration::from_secs(2)).await;
        halted.arrived(300_000);
        drop(halted);
        assert!(flow.request_bytes() < MIB);
        // So short that no slice is settled, and with pauses between them.
        for _ in 0..20 {
            let mut body = flow.receive(false);
            tokio::time::advance(Duration::from_millis(10)).await;
            body.arrived(1 << 20);
            drop(body);
            tokio::time::advance(Duration::from_millis(50)).await;
        }
        assert_eq!((flow.request_bytes(), flow.requests_max()), (REQUEST_BYTES, 6));
    }
}
