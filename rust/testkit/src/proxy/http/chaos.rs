//! Purpose: faults by chance, the same ones for the same seed.
//!
//! Flow: each request that no rule is for takes three numbers from one generator, in the order of arrival: whether it
//! is hit, by which of the actions that fit, and how hard.
//!
//! Invariants: the numbers of the n-th request depend on the seed alone; the same requests in the same order meet the
//! same faults. Requests side by side arrive in any order, and then only the totals are alike.

use super::fault::HttpFault;
use crate::proxy::counters::FaultKind;
use crate::s3_server::{Action as _, FaultError, FaultRule, Operation, Target};
use rand::{Rng as _, RngExt as _, SeedableRng as _, rngs::StdRng};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What may happen, and how likely. Times and positions of the actions are the most that is drawn.
#[derive(Clone, Debug)]
pub struct Chaos {
    pub seed: u64,
    /// From 0 to 1, of a request to be hit.
    pub probability: f64,
    /// The same for single operations.
    pub of_operation: Vec<(Operation, f64)>,
    /// Each with its weight among those that fit a request.
    pub actions: Vec<(u32, HttpFault)>,
}

impl Chaos {
    /// Nothing happens until told what.
    #[must_use]
    pub fn new(seed: u64, probability: f64) -> Self {
        Self {
            seed,
            probability,
            of_operation: Vec::new(),
            actions: Vec::new(),
        }
    }

    #[must_use]
    pub fn operation(mut self, operation: Operation, probability: f64) -> Self {
        self.of_operation.push((operation, probability));
        self
    }

    #[must_use]
    pub fn action(mut self, weight: u32, action: HttpFault) -> Self {
        self.actions.push((weight, action));
        self
    }

    fn probability_of(&self, operation: Operation) -> f64 {
        let of_operation = self.of_operation.iter().find(|(of, _)| *of == operation);
        of_operation.map_or(self.probability, |(_, probability)| *probability)
    }
}

/// What chance has decided since it was switched on.
#[derive(Clone, Debug)]
pub struct ChaosStatus {
    pub seed: u64,
    /// Requests decided about.
    pub requests: u64,
    hits: [u64; FaultKind::ALL.len()],
}

impl ChaosStatus {
    /// Requests that were given this fault.
    #[must_use]
    pub fn hits(&self, kind: FaultKind) -> u64 {
        self.hits[kind as usize]
    }

    /// Requests that were given any fault.
    #[must_use]
    pub fn all_hits(&self) -> u64 {
        self.hits.iter().sum()
    }
}

#[derive(Debug)]
struct Running {
    chaos: Chaos,
    generator: StdRng,
    status: ChaosStatus,
    on: bool,
}

/// The switch. Shared with the proxy; changes count from the next request on.
#[derive(Debug, Default)]
pub struct ChaosSwitch {
    running: Mutex<Option<Running>>,
}

impl ChaosSwitch {
    fn lock(&self) -> MutexGuard<'_, Option<Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins with the first numbers of the seed.
    pub fn start(&self, chaos: Chaos) -> Result<(), FaultError> {
        for (_, action) in &chaos.actions {
            FaultRule::any(action.clone()).check()?;
        }
        let status = ChaosStatus {
            seed: chaos.seed,
            requests: 0,
            hits: [0; FaultKind::ALL.len()],
        };
        *self.lock() = Some(Running {
            generator: StdRng::seed_from_u64(chaos.seed),
            chaos,
            status,
            on: true,
        });
        Ok(())
    }

    /// Nothing happens by chance any more. Requests that are hit stay so.
    pub fn pause(&self) {
        self.set_on(false);
    }

    /// Goes on after a pause, with the numbers where they were.
    pub fn resume(&self) {
        self.set_on(true);
    }

    fn set_on(&self, on: bool) {
        if let Some(running) = self.lock().as_mut() {
            running.on = on;
        }
    }

    /// `None` before the first start.
    #[must_use]
    pub fn status(&self) -> Option<ChaosStatus> {
        self.lock().as_ref().map(|running| running.status.clone())
    }

