//! The breaker.

use std::{sync::Arc, time::Duration};

use alluvium_store::{
    ErrorKind, ObjectStore, Operation, StoreError, StoreResult,
    layer::{
        Guards, Policies,
        breaker::{BreakerSnapshot, BreakerStore},
        guarded,
        metrics::StoreMetrics,
        stack,
    },
};
use futures::future::join_all;
use tokio::{task::JoinHandle, time::Instant};

use crate::{Scripted, Step, error, failing, key, payload, seconds};

/// The breaker alone on a scripted store.
pub(crate) struct Bench {
    pub(crate) base: Arc<Scripted>,
    pub(crate) guards: Guards,
    store: Arc<dyn ObjectStore>,
}

impl Bench {
    pub(crate) fn new() -> Self {
        let base = Arc::new(Scripted::default());
        let policies = Policies::default();
        let guards = Guards::new(&policies);
        let store = Arc::new(BreakerStore::new(Arc::clone(&base) as _, &policies, &guards));
        Bench { base, guards, store }
    }

    pub(crate) fn seen(&self) -> BreakerSnapshot {
        self.guards.breaker.snapshot()
    }

    pub(crate) async fn put(&self) -> StoreResult<()> {
        self.store.put(&key(), payload()).await
    }

    fn spawn(&self) -> JoinHandle<StoreResult<()>> {
        let store = Arc::clone(&self.store);
        tokio::spawn(async move { store.put(&key(), payload()).await })
    }

    /// Fails until the breaker is open, which it is since this moment, and goes on failing.
    pub(crate) async fn open(&self) {
        self.base.then(Step::Fail(error(ErrorKind::Unreachable)));
        for _ in 0..4 {
            self.put().await.expect_err("the script fails");
        }
        tokio::time::sleep(seconds(2.0)).await;
        assert!(!self.seen().open);
        self.put().await.expect_err("the script fails");
        assert_eq!(self.seen(), snapshot(true, 1, 0));
    }
}

pub(crate) fn snapshot(open: bool, opened: u64, held: u64) -> BreakerSnapshot {
    BreakerSnapshot { open, opened, held }
}

#[tokio::test(start_paused = true)]
async fn ten_copies_are_held_and_go_on_when_the_store_is_back() {
    let base = Scripted::always(Step::Fail(error(ErrorKind::Unreachable)));
    let policies = Policies {
        jitter_seed: Some(1),
        ..Policies::default()
    };
    let guards = Guards::new(&policies);
    let metrics = Arc::new(StoreMetrics::default());
    let store = guarded(Arc::clone(&base) as _, policies, Arc::clone(&metrics), &guards);
    let copies: Vec<_> = (0..10)
        .map(|_| {
            let store = Arc::clone(&store);
            tokio::spawn(async move { store.put(&key(), payload()).await })
        })
        .collect();
    tokio::time::sleep(seconds(20.0)).await;
    assert!(guards.breaker.snapshot().open);
    let before = base.requests();
    assert!(before < 100, "{before} requests");
    tokio::time::sleep(seconds(60.0)).await;
    // One probe in five seconds, of all ten together.
    assert!(
        (11..=13).contains(&(base.requests() - before)),
        "{} requests",
        base.requests()
    );
    let held = guards.breaker.snapshot().held;
    assert!((8..=10).contains(&held), "{held} held");
    assert_eq!(guards.limits.writes().in_use, 10);

    base.then(Step::Pass);
    let back = Instant::now();
    for copy in copies {
        copy.await.expect("no panic").expect("a put");
    }
    assert!(back.elapsed() <= seconds(10.0), "{:?}", back.elapsed());
    assert_eq!(guards.breaker.snapshot(), snapshot(false, 1, 0));
    assert_eq!(guards.limits.writes().in_use, 0);
    assert_eq!(metrics.snapshot().in_flight(), 0);
    guards
        .breaker
        .refuse_while_away(Operation::Put)
        .expect("the store is back");
}

