use std::sync::atomic::{AtomicU32, Ordering};

use alluvium_format::{Crc32, Unverified};
use bytes::Bytes;
use tokio::sync::oneshot;

use super::*;

fn cache(capacity: u64) -> Arc<Cache> {
    Cache::new(capacity, Arc::new(Metrics::new(Arc::default())))
}

fn key(index: u32) -> EntryKey {
    EntryKey::Chunk(Uuid::from_u64_pair(1, 1), ChunkIndex(index))
}

fn chunk(bytes: &'static [u8]) -> Entry {
    Entry::Chunk(
        Unverified::new(Bytes::from_static(bytes))
            .verify(String::new, Crc32::of(bytes))
            .unwrap(),
    )
}

fn spawn(work: std::pin::Pin<Box<dyn Future<Output = ()> + Send>>) {
    tokio::spawn(work);
}

async fn value(lookup: Lookup) -> Result<Bytes> {
    let entry = match lookup {
        Lookup::Hit(entry) => entry,
        Lookup::Loading(load) => load.finished().await?,
    };
    Ok(entry.chunk()?.into_bytes())
}

#[tokio::test]
async fn many_readers_of_one_chunk_cost_one_load() {
    let cache = cache(1 << 20);
    let count = Arc::new(AtomicU32::new(0));
    let (release, held) = oneshot::channel::<()>();
    let mut held = Some(held);
    let mut lookups = Vec::new();
    for _ in 0..8 {
        let count = Arc::clone(&count);
        let held = held.take();
        lookups.push(cache.get_or_load(
            key(0),
            || async move {
                count.fetch_add(1, Ordering::Relaxed);
                held.unwrap().await.unwrap();
                Ok(chunk(b"bytes"))
            },
            spawn,
        ));
    }
    assert_eq!(cache.loads_running(), 1);
    release.send(()).unwrap();
    for lookup in lookups {
        assert_eq!(value(lookup).await.unwrap(), "bytes");
    }
    assert_eq!(count.load(Ordering::Relaxed), 1);
    assert_eq!(
        (cache.metrics.cache_hits.get(), cache.metrics.cache_misses.get()),
        (7, 1)
    );
}

#[tokio::test]
async fn a_failed_load_is_tried_again_by_the_next_reader() {
    let cache = cache(1 << 20);
    let failing = cache.get_or_load(key(0), || async { Err(Error::closed()) }, spawn);
    assert_eq!(value(failing).await.unwrap_err().kind(), ErrorKind::Closed);
    tokio::task::yield_now().await;
    assert_eq!(cache.loads_running(), 0);
    let panicking = cache.get_or_load(key(0), || async { panic!("in a load") }, spawn);
    assert_eq!(value(panicking).await.unwrap_err().kind(), ErrorKind::Internal);
    tokio::task::yield_now().await;
    let good = cache.get_or_load(key(0), || async { Ok(chunk(b"good")) }, spawn);
    assert_eq!(value(good).await.unwrap(), "good");
    assert_eq!(cache.metrics.cache_load_failures.get(), 2);
}

#[tokio::test]
async fn a_load_goes_on_when_its_first_reader_gives_up() {
    let cache = cache(1 << 20);
    let (release, held) = oneshot::channel::<()>();
    drop(cache.get_or_load(
        key(0),
        || async move {
            held.await.unwrap();
            Ok(chunk(b"later"))
        },
        spawn,
    ));
    release.send(()).unwrap();
    let second = cache.get_or_load(key(0), || async { panic!("a second load") }, spawn);
    assert_eq!(value(second).await.unwrap(), "later");
}

#[tokio::test]
async fn a_purge_also_stops_a_load_under_way_from_leaving_its_chunk() {
    let cache = cache(1 << 20);
    let (release, held) = oneshot::channel::<()>();
    let first = cache.get_or_load(
        key(0),
        || async move {
            held.await.unwrap();
            Ok(chunk(b"old"))
        },
        spawn,
    );
    cache.purge(Uuid::from_u64_pair(1, 1), 1);
    release.send(()).unwrap();
    assert_eq!(value(first).await.unwrap(), "old");
    tokio::task::yield_now().await;
    let second = cache.get_or_load(key(0), || async { Ok(chunk(b"new")) }, spawn);
    assert_eq!(value(second).await.unwrap(), "new");
    tokio::task::yield_now().await;
    cache.purge(Uuid::from_u64_pair(1, 1), 1);
    let third = cache.get_or_load(key(0), || async { Ok(chunk(b"newest")) }, spawn);
    assert_eq!(value(third).await.unwrap(), "newest");
}

#[tokio::test]
async fn the_limit_holds_and_the_most_recent_stay() {
    let cache = cache(10 * (1000 + ENTRY_OVERHEAD_BYTES as u64));
    for index in 0..100 {
        let lookup = cache.get_or_load(key(index), || async { Ok(chunk(&[7; 1000])) }, spawn);
        value(lookup).await.unwrap();
        tokio::task::yield_now().await;
        assert!(cache.bytes() <= cache.capacity(), "{} after {index}", cache.bytes());
    }
    assert!(cache.bytes() <= cache.capacity(), "{}", cache.bytes());
    assert!(matches!(
        cache.get_or_load(key(99), || async { Err(Error::closed()) }, spawn),
        Lookup::Hit(_)
    ));
    assert!(matches!(
        cache.get_or_load(key(0), || async { Err(Error::closed()) }, spawn),
        Lookup::Loading(_)
    ));
}

#[tokio::test]
async fn what_is_corrupt_is_not_asked_for_again_at_once() {
    let cache = cache(1 << 20);
    let corrupt = || async { Err(Error::new(ErrorKind::Corrupt, "wrong bytes")) };
    for _ in 0..100 {
        let lookup = cache.get_or_load(key(0), corrupt, spawn);
        assert_eq!(value(lookup).await.unwrap_err().kind(), ErrorKind::Corrupt);
        tokio::task::yield_now().await;
    }
    assert_eq!(cache.metrics.cache_misses.get(), 1);
    cache.purge(Uuid::from_u64_pair(1, 1), 1);
    let mended = cache.get_or_load(key(0), || async { Ok(chunk(b"mended")) }, spawn);
    assert_eq!(value(mended).await.unwrap(), "mended");
}
