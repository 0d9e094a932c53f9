//! A name that leads to another address while the store is in use.

use std::{
    io,
    net::{IpAddr, Ipv4Addr},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use alluvium_store::{
    ObjectStore, Payload,
    layer::{Guards, Policies, guarded},
    s3::{Names, S3Store},
};
use alluvium_testkit::{
    proxy::{Availability, FaultProxy, HttpFault, LinkShape, ProxyConfig},
    s3_server::{FaultRule, Operation, S3Server, TlsMode},
};
use futures::{StreamExt, future::join_all};
use tokio::time::Instant;

use crate::{bytes, config, key, policies, read, server};

/// One server at two addresses, and a store that knows it by a name.
struct Moving {
    store: Arc<dyn ObjectStore>,
    here: FaultProxy,
    there: FaultProxy,
    addresses: Arc<Mutex<Vec<IpAddr>>>,
    _server: S3Server,
}

impl Moving {
    async fn start(policies: Policies) -> Self {
        let server = server(TlsMode::Off).await;
        let upstream = server
            .endpoint()
            .trim_start_matches("http://")
            .parse()
            .expect("an address");
        let here = FaultProxy::start(ProxyConfig::http(upstream)).await.expect("a proxy");
        let port = here.address().port();
        let elsewhere = ProxyConfig {
            listen: (Ipv4Addr::new(127, 0, 0, 2), port).into(),
            ..ProxyConfig::http(upstream)
        };
        let there = FaultProxy::start(elsewhere).await.expect("a proxy");
        let addresses = Arc::new(Mutex::new(vec![here.address().ip()]));
        let known = Arc::clone(&addresses);
        let names = Names::new(move |name| match name {
            "store.test" => Ok(known.lock().unwrap_or_else(PoisonError::into_inner).clone()),
            other => Err(io::Error::other(format!("nobody knows {other}"))),
        });
        let mut config = config(&format!("http://store.test:{port}"));
        config.read_timeout = policies.attempt_timeout;
        let base = S3Store::open_with_names(config, names).await.expect("an open store");
        let guards = Guards::new(&policies);
        Moving {
            store: guarded(Arc::new(base), policies, Arc::default(), &guards),
            here,
            there,
            addresses,
            _server: server,
        }
    }

    fn lead_to(&self, addresses: &[IpAddr]) {
        *self.addresses.lock().unwrap_or_else(PoisonError::into_inner) = addresses.to_vec();
    }
}

/// How the old address ends.
#[derive(Clone, Copy, Debug)]
enum End {
    /// Its connections are reset, and nobody listens there any more.
    Gone,
    /// Nothing comes from there any more.
    Silent,
}

#[tokio::test]
async fn uploads_and_fetches_under_way_go_on_at_the_new_address() {
    for end in [End::Gone, End::Silent] {
        let quick = Policies {
            attempt_timeout: Duration::from_millis(700),
            min_bytes_per_second: 16 << 20,
            ..policies()
        };
        let moving = Moving::start(quick).await;
        let (old, new) = (key("old"), key("new"));
        let object = bytes(6 << 20);
        moving
            .store
            .put(&old, Payload::new(object.clone()))
            .await
            .expect("a put");

        // In the middle of a body.
        moving
            .here
            .set_link(LinkShape::round_trip(Duration::ZERO, Some(4 << 20)));
        let mut answer = moving.store.get(&old, None).await.expect("an answer");
        let mut read_so_far = answer.body.next().await.expect("a piece").expect("bytes").to_vec();
        // In the middle of parts.
        let upload = moving.store.create_upload(&new).await.expect("an upload");
        let stall = FaultRule::new(Operation::UploadPart, HttpFault::Stall);
        moving.here.faults().add(stall).expect("a rule");
        let part = Payload::new(bytes(5 << 20));
        let parts = (1..=3).map(|number| moving.store.upload_part(&new, &upload, number, part.clone()));
        let moved = async {
            while moving.here.counters().requests(Operation::UploadPart) < 3 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            moving.lead_to(&[moving.there.address().ip()]);
            match end {
                End::Gone => {
                    let shut = moving.here.set_availability(Availability::Down).await;
                    shut.expect("a shut door");
                    moving.here.reset_connections();
                }
                End::Silent => moving
                    .here
                    .set_link(LinkShape::round_trip(Duration::from_secs(600), None)),
            }
            Instant::now()
        };
        let (parts, moved) = tokio::join!(join_all(parts), moved);
        let parts: Result<Vec<_>, _> = parts.into_iter().collect();
        let parts = parts.unwrap_or_else(|error| panic!("{end:?}: {error}"));
        while let Some(piece) = answer.body.next().await {
            read_so_far.extend_from_slice(&piece.unwrap_or_else(|error| panic!("{end:?}: {error}")));
        }
        assert!(read_so_far == object, "{end:?}");
        let mut whole = crc32fast::Hasher::new();
        (0..3).for_each(|_| whole.update(part.bytes()));
        let completed = moving
            .store
            .complete_upload(&new, &upload, &parts, whole.finalize())
            .await;
        completed.unwrap_or_else(|error| panic!("{end:?}: {error}"));
        assert!(
            moved.elapsed() < Duration::from_secs(20),
            "{end:?}: {:?}",
            moved.elapsed()
        );
        assert_eq!(moving.there.counters().requests(Operation::UploadPart), 3, "{end:?}");
        assert_eq!(moving.there.counters().requests(Operation::GetObject), 1, "{end:?}");
    }
}

#[tokio::test]
async fn of_several_addresses_a_dead_one_is_passed_over() {
    let moving = Moving::start(policies()).await;
    let object = key("object");
    let dead = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 3));
    moving.lead_to(&[dead, moving.there.address().ip()]);
    moving.store.put(&object, Payload::new(bytes(10))).await.expect("a put");
    assert_eq!(read(&moving.store, &object).await.expect("a body"), bytes(10));
    assert_eq!(moving.here.counters().connections(), 0);
}

#[tokio::test]
async fn a_name_without_an_address_for_a_while_is_waited_for() {
    let moving = Moving::start(policies()).await;
    moving.lead_to(&[]);
    let object = key("object");
    let put = moving.store.put(&object, Payload::new(bytes(10)));
    let back = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        moving.lead_to(&[moving.there.address().ip()]);
    };
    let (put, ()) = tokio::join!(put, back);
    put.expect("a put");
}
