//! Purpose: how the proxy ends, as a handle and as a process, and how a client finds it when a name moves.

use crate::support::*;
use crate::wire::*;
use alluvium_testkit::proxy::{Availability, FaultProxy, HttpFault, LinkShape, ProxyConfig};
use alluvium_testkit::s3_server::{FaultRule, Operation};
use aws_smithy_runtime_api::client::dns::{DnsFuture, ResolveDns};
use std::io::{BufRead as _, BufReader};
use std::net::{IpAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::AsyncWriteExt as _;
use tokio::time::{Instant, timeout};

#[tokio::test]
async fn shutdown_ends_everything() {
    let server = server().await;
    let (proxy, client) = proxied(&server).await;
    let address = proxy.address();
    let (rule, delay) = (FaultRule::new, HttpFault::Delay { ms: 60_000 });
    proxy
        .faults()
        .add(rule(Operation::PutObject, HttpFault::Stall))
        .unwrap();
    proxy.faults().add(rule(Operation::HeadObject, delay)).unwrap();
    let stalled = client.clone();
    let stalled = tokio::spawn(async move { stalled.put_object().bucket(BUCKET).key("k").send().await.is_err() });
    let delayed = tokio::spawn(async move { client.head_object().bucket(BUCKET).key("k").send().await.is_err() });
    let bytes = link_to(self::address(&server)).await;
    bytes.set_link(LinkShape::round_trip(Duration::from_secs(60), None));
    let mut in_the_line = connect(&bytes).await;
    in_the_line.write_all(b"GET /").await.unwrap();
    eventually("the requests have arrived", || proxy.counters().all_requests() == 2).await;
    timeout(Duration::from_secs(5), async {
        tokio::join!(proxy.shutdown(), bytes.shutdown())
    })
    .await
    .unwrap();
    // No wait: the port is free, and nothing is left that could hold a connection.
    TcpListener::bind(address).unwrap();
    assert!(stalled.await.unwrap() && delayed.await.unwrap());
    assert!(read_all(&mut in_the_line).await.0.is_empty());
    eventually("the server has no connection", || {
        server.counters().connections_open() == 0
    })
    .await;
}

#[test]
fn dropping_does_the_same() {
    // Without a runtime of the caller, and with nobody listening at that moment.
    let proxy = FaultProxy::start_blocking(ProxyConfig::tcp("127.0.0.1:9".parse().unwrap())).unwrap();
    let address = proxy.address();
    assert!(std::net::TcpStream::connect(address).is_ok());
    drop(proxy);
    TcpListener::bind(address).unwrap();
}

/// The binary, its endpoint and its admin listener.
fn spawn(arguments: &[&str]) -> (Child, String, String) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_alluvium-testkit"))
        .arg("fault-proxy")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut told = |word: &str| {
        let line = lines.next().unwrap().unwrap();
        line.strip_prefix(word).unwrap_or_else(|| panic!("{line}")).to_owned()
    };
    let (endpoint, admin) = (told("READY "), told("ADMIN "));
    (child, endpoint, admin)
}

#[tokio::test]
async fn the_binary_passes_on_and_ends_with_its_input() {
    let server = server().await;
    let upstream = address(&server).to_string();
    for level in [&[][..], &["--http"][..]] {
        let fixed = ["--upstream", &upstream, "--listen", "127.0.0.1:0", "--exit-with-stdin"];
        let shape = ["--latency-ms", "50", "--bytes-per-second", "4194304"];
        let (mut child, endpoint, _) = spawn(&[&fixed[..], &shape, level].concat());
        let client = client_as(&server, &endpoint, Identity::default());
        put(&client, "k", b"hello").await;
        let begin = Instant::now();
        put(&client, "k", &pattern(MIB)).await;
        assert!(
            begin.elapsed() >= Duration::from_millis(250),
            "a quarter of a second for the bytes"
        );
        assert!(get(&client, "k").await == pattern(MIB));
        drop(child.stdin.take());
        assert!(child.wait().unwrap().success());
    }
}

