use super::*;
use crate::ErrorKind;

fn parse(pairs: &[(&str, &str)]) -> Result<Config> {
    Config::parse(
        pairs
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect(),
    )
}

fn s3(extra: &[(&str, &str)]) -> Result<Config> {
    parse(&[&[("s3.bucket", "b"), ("broker.id", "1")], extra].concat())
}

fn s3_config(extra: &[(&str, &str)]) -> S3Config {
    match s3(extra).unwrap().store {
        StoreConfig::S3(config) => config,
        StoreConfig::File(_) => panic!("an S3 store was asked for"),
    }
}

#[test]
fn every_default_is_in_its_own_range() {
    for key in KEYS {
        if let Some(default) = key.default.filter(|default| !default.is_empty()) {
            Settings::new(vec![(key.name.into(), default.into())]).unwrap();
        }
    }
    let config = s3(&[]).unwrap();
    assert_eq!(
        (config.cache_memory, config.upload_memory, config.load_memory),
        (96 << 20, 128 << 20, 32 << 20)
    );
    assert!(config.fetch_hedging && !config.policies.hedging, "of fetches only");
    assert!(!s3(&[("fetch.hedging.enabled", "false")]).unwrap().fetch_hedging);
}

#[test]
fn names_are_lower_case_words_and_dots_and_come_once() {
    let mut seen = std::collections::BTreeSet::new();
    for key in KEYS {
        for name in std::iter::once(&key.name).chain(key.aliases) {
            assert!(seen.insert(*name), "{name} comes twice");
            let name = name.replace("<id>", "id");
            assert!(
                name.bytes()
                    .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'.'),
                "{name}"
            );
        }
    }
}

