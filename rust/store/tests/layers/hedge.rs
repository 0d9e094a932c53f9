//! Second requests for slow GETs.

mod bodies;

use std::{sync::Arc, time::Duration};

use alluvium_store::{
    ErrorKind, GetObject, ObjectStore, Operation, StoreResult,
    layer::{
        Guards, Policies, guarded,
        limit::LimitSnapshot,
        metrics::{MetricsSnapshot, StoreMetrics},
    },
};
use futures::{FutureExt, StreamExt, future::join_all, stream};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::time::Instant;

use crate::{Scripted, Step, error, key, payload, seconds};

/// What a GET usually takes.
const USUAL: f64 = 0.03;

/// All layers on a scripted store that has one object.
struct Bench {
    base: Arc<Scripted>,
    guards: Guards,
    metrics: Arc<StoreMetrics>,
    store: Arc<dyn ObjectStore>,
}

impl Bench {
    async fn new(policies: Policies) -> Self {
        let policies = Policies {
            hedging: true,
            jitter_seed: Some(1),
            ..policies
        };
        let base = Arc::new(Scripted::default());
        base.inner.put(&key(), payload()).await.expect("a put");
        let guards = Guards::new(&policies);
        let metrics = Arc::new(StoreMetrics::default());
        let store = guarded(Arc::clone(&base) as _, policies, Arc::clone(&metrics), &guards);
        Bench {
            base,
            guards,
            metrics,
            store,
        }
    }

    /// One that knows what a GET usually takes, and has earned two hedges besides the first.
    async fn used() -> Self {
        let bench = Self::new(Policies::default()).await;
        bench.usual(40).await;
        bench
    }

    async fn usual(&self, gets: usize) {
        self.base.then(Step::Take(seconds(USUAL)));
        for _ in 0..gets {
            self.get([]).await.0.expect("an answer");
        }
    }

    fn script(&self, steps: impl IntoIterator<Item = Step>) {
        self.base.steps.lock().expect("no panic").extend(steps);
    }

    /// A GET of which `steps` become, and how long it took to the head of the answer.
    async fn get(&self, steps: impl IntoIterator<Item = Step>) -> (StoreResult<GetObject>, Duration) {
        self.script(steps);
        let begin = Instant::now();
        let outcome = self.store.get(&key(), None).await;
        (outcome, begin.elapsed())
    }

    /// How long a GET takes that hangs if it is not hedged.
    async fn hanging(&self) -> Duration {
        let (outcome, time) = self.get([Step::Take(seconds(8.0)), Step::Take(seconds(USUAL))]).await;
        outcome.expect("an answer");
        self.base.steps.lock().expect("no panic").clear();
        time
    }

    fn seen(&self) -> MetricsSnapshot {
        self.metrics.snapshot()
    }

    /// Hedges, and those of them that won.
    fn hedges(&self) -> (u64, u64) {
        (self.seen().hedges, self.seen().hedges_won)
    }

