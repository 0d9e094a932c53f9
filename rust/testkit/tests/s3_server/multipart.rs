//! Purpose: multipart uploads.

use crate::support::*;
use alluvium_testkit::s3_server::{S3Server, S3ServerConfig};
use aws_sdk_s3::Client;
use aws_sdk_s3::operation::complete_multipart_upload::builders::CompleteMultipartUploadFluentBuilder;
use aws_sdk_s3::primitives::ByteStream;
use aws_sdk_s3::types::{ChecksumAlgorithm, ChecksumMode, ChecksumType, CompletedMultipartUpload, CompletedPart};

const PART: usize = 5 * MIB;

/// An upload with a CRC32 of the whole, the way our own store does it.
async fn create(client: &Client, key: &str) -> String {
    let request = client
        .create_multipart_upload()
        .bucket(BUCKET)
        .key(key)
        .metadata("kind", "multipart");
    let request = request
        .checksum_algorithm(ChecksumAlgorithm::Crc32)
        .checksum_type(ChecksumType::FullObject);
    request.send().await.unwrap().upload_id.unwrap()
}

async fn upload(client: &Client, key: &str, id: &str, number: i32, bytes: &[u8]) -> CompletedPart {
    let request = client
        .upload_part()
        .bucket(BUCKET)
        .key(key)
        .upload_id(id)
        .part_number(number);
    let request = request
        .checksum_crc32(crc32(bytes))
        .body(ByteStream::from(bytes.to_vec()));
    let output = request.customize().disable_payload_signing().send().await.unwrap();
    assert_eq!(output.checksum_crc32(), Some(crc32(bytes).as_str()));
    let part = CompletedPart::builder().part_number(number).set_e_tag(output.e_tag);
    part.set_checksum_crc32(output.checksum_crc32).build()
}

fn complete(client: &Client, key: &str, id: &str, parts: &[CompletedPart]) -> CompleteMultipartUploadFluentBuilder {
    let parts = CompletedMultipartUpload::builder()
        .set_parts(Some(parts.to_vec()))
        .build();
    client
        .complete_multipart_upload()
        .bucket(BUCKET)
        .key(key)
        .upload_id(id)
        .multipart_upload(parts)
}

#[tokio::test]
async fn parts_become_an_object() {
    let directory = tempfile::tempdir().unwrap();
    let configuration = S3ServerConfig {
        data: Some(directory.path().to_path_buf()),
        ..S3ServerConfig::default()
    };
    let server = S3Server::start(configuration.clone()).await.unwrap();
    let client = client(&server);
    let bytes = pattern(2 * PART + 12_345);
    let id = create(&client, "k").await;
    assert_eq!(server.counters().multipart_uploads_open(), 1);
    let mut parts = Vec::new();
    // In any order, and once more for one of them.
    for number in [3, 1, 2, 1] {
        let from = (number - 1) * PART;
        let part = upload(
            &client,
            "k",
            &id,
            number as i32,
            &bytes[from..bytes.len().min(from + PART)],
        )
        .await;
        parts.retain(|known: &CompletedPart| known.part_number != part.part_number);
        parts.push(part);
    }
    parts.sort_by_key(CompletedPart::part_number);
    assert_eq!(
        refusal(client.head_object().bucket(BUCKET).key("k").send().await).0,
        404
    );
    let request = complete(&client, "k", &id, &parts).checksum_crc32(crc32(&bytes));
    let request = request
        .checksum_type(ChecksumType::FullObject)
        .mpu_object_size(bytes.len() as i64);
    let output = request.send().await.unwrap();
    assert_eq!(output.checksum_crc32(), Some(crc32(&bytes).as_str()));
    assert!(output.e_tag().unwrap().ends_with("-3\""));
    assert_eq!(server.counters().multipart_uploads_open(), 0);
    // Restarted, to see that what is on disk is what is in memory.
    server.shutdown().await;
    let server = S3Server::start(configuration).await.unwrap();
    let client = crate::support::client(&server);
    let got = client
        .get_object()
        .bucket(BUCKET)
        .key("k")
        .checksum_mode(ChecksumMode::Enabled)
        .send()
        .await
        .unwrap();
    assert_eq!(got.checksum_crc32(), Some(crc32(&bytes).as_str()));
    assert_eq!(got.checksum_type(), Some(&ChecksumType::FullObject));
    assert_eq!(got.metadata().unwrap()["kind"], "multipart");
    assert!(got.body.collect().await.unwrap().to_vec() == bytes);
    let across = client
        .get_object()
        .bucket(BUCKET)
        .key("k")
        .range(format!("bytes={}-{}", PART - 2, 2 * PART + 1));
    let across = across.send().await.unwrap().body.collect().await.unwrap().to_vec();
    assert!(across == bytes[PART - 2..2 * PART + 2]);
    assert_eq!(
        std::fs::read_dir(directory.path().join("blobs")).unwrap().count(),
        3,
        "the replaced part is gone"
    );
    assert_refused!(complete(&client, "k", &id, &parts).send().await, 404, "NoSuchUpload");
    let part = client
        .upload_part()
        .bucket(BUCKET)
        .key("k")
        .upload_id(&id)
        .part_number(1)
        .checksum_crc32(crc32(b""));
    assert_refused!(part.send().await, 404, "NoSuchUpload");
}

