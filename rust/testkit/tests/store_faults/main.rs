//! What the S3 store and its layers make of a server that misbehaves, of a proxy that lies, and of settings that are wrong; and what
//! they send.

mod answers;
mod deletes;
mod front;
mod hedge;
mod lies;
mod moves;
mod settings;
mod silence;
mod wire;

use std::{sync::Arc, time::Duration};

use alluvium_store::{
    Key, ObjectStore, StoreError,
    layer::{Policies, metrics::StoreMetrics, stack},
    s3::{CredentialsSource, S3Config, S3Store, Secret, ServerSideEncryption},
};
use alluvium_testkit::s3_server::{FaultRule, S3Server, S3ServerConfig, TlsMode};
use bytes::Bytes;

const ACCESS_KEY: &str = "faults-access-key";
const SECRET_KEY: &str = "faults-secret-key-that-nobody-may-see";
const BUCKET: &str = "faults";

struct Bench {
    server: S3Server,
    store: Arc<dyn ObjectStore>,
    metrics: Arc<StoreMetrics>,
}

fn policies() -> Policies {
    Policies {
        attempt_timeout: Duration::from_secs(5),
        operation_timeout: Duration::from_secs(20),
        attempts_max: 4,
        pause_first: Duration::from_millis(5),
        pause_max: Duration::from_millis(50),
        jitter_seed: Some(1),
        ..Policies::default()
    }
}

fn config(endpoint: &str) -> S3Config {
    S3Config {
        bucket: BUCKET.to_owned(),
        region: "eu-central-1".to_owned(),
        endpoint: Some(endpoint.to_owned()),
        path_style: true,
        credentials: keys(ACCESS_KEY, SECRET_KEY),
        ca_file: None,
        payload_signing: false,
        connect_timeout: Duration::from_secs(2),
        read_timeout: Duration::from_secs(3),
        encryption: ServerSideEncryption::None,
        storage_class: None,
        tags: Vec::new(),
        upload_bytes_per_second: None,
    }
}

fn keys(access_key: &str, secret_key: &str) -> CredentialsSource {
    CredentialsSource::Static {
        access_key_id: access_key.to_owned(),
        secret_access_key: Secret::new(secret_key),
        session_token: None,
    }
}

async fn server(tls: TlsMode) -> S3Server {
    let config = S3ServerConfig {
        buckets: vec![BUCKET.to_owned()],
        access_key: ACCESS_KEY.to_owned(),
        secret_key: SECRET_KEY.to_owned(),
        region: "eu-central-1".to_owned(),
        tls,
        ..S3ServerConfig::default()
    };
    S3Server::start(config).await.expect("a server")
}

async fn bench(policies: Policies) -> Bench {
    let server = server(TlsMode::Off).await;
    let mut config = config(server.endpoint());
    config.read_timeout = config.read_timeout.min(policies.attempt_timeout);
    let base = Arc::new(S3Store::open(config).await.expect("an open store"));
    let metrics = Arc::new(StoreMetrics::default());
    Bench {
        store: stack(base, policies, Arc::clone(&metrics)),
        server,
        metrics,
    }
}

impl Bench {
    fn fault(&self, rule: FaultRule) {
        self.server.faults().add(rule).expect("a rule");
    }

    fn clear(&self) {
        self.server.faults().clear();
    }

    /// Everything that was begun has ended.
    async fn settle(&self) {
        for _ in 0..200 {
            if self.metrics.snapshot().in_flight() == 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("requests are still counted as under way");
    }
}

fn key(text: &str) -> Key {
    Key::new(text).expect("a valid key")
}

fn bytes(length: usize) -> Bytes {
    (0..=250u8).cycle().take(length).collect()
}

/// The value of a header in the head of a request.
fn header<'head>(head: &'head str, wanted: &str) -> Option<&'head str> {
    head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case(wanted).then(|| value.trim())
    })
}

async fn read(store: &Arc<dyn ObjectStore>, key: &Key) -> Result<Bytes, StoreError> {
    store.get(key, None).await?.collect().await
}
