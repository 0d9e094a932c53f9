//! `kill -9` in the middle of a copy, of a real process: what is left, and who removes it.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    env,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use alluvium_engine::{Engine, ErrorKind};
use alluvium_testkit::{
    broker::*,
    s3_server::{FaultAction, FaultRule, Operation, S3Server},
    segment::TestSegment,
};
use tempfile::tempdir;

const MIB: u64 = 1 << 20;
const SEED: u64 = 7;
const SIZE: u64 = 26 * MIB + 1;

/// Set for the process that is killed: where its server is, and where its segment.
const ENDPOINT: &str = "ALLUVIUM_TEST_VICTIM_ENDPOINT";
const SOURCE: &str = "ALLUVIUM_TEST_VICTIM_SOURCE";

fn settings(endpoint: &str) -> Vec<(String, String)> {
    settings_at(
        endpoint,
        &[("upload.part.size.bytes", "5242880"), ("chunk.size.bytes", "1048576")],
    )
}

/// Not a test: the process that is killed.
#[test]
#[ignore = "run by the other test, in a process of its own"]
fn victim() {
    let Ok(endpoint) = env::var(ENDPOINT) else { return };
    let source = env::var(SOURCE).unwrap();
    let engine = Engine::open(settings(&endpoint)).unwrap();
    let segment = TestSegment::write(Path::new(&source), SEED, SIZE).unwrap();
    // The parent kills this process before the copy ends; if not, it sees a copy that succeeded.
    let _ = copy(&engine, &segment);
}

fn start_victim(server: &S3Server, source: &Path) -> Child {
    Command::new(env::current_exe().unwrap())
        .args(["--ignored", "--exact", "victim"])
        .env(ENDPOINT, server.endpoint())
        .env(SOURCE, source)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

fn objects(engine: &Engine) -> Vec<String> {
    let store = engine.store();
    let page = engine.block_on(store.list("tier/test-topic", None, 1000)).unwrap();
    page.objects.into_iter().map(|object| object.key).collect()
}

#[test]
fn what_a_killed_broker_left_is_removed_by_the_next_delete_of_the_segment() {
    // Each is held back, so that the process is killed just there.
    for (operation, skip, visible) in [
        (Operation::CreateMultipartUpload, 0, 0),
        (Operation::UploadPart, 0, 0),
        (Operation::UploadPart, 3, 0),
        (Operation::CompleteMultipartUpload, 0, 0),
        (Operation::PutObject, 0, 1),
    ] {
        let (server, victims_source, source) = (server(), tempdir().unwrap(), tempdir().unwrap());
        let segment = TestSegment::write(source.path(), SEED, SIZE).unwrap();
        let engine = Engine::open(settings(server.endpoint())).unwrap();
        server
            .faults()
            .add(
                FaultRule::new(operation, FaultAction::Stall)
                    .key_contains("test-topic")
                    .skip(skip),
            )
            .unwrap();
        let mut victim = start_victim(&server, victims_source.path());
        let held = || server.faults().status().iter().any(|rule| rule.hits > 0);
        for _ in 0..600 {
            if held() {
                break;
            }
            thread::sleep(Duration::from_millis(50));
        }
        assert!(held(), "the copy never came to {operation:?}");
        victim.kill().unwrap();
        victim.wait().unwrap();
        server.faults().clear();

        // Nobody sees the segment: at most its bytes are there, without the manifest.
        assert_eq!(kind(open_segment(&engine, &segment, 0..1)), ErrorKind::NotFound);
        assert_eq!(
            objects(&engine).len(),
            visible,
            "at {operation:?}: {:?}",
            objects(&engine)
        );
        delete(&engine, &segment, None).unwrap();
        assert_eq!(objects(&engine), Vec::<String>::new(), "{operation:?}");
        assert_eq!(server.counters().multipart_uploads_open(), 0, "{operation:?}");
        // And the same segment can be copied again.
        copy(&engine, &segment).unwrap();
        assert!(read_segment(&engine, &segment, 0..SIZE).unwrap() == segment.log_bytes().unwrap());
    }
}