#[tokio::test]
async fn an_open_upload_survives_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let configuration = S3ServerConfig {
        data: Some(directory.path().to_path_buf()),
        ..S3ServerConfig::default()
    };
    let server = S3Server::start(configuration.clone()).await.unwrap();
    let id = create(&client(&server), "k").await;
    let part = upload(&client(&server), "k", &id, 1, b"hello").await;
    server.shutdown().await;
    let server = S3Server::start(configuration).await.unwrap();
    assert_eq!(server.counters().multipart_uploads_open(), 1);
    complete(&client(&server), "k", &id, &[part]).send().await.unwrap();
    assert_eq!(get(&client(&server), "k").await, b"hello");
}

#[tokio::test]
async fn aborted_uploads_are_gone() {
    let (server, client) = pair().await;
    let id = create(&client, "k").await;
    let part = upload(&client, "k", &id, 1, b"x").await;
    let abort = || client.abort_multipart_upload().bucket(BUCKET).key("k").upload_id(&id);
    abort().send().await.unwrap();
    assert_refused!(abort().send().await, 404, "NoSuchUpload");
    assert_refused!(complete(&client, "k", &id, &[part]).send().await, 404, "NoSuchUpload");
    assert_refused!(
        client.list_parts().bucket(BUCKET).key("k").upload_id(&id).send().await,
        404,
        "NoSuchUpload"
    );
    let part = client
        .upload_part()
        .bucket(BUCKET)
        .key("k")
        .upload_id(&id)
        .part_number(1);
    assert_refused!(
        part.body(ByteStream::from(vec![1; 3 * MIB])).send().await,
        404,
        "NoSuchUpload"
    );
    assert_eq!(server.counters().multipart_uploads_open(), 0);
}

