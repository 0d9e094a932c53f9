//! Purpose: buckets and single objects.

use crate::support::*;
use alluvium_testkit::s3_server::{S3Server, S3ServerConfig};
use aws_sdk_s3::error::ProvideErrorMetadata;
use aws_sdk_s3::primitives::ByteStream;
use aws_sdk_s3::types::{CompletedMultipartUpload, CompletedPart, Delete, ObjectIdentifier};

#[tokio::test]
async fn buckets() {
    let (server, client) = pair().await;
    client.head_bucket().bucket(BUCKET).send().await.unwrap();
    client.create_bucket().bucket("second").send().await.unwrap();
    assert_refused!(
        client.create_bucket().bucket("second").send().await,
        409,
        "BucketAlreadyOwnedByYou"
    );
    let location = client.get_bucket_location().bucket("second").send().await.unwrap();
    assert_eq!(
        location
            .location_constraint
            .map_or(String::new(), |region| region.as_str().to_owned()),
        ""
    );
    server.shutdown().await;
}

#[tokio::test]
async fn other_regions_have_a_location() {
    let configuration = S3ServerConfig {
        region: "eu-west-3".to_owned(),
        ..S3ServerConfig::default()
    };
    let server = S3Server::start(configuration).await.unwrap();
    let client = client_as(
        &server,
        server.endpoint(),
        Identity {
            region: "eu-west-3",
            ..Identity::default()
        },
    );
    let location = client.get_bucket_location().bucket(BUCKET).send().await.unwrap();
    assert_eq!(location.location_constraint.unwrap().as_str(), "eu-west-3");
    let head = client.head_bucket().bucket(BUCKET).send().await.unwrap();
    assert_eq!(head.bucket_region(), Some("eu-west-3"));
    let refused = client.create_bucket().bucket("third").send().await;
    assert_refused!(refused, 400, "IllegalLocationConstraintException");
}

#[tokio::test]
async fn every_operation_needs_its_bucket() {
    let (_server, client) = pair().await;
    let (bucket, key) = ("no-such-bucket", "key");
    let missing = (404, "NoSuchBucket".to_owned());
    let body = || ByteStream::from(vec![7; 3 * MIB]);
    let delete = Delete::builder()
        .objects(ObjectIdentifier::builder().key(key).build().unwrap())
        .build()
        .unwrap();
    assert_eq!(
        refusal(client.put_object().bucket(bucket).key(key).body(body()).send().await),
        missing
    );
    assert_eq!(
        refusal(client.get_object().bucket(bucket).key(key).send().await),
        missing
    );
    assert_eq!(
        refusal(client.delete_object().bucket(bucket).key(key).send().await),
        missing
    );
    assert_eq!(
        refusal(client.delete_objects().bucket(bucket).delete(delete).send().await),
        missing
    );
    assert_eq!(refusal(client.list_objects_v2().bucket(bucket).send().await), missing);
    assert_eq!(
        refusal(client.get_bucket_location().bucket(bucket).send().await),
        missing
    );
    assert_eq!(
        refusal(client.create_multipart_upload().bucket(bucket).key(key).send().await),
        missing
    );
    assert_eq!(
        refusal(client.list_multipart_uploads().bucket(bucket).send().await),
        missing
    );
    assert_eq!(
        refusal(client.list_parts().bucket(bucket).key(key).upload_id("1").send().await),
        missing
    );
    assert_eq!(
        refusal(
            client
                .abort_multipart_upload()
                .bucket(bucket)
                .key(key)
                .upload_id("1")
                .send()
                .await
        ),
        missing
    );
    let part = client
        .upload_part()
        .bucket(bucket)
        .key(key)
        .upload_id("1")
        .part_number(1)
        .body(body());
    assert_eq!(refusal(part.send().await), missing);
    let part = CompletedPart::builder().part_number(1).e_tag("\"e\"").build();
    let parts = CompletedMultipartUpload::builder().parts(part).build();
    let complete = client
        .complete_multipart_upload()
        .bucket(bucket)
        .key(key)
        .upload_id("1")
        .multipart_upload(parts);
    assert_eq!(refusal(complete.send().await), missing);
    // The answer to a HEAD has no code.
    assert_eq!(refusal(client.head_bucket().bucket(bucket).send().await).0, 404);
    assert_eq!(
        refusal(client.head_object().bucket(bucket).key(key).send().await).0,
        404
    );
}

