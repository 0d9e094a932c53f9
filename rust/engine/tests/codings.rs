//! Segments that are compressed, encrypted, or both: on a directory and on S3, alone and many at once.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    fs,
    io::Read as _,
    path::{Path, PathBuf},
    process::Command,
};

use alluvium_engine::{Engine, ErrorKind};
use alluvium_format::{CustomMetadata, IndexType, SegmentKeys};
use alluvium_testkit::{
    broker::*,
    s3_server::{FaultAction, FaultRule, Operation},
    segment::{Content, TestSegment},
};
use tempfile::tempdir;

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;

/// Key pairs made by the tool that operators use.
fn key_pair(directory: &Path, name: &str) -> (PathBuf, PathBuf) {
    let private = private_key(directory, name, "RSA", "rsa_keygen_bits:2048");
    let public = directory.join(format!("{name}.public.pem"));
    openssl([
        "pkey",
        "-pubout",
        "-in",
        private.to_str().unwrap(),
        "-out",
        public.to_str().unwrap(),
    ]);
    (private, public)
}

fn private_key(directory: &Path, name: &str, algorithm: &str, option: &str) -> PathBuf {
    let path = directory.join(format!("{name}.private.pem"));
    openssl([
        "genpkey",
        "-algorithm",
        algorithm,
        "-pkeyopt",
        option,
        "-out",
        path.to_str().unwrap(),
    ]);
    path
}

fn openssl<const COUNT: usize>(arguments: [&str; COUNT]) {
    let output = Command::new("openssl").args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The keys that turn encryption on with the pair `id`.
fn encryption<'text>(id: &'text str, private: &'text Path) -> Vec<(String, String)> {
    vec![
        ("encryption.enabled".to_owned(), "true".to_owned()),
        ("encryption.key.pair.id".to_owned(), id.to_owned()),
        (
            format!("encryption.key.pairs.{id}.private.key.file"),
            private.to_str().unwrap().to_owned(),
        ),
    ]
}

fn borrowed(settings: &[(String, String)]) -> Vec<(&str, &str)> {
    settings
        .iter()
        .map(|(key, value)| (key.as_str(), value.as_str()))
        .collect()
}

fn log_object(root: &Path, segment: &TestSegment) -> PathBuf {
    root.join(SegmentKeys::new(&Default::default(), &segment.metadata).log)
}

/// Copies, reads everything back in several ways, and gives what Kafka would keep.
fn assert_round_trip(engine: &Engine, segment: &TestSegment) -> CustomMetadata {
    let custom = copy(engine, segment).unwrap();
    let log = segment.log_bytes().unwrap();
    let size = segment.metadata.segment_size;
    assert!(read_segment(engine, segment, 0..size).unwrap() == log);
    for (begin, end) in [
        (0, 1),
        (size / 3, size / 2),
        (size - 1, size),
        (size.saturating_sub(70_000), size),
    ] {
        let bytes = read_segment(engine, segment, begin..end).unwrap();
        assert!(bytes == log[usize::try_from(begin).unwrap()..usize::try_from(end).unwrap()]);
    }
    for (index_type, path) in [
        (IndexType::Offset, &segment.offset_index),
        (IndexType::Timestamp, &segment.time_index),
        (IndexType::ProducerSnapshot, &segment.producer_snapshot),
    ] {
        let reader = open_index(engine, segment, index_type).unwrap();
        assert!(
            read_to_end(&reader, 1000).unwrap() == fs::read(path).unwrap(),
            "{index_type:?}"
        );
    }
    CustomMetadata::decode(&custom).unwrap()
}

