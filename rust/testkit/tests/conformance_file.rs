//! The conformance suite on a directory, and what only a directory can do wrong.

use std::{fs, path::Path, sync::Arc, time::Duration};

use alluvium_store::{
    ErrorKind, Key, ObjectStore, Payload,
    file::{FileConfig, FileStore},
};
use alluvium_testkit::conformance::Fixture;
use bytes::Bytes;
use futures::StreamExt;
use tempfile::TempDir;

async fn fixture() -> Fixture {
    let directory = TempDir::new().expect("a temporary directory");
    let store = open(directory.path()).await;
    Fixture {
        store: Arc::new(store),
        guard: Box::new(directory),
    }
}

fn config(root: &Path) -> FileConfig {
    FileConfig {
        root: root.to_path_buf(),
        upload_bytes_per_second: None,
    }
}

async fn open(root: &Path) -> FileStore {
    FileStore::open(config(root)).await.expect("an open store")
}

fn key(text: &str) -> Key {
    Key::new(text).expect("a valid key")
}

fn payload(text: &'static str) -> Payload {
    Payload::new(Bytes::from_static(text.as_bytes()))
}

fn entries(directory: &Path) -> Vec<String> {
    let names = fs::read_dir(directory).expect("a directory");
    let mut names: Vec<String> = names
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

alluvium_testkit::conformance_suite!(fixture);

#[tokio::test]
async fn root_must_be_a_directory_that_exists() {
    let directory = TempDir::new().expect("a temporary directory");
    let absent = directory.path().join("absent");
    let error = FileStore::open(config(&absent)).await.expect_err("no such root");
    assert_eq!(error.kind(), ErrorKind::BucketNotFound);
    assert!(error.detail().contains(&absent.display().to_string()), "{error}");
    assert!(!absent.try_exists().expect("a look"), "the root was created");
    let file = directory.path().join("file");
    fs::write(&file, b"x").expect("a file");
    let error = FileStore::open(config(&file)).await.expect_err("a file as root");
    assert_eq!(error.kind(), ErrorKind::Invalid);
}

#[tokio::test]
async fn a_vanished_root_is_not_made_again() {
    let directory = TempDir::new().expect("a temporary directory");
    let root = directory.path().join("mount");
    fs::create_dir(&root).expect("the root");
    let store = open(&root).await;
    let key = key("topic/object");
    store.put(&key, payload("bytes")).await.expect("a put");
    let hidden = directory.path().join("elsewhere");
    fs::rename(&root, &hidden).expect("a rename");
    // Gone, and then another directory at its place, as a mount point without its mount is.
    for _ in 0..2 {
        for error in [
            store.put(&key, payload("bytes")).await.expect_err("put"),
            store.create_upload(&key).await.map(|_| ()).expect_err("create"),
            store.get(&key, None).await.map(|_| ()).expect_err("get"),
            store.head(&key).await.map(|_| ()).expect_err("head"),
            store.delete(std::slice::from_ref(&key)).await.expect_err("delete"),
            store.list("", None, 10).await.map(|_| ()).expect_err("list"),
        ] {
            assert_eq!(error.kind(), ErrorKind::BucketNotFound, "{error}");
        }
        match fs::create_dir(&root) {
            Ok(()) => {}
            Err(_) => assert!(entries(&root).is_empty()),
        }
    }
    assert!(
        entries(&root).is_empty(),
        "something was written into the other directory"
    );
    fs::remove_dir(&root).expect("removal");
    fs::rename(&hidden, &root).expect("back again");
    assert_eq!(store.head(&key).await.expect("a head").length, 5);
}

#[tokio::test]
async fn keys_that_collide_with_directories_are_refused() {
    let directory = TempDir::new().expect("a temporary directory");
    let store = open(directory.path()).await;
    store.put(&key("a/b"), payload("bytes")).await.expect("a put");
    for collision in ["a", "a/b/c", "a/b/c/d"] {
        let error = store
            .put(&key(collision), payload("bytes"))
            .await
            .expect_err("a collision");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{collision}: {error}");
        assert!(error.detail().contains("directory of another object's key"), "{error}");
    }
    for reserved in [".uploads/x", "x/.tmp-1", ".tmp-1/x"] {
        let error = store
            .put(&key(reserved), payload("bytes"))
            .await
            .expect_err("a reserved name");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{reserved}: {error}");
    }
    let error = store
        .put(&key(&"x".repeat(256)), payload("bytes"))
        .await
        .expect_err("a long component");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert_eq!(entries(directory.path()), ["a"]);
}

#[tokio::test]
async fn nothing_is_left_behind() {
    let directory = TempDir::new().expect("a temporary directory");
    let store = open(directory.path()).await;
    assert!(entries(directory.path()).is_empty(), "the probe left something");
    let key = key("a/b/c/object");
    let upload = store.create_upload(&key).await.expect("an upload");
    let part = store
        .upload_part(&key, &upload, 1, payload("bytes"))
        .await
        .expect("a part");
    let crc32 = part.crc32;
    store
        .complete_upload(&key, &upload, &[part], crc32)
        .await
        .expect("a completion");
    assert_eq!(entries(directory.path()), ["a"], "staging is left");
    assert_eq!(entries(&directory.path().join("a/b/c")), ["object"]);
    store.delete(std::slice::from_ref(&key)).await.expect("a delete");
    assert!(entries(directory.path()).is_empty(), "empty directories are left");
}

#[tokio::test]
async fn links_are_no_objects() {
    let directory = TempDir::new().expect("a temporary directory");
    let outside = TempDir::new().expect("a temporary directory");
    fs::write(outside.path().join("secret"), b"secret").expect("a file");
    let store = open(directory.path()).await;
    std::os::unix::fs::symlink(outside.path().join("secret"), directory.path().join("link")).expect("a link");
    std::os::unix::fs::symlink(outside.path(), directory.path().join("dir")).expect("a link");
    assert_eq!(
        store.get(&key("link"), None).await.map(|_| ()).expect_err("get").kind(),
        ErrorKind::NotFound
    );
    assert_eq!(
        store.head(&key("link")).await.expect_err("head").kind(),
        ErrorKind::NotFound
    );
    assert!(store.list("", None, 10).await.expect("a list").objects.is_empty());
    store
        .put(&key("link"), payload("mine"))
        .await
        .expect("a put replaces the link");
    assert_eq!(fs::read(outside.path().join("secret")).expect("the file"), b"secret");
}

#[tokio::test]
async fn a_file_that_shrinks_under_a_reader_is_an_error() {
    let directory = TempDir::new().expect("a temporary directory");
    let store = open(directory.path()).await;
    let key = key("object");
    store
        .put(&key, Payload::new(Bytes::from(vec![7; 3 << 20])))
        .await
        .expect("a put");
    let mut answer = store.get(&key, None).await.expect("a get");
    assert_eq!(
        answer.body.next().await.expect("a piece").expect("bytes").len(),
        1 << 20
    );
    let file = fs::OpenOptions::new()
        .write(true)
        .open(directory.path().join("object"))
        .expect("the file");
    file.set_len(5).expect("truncation");
    assert_eq!(
        answer.body.next().await.expect("a piece").expect_err("an error").kind(),
        ErrorKind::Truncated
    );
}

#[tokio::test]
async fn uploads_are_seen_by_another_process() {
    let directory = TempDir::new().expect("a temporary directory");
    let (one, other) = (open(directory.path()).await, open(directory.path()).await);
    let key = key("a/object");
    let upload = one.create_upload(&key).await.expect("an upload");
    assert_eq!(
        other.list_uploads(&key).await.expect("a list"),
        std::slice::from_ref(&upload)
    );
    let part = other
        .upload_part(&key, &upload, 1, payload("bytes"))
        .await
        .expect("a part");
    other.abort_upload(&key, &upload).await.expect("an abort");
    let crc32 = part.crc32;
    let error = one
        .complete_upload(&key, &upload, &[part], crc32)
        .await
        .expect_err("gone");
    assert_eq!(error.kind(), ErrorKind::UploadNotFound);
    assert!(entries(directory.path()).is_empty());
}

#[tokio::test]
async fn parts_of_any_sizes_make_the_object() {
    let directory = TempDir::new().expect("a temporary directory");
    let store = open(directory.path()).await;
    for sizes in [
        vec![3, 3, 3],
        vec![3, 3, 1],
        vec![1, 3, 3],
        vec![3, 0, 2],
        vec![1],
        vec![0],
        vec![2, 3, 4, 1],
    ] {
        let key = key("object");
        let upload = store.create_upload(&key).await.expect("an upload");
        let (mut parts, mut whole) = (Vec::new(), Vec::new());
        for (number, size) in (1u32..).zip(&sizes) {
            let bytes = vec![b'a' + u8::try_from(number).expect("few parts"); *size];
            whole.extend_from_slice(&bytes);
            let part = store
                .upload_part(&key, &upload, number, Payload::new(Bytes::from(bytes)))
                .await;
            parts.push(part.expect("a part"));
        }
        // One that is left out of the list.
        store
            .upload_part(&key, &upload, 9, payload("zzz"))
            .await
            .expect("a part");
        store
            .complete_upload(&key, &upload, &parts, crc32fast::hash(&whole))
            .await
            .expect("a completion");
        let read = store
            .get(&key, None)
            .await
            .expect("a get")
            .collect()
            .await
            .expect("a body");
        assert_eq!(read, whole, "{sizes:?}");
    }
}

#[tokio::test]
async fn parts_that_were_not_sent_are_an_error() {
    let directory = TempDir::new().expect("a temporary directory");
    let store = open(directory.path()).await;
    let key = key("object");
    let upload = store.create_upload(&key).await.expect("an upload");
    let part = store
        .upload_part(&key, &upload, 1, payload("bytes"))
        .await
        .expect("a part");
    let mut never = part.clone();
    never.number = 2;
    let crc32 = crc32fast::hash(b"bytesbytes");
    let error = store
        .complete_upload(&key, &upload, &[part, never], crc32)
        .await
        .expect_err("a part is missing");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert_eq!(
        store.head(&key).await.expect_err("no object").kind(),
        ErrorKind::NotFound
    );
}

#[tokio::test]
async fn what_a_killed_put_left_goes_with_its_key() {
    let directory = TempDir::new().expect("a temporary directory");
    let store = open(directory.path()).await;
    let long = "x".repeat(255);
    let (mine, other) = (key("a/object"), key("a/object-2"));
    let longest = key(&format!("a/{long}"));
    for key in [&mine, &other, &longest] {
        // Dropped without its destructor, as by a kill: the temporary file stays.
        leave_temporary(&store, directory.path(), key).await;
    }
    let left = entries(&directory.path().join("a"));
    assert_eq!(
        left.iter().filter(|name| name.starts_with(".tmp-")).count(),
        3,
        "{left:?}"
    );
    assert!(store.list("", None, 10).await.expect("a list").objects.is_empty());
    store.delete(std::slice::from_ref(&mine)).await.expect("a delete");
    let left = entries(&directory.path().join("a"));
    assert_eq!(left.len(), 2, "{left:?}");
    assert!(left.iter().any(|name| name.starts_with(".tmp-object-2-")), "{left:?}");
    store.delete(&[other, longest]).await.expect("a delete");
    assert!(entries(directory.path()).is_empty(), "something is left");
}

/// What a put of `key` has on disk before its rename, under the name that the store itself gives it.
async fn leave_temporary(store: &FileStore, root: &Path, key: &Key) {
    let path = root.join(key.as_str());
    let parent = path.parent().expect("a directory");
    // A rename onto a directory that is not empty fails; the temporary file is copied in the moment that it is there.
    fs::create_dir_all(path.join("in the way")).expect("a directory");
    let put = store.put(key, Payload::new(Bytes::from(vec![7; 64 << 20])));
    let keep = async {
        loop {
            let name = entries(parent).into_iter().find(|name| is_of(name, key));
            if let Some(name) = name {
                return name;
            }
            tokio::time::sleep(std::time::Duration::from_micros(100)).await;
        }
    };
    let (outcome, name) = tokio::join!(put, keep);
    outcome.expect_err("a collision");
    fs::write(parent.join(name), b"left").expect("a file");
    fs::remove_dir_all(&path).expect("removal");
}

/// Whether a temporary file is that of `key`, of those in the test above: hashed names have no `object`.
fn is_of(name: &str, key: &Key) -> bool {
    let file = key.as_str().rsplit('/').next().expect("a name");
    let rest = name.strip_prefix(".tmp-");
    rest.is_some_and(|rest| match rest.strip_prefix(file) {
        Some(unique) => unique.matches('-').count() == 2,
        None => file.len() == 255 && !rest.contains("object"),
    })
}

#[tokio::test]
async fn a_delete_beside_a_put_of_the_same_key_leaves_it_whole_or_absent() {
    let directory = TempDir::new().expect("a temporary directory");
    let store = open(directory.path()).await;
    let key = key("a/object");
    let bytes = Bytes::from(vec![7; 8 << 20]);
    for _ in 0..20 {
        let put = store.put(&key, Payload::new(bytes.clone()));
        let delete = async {
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
            store.delete(std::slice::from_ref(&key)).await
        };
        let (put, deleted) = tokio::join!(put, delete);
        put.expect("a put");
        deleted.expect("a delete");
        let names = fs::read_dir(directory.path().join("a"));
        let names = names.map_or_else(|_| Vec::new(), |_| entries(&directory.path().join("a")));
        assert!(names.is_empty() || names == ["object"], "{names:?}");
        if !names.is_empty() {
            assert_eq!(store.head(&key).await.expect("a head").length, 8 << 20);
        }
    }
}

#[tokio::test]
async fn what_is_left_of_an_upload_is_found_and_removed() {
    let directory = TempDir::new().expect("a temporary directory");
    let store = open(directory.path()).await;
    let key = key("a/object");
    let upload = store.create_upload(&key).await.expect("an upload");
    let staging = directory.path().join(".uploads").join(&upload.0);
    store
        .upload_part(&key, &upload, 1, payload("bytes"))
        .await
        .expect("a part");
    assert_eq!(
        entries(&staging),
        ["parts-5"],
        "whose it is must not be in a file that can be missing"
    );
    // A removal that was interrupted, or a begin of which only the directory was made.
    fs::remove_file(staging.join("parts-5")).expect("removal");
    assert_eq!(
        store.list_uploads(&key).await.expect("a list"),
        std::slice::from_ref(&upload)
    );
    store.abort_upload(&key, &upload).await.expect("an abort");
    assert!(entries(directory.path()).is_empty(), "something is left");
}

#[tokio::test]
async fn writes_together_keep_to_the_rate() {
    const RATE: usize = 4 << 20;
    let directory = TempDir::new().expect("a temporary directory");
    let store = FileStore::open(FileConfig {
        upload_bytes_per_second: Some(RATE as u64),
        ..config(directory.path())
    })
    .await
    .expect("an open store");
    let payload = Payload::new(Bytes::from(vec![7; 1 << 20]));
    let parted = key("parted");
    let upload = store.create_upload(&parted).await.expect("an upload");
    let begin = tokio::time::Instant::now();
    let (one, two) = (key("one"), key("two"));
    let (one, two, first, second) = tokio::join!(
        store.put(&one, payload.clone()),
        store.put(&two, payload.clone()),
        store.upload_part(&parted, &upload, 1, payload.clone()),
        store.upload_part(&parted, &upload, 2, payload.clone()),
    );
    // Four MiB, of which the bucket held a tenth.
    assert!(begin.elapsed() >= Duration::from_millis(890), "{:?}", begin.elapsed());
    one.expect("a put");
    two.expect("a put");
    let parts = [first.expect("a part"), second.expect("a part")];
    let whole = Payload::new(Bytes::from(vec![7; 2 << 20]));
    let completed = store.complete_upload(&parted, &upload, &parts, whole.crc32()).await;
    completed.expect("an object");
    let read = store.get(&parted, None).await.expect("an answer").collect().await;
    assert_eq!(read.expect("a body"), *whole.bytes());
}

#[tokio::test]
async fn a_paced_write_that_nobody_waits_for_ends_at_once() {
    let directory = TempDir::new().expect("a temporary directory");
    let store = FileStore::open(FileConfig {
        upload_bytes_per_second: Some(1000),
        ..config(directory.path())
    })
    .await
    .expect("an open store");
    let slow = key("slow");
    let put = store.put(&slow, Payload::new(Bytes::from(vec![7; 1 << 20])));
    let limit = Duration::from_millis(200);
    tokio::time::timeout(limit, put)
        .await
        .expect_err("it takes a quarter of an hour");
    for _ in 0..100 {
        if entries(directory.path()).is_empty() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("{:?} is left", entries(directory.path()));
}
