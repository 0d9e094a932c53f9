//! Bodies that come to a halt.

use alluvium_store::{Key, ObjectStore, Operation, Payload};
use bytes::Bytes;
use tokio::time::Instant;

use super::Bench;
use crate::{Step, seconds};

#[tokio::test(start_paused = true)]
async fn the_rest_of_a_body_that_halts_is_asked_for_once_more() {
    let bench = Bench::used().await;
    let (before, begin) = (bench.hedges().0, Instant::now());
    let (answer, _) = bench.get([Step::Halt(3), Step::Pass]).await;
    assert_eq!(answer.expect("an answer").collect().await.expect("a body"), "bytes");
    // Two seconds of silence, and the pause before an attempt.
    assert!(begin.elapsed() < seconds(3.0), "{:?}", begin.elapsed());
    assert_eq!(bench.hedges().0, before + 1);
    bench.assert_idle();

    // Where each of them halts there are soon no more hedges, and the others have their time.
    let mut silent = 0;
    for _ in 0..20 {
        let (answer, _) = bench.get([Step::Halt(3), Step::Pass]).await;
        let begin = Instant::now();
        assert_eq!(answer.expect("an answer").collect().await.expect("a body"), "bytes");
        silent += u32::from(begin.elapsed() > seconds(10.0));
    }
    assert!(silent >= 16, "{silent}");
    // Three were saved up, and the forty GETs have earned two.
    assert_eq!(bench.hedges().0, before + 5);
    bench.assert_idle();
}

/// GETs of an object of so many bytes, every third of whose bodies halts when half of it has come; how many of these had to wait for long.
async fn silent(bench: &Bench, bytes: usize, gets: usize) -> usize {
    let (object, bytes) = (Key::new("large").expect("a valid key"), Bytes::from(vec![7; bytes]));
    let payload = Payload::new(bytes.clone());
    bench.base.inner.put(&object, payload).await.expect("a put");
    let mut silent = 0;
    for number in 0..gets {
        let halts = (number % 3 == 0).then_some(Step::Halt(bytes.len() / 2));
        bench.script(halts.into_iter().chain([Step::Pass]));
        let begin = Instant::now();
        let answer = bench.store.get(&object, None).await.expect("an answer");
        assert_eq!(answer.collect().await.expect("a body"), bytes);
        bench.base.steps.lock().expect("no panic").clear();
        silent += usize::from(begin.elapsed() > seconds(3.0));
    }
    silent
}

#[tokio::test(start_paused = true)]
async fn each_mebibyte_that_comes_counts_as_a_get() {
    let bench = Bench::used().await;
    assert_eq!(silent(&bench, (16 << 20) + 5, 60).await, 0);
    bench.assert_idle();
}

#[tokio::test(start_paused = true)]
async fn a_get_of_one_mebibyte_counts_once() {
    let bench = Bench::used().await;
    assert!(silent(&bench, 1 << 20, 60).await > 0);
    // Three were saved up, and one in twenty GETs has earned one: the rest of a body is asked for with another GET.
    let gets = bench.seen().of(Operation::Get).requests - 40;
    let hedges = bench.hedges().0;
    assert!((5..=3 + gets / 20).contains(&hedges), "{hedges} of {gets}");
    bench.assert_idle();
}
