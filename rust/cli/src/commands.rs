//! The commands.

use std::{collections::BTreeMap, error::Error, io::Write, sync::Arc};

use alluvium_engine::{
    Engine, ErrorKind,
    config::{Config, StartupProbe},
};
use alluvium_format::{ChunkIndex, Codec, IndexType, MANIFEST_BYTES_MAX, Manifest, on_heap};
use alluvium_store::{Key, ObjectInfo, ObjectStore};

pub(crate) type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Keys asked for in one listing request: S3's limit.
const PAGE: u32 = 1000;

const MANIFEST_SUFFIX: &str = ".manifest";
const LOG_SUFFIX: &str = ".log";

type Settings = Vec<(String, String)>;

pub(crate) fn print(text: &str) -> Result<bool> {
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(true)
}

pub(crate) fn probe(settings: Settings) -> Result<bool> {
    match Engine::open(settings) {
        Ok(engine) => {
            engine.close();
            println!("ok: the store can be used with these settings");
            Ok(true)
        }
        Err(error) => {
            println!("FAIL: {error}");
            Ok(false)
        }
    }
}

pub(crate) fn list(settings: Settings, prefix: &str) -> Result<bool> {
    let (engine, key_prefix) = open(settings)?;
    let objects = engine.block_on(objects(&*engine.store(), &absolute(&key_prefix, prefix)))?;
    let logs: BTreeMap<&str, u64> = objects
        .iter()
        .filter_map(|object| Some((object.key.strip_suffix(LOG_SUFFIX)?, object.length)))
        .collect();
    let (mut segments, mut bytes) = (0, 0);
    for object in &objects {
        let Some(stem) = object.key.strip_suffix(MANIFEST_SUFFIX) else {
            continue;
        };
        match logs.get(stem) {
            Some(log) => println!("{log}\t{}", object.key),
            None => println!("no .log\t{}", object.key),
        }
        segments += 1;
        bytes += object.length + logs.get(stem).copied().unwrap_or_default();
    }
    println!("{segments} segments, {bytes} bytes");
    Ok(true)
}

pub(crate) fn show(settings: Settings, key: &str) -> Result<bool> {
    let (engine, key_prefix) = open(settings)?;
    let key = absolute(&key_prefix, key);
    let key = Key::new(
        key.strip_suffix(LOG_SUFFIX)
            .map_or(key.clone(), |stem| format!("{stem}{MANIFEST_SUFFIX}")),
    )?;
    let manifest = engine.block_on(read_manifest(&engine, &key))?;
    let (segment, chunks) = (manifest.segment(), manifest.chunks());
    println!("topic            {} ({})", segment.topic, segment.topic_id);
    println!("partition        {}", segment.partition);
    println!("segment id       {}", segment.segment_id);
    println!("offsets          {} to {}", segment.start_offset, segment.end_offset);
    println!("max timestamp    {} ms", segment.max_timestamp_ms);
    println!(
        "copied by        broker {}, {}, at {} ms",
        segment.broker_id,
        manifest.writer(),
        segment.event_timestamp_ms
    );
    println!(
        "segment          {} bytes, CRC-32 {:08x}",
        chunks.plain_length(),
        chunks.plain_crc32().value()
    );
    println!(
        "object           {} bytes, CRC-32 {:08x}",
        chunks.stored_length(),
        chunks.object_crc32().value()
    );
    println!(
        "chunks           {} of {} bytes",
        chunks.chunks().len(),
        chunks.chunk_size().bytes()
    );
    let coding = manifest.coding();
    println!(
        "stored           {}, {}",
        match coding.codec {
            Codec::None => "not compressed",
            Codec::Zstd => "zstd",
        },
        match &coding.encryption {
            None => "not encrypted".to_owned(),
            Some(encryption) => format!("encrypted under the key pair {}", encryption.wrapped.key_id),
        }
    );
    for epoch in &segment.leader_epochs {
        println!("leader epoch     {} from offset {}", epoch.epoch, epoch.start_offset);
    }
    for index_type in IndexType::ALL {
        match manifest.index(index_type) {
            Some(index) => println!("{:<16} {} bytes", index_type.name(), index.bytes().len()),
            None => println!("{:<16} none", index_type.name()),
        }
    }
    Ok(true)
}

