//! Purpose: the raw limit reads every byte it says it read, and takes nothing else for it.

#![expect(clippy::unwrap_used, reason = "a test ends where it fails, helpers included")]

#[path = "s3_server/support.rs"]
#[expect(
    dead_code,
    unused_imports,
    unused_macros,
    reason = "shared with the tests of the server"
)]
mod support;

use alluvium_testkit::proxy::{Direction, FaultProxy, HttpFault, ProxyConfig};
use alluvium_testkit::ranged_get::{RangedGet, RangedGetError};
use alluvium_testkit::s3_server::{FaultRule, Operation, S3Server};
use aws_sdk_s3::presigning::PresigningConfig;
use std::process::Command;
use std::time::Duration;
use support::*;

const OBJECT_BYTES: usize = 5 * MIB + 1;

/// A server with an object, a proxy before it, and what reads the object through it three times.
async fn readable() -> (S3Server, FaultProxy, RangedGet) {
    let server = server().await;
    let upstream = server.endpoint().strip_prefix("http://").unwrap();
    let proxy = FaultProxy::start(ProxyConfig::http(upstream.parse().unwrap()))
        .await
        .unwrap();
    let client = client_as(&server, &proxy.endpoint(), Identity::default());
    put(&client, "k", &vec![7; OBJECT_BYTES]).await;
    let signed = client
        .get_object()
        .bucket(BUCKET)
        .key("k")
        .presigned(PresigningConfig::expires_in(Duration::from_secs(60)).unwrap())
        .await
        .unwrap();
    proxy.counters().reset();
    let wanted = RangedGet {
        url: signed.uri().to_owned(),
        headers: Vec::new(),
        object_bytes: OBJECT_BYTES as u64,
        range_bytes: MIB as u64,
        in_flight: 4,
        times: 3,
    };
    (server, proxy, wanted)
}

#[tokio::test]
async fn every_byte_is_read_so_many_times() {
    let (_server, proxy, wanted) = readable().await;
    let taken = wanted.run().unwrap();
    assert_eq!((taken.bytes, taken.requests), (3 * OBJECT_BYTES as u64, 18));
    assert!(taken.cpu > Duration::ZERO && taken.wall > Duration::ZERO);
    let counters = proxy.counters();
    assert_eq!(counters.requests(Operation::GetObject), 18);
    assert_eq!(counters.connections(), 4);
    assert_eq!(counters.body_bytes(Direction::Down), 3 * OBJECT_BYTES as u64);
}

#[tokio::test]
async fn what_is_not_the_object_is_refused() {
    let (_server, proxy, wanted) = readable().await;
    let longer = RangedGet {
        object_bytes: 2 * OBJECT_BYTES as u64,
        ..wanted.clone()
    };
    assert!(matches!(longer.run(), Err(RangedGetError::Answer(_))));
    let none = RangedGet {
        in_flight: 0,
        ..wanted.clone()
    };
    assert!(matches!(none.run(), Err(RangedGetError::Nothing)));
    for fault in [
        HttpFault::error(503, "SlowDown"),
        HttpFault::TruncateBody {
            bytes: 1000,
            reset: false,
        },
    ] {
        let rule = FaultRule::new(Operation::GetObject, fault).skip(7).times(1);
        proxy.faults().set(vec![rule]).unwrap();
        assert!(wanted.run().is_err());
    }
    proxy.faults().clear();
    wanted.run().unwrap();
}

#[tokio::test]
async fn the_binary_tells_what_it_took() {
    let (_server, _proxy, wanted) = readable().await;
    let told = Command::new(env!("CARGO_BIN_EXE_alluvium-testkit"))
        .args(["ranged-get", "--url", &wanted.url, "--header", "X-Some: thing"])
        .args(["--object-bytes", &OBJECT_BYTES.to_string()])
        .output()
        .unwrap();
    assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
    let told: serde_json::Value = serde_json::from_slice(&told.stdout).unwrap();
    assert_eq!((&told["bytes"], &told["requests"]), (&OBJECT_BYTES.into(), &1.into()));
    assert!(told["wall_seconds"].as_f64().unwrap() > 0.0);
}
