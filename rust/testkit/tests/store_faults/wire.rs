//! What goes over the wire: the heads of requests, and how fast their bodies come.

use std::{
    io,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use alluvium_store::{
    ObjectStore, Payload,
    layer::{Guards, Policies, guarded},
    s3::{S3Config, S3Store, ServerSideEncryption},
};
use alluvium_testkit::s3_server::TlsMode;
use bytes::Bytes;
use futures::future::join_all;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::Instant,
};

use crate::{bytes, config, header, key, policies, read, server};

/// A server that believes everything and writes down what it hears.
struct Wire {
    endpoint: String,
    heard: Arc<Heard>,
    listening: tokio::task::JoinHandle<()>,
}

#[derive(Default)]
struct Heard {
    heads: Mutex<Vec<String>>,
    /// When how many bytes of which body came.
    pieces: Mutex<Vec<Piece>>,
}

struct Piece {
    at: Instant,
    request_line: String,
    length: usize,
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

impl Wire {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let endpoint = format!("http://{}", listener.local_addr().expect("an address"));
        let heard = Arc::new(Heard::default());
        let of_task = Arc::clone(&heard);
        let listening = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let heard = Arc::clone(&of_task);
                // A client that leaves is no failure of the test.
                tokio::spawn(async move { serve(stream, &heard).await.ok() });
            }
        });
        Wire {
            endpoint,
            heard,
            listening,
        }
    }

    async fn store(&self, change: impl FnOnce(&mut S3Config)) -> S3Store {
        let mut config = config(&self.endpoint);
        change(&mut config);
        S3Store::open(config).await.expect("an open store")
    }

    /// The heads of the requests since the last look, in lower case.
    fn heads(&self) -> Vec<String> {
        std::mem::take(&mut *self.heard.heads.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn pieces(&self) -> Vec<Piece> {
        std::mem::take(&mut *self.heard.pieces.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

async fn serve(mut stream: TcpStream, heard: &Heard) -> io::Result<()> {
    let mut request = Vec::new();
    let mut buffer = vec![0; 1 << 16];
    let end = loop {
        if let Some(end) = request.windows(4).position(|window| window == b"\r\n\r\n") {
            break end + 4;
        }
        let count = stream.read(&mut buffer).await?;
        if count == 0 {
            return Ok(());
        }
        request.extend_from_slice(&buffer[..count]);
    };
    let head = String::from_utf8_lossy(&request[..end]).into_owned();
    let request_line = head.lines().next().expect("a request line").to_owned();
    heard
        .heads
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push(head.clone());
    let length: usize = header(&head, "content-length").map_or(0, |text| text.parse().expect("a length"));
    let mut body = request.split_off(end);
    let mut count = body.len();
    loop {
        heard.pieces.lock().unwrap_or_else(PoisonError::into_inner).push(Piece {
            at: Instant::now(),
            request_line: request_line.clone(),
            length: count,
        });
        if body.len() >= length {
            break;
        }
        count = stream.read(&mut buffer).await?;
        if count == 0 {
            return Ok(());
        }
        body.extend_from_slice(&buffer[..count]);
    }
    let checksum = header(&head, "x-amz-checksum-crc32").unwrap_or_default();
    let answer = if request_line.starts_with("PUT") {
        assert_eq!(body.len(), length, "{head}");
        answer(&format!("ETag: \"x\"\r\nx-amz-checksum-crc32: {checksum}\r\n"), "")
    } else if request_line.contains("uploads") {
        let id = "<UploadId>u</UploadId>";
        answer(
            "",
            &format!("<InitiateMultipartUploadResult>{id}</InitiateMultipartUploadResult>"),
        )
    } else {
        let told = format!("<ChecksumCRC32>{checksum}</ChecksumCRC32><ChecksumType>FULL_OBJECT</ChecksumType>");
        answer(
            "",
            &format!("<CompleteMultipartUploadResult>{told}</CompleteMultipartUploadResult>"),
        )
    };
    stream.write_all(answer.as_bytes()).await?;
    stream.shutdown().await
}

fn answer(headers: &str, body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n{body}")
}

/// One object by PUT, one in parts.
async fn write(store: &S3Store, payload: &Payload) {
    let object = key("object");
    store.put(&object, payload.clone()).await.expect("a put");
    let upload = store.create_upload(&object).await.expect("an upload");
    let part = store.upload_part(&object, &upload, 1, payload.clone()).await;
    let completed = store
        .complete_upload(&object, &upload, &[part.expect("a part")], payload.crc32())
        .await;
    completed.expect("an object");
}

const ENCRYPTION: &str = "x-amz-server-side-encryption";
const KMS_KEY: &str = "x-amz-server-side-encryption-aws-kms-key-id";
const STORAGE_CLASS: &str = "x-amz-storage-class";
const TAGGING: &str = "x-amz-tagging";

#[tokio::test]
async fn how_objects_are_kept_is_said_where_they_begin() {
    let wire = Wire::start().await;
    let payload = Payload::new(bytes(1000));
    let kms = |key_id: Option<&str>| ServerSideEncryption::Kms {
        key_id: key_id.map(str::to_owned),
    };
    let tags = vec![
        ("team".to_owned(), "a b".to_owned()),
        ("c&d".to_owned(), "é".to_owned()),
    ];
    for (encryption, storage_class, tags, expected) in [
        (ServerSideEncryption::None, None, Vec::new(), [None; 4]),
        (
            ServerSideEncryption::S3,
            None,
            Vec::new(),
            [Some("AES256"), None, None, None],
        ),
        (kms(None), None, Vec::new(), [Some("aws:kms"), None, None, None]),
        (
            kms(Some("arn:aws:kms:eu:1:key/2")),
            Some("STANDARD_IA"),
            tags,
            [
                Some("aws:kms"),
                Some("arn:aws:kms:eu:1:key/2"),
                Some("STANDARD_IA"),
                Some("team=a%20b&c%26d=%C3%A9"),
            ],
        ),
        // A class that only this store knows.
        (
            ServerSideEncryption::None,
            Some("WARM-TIER"),
            Vec::new(),
            [None, None, Some("WARM-TIER"), None],
        ),
    ] {
        let store = wire
            .store(|config| {
                config.encryption = encryption;
                config.storage_class = storage_class.map(str::to_owned);
                config.tags = tags;
            })
            .await;
        write(&store, &payload).await;
        let heads = wire.heads();
        assert_eq!(heads.len(), 4, "{heads:?}");
        for (request, head) in heads.iter().enumerate() {
            let told = [ENCRYPTION, KMS_KEY, STORAGE_CLASS, TAGGING].map(|name| header(head, name));
            let begins_object = matches!(request, 0 | 1);
            assert_eq!(told, if begins_object { expected } else { [None; 4] }, "{head}");
            // A header that is not signed can be changed on its way.
            let signed = header(head, "authorization").expect("a signature").to_lowercase();
            for name in [ENCRYPTION, KMS_KEY, STORAGE_CLASS, TAGGING] {
                let is_signed = signed.contains(&format!("{name};")) || signed.contains(&format!("{name},"));
                assert_eq!(is_signed, header(head, name).is_some(), "{name}: {signed}");
            }
        }
    }
}

#[tokio::test]
async fn a_body_has_its_length_and_its_bytes_paced_or_not() {
    let wire = Wire::start().await;
    let server = server(TlsMode::Off).await;
    for (payload_signing, rate) in [
        (false, None),
        (true, None),
        (false, Some(50 << 20)),
        (true, Some(50 << 20)),
    ] {
        let change = |config: &mut S3Config| {
            config.payload_signing = payload_signing;
            config.upload_bytes_per_second = rate;
        };
        let store = wire.store(change).await;
        write(&store, &Payload::new(bytes(300_001))).await;
        store
            .put(&key("empty"), Payload::new(Bytes::new()))
            .await
            .expect("a put");
        let heads = wire.heads();
        for head in &heads {
            // Of aws-chunked, whose trailers many servers do not understand, there is no trace anywhere.
            for absent in [
                "transfer-encoding",
                "content-encoding",
                "x-amz-trailer",
                "x-amz-decoded-content-length",
            ] {
                assert_eq!(header(head, absent), None, "{head}");
            }
            assert!(!head.to_lowercase().contains("streaming"), "{head}");
        }
        for (head, length) in [(&heads[0], "300001"), (&heads[2], "300001"), (&heads[4], "0")] {
            assert_eq!(header(head, "content-length"), Some(length), "{head}");
            assert_eq!(header(head, "expect"), None, "{head}");
            let hash = header(head, "x-amz-content-sha256").expect("a hash");
            assert_eq!(hash != "UNSIGNED-PAYLOAD", payload_signing, "{head}");
        }

        // A server that checks the signature, the hash and the checksum.
        let mut config = config(server.endpoint());
        change(&mut config);
        let store: Arc<dyn ObjectStore> = Arc::new(S3Store::open(config).await.expect("an open store"));
        let object = key("object");
        store.put(&object, Payload::new(bytes(1_000_001))).await.expect("a put");
        assert_eq!(read(&store, &object).await.expect("a body"), bytes(1_000_001));
        let upload = store.create_upload(&object).await.expect("an upload");
        let payload = Payload::new(bytes(5 << 20));
        let part = store.upload_part(&object, &upload, 1, payload.clone()).await;
        let parts = [part.expect("a part")];
        let completed = store.complete_upload(&object, &upload, &parts, payload.crc32()).await;
        completed.expect("an object");
        assert_eq!(read(&store, &object).await.expect("a body"), bytes(5 << 20));
    }
}

#[tokio::test]
async fn uploads_together_keep_to_the_rate_in_every_window() {
    const RATE: usize = 4 << 20;
    const LENGTH: usize = 1 << 20;
    let wire = Wire::start().await;
    let store = wire
        .store(|config| config.upload_bytes_per_second = Some(RATE as u64))
        .await;
    let payload = Payload::new(bytes(LENGTH));
    let begin = Instant::now();
    let puts = (0..8).map(|number| {
        let (store, payload) = (&store, payload.clone());
        async move {
            let object = key(&format!("object-{number}"));
            store.put(&object, payload).await.expect("a put");
            begin.elapsed()
        }
    });
    let ends = join_all(puts).await;
    let pieces = wire.pieces();
    let total: usize = pieces.iter().map(|piece| piece.length).sum();
    assert_eq!(total, 8 * LENGTH);
    let took = begin.elapsed().as_secs_f64() / (total as f64 / RATE as f64);
    // How exact it is, the bucket's own tests tell in paused time; a busy machine is late, but never early.
    assert!((0.9..1.5).contains(&took), "{took} of the time");
    let (first, last) = (ends.iter().min().expect("ends"), ends.iter().max().expect("ends"));
    // Whoever comes first has what the bucket held, which is two fifths of a body.
    assert!(*first > *last / 2, "one was served before the others: {ends:?}");

    let window = Duration::from_millis(500);
    // What the bucket holds, and for each body the slice that a delayed reader finds in the socket with the next one.
    let allowed = RATE / 2 + RATE / 10 + 8 * (64 << 10);
    for (index, piece) in pieces.iter().enumerate() {
        let passed: usize = pieces[index..]
            .iter()
            .take_while(|later| later.at <= piece.at + window)
            .map(|later| later.length)
            .sum();
        assert!(passed <= allowed, "{passed} bytes from {:?} on", piece.at - begin);
    }
    let half = pieces.iter().filter(|piece| piece.at - begin < *last / 2);
    let mut shares = std::collections::BTreeMap::<&str, usize>::new();
    for piece in half {
        *shares.entry(&piece.request_line).or_default() += piece.length;
    }
    assert_eq!(shares.len(), 8);
    assert!(shares.values().all(|&share| share > LENGTH / 4), "{shares:?}");
}

#[tokio::test]
async fn no_attempt_ends_only_because_it_is_paced() {
    const RATE: u64 = 256 << 10;
    let wire = Wire::start().await;
    let store = wire.store(|config| config.upload_bytes_per_second = Some(RATE)).await;
    // Far less than the bytes take.
    let policies = Policies {
        attempt_timeout: Duration::from_millis(200),
        ..policies()
    }
    .paced(RATE);
    let guards = Guards::new(&policies);
    let store = guarded(Arc::new(store), policies, Arc::default(), &guards);
    let payload = Payload::new(bytes(192 << 10));
    let puts = (0..3).map(|number| {
        let (store, payload) = (Arc::clone(&store), payload.clone());
        async move { store.put(&key(&format!("object-{number}")), payload).await }
    });
    for outcome in join_all(puts).await {
        outcome.expect("a put");
    }
    assert_eq!(wire.heads().len(), 3, "an attempt was repeated");
    assert_eq!((guards.limits.writes().limit, guards.limits.writes().in_use), (1, 0));
}

#[tokio::test]
async fn the_bucket_is_in_the_path_when_the_settings_say_so() {
    let wire = Wire::start().await;
    let store = wire.store(|_| {}).await;
    write(&store, &Payload::new(bytes(10))).await;
    let host = wire.endpoint.trim_start_matches("http://");
    let heads = wire.heads();
    assert_eq!(heads.len(), 4);
    for head in heads {
        let path = head.split(' ').nth(1).expect("a path");
        assert!(path.starts_with("/faults/object?"), "{head}");
        assert_eq!(header(&head, "host"), Some(host), "{head}");
    }
}