    /// The fault for this request, if any.
    pub(super) fn take(&self, target: &Target) -> Option<HttpFault> {
        let mut running = self.lock();
        let running = running.as_mut().filter(|running| running.on)?;
        // All three are drawn always: a request's numbers must not depend on what became of those before it.
        let hit = running.generator.random::<f64>();
        let (which, how_hard) = (running.generator.next_u64(), running.generator.next_u64());
        running.status.requests += 1;
        if hit >= running.chaos.probability_of(target.operation) {
            return None;
        }
        let action = choose(&running.chaos.actions, target.operation, which)?.drawn(how_hard);
        running.status.hits[action.kind() as usize] += 1;
        Some(action)
    }
}

/// One of the actions that fit, by weight.
fn choose(actions: &[(u32, HttpFault)], operation: Operation, which: u64) -> Option<HttpFault> {
    let fitting = || actions.iter().filter(|(_, action)| action.fits(operation));
    let total: u64 = fitting().map(|(weight, _)| u64::from(*weight)).sum();
    let mut rest = which.checked_rem(total)?;
    for (weight, action) in fitting() {
        match rest.checked_sub(u64::from(*weight)) {
            Some(less) => rest = less,
            None => return Some(action.clone()),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chaos(seed: u64) -> Chaos {
        Chaos::new(seed, 0.3)
            .operation(Operation::HeadObject, 0.0)
            .action(3, HttpFault::error(503, "SlowDown"))
            .action(1, HttpFault::Delay { ms: 50 })
            .action(2, HttpFault::CorruptBody { at: u64::MAX })
    }

    fn decisions(switch: &ChaosSwitch, operation: Operation, count: usize) -> Vec<Option<HttpFault>> {
        let target = Target {
            operation,
            key: String::new(),
        };
        (0..count).map(|_| switch.take(&target)).collect()
    }

    fn started(seed: u64) -> ChaosSwitch {
        let switch = ChaosSwitch::default();
        switch.start(chaos(seed)).unwrap();
        switch
    }

    #[test]
    fn the_seed_decides() {
        let run = |seed| decisions(&started(seed), Operation::GetObject, 1000);
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
        // What the requests before were does not matter.
        let switch = started(1);
        decisions(&switch, Operation::HeadObject, 500);
        assert_eq!(decisions(&switch, Operation::GetObject, 500), run(1)[500..]);
        assert!(format!("{switch:?}").contains("seed: 1"));
    }

    #[test]
    fn chances_and_weights_hold() {
        let switch = started(7);
        assert!(
            decisions(&switch, Operation::HeadObject, 1000)
                .iter()
                .all(Option::is_none)
        );
        decisions(&switch, Operation::GetObject, 12_000);
        let status = switch.status().unwrap();
        assert_eq!((status.seed, status.requests), (7, 13_000));
        let hits = [FaultKind::Error, FaultKind::Delay, FaultKind::CorruptBody].map(|kind| status.hits(kind));
        assert_eq!(hits.iter().sum::<u64>(), status.all_hits());
        // 3600 expected, and of them 1800, 600, 1200; the bounds are six deviations away.
        for (hits, expected) in hits.into_iter().zip([1800_u64, 600, 1200]) {
            assert!(hits.abs_diff(expected) < 6 * expected.isqrt(), "{hits} of {expected}");
        }
        // An action that does not fit leaves its share to the others.
        let puts = decisions(&switch, Operation::PutObject, 1000);
        assert!(
            puts.iter()
                .flatten()
                .all(|action| action.kind() != FaultKind::CorruptBody)
        );
        assert!(puts.iter().any(Option::is_some));
    }

    #[test]
    fn a_pause_keeps_the_place() {
        let (whole, switch) = (decisions(&started(3), Operation::GetObject, 200), started(3));
        let mut parts = decisions(&switch, Operation::GetObject, 100);
        switch.pause();
        assert!(
            decisions(&switch, Operation::GetObject, 100)
                .iter()
                .all(Option::is_none)
        );
        switch.resume();
        parts.extend(decisions(&switch, Operation::GetObject, 100));
        assert_eq!(parts, whole);
    }
}
