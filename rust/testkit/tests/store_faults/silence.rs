//! Servers that take no bytes, or take them all and say nothing: told after a silence, not after the time that many bytes may take.

use std::{sync::Arc, time::Duration};

use alluvium_store::{
    ErrorKind, ObjectStore, Payload,
    layer::{MIN_BYTES_PER_SECOND, Policies, metrics::StoreMetrics, stack},
    s3::S3Store,
};
use alluvium_testkit::{
    proxy::{Direction, FaultProxy, HttpFault, LaneShape, LinkFault, LinkRule, LinkShape, ProxyConfig},
    s3_server::{FaultRule, Operation, TlsMode},
};
use tokio::time::Instant;

use crate::{bytes, config, key, server};

/// At the slowest rate that is allowed these take over a minute.
const PART: usize = 16 << 20;

const SILENCE: Duration = Duration::from_secs(1);

async fn behind(proxy: &FaultProxy, operation_timeout: Duration, min_bytes_per_second: u64) -> Arc<dyn ObjectStore> {
    let mut config = config(&proxy.endpoint());
    config.read_timeout = SILENCE;
    let base = S3Store::open(config).await.expect("an open store");
    let policies = Policies {
        attempt_timeout: SILENCE,
        operation_timeout,
        min_bytes_per_second,
        pause_first: Duration::from_millis(5),
        ..Policies::default()
    };
    stack(Arc::new(base), policies, Arc::new(StoreMetrics::default()))
}

async fn proxy(server: &alluvium_testkit::s3_server::S3Server) -> FaultProxy {
    let upstream = server
        .endpoint()
        .strip_prefix("http://")
        .expect("plain")
        .parse()
        .expect("an address");
    FaultProxy::start(ProxyConfig::http(upstream)).await.expect("a proxy")
}

#[tokio::test]
async fn an_upload_that_is_never_answered_is_sent_again_after_a_silence() {
    let server = server(TlsMode::Off).await;
    let proxy = proxy(&server).await;
    let stall = FaultRule::new(Operation::PutObject, HttpFault::Stall).times(1);
    proxy.faults().add(stall).expect("a rule");
    let store = behind(&proxy, 20 * SILENCE, MIN_BYTES_PER_SECOND).await;
    let begin = Instant::now();
    store
        .put(&key("silent"), Payload::new(bytes(PART)))
        .await
        .expect("the second attempt");
    assert!(begin.elapsed() < 8 * SILENCE, "{:?}", begin.elapsed());
    proxy.shutdown().await;
}

#[tokio::test]
async fn an_upload_whose_bytes_nobody_takes_is_sent_again_after_a_silence() {
    let server = server(TlsMode::Off).await;
    let proxy = proxy(&server).await;
    proxy.link_faults().add(
        LinkRule::new(LinkFault::StallAt {
            direction: Direction::Up,
            bytes: 100_000,
        })
        .times(1),
    );
    let store = behind(&proxy, 20 * SILENCE, MIN_BYTES_PER_SECOND).await;
    let begin = Instant::now();
    store
        .put(&key("stuck"), Payload::new(bytes(PART)))
        .await
        .expect("the second attempt");
    assert!(begin.elapsed() < 8 * SILENCE, "{:?}", begin.elapsed());
    proxy.shutdown().await;
}

#[tokio::test]
async fn an_upload_that_is_slow_but_gets_on_is_left_alone() {
    let server = server(TlsMode::Off).await;
    let proxy = proxy(&server).await;
    // 16 MiB in four seconds: four silences, none of them whole.
    let up = LaneShape {
        bytes_per_second: Some(4 << 20),
        ..LaneShape::default()
    };
    proxy.set_link(LinkShape {
        up,
        ..LinkShape::default()
    });
    let store = behind(&proxy, SILENCE, MIN_BYTES_PER_SECOND).await;
    store
        .put(&key("slow"), Payload::new(bytes(PART)))
        .await
        .expect("the first attempt");
    proxy.shutdown().await;
}

#[tokio::test]
async fn a_server_that_is_always_silent_is_told_as_a_timeout() {
    let server = server(TlsMode::Off).await;
    let proxy = proxy(&server).await;
    proxy
        .faults()
        .add(FaultRule::new(Operation::UploadPart, HttpFault::Stall))
        .expect("a rule");
    let store = behind(&proxy, 2 * SILENCE, 16 << 20).await;
    let upload = store.create_upload(&key("u")).await.expect("an upload");
    let key = key("u");
    let sending = store.upload_part(&key, &upload, 1, Payload::new(bytes(PART)));
    let outcome = tokio::time::timeout(20 * SILENCE, sending).await.expect("an end");
    let error = outcome.expect_err("no answer");
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    store.abort_upload(&key, &upload).await.expect("an abort");
    proxy.shutdown().await;
}
