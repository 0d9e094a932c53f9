//! Purpose: faults by chance: the same for the same seed, counted, and off when switched off.

use crate::support::*;
use crate::wire::*;
use alluvium_testkit::proxy::{Chaos, FaultKind, HttpFault};
use alluvium_testkit::s3_server::{FaultRule, Operation};
use std::time::Duration;
use tokio::time::timeout;

const KINDS: [FaultKind; 5] = [
    FaultKind::Error,
    FaultKind::Delay,
    FaultKind::DropReply,
    FaultKind::TruncateBody,
    FaultKind::CorruptBody,
];

fn chaos(seed: u64) -> Chaos {
    Chaos::new(seed, 0.4)
        .operation(Operation::HeadObject, 0.0)
        .action(2, HttpFault::error(503, "SlowDown"))
        .action(1, HttpFault::Delay { ms: 3 })
        .action(1, HttpFault::DropReply { reset: true })
        .action(
            1,
            HttpFault::TruncateBody {
                bytes: u64::MAX,
                reset: false,
            },
        )
        .action(1, HttpFault::CorruptBody { at: u64::MAX })
}

/// What a fixed sequence of requests meets: the requests that went wrong, and how often each fault struck.
async fn run(seed: u64) -> (Vec<String>, [u64; 5]) {
    let server = server().await;
    let (proxy, client) = proxied(&server).await;
    let bytes = pattern(10_000);
    put(&client, "k", &bytes).await;
    proxy.chaos().start(chaos(seed)).unwrap();
    let mut met = Vec::new();
    for _ in 0..40 {
        let put = client.put_object().bucket(BUCKET).key("k").body(bytes.clone().into());
        met.push(match put.send().await {
            Ok(_) => "put".to_owned(),
            Err(error) => format!("put {:?}", error.raw_response().map(|answer| answer.status().as_u16())),
        });
        let get = client.get_object().bucket(BUCKET).key("k").range("bytes=0-9999");
        met.push(match get.send().await {
            Ok(output) => match output.body.collect().await {
                Ok(got) => {
                    let got = got.to_vec();
                    format!("get, wrong at {:?}", (0..got.len()).find(|at| got[*at] != bytes[*at]))
                }
                Err(_) => "get, cut".to_owned(),
            },
            Err(error) => format!("get {:?}", error.raw_response().map(|answer| answer.status().as_u16())),
        });
        client.head_object().bucket(BUCKET).key("k").send().await.unwrap();
    }
    let status = proxy.chaos().status().unwrap();
    assert_eq!((status.seed, status.requests), (seed, 120));
    let struck = KINDS.map(|kind| proxy.counters().faults(kind));
    assert_eq!(
        struck,
        KINDS.map(|kind| status.hits(kind)),
        "what was decided has been done"
    );
    assert_eq!(struck.iter().sum::<u64>(), proxy.counters().all_faults());
    assert_eq!(status.all_hits(), proxy.counters().all_faults());
    assert!(format!("{proxy:?}").contains(&format!("seed: {seed}")));
    // Switched off, nothing happens.
    proxy.chaos().pause();
    for _ in 0..40 {
        assert!(get(&client, "k").await == bytes);
    }
    assert_eq!(proxy.counters().all_faults(), status.all_hits());
    (met, struck)
}

#[tokio::test]
async fn the_same_seed_the_same_faults() {
    let (first, again, other) = tokio::join!(run(11), run(11), run(12));
    assert_eq!(first, again);
    assert_ne!(first.0, other.0);
    assert!(first.1.iter().all(|count| *count > 0), "{:?}", first.1);
}

#[tokio::test]
async fn rules_go_before_chance() {
    let server = server().await;
    let (proxy, client) = proxied(&server).await;
    let always = Chaos::new(1, 1.0).action(1, HttpFault::error(500, "InternalError"));
    proxy.chaos().start(always).unwrap();
    let rule = FaultRule::new(Operation::PutObject, HttpFault::Delay { ms: 0 }).key_contains("a");
    proxy.faults().add(rule.times(1)).unwrap();
    put(&client, "a", b"").await;
    for _ in 0..2 {
        let refused = client.put_object().bucket(BUCKET).key("a").send();
        assert_refused!(refused.await, 500, "InternalError");
    }
    assert_eq!(proxy.chaos().status().unwrap().requests, 2);
    let nonsense = Chaos::new(1, 1.0).action(1, HttpFault::error(200, "OK"));
    assert!(proxy.chaos().start(nonsense).is_err());
}

#[tokio::test]
async fn side_by_side_the_totals_hold() {
    let server = server().await;
    let (proxy, client) = proxied(&server).await;
    put(&client, "k", &pattern(100_000)).await;
    proxy.chaos().start(chaos(5)).unwrap();
    let clients = (0..8).map(|_| {
        let client = client.clone();
        async move {
            for _ in 0..25 {
                // What becomes of each is not the question.
                if let Ok(output) = client.get_object().bucket(BUCKET).key("k").send().await {
                    let _ = output.body.collect().await;
                }
            }
        }
    });
    timeout(Duration::from_secs(60), futures::future::join_all(clients))
        .await
        .unwrap();
    let status = proxy.chaos().status().unwrap();
    assert_eq!(status.requests, 200);
    assert_eq!(status.all_hits(), proxy.counters().all_faults());
    // 80 expected; the bounds are five deviations away.
    assert!((45..=115).contains(&status.all_hits()), "{status:?}");
}
