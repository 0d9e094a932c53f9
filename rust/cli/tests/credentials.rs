//! Where credentials are looked for, seen from outside: cloud metadata is asked only when the settings say so.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    io::Write,
    net::TcpListener,
    process::{Command, Output},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

/// Stands where cloud metadata would be, counts who comes, and knows nothing.
fn metadata_service() -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let visitors = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&visitors);
    std::thread::spawn(move || {
        while let Ok((mut client, _)) = listener.accept() {
            counted.fetch_add(1, Ordering::SeqCst);
            // A visitor who has left is no failure of the test.
            let _ = client.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        }
    });
    (endpoint, visitors)
}

/// `alluvium probe` on a machine without any credentials but what `metadata` may have.
fn probe(metadata: &str, settings: &[&str]) -> Output {
    let home = env!("CARGO_TARGET_TMPDIR");
    let mut command = Command::new(env!("CARGO_BIN_EXE_alluvium"));
    command
        .env_clear()
        .env("HOME", home)
        .env("AWS_EC2_METADATA_SERVICE_ENDPOINT", metadata);
    command.env("AWS_CONTAINER_CREDENTIALS_FULL_URI", format!("{metadata}/container"));
    command.args([
        "probe",
        "--set",
        "s3.bucket=b",
        "--set",
        "s3.endpoint=http://127.0.0.1:1",
    ]);
    for setting in settings {
        command.args(["--set", setting]);
    }
    command.output().unwrap()
}

#[test]
fn cloud_metadata_is_asked_only_when_the_settings_say_so() {
    let (endpoint, visitors) = metadata_service();
    for settings in [
        &[][..],
        &["s3.credentials.provider=auto"],
        &["s3.credentials.provider=environment"],
        &["s3.credentials.provider=profile"],
        &["s3.credentials.file=/nowhere/keys"],
    ] {
        let output = probe(&endpoint, settings);
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(!output.status.success(), "{settings:?}: {said}");
        // Each place that was looked at is named.
        let place = match settings {
            ["s3.credentials.file=/nowhere/keys"] => "/nowhere/keys",
            ["s3.credentials.provider=profile"] => "profile \"default\"",
            _ => "AWS_ACCESS_KEY_ID",
        };
        assert!(said.contains(place), "{settings:?}: {said}");
        assert_eq!(visitors.load(Ordering::SeqCst), 0, "{settings:?}: {said}");
    }
    let output = probe(&endpoint, &["s3.credentials.provider=metadata"]);
    assert!(!output.status.success());
    assert!(
        visitors.load(Ordering::SeqCst) > 0,
        "that this is seen shows that nobody came before"
    );
}