#[test]
fn every_coding_gives_back_what_it_was_given() {
    let (source, keys) = (tempdir().unwrap(), tempdir().unwrap());
    let (private, _) = key_pair(keys.path(), "a");
    let encryption = encryption("a", &private);
    let server = server();
    let mut seed = 0;
    for compression in ["none", "zstd"] {
        for encrypted in [false, true] {
            let mut settings = vec![
                ("compression.type", compression),
                ("chunk.size.bytes", "65536"),
                ("upload.part.size.bytes", "5242880"),
                ("upload.threads", "2"),
            ];
            if encrypted {
                settings.extend(borrowed(&encryption));
            }
            let root = tempdir().unwrap();
            for engine in [on_directory(root.path(), &settings), on_server(&server, &settings)] {
                for size in [1, 100, 64 * KIB, 64 * KIB + 1, 5 * MIB, 13 * MIB + 17] {
                    for content in [Content::Json, Content::Noise] {
                        seed += 1;
                        let segment = TestSegment::write_content(source.path(), seed, size, content).unwrap();
                        let custom = assert_round_trip(&engine, &segment);
                        assert_eq!(custom.features & 2 != 0, encrypted);
                        if compression == "zstd" && content == Content::Json && size > MIB {
                            assert!(custom.log_length < size / 3, "{custom:?} of {size}");
                        }
                        if compression == "none" && !encrypted {
                            assert_eq!(custom.log_length, size);
                        }
                    }
                }
                assert_idle(&engine);
            }
        }
    }
}

#[test]
fn a_downloaded_zstd_object_is_a_zstd_file_of_the_segment() {
    let (source, root) = (tempdir().unwrap(), tempdir().unwrap());
    let engine = on_directory(
        root.path(),
        &[("compression.type", "zstd"), ("chunk.size.bytes", "65536")],
    );
    let segment = TestSegment::write_content(source.path(), 1, 3 * MIB + 5, Content::Json).unwrap();
    copy(&engine, &segment).unwrap();
    let mut plain = Vec::new();
    zstd::stream::Decoder::new(fs::File::open(log_object(root.path(), &segment)).unwrap())
        .unwrap()
        .read_to_end(&mut plain)
        .unwrap();
    assert!(plain == segment.log_bytes().unwrap());
}

#[test]
fn auto_compresses_what_gets_smaller_and_nothing_else() {
    let (source, root) = (tempdir().unwrap(), tempdir().unwrap());
    let engine = on_directory(root.path(), &[("compression.type", "auto")]);
    for (seed, content, compressed) in [(1, Content::Json, true), (2, Content::Noise, false)] {
        let segment = TestSegment::write_content(source.path(), seed, 3 * MIB, content).unwrap();
        let custom = assert_round_trip(&engine, &segment);
        assert_eq!(custom.log_length < 3 * MIB, compressed, "{content:?}");
        if !compressed {
            assert!(fs::read(log_object(root.path(), &segment)).unwrap() == segment.log_bytes().unwrap());
        }
    }
}

#[test]
fn the_parts_of_a_compressed_segment_have_one_length_but_the_last() {
    let source = tempdir().unwrap();
    let server = server();
    let engine = on_server(
        &server,
        &[
            ("compression.type", "zstd"),
            ("upload.part.size.bytes", "8388608"),
            ("upload.threads", "2"),
        ],
    );
    // Noise: the chunks' frames are a little longer than a part's share.
    let segment = TestSegment::write_content(source.path(), 1, 30 * MIB, Content::Noise).unwrap();
    let custom = assert_round_trip(&engine, &segment);
    let parts = u64::try_from(metric(&engine, "store", "upload_part_requests_total")).unwrap();
    assert_eq!(parts, custom.log_length.div_ceil(8 * MIB));
}

/// With memory for two parts and one bench, copies that waited for each other would never end.
#[test]
fn many_copies_at_once_get_on_with_the_least_memory() {
    let (source, keys) = (tempdir().unwrap(), tempdir().unwrap());
    let (private, _) = key_pair(keys.path(), "a");
    let encryption = encryption("a", &private);
    let mut settings = vec![
        ("compression.type", "zstd"),
        ("chunk.size.bytes", "2097152"),
        ("upload.part.size.bytes", "6291456"),
        ("cache.memory.bytes", "0"),
        ("memory.budget.bytes", "24117248"),
        ("upload.threads", "2"),
    ];
    settings.extend(borrowed(&encryption));
    let server = server();
    let engine = on_server(&server, &settings);
    let segments: Vec<TestSegment> = (0..10)
        .map(|seed| {
            let content = if seed % 3 == 0 { Content::Json } else { Content::Noise };
            TestSegment::write_content(source.path(), seed, 15 * MIB + seed * 1001, content).unwrap()
        })
        .collect();
    let tasks: Vec<_> = segments
        .iter()
        .map(|segment| engine.start_copy(copy_request(segment)))
        .collect();
    for task in &tasks {
        finish(task).unwrap();
    }
    for segment in &segments {
        assert!(
            read_segment(&engine, segment, 0..segment.metadata.segment_size).unwrap() == segment.log_bytes().unwrap()
        );
    }
    assert_idle(&engine);
}

