//! Keys that change in the middle of a copy.

use std::{fs, path::Path, time::Duration};

use alluvium_engine::ErrorKind;
use alluvium_testkit::{
    broker::*,
    proxy::HttpFault,
    s3_server::{FaultRule, Operation, Outcome},
};

use crate::{Bench, MIB, eventually, side_by_side};

/// As a mounted secret is replaced: by a rename.
fn write_keys(path: &Path, access_key: &str, token: Option<&str>) {
    let token = token.map_or_else(String::new, |token| format!("aws_session_token = {token}\n"));
    let text = format!("aws_access_key_id = {access_key}\naws_secret_access_key = secret-of-{access_key}\n{token}");
    let new = path.with_extension("new");
    fs::write(&new, text).unwrap();
    fs::rename(new, path).unwrap();
}

/// A bench whose engine has its keys from a file, and parts that take their time.
fn bench_on(file: &Path, token: Option<&str>) -> Bench {
    write_keys(file, "old", token);
    let keys = [
        ("s3.credentials.provider", "file"),
        ("s3.credentials.file", file.to_str().unwrap()),
        ("upload.concurrency", "2"),
        ("startup.probe", "off"),
    ];
    let bench = Bench::with(&keys, |_| {});
    bench.server.users().allow("old", "secret-of-old", token);
    bench.fault(FaultRule::new(Operation::UploadPart, HttpFault::Delay { ms: 300 }));
    bench
}

/// Copies a segment, and does `rotate` when its first parts are there.
fn copy_during(bench: &Bench, rotate: impl FnOnce()) -> alluvium_engine::Result<()> {
    let segment = bench.segment(1, 40 * MIB);
    let task = bench.engine.start_copy(copy_request(&segment));
    let server = bench.server.counters();
    eventually("the first parts are there", || {
        server.outcomes(Operation::UploadPart, Outcome::Success) > 0
    });
    assert!(server.outcomes(Operation::UploadPart, Outcome::Success) < 8);
    rotate();
    finish(&task)?;
    bench.assert_one_segment(&segment, "copied");
    let bytes = read_segment(&bench.engine, &segment, 0..u64::MAX)?;
    assert!(bytes == segment.log_bytes().unwrap());
    delete(&bench.engine, &segment, None)
}

#[test]
fn keys_rotated_while_both_are_good_cost_a_copy_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("keys");
    let bench = bench_on(&file, None);
    copy_during(&bench, || {
        bench.server.users().allow("new", "secret-of-new", None);
        write_keys(&file, "new", None);
        // The file is looked at every second.
        std::thread::sleep(Duration::from_millis(2500));
        bench.server.users().revoke("old");
    })
    .unwrap();
    assert_eq!(bench.metric("store", "denied_errors_total"), 0);
    bench.assert_empty("deleted with the new key");
}

#[test]
fn keys_that_end_at_once_are_read_again_in_the_middle_of_a_copy() {
    let cases = [(None, false), (Some("old-token"), false), (Some("old-token"), true)];
    side_by_side(cases, |(token, expires)| {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("keys");
        let bench = bench_on(&file, token);
        copy_during(&bench, || {
            let users = bench.server.users();
            let new_token = token.map(|_| "new-token");
            users.allow("new", "secret-of-new", new_token);
            write_keys(&file, "new", new_token);
            if expires {
                users.expire("old");
            } else {
                users.revoke("old");
            }
        })
        .unwrap_or_else(|error| panic!("{token:?}, {expires}: {error}"));
        assert_eq!(bench.metric("copy", "failures_total"), 0);
        bench.assert_empty((token, expires));
    });
}

#[test]
fn keys_that_end_without_new_ones_fail_the_copy_and_what_is_left_goes_with_the_next_delete() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("keys");
    let bench = bench_on(&file, Some("old-token"));
    let error = copy_during(&bench, || bench.server.users().expire("old")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(
        error.message().contains("ExpiredToken") && error.message().contains("check the credentials"),
        "{error}"
    );
    assert!(bench.metric("store", "denied_errors_total") > 0);
    assert_eq!(bench.metric("store", "away"), 0, "it answers");
    assert_eq!(bench.metric("copy", "cleanups_pending"), 1);
    bench.server.users().allow("new", "secret-of-new", None);
    write_keys(&file, "new", None);
    delete(&bench.engine, &bench.segment(1, 40 * MIB), None).unwrap();
    bench.assert_empty("deleted with the new key");
}
