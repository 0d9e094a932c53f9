//! Purpose: the admin listener, and the binary.

use crate::support::*;
use alluvium_testkit::s3_server::S3Server;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

#[tokio::test]
async fn counters_and_faults_from_outside() {
    let (server, client) = pair().await;
    put(&client, "k", &[1; 1000]).await;
    get(&client, "k").await;
    assert_eq!(
        refusal(client.head_object().bucket(BUCKET).key("none").send().await).0,
        404
    );
    let seen = counters(server.admin());
    assert!(seen.values().all(serde_json::Value::is_u64), "a flat object of numbers");
    let expected = [
        ("PutObject", 1),
        ("PutObject.2xx", 1),
        ("GetObject", 1),
        ("HeadObject.4xx", 1),
        ("UploadPart", 0),
        ("bytes_in", 1000),
    ];
    for (name, count) in expected {
        assert_eq!(seen[name], count, "{name}");
    }
    assert!(seen["bytes_out"].as_u64().unwrap() >= 1000);
    assert_eq!(call(server.admin(), "POST", "/reset", "").0, 204);
    let seen = counters(server.admin());
    assert_eq!(
        (seen["PutObject"].as_u64(), seen["bytes_in"].as_u64()),
        (Some(0), Some(0))
    );
    assert_eq!(seen["connections_open"], 1);

    let rules = r#"[{"op":"GetObject","times":1,"action":{"error":{"status":503,"code":"SlowDown"}}}]"#;
    assert_eq!(call(server.admin(), "PUT", "/faults", rules).0, 204);
    assert_refused!(
        client.get_object().bucket(BUCKET).key("k").send().await,
        503,
        "SlowDown"
    );
    get(&client, "k").await;
    let (_, status) = call(server.admin(), "GET", "/faults", "");
    assert!(status.contains(r#""hits":1"#), "{status}");
    let (status, reason) = call(
        server.admin(),
        "PUT",
        "/faults",
        r#"[{"op":"Nonsense","action":"stall"}]"#,
    );
    assert_eq!(status, 400);
    assert!(reason.contains("Nonsense"), "{reason}");
    assert_eq!(call(server.admin(), "PUT", "/faults", "[]").0, 204);
    assert_eq!(call(server.admin(), "GET", "/faults", "").1, "[]");
    assert_eq!(call(server.admin(), "DELETE", "/counters", "").0, 405);
    assert_eq!(call(server.admin(), "GET", "/", "").0, 404);
}

/// The binary, its temporary files in a directory of ours.
fn spawn(temporary: &std::path::Path, arguments: &[&str]) -> (Child, String, String) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_alluvium-testkit"))
        .args([
            "s3-server",
            "--access-key",
            "test-access-key",
            "--secret-key",
            "test-secret-key",
            "--bucket",
            BUCKET,
        ])
        .args(arguments)
        .env("TMPDIR", temporary)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let ready = lines.next().unwrap().unwrap();
    let admin = lines.next().unwrap().unwrap();
    let strip = |line: &str, word: &str| line.strip_prefix(word).unwrap_or_else(|| panic!("{line}")).to_owned();
    (child, strip(&ready, "READY "), strip(&admin, "ADMIN "))
}

async fn use_once(endpoint: &str, admin: &str) {
    // Only its trust matters here, and there is none without TLS.
    let any: S3Server = server().await;
    let client = client_as(&any, endpoint, Identity::default());
    put(&client, "k", b"hello").await;
    assert_eq!(get(&client, "k").await, b"hello");
    assert_eq!(counters(admin)["PutObject"], 1);
}

#[tokio::test]
async fn the_binary_ends_with_its_input() {
    let temporary = tempfile::tempdir().unwrap();
    let (mut child, endpoint, admin) = spawn(temporary.path(), &["--listen", "127.0.0.1:0", "--exit-with-stdin"]);
    use_once(&endpoint, &admin).await;
    assert_eq!(std::fs::read_dir(temporary.path()).unwrap().count(), 1);
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    assert_eq!(std::fs::read_dir(temporary.path()).unwrap().count(), 0, "no leftovers");
}

#[tokio::test]
async fn the_binary_ends_with_a_signal() {
    let temporary = tempfile::tempdir().unwrap();
    let (mut child, endpoint, admin) = spawn(temporary.path(), &[]);
    drop(child.stdin.take());
    use_once(&endpoint, &admin).await;
    assert!(
        Command::new("kill")
            .args(["-TERM", &child.id().to_string()])
            .status()
            .unwrap()
            .success()
    );
    assert!(child.wait().unwrap().success());
    assert_eq!(std::fs::read_dir(temporary.path()).unwrap().count(), 0, "no leftovers");
}

#[tokio::test]
async fn the_binary_speaks_tls_and_keeps_data() {
    let temporary = tempfile::tempdir().unwrap();
    let path = |name: &str| temporary.path().join(name).to_str().unwrap().to_owned();
    let (tls, data) = (path("tls"), path("data"));
    let (mut child, endpoint, _) = spawn(
        temporary.path(),
        &[
            "--tls-dir",
            &tls,
            "--data",
            &data,
            "--region",
            "eu-west-3",
            "--exit-with-stdin",
        ],
    );
    assert!(endpoint.starts_with("https://127.0.0.1:"));
    assert!(
        std::fs::read_to_string(temporary.path().join("tls/ca.pem"))
            .unwrap()
            .contains("BEGIN CERTIFICATE")
    );
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    assert!(temporary.path().join("data/buckets").join(BUCKET).is_dir());
}
