//! A store of which one answer in twenty is slow.

use std::{sync::Arc, time::Duration};

use alluvium_store::{
    Operation, Payload,
    layer::{Guards, Policies, guarded, metrics::StoreMetrics},
    s3::S3Store,
};
use alluvium_testkit::{
    proxy::{FaultKind, FaultProxy, HttpFault, ProxyConfig},
    s3_server::{FaultRule, Operation as Request, TlsMode},
};
use tokio::time::Instant;

use crate::{bytes, config, key, policies, server};

const GETS: u64 = 400;

/// Far above what an answer takes on a loaded machine.
const SLOW_MS: u64 = 300;

/// GETs before the faults: enough to know the usual time, and to have earned four hedges.
const USUAL: u64 = 80;

struct Measured {
    p99: Duration,
    slow: u64,
    requests: u64,
    hedges: u64,
    won: u64,
}

async fn measure(hedging: bool) -> Measured {
    let server = server(TlsMode::Off).await;
    let upstream = server.endpoint().trim_start_matches("http://").parse();
    let upstream = upstream.expect("an address");
    let proxy = FaultProxy::start(ProxyConfig::http(upstream)).await.expect("a proxy");
    let policies = Policies { hedging, ..policies() };
    let guards = Guards::new(&policies);
    let metrics = Arc::new(StoreMetrics::default());
    let base = S3Store::open(config(&proxy.endpoint())).await.expect("an open store");
    let store = guarded(Arc::new(base), policies, Arc::clone(&metrics), &guards);
    let object = bytes(1 << 20);
    store
        .put(&key("object"), Payload::new(object.clone()))
        .await
        .expect("a put");

    let mut times = Vec::new();
    for number in 0..USUAL + GETS {
        if number == USUAL {
            // Each rule sees what the earlier ones have left: together they hit each twentieth request, hedges too.
            for rule in 0..2 * GETS / 20 {
                let fault = HttpFault::SlowReply { ms: SLOW_MS };
                let rule = FaultRule::new(Request::GetObject, fault).skip(19 * (rule + 1)).times(1);
                proxy.faults().add(rule).expect("a rule");
            }
            times.clear();
        }
        let begin = Instant::now();
        let at = number * 1000;
        let answer = store.get(&key("object"), Some(at..at + 5000)).await.expect("an answer");
        let body = answer.collect().await.expect("a body");
        times.push(begin.elapsed());
        let at = usize::try_from(at).expect("a position");
        assert!(body == object[at..at + 5000], "GET {number}");
    }
    times.sort_unstable();
    // What was dropped has gone from the counts as well.
    let (seen, reads) = (metrics.snapshot(), guards.limits.reads());
    assert_eq!((seen.in_flight(), reads.in_use, reads.waiting), (0, 0, 0));
    let measured = Measured {
        p99: times[times.len() * 99 / 100 - 1],
        slow: proxy.counters().faults(FaultKind::SlowReply),
        requests: seen.of(Operation::Get).requests - USUAL,
        hedges: seen.hedges,
        won: seen.hedges_won,
    };
    proxy.shutdown().await;
    measured
}

#[tokio::test]
async fn one_slow_answer_in_twenty_is_overtaken_by_few_more_requests() {
    let plain = measure(false).await;
    assert_eq!((plain.slow, plain.requests, plain.hedges), (GETS / 20, GETS, 0));
    assert!(plain.p99 >= Duration::from_millis(SLOW_MS), "{:?}", plain.p99);
    let hedged = measure(true).await;
    assert!(hedged.slow >= GETS / 20, "{} slow ones", hedged.slow);
    assert!(
        hedged.p99 <= plain.p99 / 2,
        "{:?} after {:?}, {} of {} hedges won",
        hedged.p99,
        plain.p99,
        hedged.won,
        hedged.hedges
    );
    assert_eq!(hedged.requests, GETS + hedged.hedges);
    assert!(hedged.hedges * 100 <= GETS * 6, "{} hedges", hedged.hedges);
}