#[tokio::test]
async fn objects_come_back_with_what_was_attached() {
    let (server, client) = pair().await;
    let bytes = pattern(3 * MIB + 17);
    let output = client
        .put_object()
        .bucket(BUCKET)
        .key("k")
        .body(ByteStream::from(bytes.clone()))
        .content_type("text/x-test")
        .metadata("answer", "42")
        .send()
        .await
        .unwrap();
    let etag = output.e_tag().unwrap().to_owned();
    let head = client.head_object().bucket(BUCKET).key("k").send().await.unwrap();
    assert_eq!(head.content_length(), Some(bytes.len() as i64));
    assert_eq!(head.e_tag(), Some(etag.as_str()));
    assert_eq!(head.content_type(), Some("text/x-test"));
    assert_eq!(head.metadata().unwrap()["answer"], "42");
    assert!(head.last_modified().is_some());
    let got = client.get_object().bucket(BUCKET).key("k").send().await.unwrap();
    assert_eq!(got.e_tag(), Some(etag.as_str()));
    assert!(got.body.collect().await.unwrap().to_vec() == bytes);
    put(&client, "k", b"other").await;
    assert_eq!(get(&client, "k").await, b"other");
    put(&client, "empty", b"").await;
    assert_eq!(get(&client, "empty").await, b"");
    client.delete_object().bucket(BUCKET).key("k").send().await.unwrap();
    client.delete_object().bucket(BUCKET).key("k").send().await.unwrap();
    assert_refused!(
        client.get_object().bucket(BUCKET).key("k").send().await,
        404,
        "NoSuchKey"
    );
    assert_eq!(
        refusal(client.head_object().bucket(BUCKET).key("k").send().await).0,
        404
    );
    assert!(server.counters().bytes_in() >= bytes.len() as u64);
    assert!(server.counters().bytes_out() >= bytes.len() as u64);
}

