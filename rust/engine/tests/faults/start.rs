//! What the start says of a bucket that will not free what is deleted, and of others who try it at the same time.

use std::{
    io::{Read, Write},
    net::TcpListener,
};

use alluvium_engine::Engine;
use alluvium_testkit::{
    broker::{on_server, server},
    s3_server::{FaultAction, FaultRule, Operation},
};

use crate::log;

/// A store that has no object, and a bucket with versions.
fn versioned_store(lock: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        while let Ok((mut client, _)) = listener.accept() {
            let mut head = Vec::new();
            let mut piece = [0; 4096];
            while !head.windows(4).any(|end| end == b"\r\n\r\n") {
                match client.read(&mut piece) {
                    Ok(count) if count > 0 => head.extend(&piece[..count]),
                    _ => break,
                }
            }
            let head = String::from_utf8_lossy(&head);
            let (status, body) = if head.contains("?versioning") {
                (
                    "200 OK",
                    "<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>",
                )
            } else if head.contains("?object-lock") {
                ("200 OK", lock)
            } else {
                ("404 Not Found", "<Error><Code>NoSuchKey</Code></Error>")
            };
            let length = body.len();
            // A client that has left is no failure of the test.
            let _ = write!(
                client,
                "HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
            );
        }
    });
    endpoint
}

#[test]
fn a_bucket_that_keeps_what_is_deleted_is_warned_of_at_the_start() {
    log::capture();
    let locked = "<ObjectLockConfiguration><ObjectLockEnabled>Enabled</ObjectLockEnabled><Rule><DefaultRetention><Mode>GOVERNANCE</Mode>\
                  <Days>1</Days></DefaultRetention></Rule></ObjectLockConfiguration>";
    let open = |endpoint: &str, probe: &str| {
        let settings = [
            ("s3.endpoint", endpoint),
            ("s3.bucket", "b"),
            ("s3.access.key.id", "a"),
            ("s3.secret.access.key", "s"),
            ("startup.probe", probe),
        ];
        let settings = settings.map(|(key, value)| (key.to_owned(), value.to_owned()));
        Engine::open(settings.to_vec()).unwrap()
    };
    let warned = || ["keeps versions:", "locks objects:"].map(|what| log::text().contains(what));
    let (versions, locks) = (versioned_store("<Error/>"), versioned_store(locked));
    open(&versions, "off");
    assert_eq!(warned(), [false, false], "nothing is to be tried, so nothing is asked");
    open(&versions, "read");
    assert_eq!(warned(), [true, false], "{}", log::text());
    open(&locks, "read");
    assert_eq!(warned(), [true, true], "{}", log::text());
}

#[test]
fn a_process_of_the_same_name_that_tries_the_store_too_is_no_fault() {
    let server = server();
    let gone = FaultAction::Error {
        status: 404,
        code: "NoSuchKey".to_owned(),
        retry_after: None,
    };
    // The other one has deleted it just before it is read.
    let deleted = FaultRule::new(Operation::GetObject, gone).key_contains("alluvium-probe");
    server.faults().set(vec![deleted.times(1)]).unwrap();
    let engine = on_server(&server, &[]);
    assert_eq!(server.faults().status()[0].hits, 1);
    let left = engine.block_on(engine.store().list("", None, 10)).unwrap();
    assert!(left.objects.is_empty(), "{left:?}");
}
