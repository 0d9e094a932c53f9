//! Settings that are wrong, and files that change.

use std::{
    fs,
    io::{Read, Write},
    net::TcpListener,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use alluvium_store::{
    ErrorKind, ObjectStore, Payload, StoreError,
    layer::stack,
    s3::{CredentialsSource, S3Config, S3Store},
};
use alluvium_testkit::s3_server::{FaultAction, FaultRule, Operation, TlsMode};
use futures::future::join_all;
use tempfile::TempDir;

use crate::{ACCESS_KEY, SECRET_KEY, bytes, config, key, keys, policies, read, server};

#[tokio::test]
async fn wrong_settings_have_their_kinds() {
    let server = server(TlsMode::Off).await;
    let right = config(server.endpoint());

    let error = put_error(S3Config {
        credentials: keys("nobody", SECRET_KEY),
        ..right.clone()
    })
    .await;
    assert_eq!(error.kind(), ErrorKind::InvalidCredentials, "{error}");
    let error = put_error(S3Config {
        credentials: keys(ACCESS_KEY, "wrong"),
        ..right.clone()
    })
    .await;
    assert_eq!(error.kind(), ErrorKind::InvalidCredentials, "{error}");
    let error = put_error(S3Config {
        bucket: "other-bucket".to_owned(),
        ..right.clone()
    })
    .await;
    assert_eq!(error.kind(), ErrorKind::BucketNotFound, "{error}");
    assert!(error.detail().contains("other-bucket"), "{error}");
    let error = put_error(S3Config {
        region: "us-east-1".to_owned(),
        ..right.clone()
    })
    .await;
    assert_eq!(error.kind(), ErrorKind::WrongRegion, "{error}");
    assert!(
        error.detail().contains("us-east-1") && error.detail().contains("eu-central-1"),
        "{error}"
    );

    let unused = TcpListener::bind("127.0.0.1:0")
        .expect("a port")
        .local_addr()
        .expect("an address");
    let nobody = format!("http://{unused}");
    let error = put_error(S3Config {
        endpoint: Some(nobody.clone()),
        ..right.clone()
    })
    .await;
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(error.detail().contains(&nobody), "{error}");
    let unknown = "http://no-such-host.invalid:9000".to_owned();
    let error = put_error(S3Config {
        endpoint: Some(unknown),
        ..right.clone()
    })
    .await;
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    // The mistake is the endpoint's scheme and no certificate's.
    let https_to_http = server.endpoint().replace("http://", "https://");
    for endpoint in [https_to_http, tls_port_of_go()] {
        let error = put_error(S3Config {
            endpoint: Some(endpoint.clone()),
            ..right.clone()
        })
        .await;
        assert_eq!(error.kind(), ErrorKind::Invalid, "{endpoint}: {error}");
        assert_eq!(error.attempts(), 1, "{error}");
    }
}

/// Answers plain HTTP as the TLS ports of servers written in Go do, MinIO's among them.
fn tls_port_of_go() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let endpoint = format!("http://{}", listener.local_addr().expect("an address"));
    std::thread::spawn(move || {
        while let Ok((mut connection, _)) = listener.accept() {
            let mut request = [0; 4096];
            let _ = connection.read(&mut request);
            let answer = b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n";
            let _ = connection.write_all(answer);
        }
    });
    endpoint
}

#[tokio::test]
async fn private_authorities() {
    let directory = TempDir::new().expect("a temporary directory");
    let server = server(TlsMode::OwnAuthority { directory: None }).await;
    let right = config(server.endpoint());
    let ca_file = directory.path().join("ca.pem");

    let missing = open_error(S3Config {
        ca_file: Some(ca_file.clone()),
        ..right.clone()
    })
    .await;
    assert_eq!(missing.kind(), ErrorKind::Invalid);
    assert!(missing.detail().contains(&ca_file.display().to_string()) && missing.detail().contains("No such file"));
    for nonsense in [
        "",
        "nonsense",
        "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
    ] {
        fs::write(&ca_file, nonsense).expect("a file");
        let error = open_error(S3Config {
            ca_file: Some(ca_file.clone()),
            ..right.clone()
        })
        .await;
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.detail().contains(&ca_file.display().to_string()), "{error}");
    }

    let other = rcgen::generate_simple_self_signed(vec!["other.test".to_owned()]).expect("a certificate");
    fs::write(&ca_file, other.cert.pem()).expect("a file");
    let with_file = S3Config {
        ca_file: Some(ca_file.clone()),
        ..right
    };
    let error = put_error(with_file.clone()).await;
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Tls, false), "{error}");
    assert!(error.detail().contains("UnknownIssuer"), "{error}");

    // The file is replaced while the store is open: no restart.
    let base = Arc::new(S3Store::open(with_file).await.expect("an open store"));
    let store = stack(base, policies(), Arc::default());
    replace(&ca_file, server.ca_pem().expect("the authority"));
    put_many(&store).await;
    store
        .put(&key("object"), Payload::new(bytes(2_000_000)))
        .await
        .expect("a put");
    assert_eq!(read(&store, &key("object")).await.expect("a body"), bytes(2_000_000));
}

