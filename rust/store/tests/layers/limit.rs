//! The limit of operations at a time.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use alluvium_store::{
    ErrorKind, ObjectStore, Operation, StoreResult,
    layer::{
        Guards, Policies, guarded,
        limit::{LimitSnapshot, LimitStore, Limits},
        metrics::StoreMetrics,
    },
};
use futures::{FutureExt, StreamExt, future::join_all};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::time::Instant;

use crate::{Scripted, Step, error, failing, key, payload, seconds};

fn limits(reads: usize, writes: usize) -> Arc<Limits> {
    Arc::new(Limits::new(&Policies {
        reads_max: reads,
        writes_max: writes,
        ..Policies::default()
    }))
}

fn limited(base: &Arc<Scripted>, limits: &Arc<Limits>) -> Arc<dyn ObjectStore> {
    let base = Arc::clone(base);
    Arc::new(LimitStore::new(base, Arc::clone(limits)))
}

fn throttle(limits: &Limits, operation: Operation) {
    let outcome: StoreResult<()> = Err(error(ErrorKind::Throttled));
    limits.observe(operation, &outcome);
}

fn idle(limit: usize) -> LimitSnapshot {
    LimitSnapshot {
        limit,
        in_use: 0,
        waiting: 0,
    }
}

#[tokio::test(start_paused = true)]
async fn operations_go_on_in_the_order_in_which_they_came() {
    let base = Scripted::always(Step::Take(seconds(1.0)));
    let limits = limits(1, 2);
    let store = limited(&base, &limits);
    let begin = Instant::now();
    let order = Arc::new(Mutex::new(Vec::new()));
    let puts = (0..10).map(|number| {
        let (store, order) = (Arc::clone(&store), Arc::clone(&order));
        async move {
            store.put(&key(), payload()).await.expect("a put");
            order.lock().expect("no panic").push(number);
        }
    });
    let mut all = Box::pin(join_all(puts));
    assert!(all.as_mut().now_or_never().is_none());
    let busy = LimitSnapshot {
        limit: 2,
        in_use: 2,
        waiting: 8,
    };
    assert_eq!(limits.writes(), busy);
    assert_eq!(limits.reads(), idle(1));
    all.await;
    assert_eq!(*order.lock().expect("no panic"), (0..10).collect::<Vec<_>>());
    assert_eq!((begin.elapsed().as_secs(), base.most()), (5, 2));
    assert_eq!(limits.writes(), idle(2));
}

#[tokio::test(start_paused = true)]
async fn a_burst_of_refusals_halves_once_and_successes_raise_by_one() {
    let limits = limits(64, 64);
    let store = limited(&Scripted::always(Step::Hang), &limits);
    let mut puts: Vec<_> = (0..40)
        .map(|_| {
            let store = Arc::clone(&store);
            Box::pin(async move { store.put(&key(), payload()).await })
        })
        .collect();
    for put in &mut puts {
        assert!(put.now_or_never().is_none());
    }
    // Half of what is under way: more would be the same requests again.
    for _ in 0..20 {
        throttle(&limits, Operation::UploadPart);
    }
    assert_eq!((limits.writes().limit, limits.reads().limit), (20, 64));
    tokio::time::sleep(seconds(0.999)).await;
    throttle(&limits, Operation::Put);
    assert_eq!(limits.writes().limit, 20);
    for expected in [10, 5, 2, 1, 1, 1] {
        tokio::time::sleep(seconds(1.001)).await;
        throttle(&limits, Operation::CompleteUpload);
        assert_eq!(limits.writes().limit, expected);
    }
    drop(puts);
    // What is not limited says nothing, and neither do other failures.
    for operation in [
        Operation::Delete,
        Operation::Head,
        Operation::List,
        Operation::AbortUpload,
    ] {
        limits.observe(operation, &Ok(()));
        throttle(&limits, operation);
    }
    let outcome: StoreResult<()> = Err(error(ErrorKind::Unavailable));
    limits.observe(Operation::Put, &outcome);
    assert_eq!((limits.writes().limit, limits.reads().limit), (1, 64));

    let mut successes = 0;
    for limit in 1..64 {
        for _ in 0..limit {
            assert_eq!(limits.writes().limit, limit);
            limits.observe(Operation::UploadPart, &Ok(()));
            successes += 1;
        }
    }
    assert_eq!(successes, 63 * 32);
    for _ in 0..1000 {
        limits.observe(Operation::UploadPart, &Ok(()));
    }
    assert_eq!(limits.writes().limit, 64);
    throttle(&limits, Operation::Get);
    assert_eq!((limits.writes().limit, limits.reads().limit), (64, 1));
}