    fn assert_idle(&self) {
        let reads = self.guards.limits.reads();
        assert_eq!((reads.in_use, reads.waiting), (0, 0));
        assert_eq!(self.seen().in_flight(), 0);
        assert_eq!(self.guards.breaker.snapshot().held, 0);
        assert_eq!(self.base.under_way.load(std::sync::atomic::Ordering::Relaxed), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_get_is_overtaken_and_dropped_at_once() {
    let bench = Bench::used().await;
    let (answer, time) = bench.get([Step::Hang, Step::Take(seconds(0.05))]).await;
    // The p95, and what the second one takes.
    assert_eq!(time, seconds(USUAL + 0.05));
    let get = bench.seen().of(Operation::Get).clone();
    assert_eq!((get.requests, get.cancelled, get.retries, get.in_flight), (42, 1, 0, 1));
    assert_eq!(bench.hedges(), (1, 1));
    assert_eq!(bench.guards.limits.reads().in_use, 1);
    answer.expect("an answer").collect().await.expect("a body");
    bench.assert_idle();

    // The first may still be the first.
    let steps = [Step::Take(seconds(USUAL + 0.01)), Step::Take(seconds(0.05))];
    let (answer, time) = bench.get(steps).await;
    answer.expect("an answer").collect().await.expect("a body");
    assert_eq!(time, seconds(USUAL + 0.01));
    assert_eq!(bench.hedges(), (2, 1));
    let get = bench.seen().of(Operation::Get).clone();
    assert_eq!((get.requests, get.cancelled), (44, 2));
    bench.assert_idle();
}

#[tokio::test(start_paused = true)]
async fn the_delay_follows_the_recent_gets_within_limits() {
    let ms = |ms| Step::Take(Duration::from_millis(ms));
    // Twenty GETs over and over, and when the next one is slow.
    for (twenty, delay) in [
        ([[50; 10], [50; 10]], 50),
        ([[50; 10], [60; 10]], 60),
        // One in twenty is slow: that is what is to be overtaken.
        ([[50; 10], [50, 50, 50, 50, 50, 50, 50, 50, 60, 900]], 60),
        // So many are slow that the p95 is one of them.
        ([[50; 10], [50, 50, 50, 50, 50, 50, 50, 900, 900, 900]], 200),
        // So fast that a hedge gains nothing.
        ([[1; 10], [1; 10]], 20),
        // So slow that what has no answer is lost.
        ([[3000; 10], [3000; 10]], 2000),
    ] {
        let bench = Bench::new(Policies::default()).await;
        // No hedge wins, so that each GET takes as long as it is told to.
        bench.base.then(ms(5000));
        for round in 0..20 {
            // Before that they were otherwise.
            for time in twenty.concat() {
                let time = if round < 10 { 400 } else { time };
                bench.get([ms(time)]).await.0.expect("an answer");
            }
        }
        bench.base.steps.lock().expect("no panic").clear();
        // What was earned may be spent.
        for _ in 0..20 {
            bench.get([ms(twenty[0][0])]).await.0.expect("an answer");
        }
        let before = bench.hedges().0;
        let (answer, time) = bench.get([Step::Hang, Step::Pass]).await;
        answer.expect("an answer");
        assert_eq!(time, Duration::from_millis(delay), "{twenty:?}");
        assert_eq!(bench.hedges().0, before + 1, "{twenty:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_overtaken_counts_as_slow() {
    let bench = Bench::new(Policies::default()).await;
    let ms = |ms| Step::Take(Duration::from_millis(ms));
    // Two of fifty are a little slow, four very: without these the others would be the p95.
    for number in 0..500 {
        let time = match number % 50 {
            10 | 35 => 60,
            5 | 15 | 25 | 45 => 900,
            _ => 30,
        };
        bench.get([ms(time), ms(30)]).await.0.expect("an answer");
        bench.base.steps.lock().expect("no panic").clear();
    }
    let (hedges, won) = bench.hedges();
    assert!(hedges > 20 && won == hedges, "{won} of {hedges}");
    bench.usual(20).await;
    // Four medians.
    assert_eq!(bench.hanging().await, Duration::from_millis(120 + 30));
}

#[tokio::test(start_paused = true)]
async fn before_enough_is_known_only_what_is_lost_is_hedged() {
    let bench = Bench::new(Policies::default()).await;
    bench.usual(39).await;
    assert_eq!(bench.hanging().await, seconds(2.0 + USUAL));
    assert_eq!(bench.hedges(), (1, 1));
    // The slow one was the fortieth.
    assert_eq!(bench.hanging().await, seconds(USUAL * 2.0));
    bench.assert_idle();
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_slow_for_all_gets_hardly_more_requests() {
    let bench = Bench::new(Policies::default()).await;
    // More than the window, so that as much is saved up as can be.
    bench.usual(1000).await;
    bench.base.then(Step::Take(seconds(1.0)));
    // A burst at one moment.
    let gets = |count| {
        let gets = (0..count).map(|_| async { drop(bench.get([]).await.0.expect("an answer")) });
        stream::iter(gets).buffer_unordered(16).count()
    };
    gets(16).await;
    let (burst, won) = bench.hedges();
    assert_eq!((burst, won), (10, 0), "those that could be saved up");
    for round in 1..=10 {
        let before = bench.hedges().0;
        gets(100).await;
        // Each hundred has earned five.
        let made = bench.hedges().0 - before;
        assert!(made <= 6, "round {round}: {made}");
    }
    let (hedges, won) = bench.hedges();
    assert!((11..=10 + 1016 / 20 + 1).contains(&hedges), "{hedges}");
    // None of them was any use; when all take as long as each other, soon none is slow.
    assert_eq!((won, bench.seen().of(Operation::Get).requests), (0, 2016 + hedges));

    // Always slower than the last one, so that each of them is slow.
    for number in 0..1000 {
        let time = seconds(1.0 + 0.01 * f64::from(number));
        bench.base.then(Step::Take(time));
        bench.get([]).await.0.expect("an answer");
    }
    let more = bench.hedges().0 - hedges;
    assert!((40..=10 + 50).contains(&more), "{more}");
    bench.assert_idle();
}

#[tokio::test(start_paused = true)]
async fn who_has_no_right_to_a_hedge_asks_again() {
    let bench = Bench::used().await;
    for _ in 0..3 {
        assert_eq!(bench.hanging().await, seconds(USUAL * 2.0));
    }
    // Those that were earned are spent, and these pay for the next one.
    bench.script([Step::Take(seconds(8.0))]);
    let object = key();
    let slow = bench.store.get(&object, None);
    let mut slow = std::pin::pin!(slow);
    assert!(slow.as_mut().now_or_never().is_none());
    tokio::time::sleep(seconds(1.0)).await;
    assert!(slow.as_mut().now_or_never().is_none());
    assert_eq!(bench.hedges().0, 3);
    bench.usual(20).await;
    let begin = Instant::now();
    slow.await.expect("an answer");
    assert!(begin.elapsed() <= seconds(USUAL * 2.0), "{:?}", begin.elapsed());
    assert_eq!(bench.hedges(), (4, 4));
    bench.assert_idle();
}

#[tokio::test(start_paused = true)]
async fn a_store_that_asks_for_fewer_requests_gets_no_hedges() {
    for operation in [Operation::Get, Operation::UploadPart] {
        let bench = Bench::used().await;
        let outcome: StoreResult<()> = Err(error(ErrorKind::Throttled));
        // Room for a hedge is left.
        let others = join_all((0..20).map(|_| bench.get([]))).await;
        bench.guards.limits.observe(operation, &outcome);
        drop(others);
        assert!(bench.guards.limits.reads().limit >= 10, "{operation:?}");
        assert_eq!(bench.hanging().await, seconds(8.0), "{operation:?}");
        tokio::time::sleep(seconds(30.0 - 8.0 - 0.001)).await;
        // It was refused until now.
        assert_eq!(bench.hedges(), (0, 0), "{operation:?}");
        assert_eq!(bench.hanging().await, seconds(USUAL * 2.0), "{operation:?}");
        bench.assert_idle();
    }
}

#[tokio::test(start_paused = true)]
async fn a_hedge_that_is_refused_lowers_the_limit() {
    let bench = Bench::used().await;
    let refusal = error(ErrorKind::Throttled).with_status(503).with_code("SlowDown");
    let (answer, time) = bench.get([Step::Take(seconds(1.0)), Step::Fail(refusal)]).await;
    answer.expect("the first one's answer");
    assert_eq!(time, seconds(1.0));
    // Half of the two that were under way, and one more for the success.
    assert_eq!(bench.guards.limits.reads().limit, 2);
    assert_eq!(bench.hedges(), (1, 0));
    assert_eq!(bench.seen().failed(ErrorKind::Throttled), 1);
}

#[tokio::test(start_paused = true)]
async fn a_hedge_takes_a_free_permit_or_is_not_sent() {
    let bench = Bench::new(Policies {
        reads_max: 3,
        ..Policies::default()
    })
    .await;
    bench.usual(40).await;
    let limit = 3;
    let busy = |in_use, waiting| LimitSnapshot { limit, in_use, waiting };
    let bodies = [bench.get([]).await.0, bench.get([]).await.0];
    bench.script([Step::Take(seconds(8.0)), Step::Take(seconds(USUAL))]);
    let object = key();
    let slow = bench.store.get(&object, None);
    let mut slow = std::pin::pin!(slow);
    assert!(slow.as_mut().now_or_never().is_none());
    tokio::time::sleep(seconds(1.0)).await;
    assert!(slow.as_mut().now_or_never().is_none());
    assert_eq!((bench.hedges(), bench.guards.limits.reads()), ((0, 0), busy(3, 0)));
    // Whoever waits is served before a hedge is.
    let waiting = bench.store.get(&object, None);
    let mut waiting = std::pin::pin!(waiting);
    assert!(waiting.as_mut().now_or_never().is_none());
    let [one, other] = bodies;
    drop(one);
    tokio::time::sleep(seconds(USUAL * 2.0)).await;
    assert!(slow.as_mut().now_or_never().is_none());
    assert_eq!((bench.hedges(), bench.guards.limits.reads()), ((0, 0), busy(3, 0)));
    drop(other);
    tokio::time::sleep(seconds(USUAL)).await;
    assert!(slow.as_mut().now_or_never().is_none());
    assert_eq!((bench.hedges(), bench.guards.limits.reads()), ((1, 0), busy(3, 0)));
    let (slow, waiting) = tokio::join!(slow, waiting);
    assert_eq!((bench.hedges(), bench.guards.limits.reads()), ((1, 1), busy(2, 0)));
    drop((slow.expect("an answer"), waiting.expect("an answer")));
    bench.assert_idle();
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_away_gets_no_hedges_and_what_was_held_is_not_slow() {
    let bench = Bench::new(Policies {
        away_failures: 1,
        away_after: Duration::ZERO,
        ..Policies::default()
    })
    .await;
    bench.usual(40).await;
    bench.base.then(Step::Fail(error(ErrorKind::Unreachable)));
    bench.script([Step::Take(seconds(8.0))]);
    let away = async {
        tokio::time::sleep(seconds(USUAL / 2.0)).await;
        bench.store.head(&key()).await.expect("it is back in the end");
    };
    let back = async {
        tokio::time::sleep(seconds(7.0)).await;
        assert!(bench.guards.breaker.snapshot().open);
        assert_eq!(bench.hedges(), (0, 0));
        bench.base.then(Step::Take(seconds(USUAL)));
    };
    // Held all the while: more than what is known.
    let held = async {
        tokio::time::sleep(seconds(USUAL)).await;
        join_all((0..60).map(|_| async { drop(bench.store.get(&key(), None).await.expect("an answer")) })).await;
    };
    let object = key();
    let (answer, ..) = tokio::join!(bench.store.get(&object, None), away, back, held);
    answer.expect("an answer");
    assert_eq!(bench.guards.breaker.snapshot().opened, 1);
    assert_eq!(bench.hedges(), (1, 1), "when it was back");
    assert_eq!(bench.hanging().await, seconds(USUAL * 2.0));
    bench.assert_idle();
}

#[tokio::test(start_paused = true)]
async fn a_failure_waits_for_the_other_and_two_are_told_as_the_first() {
    let late = |time, kind| Step::FailAfter(seconds(time), error(kind));
    let bench = Bench::used().await;
    // The first one fails while the second is under way.
    let (answer, time) = bench
        .get([late(0.1, ErrorKind::Unavailable), Step::Take(seconds(0.2))])
        .await;
    answer.expect("an answer");
    assert_eq!((time, bench.hedges()), (seconds(USUAL + 0.2), (1, 1)));
    // The second one fails while the first is under way.
    let (answer, time) = bench
        .get([Step::Take(seconds(0.1)), late(0.01, ErrorKind::Unavailable)])
        .await;
    answer.expect("an answer");
    assert_eq!((time, bench.hedges()), (seconds(0.1), (2, 1)));

    // Both fail, the one before the other or after it.
    for (first, second) in [(0.1, 0.2), (0.2, 0.1)] {
        bench.usual(20).await;
        let steps = [late(first, ErrorKind::AccessDenied), late(second, ErrorKind::NotFound)];
        let (outcome, time) = bench.get(steps).await;
        let error = outcome.expect_err("both fail");
        assert_eq!((error.kind(), error.attempts()), (ErrorKind::AccessDenied, 1));
        assert_eq!(time, seconds(first.max(USUAL + second)));
    }
    // It is one attempt of several.
    bench.usual(20).await;
    let before = bench.seen().of(Operation::Get).clone();
    let steps = [
        late(0.1, ErrorKind::Unavailable),
        late(0.1, ErrorKind::Timeout),
        Step::Fail(error(ErrorKind::NotFound)),
    ];
    let failure = bench.get(steps).await.0.expect_err("the script fails");
    assert_eq!((failure.kind(), failure.attempts()), (ErrorKind::NotFound, 2));
    let after = bench.seen().of(Operation::Get).clone();
    assert_eq!(
        (after.requests - before.requests, after.retries - before.retries),
        (3, 1)
    );
    // One that fails before it is slow is not hedged.
    let hedges = bench.hedges();
    let failure = bench
        .get([late(0.01, ErrorKind::NotFound)])
        .await
        .0
        .expect_err("the script fails");
    assert_eq!((failure.attempts(), bench.hedges()), (1, hedges));
    bench.assert_idle();
}

#[tokio::test(start_paused = true)]
async fn dropping_the_get_drops_both() {
    let bench = Bench::used().await;
    let outcome = tokio::time::timeout(seconds(1.0), bench.get([Step::Hang, Step::Hang])).await;
    assert!(outcome.is_err(), "nobody answers");
    let get = bench.seen().of(Operation::Get).clone();
    assert_eq!((get.requests, get.cancelled), (42, 2));
    assert_eq!(bench.hedges(), (1, 0));
    bench.assert_idle();
}

#[tokio::test(start_paused = true)]
async fn nothing_but_a_get_is_sent_twice() {
    let bench = Bench::used().await;
    let upload = bench.store.create_upload(&key()).await.expect("an upload");
    bench.base.then(Step::Take(seconds(8.0)));
    let before = bench.base.requests();
    bench.store.head(&key()).await.expect("a head");
    bench.store.put(&key(), payload()).await.expect("a put");
    let part = bench
        .store
        .upload_part(&key(), &upload, 1, payload())
        .await
        .expect("a part");
    let crc32 = crc32fast::hash(b"bytes");
    let end = bench.store.complete_upload(&key(), &upload, &[part], crc32).await;
    end.expect("an object");
    assert_eq!(bench.base.requests() - before, 4);
    assert_eq!(bench.hedges(), (0, 0));
    assert_eq!(bench.hanging().await, seconds(USUAL * 2.0), "a GET is");
}

#[tokio::test(start_paused = true)]
async fn whatever_is_slow_fails_or_is_dropped_nothing_is_left() {
    for seed in 0..20 {
        let mut random = StdRng::seed_from_u64(seed);
        // With room for hedges, and with less.
        let reads_max = if seed % 2 == 0 { 16 } else { 8 };
        let bench = Bench::new(Policies {
            reads_max,
            ..Policies::default()
        })
        .await;
        bench.usual(200).await;
        for _ in 0..2000 {
            let time = seconds(random.random_range(0.0..0.03));
            let step = match random.random_range(0..100) {
                0..6 => Step::Hang,
                6..12 => Step::Take(10 * time),
                12..14 => Step::FailAfter(3 * time, error(ErrorKind::Unavailable)),
                _ => Step::Take(time),
            };
            bench.script([step]);
        }
        let gets: Vec<_> = (0..1500)
            .map(|_| {
                (
                    seconds(random.random_range(0.0..2.0)),
                    seconds(random.random_range(0.0..0.1)),
                )
            })
            .collect();
        let gets = gets.into_iter().map(|(patience, reading)| {
            let store = Arc::clone(&bench.store);
            async move {
                let work = async {
                    if let Ok(answer) = store.get(&key(), None).await {
                        tokio::time::sleep(reading).await;
                        answer.collect().await.expect("a body");
                    }
                };
                let _ = tokio::time::timeout(patience, work).await;
            }
        });
        stream::iter(gets).buffer_unordered(10).count().await;
        let (hedges, won) = bench.hedges();
        let seen = bench.seen().of(Operation::Get).clone();
        assert!(
            hedges <= (seen.requests - hedges) / 20,
            "seed {seed}: {won} of {hedges}"
        );
        assert!(reads_max == 8 || won > 20, "seed {seed}: {won} of {hedges}");
        assert!(bench.base.most() <= reads_max, "seed {seed}");
        bench.assert_idle();
    }
}