#[tokio::test]
async fn a_rotated_key_file_is_read_again() {
    let directory = TempDir::new().expect("a temporary directory");
    let server = server(TlsMode::Off).await;
    let file = directory.path().join("keys");
    let source = CredentialsSource::KeyFile(file.clone());
    let config = S3Config {
        credentials: source,
        ..config(server.endpoint())
    };
    let error = open_error(config.clone()).await;
    assert_eq!(error.kind(), ErrorKind::InvalidCredentials);
    assert!(error.detail().contains(&file.display().to_string()), "{error}");

    let text = |access_key: &str| format!("aws_access_key_id = {access_key}\naws_secret_access_key = {SECRET_KEY}\n");
    replace(&file, &text("old-key"));
    let base = Arc::new(S3Store::open(config).await.expect("an open store"));
    let store = stack(base, policies(), Arc::default());
    let error = store
        .put(&key("object"), Payload::new(bytes(10)))
        .await
        .expect_err("the old key");
    assert_eq!(
        (error.kind(), error.attempts()),
        (ErrorKind::InvalidCredentials, 1),
        "{error}"
    );
    // Refused once more with the remembered key, then read again and accepted: no waiting for the next look.
    replace(&file, &text(ACCESS_KEY));
    store
        .put(&key("object"), Payload::new(bytes(10)))
        .await
        .expect("the new key");
    // A broken file does not take the keys away.
    replace(&file, "half a fi");
    tokio::time::sleep(Duration::from_millis(1100)).await;
    store
        .put(&key("object"), Payload::new(bytes(10)))
        .await
        .expect("the last good key");
}

/// Puts that are all under way when the first of them is refused.
async fn put_many(store: &Arc<dyn ObjectStore>) {
    let puts = (0..16).map(|number| {
        let store = Arc::clone(store);
        async move {
            store
                .put(&key(&format!("many/{number}")), Payload::new(bytes(10)))
                .await
        }
    });
    for put in join_all(puts).await {
        put.expect("a put");
    }
}

#[tokio::test]
async fn of_many_requests_under_way_when_a_key_ends_each_goes_on() {
    let directory = TempDir::new().expect("a temporary directory");
    let server = server(TlsMode::Off).await;
    let file = directory.path().join("keys");
    let text = |access_key: &str| format!("aws_access_key_id = {access_key}\naws_secret_access_key = {SECRET_KEY}\n");
    replace(&file, &text(ACCESS_KEY));
    let config = S3Config {
        credentials: CredentialsSource::KeyFile(file.clone()),
        ..config(server.endpoint())
    };
    let base = Arc::new(S3Store::open(config).await.expect("an open store"));
    let store = stack(base, policies(), Arc::default());
    // Some are refused at once, and others when the former have the new key already.
    let late = FaultRule::new(Operation::PutObject, FaultAction::Delay { ms: 300 });
    server.faults().add(late.key_contains("many/1")).expect("a rule");
    for (old, new) in [(ACCESS_KEY, "second"), ("second", "third")] {
        // All are signed with the key that is remembered.
        put_many(&store).await;
        server.users().allow(new, SECRET_KEY, None);
        server.users().revoke(old);
        replace(&file, &text(new));
        put_many(&store).await;
    }
}

#[tokio::test]
async fn missing_credentials_name_the_places() {
    let directory = TempDir::new().expect("a temporary directory");
    let file = directory.path().join("credentials");
    let server = server(TlsMode::Off).await;
    let profile = |name: &str| CredentialsSource::Profile {
        name: Some(name.to_owned()),
        file: Some(file.clone()),
    };
    let right = config(server.endpoint());
    fs::write(
        &file,
        format!("[mine]\naws_access_key_id={ACCESS_KEY}\naws_secret_access_key={SECRET_KEY}\n"),
    )
    .expect("a file");
    let error = open_error(S3Config {
        credentials: profile("other"),
        ..right.clone()
    })
    .await;
    assert_eq!(error.kind(), ErrorKind::InvalidCredentials, "{error}");
    assert!(
        error.detail().contains("other") && error.detail().contains(&file.display().to_string()),
        "{error}"
    );
    let store = S3Store::open(S3Config {
        credentials: profile("mine"),
        ..right.clone()
    })
    .await
    .expect("an open store");
    store.put(&key("object"), Payload::new(bytes(10))).await.expect("a put");
    if std::env::var_os("AWS_ACCESS_KEY_ID").is_none() {
        let error = open_error(S3Config {
            credentials: CredentialsSource::Environment,
            ..right
        })
        .await;
        assert!(error.detail().contains("AWS_ACCESS_KEY_ID"), "{error}");
    }
}

async fn open_error(config: S3Config) -> StoreError {
    S3Store::open(config).await.expect_err("the store must not open")
}

/// The failure of a put on a store that opens.
async fn put_error(config: S3Config) -> StoreError {
    let store = S3Store::open(config).await.expect("an open store");
    let error = store
        .put(&key("object"), Payload::new(bytes(10)))
        .await
        .expect_err("the put must fail");
    let shown = format!("{error} {error:?}");
    assert!(
        !shown.contains(SECRET_KEY) && !shown.to_lowercase().contains("signature="),
        "{shown}"
    );
    error
}

/// As a mounted secret is replaced: by a rename.
fn replace(path: &Path, text: &str) {
    let new: PathBuf = path.with_extension("new");
    fs::write(&new, text).expect("a file");
    fs::rename(&new, path).expect("a rename");
}
