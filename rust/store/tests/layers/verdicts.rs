//! What the breaker makes of an attempt.

use std::sync::Arc;

use alluvium_store::{
    ErrorKind, Operation,
    layer::{Guards, Policies, guarded},
};
use futures::future::join_all;
use tokio::time::Instant;

use crate::{
    Scripted, Step,
    breaker::{Bench, snapshot},
    error, key, payload, seconds,
};

#[tokio::test(start_paused = true)]
async fn silence_opens_as_soon_as_it_has_lasted() {
    let base = Scripted::always(Step::Hang);
    let policies = Policies::default();
    let guards = Guards::new(&policies);
    let store = guarded(base, policies, Arc::default(), &guards);
    let waiting = join_all((0..6).map(|_| async { store.head(&key()).await }));
    let waiting = tokio::time::timeout(seconds(30.1), waiting);
    waiting.await.expect_err("nothing answers");
    assert_eq!(guards.breaker.snapshot(), snapshot(true, 1, 0));
}

#[tokio::test(start_paused = true)]
async fn reads_that_are_given_up_in_silence_count_and_writes_do_not() {
    let base = Scripted::always(Step::Hang);
    // As fetches have it: the operation ends before its first attempt.
    let policies = Policies {
        operation_timeout: seconds(27.0),
        ..Policies::default()
    };
    let guards = Guards::new(&policies);
    let store = guarded(base, policies, Arc::default(), &guards);
    let puts = (0..6).map(|_| async { store.put(&key(), payload()).await });
    let gets = || (0..6).map(|_| async { store.get(&key(), None).await.map(|_| ()) });
    for outcome in join_all(puts.map(|put| tokio::time::timeout(seconds(20.0), put))).await {
        outcome.expect_err("nothing answers");
    }
    for outcome in join_all(gets().map(|get| tokio::time::timeout(seconds(9.9), get))).await {
        outcome.expect_err("nothing answers");
    }
    assert_eq!(guards.breaker.snapshot(), snapshot(false, 0, 0));
    for outcome in join_all(gets()).await {
        outcome.expect_err("nothing answers");
    }
    assert_eq!(guards.breaker.snapshot(), snapshot(true, 1, 0));
    let error = guards.breaker.refuse_while_away(Operation::Put).expect_err("open");
    assert!(error.detail().contains("given up after 27s"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn an_answer_of_any_kind_shows_that_the_store_is_there() {
    let answered = |kind: ErrorKind, status: u16| error(kind).with_status(status);
    let there = [
        error(ErrorKind::NotFound),
        error(ErrorKind::Throttled),
        error(ErrorKind::AccessDenied),
        error(ErrorKind::NoSpace),
        answered(ErrorKind::InvalidCredentials, 403),
        answered(ErrorKind::Throttled, 503).with_code("SlowDown"),
        answered(ErrorKind::Throttled, 429),
        answered(ErrorKind::Unavailable, 409).with_code("OperationAborted"),
        answered(ErrorKind::Timeout, 400).with_code("RequestTimeout"),
        answered(ErrorKind::Invalid, 400),
    ];
    for failure in there {
        let bench = Bench::new();
        bench.open().await;
        bench.base.then(Step::Fail(failure.clone()));
        tokio::time::sleep(seconds(1.0)).await;
        let outcome = bench.put().await.expect_err("the script fails");
        assert_eq!(outcome.kind(), failure.kind());
        assert_eq!(bench.seen(), snapshot(false, 1, 0), "{failure:?}");
    }
    let away = [
        error(ErrorKind::Unreachable),
        error(ErrorKind::Timeout),
        error(ErrorKind::Unavailable),
        error(ErrorKind::Tls),
        answered(ErrorKind::Unavailable, 500).with_code("InternalError"),
        answered(ErrorKind::Unavailable, 502),
        answered(ErrorKind::Throttled, 503),
    ];
    let unknown = [
        error(ErrorKind::Invalid),
        error(ErrorKind::InvalidCredentials),
        error(ErrorKind::Unexpected),
        answered(ErrorKind::Unexpected, 200),
    ];
    for (failure, next) in away
        .map(|failure| (failure, 2.0))
        .into_iter()
        .chain(unknown.map(|failure| (failure, 1.0)))
    {
        let bench = Bench::new();
        bench.open().await;
        bench.base.then(Step::Fail(failure.clone()));
        tokio::time::sleep(seconds(1.0)).await;
        bench.put().await.expect_err("the script fails");
        assert!(bench.seen().open, "{failure:?}");
        let begin = Instant::now();
        bench.put().await.expect_err("the script fails");
        assert_eq!(begin.elapsed(), seconds(next), "{failure:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_says_nothing_of_the_store_neither_opens_nor_mends() {
    let bench = Bench::new();
    bench.base.then(Step::Fail(error(ErrorKind::Unexpected)));
    for _ in 0..20 {
        bench.put().await.expect_err("the script fails");
        tokio::time::sleep(seconds(1.0)).await;
    }
    assert_eq!(bench.seen(), snapshot(false, 0, 0));
}