#[tokio::test]
async fn completion_is_strict() {
    let (server, client) = pair().await;
    let id = create(&client, "k").await;
    let big = pattern(PART);
    let first = upload(&client, "k", &id, 1, &big).await;
    let second = upload(&client, "k", &id, 2, b"small").await;
    let third = upload(&client, "k", &id, 3, b"last").await;
    let refused = |parts: &[CompletedPart]| complete(&client, "k", &id, parts).send();
    let stripped = CompletedPart::builder()
        .part_number(1)
        .set_e_tag(first.e_tag.clone())
        .build();
    let wrong_etag = CompletedPart::builder()
        .part_number(1)
        .e_tag("\"x\"")
        .set_checksum_crc32(first.checksum_crc32.clone());
    let wrong_sum = CompletedPart::builder()
        .part_number(1)
        .set_e_tag(first.e_tag.clone())
        .checksum_crc32(crc32(b"x"));
    let absent = CompletedPart::builder()
        .part_number(9)
        .e_tag("\"x\"")
        .checksum_crc32(crc32(b"x"));
    assert_refused!(refused(&[]).await, 400, "MalformedXML");
    assert_refused!(refused(&[second.clone(), first.clone()]).await, 400, "InvalidPartOrder");
    assert_refused!(refused(&[first.clone(), first.clone()]).await, 400, "InvalidPartOrder");
    assert_refused!(refused(&[stripped]).await, 400, "InvalidRequest");
    assert_refused!(refused(&[wrong_etag.build()]).await, 400, "InvalidPart");
    assert_refused!(refused(&[wrong_sum.build()]).await, 400, "InvalidPart");
    assert_refused!(refused(&[first.clone(), absent.build()]).await, 400, "InvalidPart");
    assert_refused!(
        refused(&[first.clone(), second.clone(), third.clone()]).await,
        400,
        "EntityTooSmall"
    );
    let good = [first, third];
    let whole = [&big[..], b"last"].concat();
    let request = || complete(&client, "k", &id, &good);
    assert_refused!(request().checksum_crc32(crc32(b"x")).send().await, 400, "BadDigest");
    assert_refused!(request().mpu_object_size(7).send().await, 400, "InvalidRequest");
    assert_refused!(
        request().checksum_type(ChecksumType::Composite).send().await,
        400,
        "InvalidRequest"
    );
    put(&client, "k", b"in the way").await;
    assert_refused!(request().if_none_match("*").send().await, 412, "PreconditionFailed");
    let other_key = complete(&client, "other", &id, &good).send().await;
    assert_refused!(other_key, 404, "NoSuchUpload");
    assert_eq!(
        server.counters().multipart_uploads_open(),
        1,
        "a refused completion leaves the upload open"
    );
    request().checksum_crc32(crc32(&whole)).send().await.unwrap();
    assert!(get(&client, "k").await == whole);
}

#[tokio::test]
async fn parts_are_verified() {
    let (_server, client) = pair().await;
    let id = create(&client, "k").await;
    let part = |number: i32| {
        let request = client
            .upload_part()
            .bucket(BUCKET)
            .key("k")
            .upload_id(&id)
            .part_number(number);
        request.body(ByteStream::from_static(b"bytes"))
    };
    assert_refused!(part(1).checksum_crc32(crc32(b"other")).send().await, 400, "BadDigest");
    assert_refused!(
        part(1).checksum_crc64_nvme(base64(&[0; 8])).send().await,
        400,
        "InvalidRequest"
    );
    assert_refused!(part(0).send().await, 400, "InvalidArgument");
    assert_refused!(part(10_001).send().await, 400, "InvalidArgument");
    let listed = client
        .list_parts()
        .bucket(BUCKET)
        .key("k")
        .upload_id(&id)
        .send()
        .await
        .unwrap();
    assert!(listed.parts().is_empty());
}

#[tokio::test]
async fn other_checksums_of_uploads() {
    let (_server, client) = pair().await;
    let algorithms = [
        (Some(ChecksumAlgorithm::Crc64Nvme), None, Some(ChecksumType::FullObject)),
        (
            Some(ChecksumAlgorithm::Crc32C),
            Some(ChecksumType::FullObject),
            Some(ChecksumType::FullObject),
        ),
        (Some(ChecksumAlgorithm::Crc32), None, Some(ChecksumType::Composite)),
        (Some(ChecksumAlgorithm::Sha256), None, Some(ChecksumType::Composite)),
        (None, None, None),
    ];
    let bytes = pattern(PART + 99);
    for (algorithm, kind, expected) in algorithms {
        let request = client
            .create_multipart_upload()
            .bucket(BUCKET)
            .key("k")
            .set_checksum_algorithm(algorithm.clone());
        let created = request.set_checksum_type(kind).send().await.unwrap();
        assert_eq!(created.checksum_type(), expected.as_ref());
        let id = created.upload_id().unwrap();
        let mut parts = Vec::new();
        for (index, piece) in bytes.chunks(PART).enumerate() {
            let number = index as i32 + 1;
            let request = client
                .upload_part()
                .bucket(BUCKET)
                .key("k")
                .upload_id(id)
                .part_number(number);
            let request = request
                .set_checksum_algorithm(algorithm.clone())
                .body(ByteStream::from(piece.to_vec()));
            let output = request.send().await.unwrap();
            let part = CompletedPart::builder().part_number(number).set_e_tag(output.e_tag);
            let part = part
                .set_checksum_crc32(output.checksum_crc32)
                .set_checksum_crc32_c(output.checksum_crc32_c);
            let part = part
                .set_checksum_crc64_nvme(output.checksum_crc64_nvme)
                .set_checksum_sha256(output.checksum_sha256);
            parts.push(part.build());
        }
        complete(&client, "k", id, &parts).send().await.unwrap();
        // The client verifies what it is told of the whole.
        let got = client
            .get_object()
            .bucket(BUCKET)
            .key("k")
            .checksum_mode(ChecksumMode::Enabled)
            .send()
            .await
            .unwrap();
        assert!(got.body.collect().await.unwrap().to_vec() == bytes, "{algorithm:?}");
    }
    let refused = client
        .create_multipart_upload()
        .bucket(BUCKET)
        .key("k")
        .checksum_algorithm(ChecksumAlgorithm::Sha256);
    assert_refused!(
        refused.checksum_type(ChecksumType::FullObject).send().await,
        400,
        "InvalidRequest"
    );
}