#[test]
fn an_unknown_key_names_the_nearest_known_one() {
    let error = s3(&[("s3.buket", "x")]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert_eq!(error.message(), "s3.buket: unknown key; did you mean s3.bucket?");
}

#[test]
fn every_error_names_its_key() {
    let cases: &[(&[(&str, &str)], &str)] = &[
        (&[], "s3.bucket"),
        (&[("storage.type", "file")], "file.path"),
        (&[("storage.type", "gcs")], "storage.type"),
        (
            &[("s3.bucket", "b"), ("chunk.size.bytes", "100000")],
            "chunk.size.bytes",
        ),
        (&[("s3.bucket", "b"), ("chunk.size.bytes", "-1")], "chunk.size.bytes"),
        (
            &[("s3.bucket", "b"), ("chunk.size.bytes", "99999999999999999999")],
            "chunk.size.bytes",
        ),
        (
            &[("s3.bucket", "b"), ("upload.part.size.bytes", "5242881")],
            "upload.part.size.bytes",
        ),
        (
            &[("s3.bucket", "b"), ("memory.budget.bytes", "16777216")],
            "memory.budget.bytes",
        ),
        (
            &[("s3.bucket", "b"), ("cache.memory.bytes", "268435456")],
            "memory.budget.bytes",
        ),
        (
            &[("s3.bucket", "b"), ("cache.memory.bytes", "1000")],
            "cache.memory.bytes",
        ),
        (
            &[("s3.bucket", "b"), ("cache.size.bytes", "1073741824")],
            "cache.size.bytes",
        ),
        (
            &[
                ("s3.bucket", "b"),
                ("cache.path", "/c"),
                ("cache.size.bytes", "67108863"),
            ],
            "cache.size.bytes",
        ),
        (
            &[
                ("s3.bucket", "b"),
                ("cache.path", "/c"),
                ("chunk.size.bytes", "8388608"),
                ("cache.size.bytes", "67108864"),
            ],
            "cache.size.bytes",
        ),
        (&[("s3.bucket", "b"), ("log.level", "loud")], "log.level"),
        (&[("s3.bucket", "b"), ("s3.region", "a\nb")], "s3.region"),
        (
            &[("s3.bucket", "b"), ("s3.secret.access.key", "a\0b")],
            "s3.secret.access.key",
        ),
        (&[("s3.bucket", "b"), ("key.prefix", "a\u{ffff}/")], "key.prefix"),
        (&[("s3.bucket", "b"), ("key.prefix", "/a")], "key.prefix"),
        (&[("s3.bucket", "b"), ("s3.endpoint", "minio:9000")], "s3.endpoint"),
        (
            &[("s3.bucket", "b"), ("s3.endpoint", "http://minio:9000/path")],
            "s3.endpoint",
        ),
        (
            &[("s3.bucket", "b"), ("s3.endpoint", "http://user:word@minio:9000")],
            "s3.endpoint",
        ),
        (
            &[("s3.bucket", "b"), ("s3.path.style.enabled", "yes")],
            "s3.path.style.enabled",
        ),
        (&[("s3.bucket", "b"), ("s3.access.key.id", "a")], "s3.secret.access.key"),
        (&[("s3.bucket", "b"), ("s3.secret.access.key", "a")], "s3.access.key.id"),
        (
            &[("s3.bucket", "b"), ("s3.credentials.provider", "file")],
            "s3.credentials.file",
        ),
        (&[("s3.bucket", "b"), ("copy.timeout.ms", "0")], "copy.timeout.ms"),
        (&[("s3.bucket", "b"), ("storage.s3.bucket.name", "c")], "s3.bucket"),
        (&[("s3.bucket", "b"), ("compression.type", "lz4")], "compression.type"),
        (&[("s3.bucket", "b"), ("s3.sse.type", "aes")], "s3.sse.type"),
        (&[("s3.bucket", "b"), ("s3.sse.kms.key.id", "k")], "s3.sse.kms.key.id"),
        (
            &[("s3.bucket", "b"), ("s3.storage.class", "deep_archive")],
            "s3.storage.class",
        ),
        (&[("s3.bucket", "b"), ("s3.object.tags", "team")], "s3.object.tags"),
        (&[("s3.bucket", "b"), ("s3.object.tags", "a=1,a=2")], "s3.object.tags"),
        (
            &[
                ("s3.bucket", "b"),
                ("s3.object.tags", "a=,b=,c=,d=,e=,f=,g=,h=,i=,j=,k="),
            ],
            "s3.object.tags",
        ),
        (
            &[("s3.bucket", "b"), ("upload.rate.limit.bytes.per.second", "1000")],
            "upload.rate.limit.bytes.per.second",
        ),
        (&[("s3.bucket", "b"), ("compression.level", "10")], "compression.level"),
        (
            &[
                ("s3.bucket", "b"),
                ("compression.type", "zstd"),
                ("compression.level", "9"),
                ("memory.budget.bytes", "67108864"),
            ],
            "memory.budget.bytes",
        ),
    ];
    for (pairs, key) in cases {
        let error = parse(pairs).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        assert!(error.message().contains(key), "{error} does not name {key}");
    }
}

#[test]
fn what_objects_are_written_with_is_understood() {
    let config = s3_config(&[
        ("s3.sse.type", "sse-kms"),
        ("s3.sse.kms.key.id", "alias/kafka"),
        ("s3.storage.class", "STANDARD_IA"),
        ("s3.object.tags", "team = data platform, cost=a=b,"),
    ]);
    assert_eq!(
        config.encryption,
        ServerSideEncryption::Kms {
            key_id: Some("alias/kafka".to_owned())
        }
    );
    assert_eq!(config.storage_class.as_deref(), Some("STANDARD_IA"));
    let tag = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    assert_eq!(config.tags, [tag("team", "data platform"), tag("cost", "a=b")]);
    assert_eq!(
        s3_config(&[("s3.sse.type", "sse-s3")]).encryption,
        ServerSideEncryption::S3
    );
}

#[test]
fn a_rate_limit_gives_copies_the_time_that_it_costs_them() {
    let config = s3(&[("upload.rate.limit.bytes.per.second", "1048576")]).unwrap();
    assert_eq!(config.policies.writes_max, 1);
    assert_eq!(
        config.copy_limit(1 << 30),
        config.copy_timeout + Duration::from_secs(10 * 1024 + 3 * 128)
    );
    let unlimited = s3(&[]).unwrap();
    assert_eq!(unlimited.copy_limit(1 << 30), unlimited.copy_timeout);
}

#[test]
fn a_key_in_the_place_of_its_file_is_not_printed() {
    let body = format!("MIIG{}", "x".repeat(1600));
    let pem = format!("-----BEGIN PRIVATE KEY-----{body}-----END PRIVATE KEY-----");
    for value in [body.as_str(), pem.as_str()] {
        let error = s3(&[("encryption.key.pairs.a.private.key.file", value)]).unwrap_err();
        assert!(!error.to_string().contains("MIIG"), "{error}");
    }
    assert!(
        !s3(&[("encryption.key.pair.id", &pem)])
            .unwrap_err()
            .to_string()
            .contains("MIIG")
    );
}

#[test]
fn key_pairs_are_named_by_their_ids() {
    const A: (&str, &str) = ("encryption.key.pairs.a.private.key.file", "/a.pem");
    const B: (&str, &str) = ("encryption.key.pairs.2026-11.b.private.key.file", "/b.pem");
    let on = [("encryption.enabled", "true"), ("encryption.key.pair.id", "a"), A, B];
    let config = s3(&on).unwrap().encryption;
    assert_eq!(config.active.as_deref(), Some("a"));
    assert_eq!(config.pairs["2026-11.b"].private, PathBuf::from("/b.pem"));
    let read_only = s3(&[A]).unwrap().encryption;
    assert_eq!((read_only.active, read_only.pairs.len()), (None, 1));
    assert!(s3(&[A, B, ("encryption.key.pairs", "2026-11.b, a")]).is_ok());

    let wrong: &[(&[(&str, &str)], &str)] = &[
        (&[("encryption.enabled", "true"), A], "encryption.key.pair.id"),
        (
            &[("encryption.enabled", "true"), ("encryption.key.pair.id", "b"), A],
            "encryption.key.pair.id",
        ),
        (&[A, ("encryption.key.pairs", "a,b")], "encryption.key.pairs"),
        (
            &[A, B, ("encryption.key.pairs", "a")],
            "encryption.key.pairs.2026-11.b.private.key.file",
        ),
        (
            &[("encryption.key.pairs.a.public.key.file", "/a")],
            "encryption.key.pairs.a.public.key.file",
        ),
        (
            &[("encryption.key.pairs.a b.private.key.file", "/a")],
            "encryption.key.pairs.a b.private.key.file",
        ),
        (
            &[("encryption.key.pairs..private.key.file", "/a")],
            "encryption.key.pairs..private.key.file",
        ),
    ];
    for (pairs, key) in wrong {
        let error = s3(pairs).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(error.message().starts_with(key), "{error} does not name {key}");
    }
}

#[test]
fn compression_and_encryption_get_memory_of_their_own() {
    let plain = s3(&[]).unwrap();
    assert_eq!(plain.workshop_memory, 0);
    let zstd = s3(&[("compression.type", "zstd"), ("upload.threads", "2")]).unwrap();
    assert!(zstd.workshop_memory > 0);
    assert_eq!(zstd.upload_memory + zstd.workshop_memory, plain.upload_memory);
    let many = s3(&[("compression.type", "auto"), ("upload.threads", "64")]).unwrap();
    assert!(many.workshop_memory <= plain.upload_memory / 2);
}

#[test]
fn the_least_memory_that_an_error_names_is_enough() {
    for coding in [("compression.type", "none"), ("compression.type", "zstd")] {
        for cache in [None, Some("0"), Some("20971520")] {
            let settings = |memory: &str| {
                let mut settings = vec![coding, ("memory.budget.bytes", memory)];
                settings.extend(cache.map(|cache| ("cache.memory.bytes", cache)));
                s3(&settings)
            };
            let error = settings("16777216").unwrap_err();
            let least = error.message().rsplit(' ').next().unwrap();
            settings(least).unwrap();
        }
    }
}

#[test]
fn names_of_aivens_plugin_are_understood() {
    let config = parse(&[
        ("storage.s3.bucket.name", "b"),
        ("storage.s3.endpoint.url", "http://h:1/"),
        ("chunk.size", "1048576"),
    ])
    .unwrap();
    assert_eq!(config.chunk_size.bytes(), 1 << 20);
    assert!(
        matches!(config.store, StoreConfig::S3(S3Config { bucket, endpoint: Some(endpoint), .. }) if bucket == "b" && endpoint == "http://h:1")
    );
}

#[test]
fn a_cache_on_disk_is_made_where_a_path_is_set() {
    assert_eq!(s3(&[]).unwrap().disk_cache, None);
    for name in ["cache.path", "fetch.chunk.cache.path"] {
        let disk = s3(&[(name, "/var/cache/alluvium")]).unwrap().disk_cache.unwrap();
        assert_eq!((disk.path, disk.size), (PathBuf::from("/var/cache/alluvium"), 10 << 30));
    }
    let least = [("cache.path", "/c"), ("cache.size.bytes", "67108864")];
    assert_eq!(s3(&least).unwrap().disk_cache.unwrap().size, 64 << 20);
}

#[test]
fn path_style_follows_the_endpoint_unless_set() {
    assert!(!s3_config(&[]).path_style);
    assert!(s3_config(&[("s3.endpoint", "https://h")]).path_style);
    assert!(!s3_config(&[("s3.endpoint", "https://h"), ("s3.path.style.enabled", "false")]).path_style);
}

#[test]
fn credentials_are_taken_from_what_is_set_and_nothing_is_guessed() {
    assert_eq!(s3_config(&[]).credentials, CredentialsSource::Local);
    assert!(matches!(
        s3_config(&[("s3.credentials.file", "/f")]).credentials,
        CredentialsSource::KeyFile(_)
    ));
    assert!(matches!(
        s3_config(&[("s3.profile", "p")]).credentials,
        CredentialsSource::Profile { .. }
    ));
    assert_eq!(
        s3_config(&[("s3.credentials.provider", "metadata")]).credentials,
        CredentialsSource::Metadata
    );
    assert!(
        s3(&[
            ("s3.credentials.file", "/f"),
            ("s3.access.key.id", "a"),
            ("s3.secret.access.key", "s")
        ])
        .is_err()
    );
}

#[test]
fn a_secret_cannot_be_printed() {
    let config = s3(&[
        ("s3.access.key.id", "a"),
        ("s3.secret.access.key", "hushhush"),
        ("s3.session.token", "alsohush"),
    ])
    .unwrap();
    assert!(!format!("{config:?}").contains("hush"));
    let error = s3(&[
        ("s3.secret.access.key", "hushhush"),
        ("s3.secret.access.kee", "hushhush"),
    ])
    .unwrap_err();
    assert!(!error.to_string().contains("hush"), "{error}");
}

#[test]
fn the_page_of_settings_is_up_to_date() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/CONFIGURATION.md");
    assert_eq!(
        std::fs::read_to_string(path).unwrap(),
        table::markdown(),
        "run: alluvium config > docs/CONFIGURATION.md"
    );
}
