//! Purpose: ListObjectsV2.

use crate::support::*;
use aws_sdk_s3::Client;
use aws_sdk_s3::operation::list_objects_v2::ListObjectsV2Output;
use aws_sdk_s3::types::EncodingType;

const KEYS: [&str; 9] = ["a", "b/1", "b/2", "b/c/1", "b0", "c", "d/1", "Z", "é"];

async fn filled(client: &Client) {
    for key in KEYS {
        put(client, key, key.as_bytes()).await;
    }
}

/// Prefix, delimiter and start asked for; keys and common prefixes expected.
type Case<'case> = (
    Option<&'case str>,
    Option<&'case str>,
    Option<&'case str>,
    &'case [&'case str],
    &'case [&'case str],
);

/// Keys, then common prefixes.
fn names(output: &ListObjectsV2Output) -> (Vec<String>, Vec<String>) {
    let keys = output
        .contents()
        .iter()
        .map(|object| object.key().unwrap().to_owned())
        .collect();
    let prefixes = output
        .common_prefixes()
        .iter()
        .map(|prefix| prefix.prefix().unwrap().to_owned())
        .collect();
    (keys, prefixes)
}

fn owned(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[tokio::test]
async fn order_prefix_delimiter_and_start() {
    let (_server, client) = pair().await;
    filled(&client).await;
    let list = || client.list_objects_v2().bucket(BUCKET);
    let all = list().send().await.unwrap();
    assert_eq!(names(&all).0, ["Z", "a", "b/1", "b/2", "b/c/1", "b0", "c", "d/1", "é"]);
    assert_eq!(all.is_truncated(), Some(false));
    assert_eq!(all.contents()[2].size(), Some(3));
    assert!(all.contents()[2].e_tag().is_some());
    let cases: [Case<'_>; 7] = [
        (None, Some("/"), None, &["Z", "a", "b0", "c", "é"], &["b/", "d/"]),
        (Some("b/"), Some("/"), None, &["b/1", "b/2"], &["b/c/"]),
        (Some("b"), Some("/"), None, &["b0"], &["b/"]),
        (Some("b/"), None, None, &["b/1", "b/2", "b/c/1"], &[]),
        (None, None, Some("b/2"), &["b/c/1", "b0", "c", "d/1", "é"], &[]),
        (Some("b/"), None, Some("a"), &["b/1", "b/2", "b/c/1"], &[]),
        (Some("nothing"), Some("/"), None, &[], &[]),
    ];
    for (prefix, delimiter, start, keys, prefixes) in cases {
        let request = list()
            .set_prefix(prefix.map(str::to_owned))
            .set_delimiter(delimiter.map(str::to_owned));
        let output = request.set_start_after(start.map(str::to_owned)).send().await.unwrap();
        assert_eq!(
            names(&output),
            (owned(keys), owned(prefixes)),
            "{prefix:?} {delimiter:?} {start:?}"
        );
    }
}

#[tokio::test]
async fn pages_join_to_the_whole() {
    let (_server, client) = pair().await;
    filled(&client).await;
    for delimiter in [None, Some("/".to_owned())] {
        let list = || client.list_objects_v2().bucket(BUCKET).set_delimiter(delimiter.clone());
        let whole = names(&list().send().await.unwrap());
        for page_size in 1..=10 {
            let mut joined = (Vec::new(), Vec::new());
            let mut token = None;
            loop {
                let output = list()
                    .max_keys(page_size)
                    .set_continuation_token(token)
                    .send()
                    .await
                    .unwrap();
                let (keys, prefixes) = names(&output);
                assert_eq!(output.key_count(), Some((keys.len() + prefixes.len()) as i32));
                assert!(keys.len() + prefixes.len() <= page_size as usize);
                joined.0.extend(keys);
                joined.1.extend(prefixes);
                token = output.next_continuation_token().map(str::to_owned);
                assert_eq!(output.is_truncated(), Some(token.is_some()));
                if token.is_none() {
                    break;
                }
            }
            assert_eq!(joined, whole, "pages of {page_size}, delimiter {delimiter:?}");
        }
    }
    let none = client
        .list_objects_v2()
        .bucket(BUCKET)
        .max_keys(0)
        .send()
        .await
        .unwrap();
    assert_eq!((none.key_count(), none.is_truncated()), (Some(0), Some(false)));
    let refused = client
        .list_objects_v2()
        .bucket(BUCKET)
        .continuation_token("§")
        .send()
        .await;
    assert_refused!(refused, 400, "InvalidArgument");
}

#[tokio::test]
async fn a_page_has_at_most_a_thousand_keys() {
    let (_server, client) = pair().await;
    for index in 0..1005 {
        put(&client, &format!("{index:05}"), b"").await;
    }
    let output = client
        .list_objects_v2()
        .bucket(BUCKET)
        .max_keys(5000)
        .send()
        .await
        .unwrap();
    assert_eq!((output.key_count(), output.is_truncated()), (Some(1000), Some(true)));
}

#[tokio::test]
async fn keys_can_be_encoded() {
    let (_server, client) = pair().await;
    put(&client, "a b/ü+", b"").await;
    let output = client
        .list_objects_v2()
        .bucket(BUCKET)
        .encoding_type(EncodingType::Url)
        .send()
        .await
        .unwrap();
    assert_eq!(names(&output).0, ["a%20b/%C3%BC%2B"]);
}