#[tokio::test]
async fn parts_are_listed_in_order_and_pages() {
    let (_server, client) = pair().await;
    let id = create(&client, "k").await;
    for number in [7, 2, 10, 1, 300] {
        upload(&client, "k", &id, number, format!("part {number}").as_bytes()).await;
    }
    let list = || client.list_parts().bucket(BUCKET).key("k").upload_id(&id);
    let whole = list().send().await.unwrap();
    let numbers: Vec<_> = whole.parts().iter().map(|part| part.part_number().unwrap()).collect();
    assert_eq!(numbers, [1, 2, 7, 10, 300]);
    assert_eq!(whole.parts()[0].size(), Some(6));
    assert_eq!(whole.parts()[0].checksum_crc32(), Some(crc32(b"part 1").as_str()));
    let page = list().max_parts(2).part_number_marker("2").send().await.unwrap();
    let numbers: Vec<_> = page.parts().iter().map(|part| part.part_number().unwrap()).collect();
    assert_eq!(numbers, [7, 10]);
    assert_eq!(page.is_truncated(), Some(true));
    assert_eq!(page.next_part_number_marker(), Some("10"));
}

#[tokio::test]
async fn uploads_are_listed() {
    let (_server, client) = pair().await;
    let mut expected = Vec::new();
    for key in ["a/1", "a/1", "a/2", "b", "c/1"] {
        expected.push((key.to_owned(), create(&client, key).await));
    }
    let list = || client.list_multipart_uploads().bucket(BUCKET);
    for page_size in 1..=6 {
        let mut found = Vec::new();
        let (mut key, mut id) = (None, None);
        loop {
            let request = list()
                .max_uploads(page_size)
                .set_key_marker(key)
                .set_upload_id_marker(id);
            let page = request.send().await.unwrap();
            for upload in page.uploads() {
                assert!(upload.initiated().is_some());
                found.push((upload.key().unwrap().to_owned(), upload.upload_id().unwrap().to_owned()));
            }
            if page.is_truncated() != Some(true) {
                break;
            }
            (key, id) = (page.next_key_marker, page.next_upload_id_marker);
        }
        assert_eq!(found, expected, "pages of {page_size}");
    }
    let below = list().prefix("a/").send().await.unwrap();
    assert_eq!(below.uploads().len(), 3);
    let folded = list().delimiter("/").send().await.unwrap();
    let prefixes: Vec<_> = folded
        .common_prefixes()
        .iter()
        .map(|prefix| prefix.prefix().unwrap())
        .collect();
    assert_eq!(prefixes, ["a/", "c/"]);
    assert_eq!(folded.uploads().len(), 1);
    let behind = list().key_marker("a/2").send().await.unwrap();
    assert_eq!(behind.uploads().len(), 2);
}