#[tokio::test]
async fn the_binary_takes_rules() {
    let server = server().await;
    let upstream = address(&server).to_string();
    let rules = r#"[{"op":"PutObject","times":1,"action":{"error":{"status":503,"code":"SlowDown"}}}]"#;
    let (mut child, endpoint, _) = spawn(&[
        "--upstream",
        &upstream,
        "--http",
        "--faults",
        rules,
        "--exit-with-stdin",
    ]);
    let client = client_as(&server, &endpoint, Identity::default());
    let refused = client.put_object().bucket(BUCKET).key("k").send();
    assert_refused!(refused.await, 503, "SlowDown");
    put(&client, "k", b"hello").await;
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
}

#[tokio::test]
async fn the_binary_counts_and_takes_rules_while_it_runs() {
    let server = server().await;
    let upstream = address(&server).to_string();
    let (mut child, endpoint, admin) = spawn(&["--upstream", &upstream, "--http", "--exit-with-stdin"]);
    let client = client_as(&server, &endpoint, Identity::default());
    put(&client, "k", &pattern(MIB)).await;
    assert!(get(&client, "k").await == pattern(MIB));
    assert!(get(&client, "k").await == pattern(MIB));
    let seen = counters(&admin);
    assert!(seen.values().all(serde_json::Value::is_u64), "a flat object of numbers");
    let expected = [
        ("PutObject", 1),
        ("GetObject", 2),
        ("UploadPart", 0),
        ("body_bytes_up", MIB),
        ("body_bytes_down", 2 * MIB),
        ("connections", 1),
    ];
    for (name, count) in expected {
        assert_eq!(seen[name], count, "{name}");
    }
    for (all, bodies) in [("bytes_up", "body_bytes_up"), ("bytes_down", "body_bytes_down")] {
        assert!(seen[all].as_u64() > seen[bodies].as_u64(), "heads are bytes too");
    }
    let rules = r#"[{"op":"GetObject","times":1,"action":{"error":{"status":503,"code":"SlowDown"}}}]"#;
    assert_eq!(call(&admin, "PUT", "/faults", rules).0, 204);
    let refused = client.get_object().bucket(BUCKET).key("k").send();
    assert_refused!(refused.await, 503, "SlowDown");
    assert_eq!(counters(&admin)["fault.Error"], 1);
    assert_eq!(call(&admin, "POST", "/reset", "").0, 204);
    let mut seen = counters(&admin);
    assert_eq!(
        seen.remove("connections_open"),
        Some(1.into()),
        "the gauge is not touched"
    );
    assert!(seen.values().all(|count| count == 0), "{seen:?}");
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
}

/// A name whose address changes.
#[derive(Clone, Debug)]
struct MovingName(Arc<Mutex<IpAddr>>);

impl ResolveDns for MovingName {
    fn resolve_dns<'name>(&'name self, _name: &'name str) -> DnsFuture<'name> {
        DnsFuture::ready(Ok(vec![*self.0.lock().unwrap()]))
    }
}

#[tokio::test]
async fn a_name_that_moves() {
    let server = server().await;
    let here = FaultProxy::start(ProxyConfig::http(address(&server))).await.unwrap();
    let mut there = ProxyConfig::http(address(&server));
    there.listen = (std::net::Ipv4Addr::new(127, 0, 0, 2), here.address().port()).into();
    let there = FaultProxy::start(there).await.unwrap();
    let name = MovingName(Arc::new(Mutex::new(here.address().ip())));
    let http = aws_smithy_http_client::Builder::new().tls_provider(aws_smithy_http_client::tls::Provider::Rustls(
        aws_smithy_http_client::tls::rustls_provider::CryptoMode::Ring,
    ));
    let http = http.build_with_resolver(name.clone());
    let endpoint = format!("http://store.test:{}", here.address().port());
    let client = client_over(&endpoint, Identity::default(), http);
    put(&client, "k", b"hello").await;
    *name.0.lock().unwrap() = there.address().ip();
    // A connection that is kept goes on to the old address; without it the name is asked again.
    assert_eq!(get(&client, "k").await, b"hello");
    assert_eq!(there.counters().connections(), 0);
    here.set_availability(Availability::Down).await.unwrap();
    reset_all(&here).await;
    assert_eq!(get(&client, "k").await, b"hello");
    assert_eq!(there.counters().requests(Operation::GetObject), 1);
}