#[tokio::test(start_paused = true)]
async fn a_lowered_limit_waits_for_those_under_way_and_a_raised_one_lets_more_in() {
    let base = Scripted::always(Step::Hang);
    let limits = limits(1, 4);
    let store = limited(&base, &limits);
    let mut puts: Vec<_> = (0..6)
        .map(|_| {
            let store = Arc::clone(&store);
            tokio::spawn(async move { store.put(&key(), payload()).await })
        })
        .collect();
    tokio::task::yield_now().await;
    throttle(&limits, Operation::Put);
    let snapshot = |in_use, waiting, limit| LimitSnapshot { limit, in_use, waiting };
    assert_eq!(limits.writes(), snapshot(4, 2, 2));
    for (in_use, waiting) in [(3, 2), (2, 2), (2, 1)] {
        let put = puts.remove(0);
        put.abort();
        put.await.expect_err("it was aborted");
        tokio::task::yield_now().await;
        assert_eq!(limits.writes(), snapshot(in_use, waiting, 2));
    }
    assert_eq!(base.requests(), 5);
    limits.observe(Operation::Put, &Ok(()));
    limits.observe(Operation::Put, &Ok(()));
    tokio::task::yield_now().await;
    assert_eq!(limits.writes(), snapshot(3, 0, 3));
    assert_eq!(base.requests(), 6);
    for put in puts {
        put.abort();
        put.await.expect_err("it was aborted");
    }
    assert_eq!(limits.writes(), idle(3));
}

#[tokio::test(start_paused = true)]
async fn waiting_counts_against_no_deadline_and_a_permit_covers_all_attempts() {
    let base = Scripted::always(Step::Take(seconds(25.0)));
    let policies = Policies {
        writes_max: 1,
        ..Policies::default()
    };
    let guards = Guards::new(&policies);
    let store = guarded(Arc::clone(&base) as _, policies, Arc::default(), &guards);
    let begin = Instant::now();
    for outcome in join_all((0..10).map(|_| async { store.put(&key(), payload()).await })).await {
        outcome.expect("a put");
    }
    assert_eq!((begin.elapsed().as_secs(), base.most()), (250, 1));

    // The second one does not slip into the first one's pauses.
    base.steps
        .lock()
        .expect("no panic")
        .extend(failing(ErrorKind::Unavailable, 4));
    let begin = Instant::now();
    let put = || async {
        store.put(&key(), payload()).await.expect("a put");
        base.requests()
    };
    let requests = tokio::join!(put(), put());
    assert_eq!(requests, (10 + 5, 10 + 6));
    assert!(begin.elapsed() >= seconds(50.0), "{:?}", begin.elapsed());
    assert_eq!(guards.limits.writes(), idle(1));
}

