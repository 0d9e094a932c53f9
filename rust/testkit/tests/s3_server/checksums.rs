//! Purpose: checksums of single objects, in headers and in trailers.

use crate::support::*;
use aws_sdk_s3::primitives::ByteStream;
use aws_sdk_s3::types::{ChecksumAlgorithm, ChecksumMode, ChecksumType};

#[tokio::test]
async fn checksums_are_verified_kept_and_returned() {
    let (_server, client) = pair().await;
    let bytes = pattern(300_000);
    let request = |key: &str| {
        client
            .put_object()
            .bucket(BUCKET)
            .key(key)
            .body(ByteStream::from(bytes.clone()))
    };
    request("right").checksum_crc32(crc32(&bytes)).send().await.unwrap();
    let head = client
        .head_object()
        .bucket(BUCKET)
        .key("right")
        .checksum_mode(ChecksumMode::Enabled);
    let head = head.send().await.unwrap();
    assert_eq!(head.checksum_crc32(), Some(crc32(&bytes).as_str()));
    assert_eq!(head.checksum_type(), Some(&ChecksumType::FullObject));
    let unasked = client.head_object().bucket(BUCKET).key("right").send().await.unwrap();
    assert_eq!(unasked.checksum_crc32(), None);
    let got = client
        .get_object()
        .bucket(BUCKET)
        .key("right")
        .checksum_mode(ChecksumMode::Enabled)
        .send()
        .await
        .unwrap();
    assert_eq!(got.checksum_crc32(), Some(crc32(&bytes).as_str()));
    assert!(
        got.body.collect().await.unwrap().to_vec() == bytes,
        "the client has verified the checksum, too"
    );

    assert_refused!(
        request("wrong").checksum_crc32(crc32(b"other")).send().await,
        400,
        "BadDigest"
    );
    assert_refused!(
        request("wrong").checksum_crc32_c(base64(&[0; 4])).send().await,
        400,
        "BadDigest"
    );
    assert_refused!(
        request("wrong").checksum_crc64_nvme(base64(&[0; 8])).send().await,
        400,
        "BadDigest"
    );
    assert_refused!(
        request("wrong").checksum_sha1(base64(&[0; 20])).send().await,
        400,
        "BadDigest"
    );
    assert_refused!(
        request("wrong").checksum_sha256(base64(&[0; 32])).send().await,
        400,
        "BadDigest"
    );
    assert_refused!(
        request("wrong").content_md5(base64(&[0; 16])).send().await,
        400,
        "BadDigest"
    );
    assert_refused!(
        request("wrong").checksum_crc32("AAAA").send().await,
        400,
        "InvalidRequest"
    );
    assert_eq!(
        refusal(client.head_object().bucket(BUCKET).key("wrong").send().await).0,
        404
    );

    let algorithms = [
        ChecksumAlgorithm::Crc32,
        ChecksumAlgorithm::Crc32C,
        ChecksumAlgorithm::Crc64Nvme,
        ChecksumAlgorithm::Sha1,
        ChecksumAlgorithm::Sha256,
    ];
    for algorithm in algorithms {
        let key = algorithm.as_str().to_owned();
        request(&key)
            .checksum_algorithm(algorithm.clone())
            .send()
            .await
            .unwrap();
        // Unsigned, as our own store sends it.
        let unsigned = request(&key)
            .checksum_algorithm(algorithm)
            .customize()
            .disable_payload_signing();
        unsigned.send().await.unwrap();
        assert!(get(&client, &key).await == bytes, "{key}");
    }
}

#[tokio::test]
async fn streamed_bodies_with_trailing_checksums() {
    let (_server, client) = pair().await;
    let bytes = pattern(2 * MIB + 333);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), &bytes).unwrap();
    // A body from a file cannot be digested before it is sent, so it comes as aws-chunked with a trailer.
    let body = ByteStream::from_path(file.path()).await.unwrap();
    client
        .put_object()
        .bucket(BUCKET)
        .key("k")
        .body(body)
        .send()
        .await
        .unwrap();
    let got = client
        .get_object()
        .bucket(BUCKET)
        .key("k")
        .checksum_mode(ChecksumMode::Enabled)
        .send()
        .await
        .unwrap();
    assert_eq!(got.checksum_crc32(), Some(crc32(&bytes).as_str()));
    assert_eq!(got.content_encoding(), None);
    assert!(got.body.collect().await.unwrap().to_vec() == bytes);
}