#[tokio::test(start_paused = true)]
async fn a_burst_of_broken_connections_is_one_event() {
    let bench = Bench::new();
    bench.base.then(Step::Fail(error(ErrorKind::Unavailable)));
    for outcome in join_all((0..50).map(|_| bench.put())).await {
        outcome.expect_err("the script fails");
    }
    tokio::time::sleep(seconds(1.9)).await;
    bench.put().await.expect_err("the script fails");
    assert_eq!(bench.seen(), snapshot(false, 0, 0));
    tokio::time::sleep(seconds(0.1)).await;
    bench.put().await.expect_err("the script fails");
    assert_eq!(bench.seen(), snapshot(true, 1, 0));
}

#[tokio::test(start_paused = true)]
async fn few_failures_over_a_long_time_do_not_open() {
    let bench = Bench::new();
    for _ in 0..4 {
        bench.base.then(Step::Fail(error(ErrorKind::Unreachable)));
        for _ in 0..4 {
            bench.put().await.expect_err("the script fails");
            tokio::time::sleep(seconds(10.0)).await;
        }
        bench.base.then(Step::Pass);
        bench.put().await.expect("a put");
    }
    assert_eq!(bench.seen(), snapshot(false, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn probes_become_rarer_and_there_is_one_at_a_time() {
    let bench = Bench::new();
    bench.open().await;
    let held: Vec<_> = (0..20).map(|_| bench.spawn()).collect();
    let before = bench.base.requests();
    tokio::time::sleep(seconds(0.9)).await;
    assert_eq!((bench.base.requests(), bench.seen().held), (before, 20));
    let mut probed = before;
    tokio::time::sleep(seconds(0.15)).await;
    for pause in [2.0, 4.0, 5.0, 5.0, 5.0] {
        probed += 1;
        assert_eq!(bench.base.requests(), probed);
        tokio::time::sleep(seconds(pause - 0.1)).await;
        assert_eq!(bench.base.requests(), probed, "before {pause} s are over");
        tokio::time::sleep(seconds(0.1)).await;
    }
    assert_eq!(bench.seen(), snapshot(true, 1, 14));

    // Back, but slow: while the probe is under way nobody else goes, then all do.
    bench.base.then(Step::Take(seconds(3.0)));
    tokio::time::sleep(seconds(5.0)).await;
    assert_eq!(
        (bench.base.requests(), bench.seen()),
        (probed + 2, snapshot(true, 1, 13))
    );
    tokio::time::sleep(seconds(3.0)).await;
    assert_eq!(bench.seen(), snapshot(false, 1, 0));
    assert_eq!(bench.base.requests(), before + 20);
    let outcomes = join_all(held).await;
    let served = outcomes
        .into_iter()
        .filter(|outcome| outcome.as_ref().is_ok_and(Result::is_ok));
    assert_eq!(served.count(), 14);
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_is_dropped_gives_its_turn_back() {
    let bench = Bench::new();
    bench.open().await;
    let before = bench.base.requests();
    bench.base.then(Step::Hang);
    let first = bench.spawn();
    tokio::time::sleep(seconds(1.1)).await;
    let second = bench.spawn();
    tokio::time::sleep(seconds(1.0)).await;
    assert_eq!(
        (bench.base.requests(), bench.seen()),
        (before + 1, snapshot(true, 1, 1))
    );
    first.abort();
    tokio::time::sleep(seconds(0.01)).await;
    assert_eq!(
        (bench.base.requests(), bench.seen()),
        (before + 2, snapshot(true, 1, 0))
    );
    bench.base.then(Step::Pass);
    second.abort();
    tokio::time::sleep(seconds(0.01)).await;
    // Nobody was waiting: the next one to come is the probe.
    bench.put().await.expect("a put");
    assert_eq!(bench.seen(), snapshot(false, 1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_hangs_is_overtaken_and_may_still_be_right() {
    let bench = Bench::new();
    bench.open().await;
    let before = bench.base.requests();
    bench.base.steps.lock().expect("no panic").extend([Step::Hang]);
    let hanging = bench.spawn();
    tokio::time::sleep(seconds(1.1)).await;
    bench.base.then(Step::Pass);
    let (one, other) = (bench.spawn(), bench.spawn());
    tokio::time::sleep(seconds(9.0)).await;
    assert_eq!((bench.base.requests(), bench.seen().held), (before + 1, 2));
    let begin = Instant::now();
    one.await.expect("no panic").expect("a put");
    other.await.expect("no panic").expect("a put");
    assert!(begin.elapsed() <= seconds(1.0), "{:?}", begin.elapsed());
    assert_eq!(bench.seen(), snapshot(false, 1, 0));
    hanging.abort();

    // The other way round: the later probe hangs too, and the first one is answered.
    let bench = Bench::new();
    bench.open().await;
    bench
        .base
        .steps
        .lock()
        .expect("no panic")
        .extend([Step::Take(seconds(15.0)), Step::Hang]);
    let (slow, hanging, held) = (bench.spawn(), bench.spawn(), bench.spawn());
    tokio::time::sleep(seconds(12.0)).await;
    assert_eq!(bench.seen(), snapshot(true, 1, 1));
    bench.base.then(Step::Pass);
    let begin = Instant::now();
    slow.await.expect("no panic").expect("a put");
    held.await.expect("no panic").expect("a put");
    assert!(begin.elapsed() <= seconds(4.1), "{:?}", begin.elapsed());
    assert_eq!(bench.seen(), snapshot(false, 1, 0));
    hanging.abort();
}

#[tokio::test(start_paused = true)]
async fn an_answer_to_an_earlier_request_closes_too() {
    let bench = Bench::new();
    bench
        .base
        .steps
        .lock()
        .expect("no panic")
        .extend([Step::Take(seconds(2.5))]);
    let early = bench.spawn();
    tokio::task::yield_now().await;
    bench.open().await;
    let held = bench.spawn();
    tokio::time::sleep(seconds(0.4)).await;
    bench.base.then(Step::Pass);
    early.await.expect("no panic").expect("a put");
    assert!(!bench.seen().open);
    let begin = Instant::now();
    held.await.expect("no panic").expect("a put");
    assert_eq!(begin.elapsed(), Duration::ZERO);
    assert_eq!(bench.seen().held, 0);
}

#[tokio::test(start_paused = true)]
async fn who_is_held_too_long_hears_why() {
    let told = |error: &StoreError| {
        let text = error.to_string();
        assert_eq!(
            (error.kind(), error.is_retryable()),
            (ErrorKind::Unavailable, true),
            "{text}"
        );
        assert!(
            text.contains("has been away for") && text.contains("scripted"),
            "{text}"
        );
    };
    // By the breaker's own limit: one in ten seconds becomes a probe, and hangs.
    let bench = Bench::new();
    bench.open().await;
    bench.base.then(Step::Hang);
    let attempts = (0..30).map(|_| tokio::time::timeout(seconds(120.5), bench.put()));
    let ended: Vec<_> = join_all(attempts).await.into_iter().flatten().collect();
    assert_eq!(ended.len(), 30 - 12);
    for outcome in ended {
        told(&outcome.expect_err("the store is away"));
    }
    assert_eq!(bench.seen(), snapshot(true, 1, 0));

    // By the operation's deadline, of which its first attempts have used some.
    for operation_timeout in [9.0, 60.0] {
        let base = Scripted::always(Step::Fail(error(ErrorKind::Unreachable)));
        let policies = Policies {
            operation_timeout: seconds(operation_timeout),
            jitter_seed: Some(7),
            ..Policies::default()
        };
        let guards = Guards::new(&policies);
        let metrics = Arc::new(StoreMetrics::default());
        let store = guarded(Arc::clone(&base) as _, policies, Arc::clone(&metrics), &guards);
        let begin = Instant::now();
        let outcomes = join_all((0..30).map(|_| async { store.put(&key(), payload()).await })).await;
        assert!(
            begin.elapsed() <= seconds(operation_timeout + 0.1),
            "{:?}",
            begin.elapsed()
        );
        let mut unreached = 0;
        for outcome in outcomes {
            let error = outcome.expect_err("the store is away");
            match error.kind() {
                // Its last probe was its last chance.
                ErrorKind::Unreachable => unreached += 1,
                _ => told(&error),
            }
        }
        assert!(unreached < 15, "{unreached}");
        assert_eq!(guards.breaker.snapshot(), snapshot(true, 1, 0));
        assert_eq!(metrics.snapshot().in_flight(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn newcomers_are_refused_but_one_may_find_out() {
    let bench = Bench::new();
    let breaker = &bench.guards.breaker;
    breaker.refuse_while_away(Operation::Put).expect("a closed breaker");
    bench.open().await;
    for _ in 0..10 {
        let error = breaker.refuse_while_away(Operation::CreateUpload).expect_err("open");
        assert_eq!(
            (error.kind(), error.operation()),
            (ErrorKind::Unavailable, Operation::CreateUpload)
        );
        assert!(
            error
                .detail()
                .contains("has been away for 2s, the last failure was: PutObject failed: scripted"),
            "{error}"
        );
    }
    // Due, and nobody there to probe: one of ten passes, and another after ten seconds.
    tokio::time::sleep(seconds(1.0)).await;
    let passed = || {
        (0..10)
            .filter(|_| breaker.refuse_while_away(Operation::Put).is_ok())
            .count()
    };
    assert_eq!(passed(), 1);
    tokio::time::sleep(seconds(9.9)).await;
    assert_eq!(passed(), 0);
    tokio::time::sleep(seconds(0.1)).await;
    assert_eq!(passed(), 1);
    // The next failure is his; then it is not due.
    bench.put().await.expect_err("the script fails");
    tokio::time::sleep(seconds(1.9)).await;
    assert_eq!(passed(), 0);
    // Somebody waits for the next probe, so nobody else is needed.
    let held = bench.spawn();
    tokio::time::sleep(seconds(0.05)).await;
    bench.base.then(Step::Hang);
    tokio::time::sleep(seconds(30.0)).await;
    assert_eq!(passed(), 0);
    held.abort();
    held.await.expect_err("it was aborted");
    assert_eq!(passed(), 1);
    bench.base.then(Step::Pass);
    bench.put().await.expect("a put");
    assert_eq!(passed(), 10);
}

#[tokio::test(start_paused = true)]
async fn what_is_not_guarded_goes_through() {
    let bench = Bench::new();
    bench.open().await;
    bench.base.then(Step::Pass);
    let bare = stack(Arc::clone(&bench.base) as _, Policies::default(), Arc::default());
    bare.put(&key(), payload()).await.expect("a put");
    assert!(bench.seen().open);
}

#[tokio::test(start_paused = true)]
async fn each_outage_is_counted() {
    let bench = Bench::new();
    for outage in 1..=3 {
        bench.base.then(Step::Fail(error(ErrorKind::Unreachable)));
        for _ in 0..5 {
            bench.put().await.expect_err("the script fails");
            tokio::time::sleep(seconds(0.5)).await;
        }
        assert_eq!(bench.seen(), snapshot(true, outage, 0));
        // The probe fails twice, and then succeeds.
        bench
            .base
            .steps
            .lock()
            .expect("no panic")
            .extend(failing(ErrorKind::Unreachable, 2));
        bench.base.then(Step::Pass);
        for _ in 0..2 {
            bench.put().await.expect_err("the script fails");
        }
        bench.put().await.expect("a put");
        assert_eq!(bench.seen(), snapshot(false, outage, 0));
    }
}