#[test]
fn after_a_rotation_old_segments_are_read_and_new_ones_use_the_new_pair() {
    let (source, keys, root) = (tempdir().unwrap(), tempdir().unwrap(), tempdir().unwrap());
    let (old_private, _) = key_pair(keys.path(), "old");
    let (new_private, new_public) = key_pair(keys.path(), "new");
    let old = TestSegment::write(source.path(), 1, 100_000).unwrap();
    let new = TestSegment::write(source.path(), 2, 100_000).unwrap();
    copy(
        &on_directory(root.path(), &borrowed(&encryption("old", &old_private))),
        &old,
    )
    .unwrap();

    let old_file = old_private.to_str().unwrap();
    let mut both = encryption("new", &new_private);
    both.push((
        "encryption.key.pairs.old.private.key.file".to_owned(),
        old_file.to_owned(),
    ));
    both.push((
        "encryption.key.pairs.new.public.key.file".to_owned(),
        new_public.to_str().unwrap().to_owned(),
    ));
    let engine = on_directory(root.path(), &borrowed(&both));
    copy(&engine, &new).unwrap();
    for segment in [&old, &new] {
        assert!(read_segment(&engine, segment, 0..100_000).unwrap() == segment.log_bytes().unwrap());
    }
    // Encryption turned off: what is encrypted can still be read, and new segments are plain.
    let read_only = on_directory(root.path(), &[("encryption.key.pairs.old.private.key.file", old_file)]);
    assert!(read_segment(&read_only, &old, 0..100_000).unwrap() == old.log_bytes().unwrap());
    let refused = open_segment(&read_only, &new, 0..1).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Config);
    assert!(
        refused.message().contains("encryption.key.pairs.new.private.key.file"),
        "{refused}"
    );
    delete(&read_only, &new, None).unwrap();

    // Another pair under the same id.
    let mistaken = encryption("old", &new_private);
    let engine = on_directory(root.path(), &borrowed(&mistaken));
    let refused = open_segment(&engine, &old, 0..1).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Config);
    assert!(refused.message().contains("is not the one"), "{refused}");
}

/// Kafka remembers that the segment was encrypted; the bucket can be changed by others.
#[test]
fn a_plain_segment_in_the_place_of_an_encrypted_one_is_refused() {
    let (source, forgery, keys, root) = (
        tempdir().unwrap(),
        tempdir().unwrap(),
        tempdir().unwrap(),
        tempdir().unwrap(),
    );
    let (private, _) = key_pair(keys.path(), "a");
    let encryption = encryption("a", &private);
    let segment = TestSegment::write(source.path(), 1, 100_000).unwrap();
    let mut forged = TestSegment::write(forgery.path(), 2, 100_000).unwrap();
    forged.metadata = segment.metadata.clone();
    let custom = copy(&on_directory(root.path(), &borrowed(&encryption)), &segment).unwrap();
    copy(&on_directory(root.path(), &[]), &forged).unwrap();
    let engine = on_directory(root.path(), &borrowed(&encryption));
    // At the first time, and with the manifest in the cache.
    for _ in 0..2 {
        let reference = segment_ref(&segment, Some(custom.clone()));
        assert_eq!(
            kind(finish(&engine.start_open_segment(reference.clone(), 0..10))),
            ErrorKind::Corrupt
        );
        let index = engine.start_open_index(reference, IndexType::Offset);
        assert_eq!(kind(finish(&index)), ErrorKind::Corrupt);
    }
    assert_idle(&engine);
}

