//! Retries, deadlines and counts.

use std::{sync::Arc, time::Duration};

use alluvium_store::{
    ErrorKind, Operation, StoreError,
    layer::{Policies, metrics::StoreMetrics, stack},
};
use futures::StreamExt;
use tokio::time::Instant;

use crate::{Scripted, Step, error, failing, key, payload, stacked};

#[tokio::test(start_paused = true)]
async fn what_may_pass_is_tried_again_with_growing_pauses() {
    for seed in 0..50 {
        let policies = Policies {
            jitter_seed: Some(seed),
            ..Policies::default()
        };
        let (store, metrics) = stacked(failing(ErrorKind::Unavailable, 9), policies);
        let begin = Instant::now();
        store
            .put(&key(), payload())
            .await
            .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        // 100, 200, 400, 800, 1600, 3200 ms and then 5 s at most, and full jitter below that.
        assert!(
            begin.elapsed() <= Duration::from_millis(6300 + 15_000) + Duration::from_millis(10),
            "seed {seed}"
        );
        let put = metrics.snapshot().of(Operation::Put).clone();
        assert_eq!((put.requests, put.retries, put.in_flight), (10, 9, 0), "seed {seed}");
        assert_eq!(put.failed(ErrorKind::Unavailable), 9, "seed {seed}");
        assert_eq!(put.bytes_sent, 50, "seed {seed}");
    }
}

#[tokio::test(start_paused = true)]
async fn attempts_are_bounded_and_counted_in_the_error() {
    for kind in [ErrorKind::ChecksumMismatch, ErrorKind::Truncated, ErrorKind::ClockSkew] {
        // A store that is away in between does not use the attempts up.
        let mut steps = failing(kind, 2);
        steps.extend(failing(ErrorKind::Unavailable, 20));
        steps.extend(failing(kind, 100));
        let policies = Policies {
            attempts_max: 3,
            ..Policies::default()
        };
        let (store, _) = stacked(steps, policies);
        let error = store.put(&key(), payload()).await.expect_err("the script fails");
        assert_eq!((error.kind(), error.attempts()), (kind, 23));
    }
}

#[tokio::test(start_paused = true)]
async fn time_alone_limits_the_waiting_for_a_store_that_is_away() {
    for kind in [
        ErrorKind::Unreachable,
        ErrorKind::Unavailable,
        ErrorKind::Throttled,
        ErrorKind::Timeout,
    ] {
        let (store, _) = stacked(failing(kind, 10_000), Policies::default());
        let begin = Instant::now();
        let error = store.put(&key(), payload()).await.expect_err("the script fails");
        assert_eq!(error.kind(), kind);
        let waited = begin.elapsed();
        // It ends when the next pause, 5 s at most, would be too long.
        assert!(
            waited > Duration::from_secs(114) && waited <= Duration::from_secs(120),
            "{waited:?}"
        );
        assert!(error.attempts() > 20, "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_upload_is_begun_again_only_when_it_has_not_begun() {
    let answered = |kind, status| error(kind).with_status(status);
    let refused = |kind, status| answered(kind, status).with_code("Code");
    for (failure, requests) in [
        (error(ErrorKind::Unreachable), 2),
        (refused(ErrorKind::Throttled, 503), 2),
        (refused(ErrorKind::Throttled, 429), 2),
        (refused(ErrorKind::ClockSkew, 403), 2),
        (answered(ErrorKind::Throttled, 503), 1),
        (answered(ErrorKind::Unavailable, 200), 1),
        (refused(ErrorKind::Unavailable, 500), 1),
        (answered(ErrorKind::Unavailable, 502), 1),
        (answered(ErrorKind::Unavailable, 504), 1),
        (error(ErrorKind::Unavailable), 1),
        (error(ErrorKind::Timeout), 1),
    ] {
        let shown = failure.to_string();
        let (store, metrics) = stacked([Step::Fail(failure)].into(), Policies::default());
        let outcome = store.create_upload(&key()).await;
        assert_eq!(outcome.is_ok(), requests == 2, "{shown}");
        assert!(outcome.err().is_none_or(|error| error.is_retryable()), "{shown}");
        assert_eq!(
            metrics.snapshot().of(Operation::CreateUpload).requests,
            requests,
            "{shown}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn what_cannot_pass_is_not_tried_again() {
    for kind in ErrorKind::ALL.into_iter().filter(|kind| !kind.is_retryable()) {
        let (store, metrics) = stacked(failing(kind, 1), Policies::default());
        let error = store.put(&key(), payload()).await.expect_err("the script fails");
        assert_eq!((error.kind(), error.attempts()), (kind, 1));
        assert_eq!(metrics.snapshot().of(Operation::Put).requests, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_hanging_attempt_ends_and_the_next_one_succeeds() {
    let (store, metrics) = stacked([Step::Hang, Step::Pass].into(), Policies::default());
    let begin = Instant::now();
    store.head(&key()).await.map(|_| ()).expect_err("nothing was put");
    assert!(begin.elapsed() >= Duration::from_secs(30) && begin.elapsed() < Duration::from_secs(31));
    assert_eq!(metrics.snapshot().of(Operation::Head).failed(ErrorKind::Timeout), 1);
}

#[tokio::test(start_paused = true)]
async fn the_operation_has_a_deadline_over_all_attempts() {
    let hanging = (0..100).map(|_| Step::Hang).collect();
    let (store, _) = stacked(hanging, Policies::default());
    let begin = Instant::now();
    let error = store.put(&key(), payload()).await.expect_err("nothing answers");
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(
        begin.elapsed() <= Duration::from_millis(120_100),
        "{:?}",
        begin.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn retry_after_is_capped() {
    let asked = StoreError::new(ErrorKind::Throttled, Operation::Put, "slow down");
    let asked = asked.with_retry_after(Duration::from_secs(3600));
    let (store, _) = stacked([Step::Fail(asked)].into(), Policies::default());
    let begin = Instant::now();
    store.put(&key(), payload()).await.expect("a put");
    let waited = begin.elapsed();
    assert!(
        waited >= Duration::from_secs(30) && waited < Duration::from_secs(31),
        "{waited:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_pauses_is_not_punished_but_a_slow_body_is() {
    let policies = Policies {
        attempts_max: 1,
        ..Policies::default()
    };
    for (piece_pause, reader_pause, succeeds) in [(1, 3600, true), (3600, 1, false)] {
        let base = Arc::new(Scripted {
            piece_pause: Duration::from_secs(piece_pause),
            ..Scripted::default()
        });
        let metrics = Arc::new(StoreMetrics::default());
        let store = stack(base, policies.clone(), Arc::clone(&metrics));
        store.put(&key(), payload()).await.expect("a put");
        let mut answer = store.get(&key(), None).await.expect("an answer");
        tokio::time::sleep(Duration::from_secs(reader_pause)).await;
        let piece = answer.body.next().await.expect("a piece");
        assert_eq!(piece.is_ok(), succeeds, "{piece:?}");
        assert!(answer.body.next().await.is_none());
        assert!(
            answer.body.next().await.is_none(),
            "a body may be asked again after its end"
        );
        drop(answer);
        assert_eq!(metrics.snapshot().in_flight(), 0);
    }
}
