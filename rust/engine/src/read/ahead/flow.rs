//! How fast bytes come, and how many requests side by side bring more of them.
//!
//! # Purpose
//! Over a link that is narrow for all, each request ahead takes from the one that somebody waits for, and brings nothing more. Where each
//! connection is slow, only many are fast.
//!
//! # Flow
//! Bodies tell what they receive; the rate is noted every [`SLICE`]. There may be as many requests as come within [`OUTLOOK_SECONDS`], which on a fast
//! link never is the limit. Where that is few, more are tried step by step ([`STEPS`]), as long as each step brings more than the one before.
//!
//! # Invariants
//! * A body that waits for memory receives nothing, and what the network has kept for it meanwhile tells nothing of the link.
//!
//! # Not here
//! How much a run may ask for ([`super::run`]).

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

/// Numbers of requests that are tried one after the other.
const STEPS: [u64; 4] = [2, 4, 8, 12];

/// Slices that a step is measured by; the last one weighs as one of them.
const SAMPLES_MIN: u64 = 5;

/// A step that brought nothing is tried again after so long a time.
const REFUSED: Duration = Duration::from_secs(60);

/// What comes after a wait for memory has lain in buffers, for so long.
const SETTLED: Duration = Duration::from_millis(200);

/// What an instance receives of bodies.
#[derive(Debug)]
pub(in crate::read) struct Flow(Mutex<State>);

#[derive(Debug)]
struct State {
    /// Bodies that are being received.
    bodies: u64,
    slice: Slice,
    /// When a body went on or stopped for want of memory.
    paused: Option<Instant>,
    /// Bytes a second, of late.
    rate: u64,
    /// Bytes a second of one body among others, of late.
    rate_of_one: u64,
    steps: [Step; STEPS.len()],
}

#[derive(Clone, Copy, Debug)]
struct Slice {
    since: Instant,
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
    at: Option<Instant>,
}

/// A body that is being received, until this is dropped.
#[derive(Debug)]
pub(in crate::read) struct Receiving(Arc<Flow>);

impl Flow {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Flow(Mutex::new(State {
            bodies: 0,
            slice: Slice::new(0),
            paused: None,
            rate: 0,
            rate_of_one: 0,
            steps: Default::default(),
        })))
    }

    /// A body begins, or goes on after a wait for memory.
    pub(in crate::read) fn receive(self: &Arc<Self>, was_paused: bool) -> Receiving {
        let mut state = self.lock();
        if state.bodies == 0 {
            state.slice = Slice::new(1);
        }
        state.bodies += 1;
        state.slice.most = state.slice.most.max(state.bodies);
        if was_paused {
            state.paused = Some(Instant::now());
        }
        Receiving(Arc::clone(self))
    }

    /// Most requests that may be on their way ahead, where they are not the only one of their run.
    pub(super) fn requests_max(&self) -> u64 {
        let state = self.lock();
        state.tried().max(state.rate * OUTLOOK_SECONDS / REQUEST_BYTES)
    }

    /// Bytes of a request, as they are in the segment.
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
    pub(in crate::read) fn arrived(&self, bytes: usize) {
        let mut state = self.0.lock();
        state.slice.bytes += bytes as u64;
        if state.slice.since.elapsed() >= SLICE {
            state.note();
        }
    }

    /// It stops for want of memory.
    pub(in crate::read) fn pause(self) {
        self.0.lock().paused = Some(Instant::now());
    }
}

impl Drop for Receiving {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.bodies -= 1;
        state.slice.least = state.slice.least.min(state.bodies);
    }
}

impl State {
    /// Notes the slice that ends now.
    fn note(&mut self) {
        let now = Instant::now();
        let slice = std::mem::replace(&mut self.slice, Slice::new(self.bodies));
        let micros = u64::try_from((now - slice.since).as_micros()).unwrap_or(u64::MAX);
        let rate = slice.bytes.saturating_mul(1_000_000) / micros.max(1);
        self.rate = rate.max(u64::midpoint(self.rate, rate));
        let is_settled = self.paused.is_none_or(|paused| now - paused >= SETTLED);
        if !is_settled || slice.least != slice.most || slice.least == 0 {
            return;
        }
        let (bodies, rate_of_one) = (slice.least, rate / slice.least);
        self.rate_of_one = match self.rate_of_one {
            0 => rate_of_one,
            before => averaged(before, rate_of_one),
        };
        let step = STEPS.iter().position(|&most| bodies <= most);
        if let Some(step) = self.steps.get_mut(step.unwrap_or(STEPS.len() - 1)) {
            step.add(rate_of_one, bodies, now);
        }
    }

    /// The step that brings more than those before, or is to be tried.
    fn tried(&self) -> u64 {
        let mut most = 0;
        let mut before: Option<&Step> = None;
        for (step, requests) in self.steps.iter().zip(STEPS) {
            let is_of_no_use = before.is_some_and(|before| step.brings_little_more_than(before));
            if is_of_no_use && step.is_fresh() {
                break;
            }
            most = requests;
            if is_of_no_use || !step.is_known() {
                // To be seen first.
                break;
            }
            before = Some(step);
        }
        most
    }
}

impl Slice {
    fn new(bodies: u64) -> Self {
        Slice {
            since: Instant::now(),
            bytes: 0,
            least: bodies,
            most: bodies,
        }
    }
}

impl Step {
    fn is_known(&self) -> bool {
        self.samples >= SAMPLES_MIN
    }

    fn is_fresh(&self) -> bool {
        self.at.is_some_and(|at| at.elapsed() < REFUSED)
    }

    fn add(&mut self, rate_of_one: u64, bodies: u64, now: Instant) {
        if self.at.is_none_or(|at| now - at >= REFUSED) {
            *self = Step {
                rate_of_one,
                ..Step::default()
            };
        }
        self.samples += 1;
        self.rate_of_one = averaged(self.rate_of_one, rate_of_one);
        self.bodies = bodies;
        self.at = Some(now);
    }

    /// Whether it brings less than 30 % of the growth that there would be if each connection kept its rate.
    fn brings_little_more_than(&self, before: &Step) -> bool {
        // Fewer than 40 % more of them say nothing.
        let is_larger = 5 * self.bodies >= 7 * before.bodies;
        let rate = self.rate_of_one.saturating_mul(10 * self.bodies);
        let least = before.rate_of_one.saturating_mul(7 * before.bodies + 3 * self.bodies);
        self.is_known() && is_larger && rate < least
    }
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
            for body in &bodies {
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
    async fn a_link_that_is_narrow_for_all_gets_few_and_is_tried_again() {
        let flow = Flow::new();
        let narrow = |_| 10 * MIB;
        assert_eq!(receive(&flow, Duration::from_secs(2), narrow).await, 2);
        assert!(
            (9 * MIB..=10 * MIB).contains(&flow.request_bytes()),
            "{}",
            flow.request_bytes()
        );
        // Four were tried, and are from time to time.
        assert!(flow.lock().steps[1].is_known());
        assert_eq!(receive(&flow, REFUSED - Duration::from_secs(3), narrow).await, 2);
        let mut tried = 0;
        for _ in 0..20 {
            tried = tried.max(receive(&flow, Duration::from_millis(200), narrow).await);
        }
        assert_eq!(tried, 4);
        assert_eq!(receive(&flow, Duration::from_secs(2), narrow).await, 2);
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
        let again = flow.receive(true);
        tokio::time::advance(2 * SLICE).await;
        again.arrived(64 << 20);
        assert_eq!(flow.request_bytes(), before);
        assert_eq!(flow.lock().bodies, 1);
    }
}