#[test]
fn a_copy_that_waits_for_the_store_keeps_no_other_from_compressing() {
    let source = tempdir().unwrap();
    let server = server();
    let settings = [
        ("compression.type", "zstd"),
        ("chunk.size.bytes", "65536"),
        ("upload.part.size.bytes", "5242880"),
        ("upload.threads", "1"),
    ];
    let engine = on_server(&server, &settings);
    let waiting = TestSegment::write(source.path(), 1, 20 * MIB).unwrap();
    let other = TestSegment::write(source.path(), 2, MIB).unwrap();
    let id = waiting.metadata.segment_id.to_string();
    let late = FaultRule::new(Operation::CreateMultipartUpload, FaultAction::Delay { ms: 5000 }).key_contains(id);
    server.faults().add(late).unwrap();
    let task = engine.start_copy(copy_request(&waiting));
    while server.faults().status()[0].hits == 0 {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    copy(&engine, &other).unwrap();
    let still_waiting = task.wait(std::time::Duration::ZERO).is_none();
    assert!(still_waiting, "the other copy waited as well");
    finish(&task).unwrap();
}

#[test]
fn wrong_key_files_are_told_at_the_start() {
    let (keys, root) = (tempdir().unwrap(), tempdir().unwrap());
    let (private, public) = key_pair(keys.path(), "a");
    let (other, _) = key_pair(keys.path(), "b");
    let weak = private_key(keys.path(), "weak", "RSA", "rsa_keygen_bits:1024");
    let for_signatures = private_key(keys.path(), "pss", "RSA-PSS", "rsa_keygen_bits:2048");
    let of_a_curve = private_key(keys.path(), "curve", "EC", "ec_paramgen_curve:P-256");
    let (private_text, public_text) = (private.to_str().unwrap(), public.to_str().unwrap());
    let cases = [
        ("/does/not/exist.pem", None, "private.key.file"),
        (public_text, None, "this is a public key"),
        (keys.path().to_str().unwrap(), None, "not a file"),
        (weak.to_str().unwrap(), None, "2048"),
        (for_signatures.to_str().unwrap(), None, "rsaEncryption"),
        (of_a_curve.to_str().unwrap(), None, "rsaEncryption"),
        (other.to_str().unwrap(), Some(public_text), "does not belong"),
        (private_text, Some(private_text), "public.key.file"),
    ];
    for (private, public, expected) in cases {
        let mut settings = vec![
            ("storage.type", "file"),
            ("file.path", root.path().to_str().unwrap()),
            ("encryption.key.pairs.a.private.key.file", private),
        ];
        settings.extend(public.map(|public| ("encryption.key.pairs.a.public.key.file", public)));
        let settings = settings
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value.to_owned()));
        let error = Engine::open(settings.collect()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(error.message().contains(expected), "{error}");
        assert!(!error.message().contains("MII"), "{error}");
    }
}

#[test]
fn a_changed_byte_of_an_encrypted_or_compressed_object_is_an_error() {
    let (source, keys) = (tempdir().unwrap(), tempdir().unwrap());
    let (private, _) = key_pair(keys.path(), "a");
    let encryption = encryption("a", &private);
    for settings in [vec![("compression.type", "zstd")], borrowed(&encryption)] {
        let root = tempdir().unwrap();
        let segment = TestSegment::write_content(source.path(), 5, 100_000, Content::Json).unwrap();
        copy(&on_directory(root.path(), &settings), &segment).unwrap();
        let path = log_object(root.path(), &segment);
        let mut object = fs::read(&path).unwrap();
        let middle = object.len() / 2;
        object[middle] ^= 1;
        fs::write(&path, object).unwrap();
        let engine = on_directory(root.path(), &settings);
        assert_eq!(kind(read_segment(&engine, &segment, 0..100_000)), ErrorKind::Corrupt);
        assert_idle(&engine);
    }
}