#[tokio::test(start_paused = true)]
async fn what_the_store_says_reaches_the_limit() {
    let policies = Policies::default();
    let guards = Guards::new(&policies);
    let base = Arc::new(Scripted::default());
    base.steps.lock().expect("no panic").extend([
        Step::Fail(error(ErrorKind::Throttled)),
        Step::Pass,
        Step::Fail(error(ErrorKind::Throttled).with_retry_after(seconds(2.0))),
    ]);
    let metrics = Arc::new(StoreMetrics::default());
    let store = guarded(base, policies, Arc::clone(&metrics), &guards);
    store.put(&key(), payload()).await.expect("a put");
    assert_eq!((guards.limits.writes(), guards.limits.reads()), (idle(2), idle(64)));
    let answer = store.get(&key(), None).await.expect("an answer");
    assert_eq!(guards.limits.reads().in_use, 1);
    answer.collect().await.expect("a body");
    assert_eq!((guards.limits.writes(), guards.limits.reads()), (idle(2), idle(2)));
    assert_eq!(metrics.snapshot().in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_get_is_under_way_as_long_as_its_body() {
    let base = Arc::new(Scripted::default());
    let limits = limits(1, 1);
    let store = limited(&base, &limits);
    store.put(&key(), payload()).await.expect("a put");
    let ends: [fn(alluvium_store::GetObject) -> futures::future::BoxFuture<'static, ()>; 2] = [
        |answer| async move { drop(answer) }.boxed(),
        |answer| {
            async move {
                let mut body = answer.body;
                while let Some(piece) = body.next().await {
                    piece.expect("a piece");
                }
                // It has ended, so that it is kept does not matter.
                std::mem::forget(body);
            }
            .boxed()
        },
    ];
    for end in ends {
        let answer = store.get(&key(), None).await.expect("an answer");
        assert_eq!(limits.reads().in_use, 1);
        let object = key();
        let next = store.get(&object, None);
        let mut next = std::pin::pin!(next);
        assert!(next.as_mut().now_or_never().is_none());
        assert_eq!(limits.reads().waiting, 1);
        tokio::time::sleep(seconds(3600.0)).await;
        assert!(next.as_mut().now_or_never().is_none());
        end(answer).await;
        next.await.expect("an answer");
    }
    // One that has no answer has no body.
    store.delete(&[key()]).await.expect("a delete");
    store.get(&key(), None).await.expect_err("it is gone");
    assert_eq!(limits.reads(), idle(1));
}

#[tokio::test(start_paused = true)]
async fn what_cleans_up_or_looks_never_waits() {
    let base = Arc::new(Scripted::default());
    let limits = limits(1, 1);
    let store = limited(&base, &limits);
    store.put(&key(), payload()).await.expect("a put");
    let upload = store.create_upload(&key()).await.expect("an upload");
    let _answer = store.get(&key(), None).await.expect("an answer");
    base.steps.lock().expect("no panic").push_back(Step::Hang);
    let writer = Arc::clone(&store);
    let writing = tokio::spawn(async move { writer.put(&key(), payload()).await });
    tokio::task::yield_now().await;
    assert_eq!((limits.reads().in_use, limits.writes().in_use), (1, 1));

    store.head(&key()).await.expect("a head");
    store.list("", None, 10).await.expect("a page");
    assert_eq!(store.list_uploads(&key()).await.expect("uploads").len(), 1);
    store.abort_upload(&key(), &upload).await.expect("an abort");
    store.delete(&[key()]).await.expect("a delete");

    // What writes does.
    let limit = Duration::from_secs(3600);
    let waits = [
        tokio::time::timeout(limit, store.put(&key(), payload())).await.is_err(),
        tokio::time::timeout(limit, store.create_upload(&key())).await.is_err(),
        tokio::time::timeout(limit, store.upload_part(&key(), &upload, 1, payload()))
            .await
            .is_err(),
        tokio::time::timeout(limit, store.complete_upload(&key(), &upload, &[], 0))
            .await
            .is_err(),
    ];
    assert_eq!(waits, [true; 4]);
    writing.abort();
    writing.await.expect_err("it was aborted");
    assert_eq!(limits.writes(), idle(1));
}

#[tokio::test(start_paused = true)]
async fn whoever_is_dropped_when_leaves_nothing() {
    for seed in 0..20 {
        let mut random = StdRng::seed_from_u64(seed);
        let base = Scripted::always(Step::Take(seconds(0.01)));
        let limits = limits(3, 5);
        let store = limited(&base, &limits);
        store.put(&key(), payload()).await.expect("a put");
        let mut done = Vec::new();
        for _ in 0..400 {
            let (store, limits) = (Arc::clone(&store), Arc::clone(&limits));
            let patience = Duration::from_micros(random.random_range(0..200_000));
            let (reads, throttled) = (random.random(), random.random_ratio(1, 50));
            done.push(tokio::spawn(async move {
                if throttled {
                    throttle(&limits, Operation::Put);
                }
                let work = async {
                    if reads {
                        drop(store.get(&key(), None).await.expect("an answer").collect().await);
                    } else {
                        store.put(&key(), payload()).await.expect("a put");
                        limits.observe(Operation::Put, &Ok(()));
                    }
                };
                let _ = tokio::time::timeout(patience, work).await;
            }));
            tokio::time::sleep(Duration::from_micros(random.random_range(0..2000))).await;
            assert!(base.most() <= 8, "seed {seed}");
        }
        for task in done {
            task.await.expect("no panic");
        }
        let (reads, writes) = (limits.reads(), limits.writes());
        assert_eq!((reads, writes.in_use, writes.waiting), (idle(3), 0, 0), "seed {seed}");
        // Nothing is lost: as many as the limit allows still go at once.
        let begin = Instant::now();
        join_all((0..writes.limit).map(|_| async { store.put(&key(), payload()).await.expect("a put") })).await;
        assert!(begin.elapsed() < seconds(0.015), "seed {seed}");
    }
}