#[tokio::test]
async fn any_key_is_a_key() {
    let directory = tempfile::tempdir().unwrap();
    let configuration = S3ServerConfig {
        data: Some(directory.path().join("data")),
        ..S3ServerConfig::default()
    };
    let server = S3Server::start(configuration.clone()).await.unwrap();
    let client = client(&server);
    let long = "x".repeat(1024);
    let longer_by_one = "x".repeat(1025);
    let wide = "ü/".repeat(341);
    let keys = [
        "a",
        "a/",
        "a//b",
        "/a",
        "//",
        "../../escape",
        "..",
        ".",
        "a/../b",
        "a b+c%2F?&=#",
        "日本語",
        "\u{1F600}",
        &long,
        &wide,
        "a.json",
        "a'()*!~@:,;$",
    ];
    for key in keys {
        put(&client, key, key.as_bytes()).await;
    }
    for key in keys {
        assert_eq!(get(&client, key).await, key.as_bytes(), "{key}");
    }
    let refused = client.put_object().bucket(BUCKET).key(&longer_by_one).send().await;
    assert_refused!(refused, 400, "KeyTooLongError");
    let mut expected: Vec<_> = keys.to_vec();
    expected.sort_unstable();
    let listed = client.list_objects_v2().bucket(BUCKET).send().await.unwrap();
    let listed: Vec<_> = listed
        .contents()
        .iter()
        .map(|object| object.key().unwrap().to_owned())
        .collect();
    assert_eq!(listed, expected);
    let beside: Vec<_> = std::fs::read_dir(directory.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(beside, ["data"], "nothing escapes the data directory");
    // What was written is there for the next server.
    server.shutdown().await;
    let server = S3Server::start(configuration).await.unwrap();
    let client = crate::support::client(&server);
    for key in keys {
        assert_eq!(get(&client, key).await, key.as_bytes(), "{key}");
        client.delete_object().bucket(BUCKET).key(key).send().await.unwrap();
    }
    let data = directory.path().join("data");
    assert_eq!(std::fs::read_dir(data.join("blobs")).unwrap().count(), 0);
    assert_eq!(
        std::fs::read_dir(data.join("buckets").join(BUCKET).join("objects"))
            .unwrap()
            .count(),
        0
    );
}

#[tokio::test]
async fn ranges() {
    let (_server, client) = pair().await;
    let bytes = pattern(2 * MIB + 5);
    let length = bytes.len();
    put(&client, "k", &bytes).await;
    put(&client, "empty", b"").await;
    let ranges = [
        ("bytes=0-0".to_owned(), 0..1),
        ("bytes=5-1048580".to_owned(), 5..1_048_581),
        ("bytes=1000000-".to_owned(), 1_000_000..length),
        ("bytes=-7".to_owned(), length - 7..length),
        (format!("bytes={}-{}", length - 3, length + 100), length - 3..length),
        (format!("bytes=-{}", length + 100), 0..length),
    ];
    for (header, expected) in ranges {
        let output = client
            .get_object()
            .bucket(BUCKET)
            .key("k")
            .range(&header)
            .send()
            .await
            .unwrap();
        let content_range = format!("bytes {}-{}/{length}", expected.start, expected.end - 1);
        assert_eq!(output.content_range(), Some(content_range.as_str()), "{header}");
        assert_eq!(output.content_length(), Some(expected.len() as i64), "{header}");
        assert!(output.checksum_crc32().is_none(), "a range has no checksum");
        assert!(
            output.body.collect().await.unwrap().to_vec() == bytes[expected],
            "{header}"
        );
    }
    for (key, header, length) in [
        ("k", format!("bytes={length}-"), length),
        ("k", "bytes=-0".to_owned(), length),
        ("empty", "bytes=0-".to_owned(), 0),
    ] {
        let error = client
            .get_object()
            .bucket(BUCKET)
            .key(key)
            .range(&header)
            .send()
            .await
            .unwrap_err();
        assert_eq!(error.code(), Some("InvalidRange"), "{header}");
        let answer = error.raw_response().unwrap();
        assert_eq!(answer.status().as_u16(), 416);
        assert_eq!(
            answer.headers().get("content-range"),
            Some(format!("bytes */{length}").as_str())
        );
    }
}

#[tokio::test]
async fn conditions() {
    let (_server, client) = pair().await;
    let create = || {
        client
            .put_object()
            .bucket(BUCKET)
            .key("k")
            .if_none_match("*")
            .body(ByteStream::from_static(b"1"))
    };
    let etag = create().send().await.unwrap().e_tag.unwrap();
    assert_refused!(create().send().await, 412, "PreconditionFailed");
    let replace = |etag: &str| {
        client
            .put_object()
            .bucket(BUCKET)
            .key("k")
            .if_match(etag)
            .body(ByteStream::from_static(b"2"))
    };
    assert_refused!(replace("\"other\"").send().await, 412, "PreconditionFailed");
    let read = |etag: &str| client.get_object().bucket(BUCKET).key("k").if_match(etag);
    read(&etag).send().await.unwrap();
    assert_eq!(
        refusal(
            client
                .get_object()
                .bucket(BUCKET)
                .key("k")
                .if_none_match(&etag)
                .send()
                .await
        )
        .0,
        304
    );
    replace(&etag).send().await.unwrap();
    assert_refused!(read(&etag).send().await, 412, "PreconditionFailed");
}

#[tokio::test]
async fn a_race_to_create_has_one_winner() {
    let (_server, client) = pair().await;
    for round in 0..5 {
        let mut racers = Vec::new();
        for racer in 0..8_u8 {
            let request = client
                .put_object()
                .bucket(BUCKET)
                .key(format!("race-{round}"))
                .if_none_match("*");
            let request = request.body(ByteStream::from(vec![racer; 100_000]));
            racers.push(tokio::spawn(async move { (racer, request.send().await) }));
        }
        let mut winners = Vec::new();
        for racing in racers {
            match racing.await.unwrap() {
                (racer, Ok(_)) => winners.push(racer),
                (_, refused) => assert_refused!(refused, 412, "PreconditionFailed"),
            }
        }
        assert_eq!(winners.len(), 1);
        assert!(get(&client, &format!("race-{round}")).await == vec![winners[0]; 100_000]);
    }
}

#[tokio::test]
async fn many_are_deleted_at_once() {
    let (_server, client) = pair().await;
    for index in 0..10 {
        put(&client, &format!("k{index:04}"), b"x").await;
    }
    let batch = |count: usize, quiet: bool| {
        let mut delete = Delete::builder().quiet(quiet);
        for index in 0..count {
            delete = delete.objects(ObjectIdentifier::builder().key(format!("k{index:04}")).build().unwrap());
        }
        client.delete_objects().bucket(BUCKET).delete(delete.build().unwrap())
    };
    let output = batch(1000, false).send().await.unwrap();
    assert_eq!(output.deleted().len(), 1000, "missing keys count as deleted");
    assert!(output.errors().is_empty());
    let left = client.list_objects_v2().bucket(BUCKET).send().await.unwrap();
    assert_eq!(left.key_count(), Some(0));
    let output = batch(1000, true).send().await.unwrap();
    assert!(output.deleted().is_empty());
    assert_refused!(batch(1001, false).send().await, 400, "MalformedXML");
    let versioned = ObjectIdentifier::builder().key("k").version_id("v").build().unwrap();
    let delete = Delete::builder().objects(versioned).build().unwrap();
    let output = client
        .delete_objects()
        .bucket(BUCKET)
        .delete(delete)
        .send()
        .await
        .unwrap();
    assert_eq!(
        output.errors()[0].code(),
        Some("NotImplemented"),
        "a key that fails does not fail the others"
    );
}

#[tokio::test]
async fn a_running_download_survives_its_object() {
    let (_server, client) = pair().await;
    let bytes = pattern(32 * MIB);
    put(&client, "k", &bytes).await;
    let mut got = client.get_object().bucket(BUCKET).key("k").send().await.unwrap();
    let first = got.body.try_next().await.unwrap().unwrap();
    put(&client, "k", b"new").await;
    client.delete_object().bucket(BUCKET).key("k").send().await.unwrap();
    let mut all = first.to_vec();
    while let Some(piece) = got.body.try_next().await.unwrap() {
        all.extend_from_slice(&piece);
    }
    assert!(all == bytes);
}
