//! The conformance suite on S3: our embedded server, or the one that the environment names.
//!
//! `ALLUVIUM_S3_ENDPOINT`, `ALLUVIUM_S3_BUCKET`, `ALLUVIUM_S3_ACCESS_KEY`, `ALLUVIUM_S3_SECRET_KEY`, and optionally
//! `ALLUVIUM_S3_REGION` (us-east-1), `ALLUVIUM_S3_CA_FILE`, `ALLUVIUM_S3_GAPS` (names of cases to leave out).

use std::{any::Any, env, path::PathBuf, sync::Arc, time::Duration};

use alluvium_store::{
    ErrorKind, Key, ObjectStore, Payload,
    s3::{CredentialsSource, S3Config, S3Store, Secret, ServerSideEncryption},
};
use alluvium_testkit::{
    conformance::Fixture,
    s3_server::{S3Server, S3ServerConfig},
};
use bytes::Bytes;

fn config(endpoint: &str, bucket: &str, region: &str, access_key: &str, secret_key: &str) -> S3Config {
    S3Config {
        bucket: bucket.to_owned(),
        region: region.to_owned(),
        endpoint: Some(endpoint.to_owned()),
        path_style: true,
        credentials: CredentialsSource::Static {
            access_key_id: access_key.to_owned(),
            secret_access_key: Secret::new(secret_key),
            session_token: None,
        },
        ca_file: None,
        payload_signing: false,
        connect_timeout: Duration::from_secs(5),
        read_timeout: Duration::from_secs(30),
        encryption: ServerSideEncryption::None,
        storage_class: None,
        tags: Vec::new(),
        upload_bytes_per_second: None,
    }
}

/// The right settings, and what must live as long as they are used.
async fn settings() -> (S3Config, Box<dyn Any + Send>) {
    if let Ok(endpoint) = env::var("ALLUVIUM_S3_ENDPOINT") {
        let needed =
            |name: &str| env::var(name).unwrap_or_else(|_| panic!("{name} is needed with ALLUVIUM_S3_ENDPOINT"));
        let region = env::var("ALLUVIUM_S3_REGION").unwrap_or_else(|_| "us-east-1".to_owned());
        let mut config = config(
            &endpoint,
            &needed("ALLUVIUM_S3_BUCKET"),
            &region,
            &needed("ALLUVIUM_S3_ACCESS_KEY"),
            &needed("ALLUVIUM_S3_SECRET_KEY"),
        );
        config.ca_file = env::var_os("ALLUVIUM_S3_CA_FILE").map(PathBuf::from);
        return (config, Box::new(()));
    }
    let settings = S3ServerConfig::default();
    let server = S3Server::start(settings.clone()).await.expect("a server");
    let config = config(
        server.endpoint(),
        &settings.buckets[0],
        &settings.region,
        &settings.access_key,
        &settings.secret_key,
    );
    (config, Box::new(server))
}

async fn fixture() -> Fixture {
    let (config, guard) = settings().await;
    let store = S3Store::open(config).await.expect("an open store");
    Fixture {
        store: Arc::new(store),
        guard,
    }
}

alluvium_testkit::conformance_suite!(fixture);

#[tokio::test]
async fn wrong_settings_have_their_kinds() {
    let (right, _guard) = settings().await;
    let CredentialsSource::Static {
        access_key_id,
        secret_access_key,
        ..
    } = right.credentials.clone()
    else {
        panic!("static keys are used here");
    };
    let keys = |access_key_id: &str, secret: Secret| CredentialsSource::Static {
        access_key_id: access_key_id.to_owned(),
        secret_access_key: secret,
        session_token: None,
    };
    let wrong = [
        (
            S3Config {
                credentials: keys("nobody", secret_access_key),
                ..right.clone()
            },
            ErrorKind::InvalidCredentials,
        ),
        (
            S3Config {
                credentials: keys(&access_key_id, Secret::new("wrong-secret")),
                ..right.clone()
            },
            ErrorKind::InvalidCredentials,
        ),
        (
            S3Config {
                bucket: "no-such-bucket-here".to_owned(),
                ..right.clone()
            },
            ErrorKind::BucketNotFound,
        ),
        (
            S3Config {
                region: "af-south-1".to_owned(),
                ..right
            },
            ErrorKind::WrongRegion,
        ),
    ];
    let key = Key::new("wrong-settings").expect("a valid key");
    for (config, kind) in wrong {
        let store = S3Store::open(config).await.expect("an open store");
        let put = store
            .put(&key, Payload::new(Bytes::from_static(b"bytes")))
            .await
            .expect_err("put");
        assert_eq!((put.kind(), put.is_retryable()), (kind, false), "{put}");
        let list = store.list("wrong-settings", None, 1).await.expect_err("list");
        assert_eq!(list.kind(), kind, "{list}");
        println!("{put}");
    }
}

#[tokio::test]
async fn signed_payloads_are_accepted() {
    let (config, _guard) = settings().await;
    let store = S3Store::open(S3Config {
        payload_signing: true,
        ..config
    })
    .await
    .expect("an open store");
    let key = Key::new("signed-payload").expect("a valid key");
    let bytes = Bytes::from(vec![3; 300_000]);
    store.put(&key, Payload::new(bytes.clone())).await.expect("a put");
    assert_eq!(
        store
            .get(&key, None)
            .await
            .expect("a get")
            .collect()
            .await
            .expect("a body"),
        bytes
    );
    store.delete(&[key]).await.expect("a delete");
}