pub(crate) fn verify(settings: Settings, beginnings: Vec<String>) -> Result<bool> {
    let (engine, key_prefix) = open(settings)?;
    let store = engine.store();
    let mut keys = Vec::new();
    for beginning in if beginnings.is_empty() {
        vec![String::new()]
    } else {
        beginnings
    } {
        let beginning = absolute(&key_prefix, &beginning);
        let found = engine.block_on(manifest_keys(
            &*store,
            beginning.strip_suffix(LOG_SUFFIX).unwrap_or(&beginning),
        ))?;
        if found.is_empty() {
            return Err(format!("no segment's key begins with {beginning}").into());
        }
        keys.extend(found);
    }
    let mut counts = BTreeMap::<Verdict, u64>::new();
    for key in &keys {
        let (verdict, detail) = match engine.block_on(verify_segment(&engine, key)) {
            Ok(bytes) => (Verdict::Ok, bytes.to_string()),
            Err(error) => (Verdict::of(error.kind()), error.to_string()),
        };
        println!("{verdict:?}\t{key}\t{detail}");
        *counts.entry(verdict).or_default() += 1;
    }
    let counted: Vec<String> = counts
        .iter()
        .map(|(verdict, count)| format!("{count} {verdict:?}"))
        .collect();
    println!("{} segments: {}", keys.len(), counted.join(", "));
    if counts.contains_key(&Verdict::Bad) {
        return Ok(false);
    }
    match counts.get(&Verdict::Unchecked) {
        Some(count) => Err(format!("{count} segments could not be checked").into()),
        None => Ok(true),
    }
}

/// What became of verifying a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Verdict {
    /// Every byte is right.
    Ok,
    /// It was deleted meanwhile.
    Gone,
    /// It is not what was stored.
    Bad,
    /// Nobody knows: the store did not answer, or the key pair is not configured.
    Unchecked,
}

impl Verdict {
    fn of(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::Corrupt => Verdict::Bad,
            ErrorKind::NotFound => Verdict::Gone,
            _ => Verdict::Unchecked,
        }
    }
}

/// An engine that has not tried the store: the command itself will, and read-only rights must do.
fn open(settings: Settings) -> Result<(Arc<Engine>, String)> {
    let config = Config {
        startup_probe: StartupProbe::Off,
        ..Config::parse(settings)?
    };
    let prefix = config.key_prefix.as_str().to_owned();
    Ok((Engine::with_config(config)?, prefix))
}

/// A key or the beginning of one, as people type it.
fn absolute(key_prefix: &str, typed: &str) -> String {
    if typed.starts_with(key_prefix) {
        typed.to_owned()
    } else {
        format!("{key_prefix}{typed}")
    }
}

/// Every object whose key begins so.
async fn objects(store: &dyn ObjectStore, prefix: &str) -> Result<Vec<ObjectInfo>> {
    let mut objects: Vec<ObjectInfo> = Vec::new();
    loop {
        let last = objects.last().map(|object| object.key.clone());
        let page = store.list(prefix, last.as_deref(), PAGE).await?;
        objects.extend(page.objects);
        if !page.has_more {
            return Ok(objects);
        }
    }
}

async fn manifest_keys(store: &dyn ObjectStore, prefix: &str) -> Result<Vec<Key>> {
    let mut keys = Vec::new();
    for object in objects(store, prefix).await? {
        if object.key.ends_with(MANIFEST_SUFFIX) {
            keys.push(Key::new(object.key)?);
        }
    }
    Ok(keys)
}

async fn read_manifest(engine: &Engine, key: &Key) -> alluvium_engine::Result<Manifest> {
    let object = engine.store().get(key, None).await?;
    if object.object_length > MANIFEST_BYTES_MAX {
        return Err(corrupt(format!(
            "{key} has {} bytes and is no manifest",
            object.object_length
        )));
    }
    Ok(Manifest::decode(object.collect().await?, engine.keys(), on_heap)?)
}

/// Reads every chunk and checks it; the bytes of the `.log` object.
async fn verify_segment(engine: &Engine, key: &Key) -> alluvium_engine::Result<u64> {
    let manifest = read_manifest(engine, key).await?;
    match verify_log(engine, key, &manifest).await {
        // Deleted since the manifest was read, or lost.
        Err(error) if error.kind() == ErrorKind::NotFound => {
            engine.store().head(key).await?;
            Err(corrupt(format!("it has a manifest and no .log: {error}")))
        }
        outcome => outcome,
    }
}

async fn verify_log(engine: &Engine, key: &Key, manifest: &Manifest) -> alluvium_engine::Result<u64> {
    let store = engine.store();
    let stem = key.as_str().strip_suffix(MANIFEST_SUFFIX).unwrap_or(key.as_str());
    let log = Key::new(format!("{stem}{LOG_SUFFIX}")).map_err(|error| corrupt(error.to_string()))?;
    let chunks = manifest.chunks();
    let found = store.head(&log).await?.length;
    if found != chunks.stored_length() {
        return Err(corrupt(format!(
            "{log} has {found} bytes instead of {}",
            chunks.stored_length()
        )));
    }
    for index in (0..).map(ChunkIndex) {
        let Some(range) = chunks.stored_range(index) else {
            break;
        };
        let object = store.get(&log, Some(range.start.0..range.end.0)).await?;
        manifest.restore_chunk(index, Vec::from(object.collect().await?), on_heap)?;
    }
    Ok(found)
}

fn corrupt(reason: String) -> alluvium_engine::Error {
    alluvium_engine::Error::new(ErrorKind::Corrupt, reason)
}
