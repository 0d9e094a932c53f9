use alluvium_format::{ChunkIndex, Crc32, Unverified};
use bytes::Bytes;
use futures::FutureExt;

use super::*;
use crate::ErrorKind;

const PAGE: u64 = 4096;

/// A cache of so many entries of a page, in a memory of so many pages.
fn cache(entries: u64, memory: u64) -> Arc<Cache> {
    Cache::new(entries * PAGE, memory * PAGE, Arc::new(Metrics::new(Arc::default())))
}

fn segment() -> Uuid {
    Uuid::from_u64_pair(1, 1)
}

fn key(index: u32) -> EntryKey {
    EntryKey::Chunk(segment(), ChunkIndex(index))
}

/// A page filled with `byte`, out of the cache's memory.
async fn page(cache: &Cache, byte: u8) -> Entry {
    let reservation = cache.reserve(PAGE).await.unwrap();
    in_page(cache, reservation, byte)
}

fn in_page(cache: &Cache, reservation: Reservation, byte: u8) -> Entry {
    let mut buffer = cache.buffer(4096, reservation).unwrap().into_room();
    buffer.as_mut().fill(byte);
    let bytes = buffer.share();
    let crc32 = Crc32::of(&bytes);
    Entry::Chunk(Unverified::new(bytes).verify(String::new, crc32).unwrap(), PAGE)
}

/// Loads an entry as a reader does who starts at its begin.
async fn read(cache: &Arc<Cache>, index: u32) -> Bytes {
    let entry = match cache.look_up(key(index), 0) {
        Lookup::Hit(entry) => entry,
        Lookup::Loading(load) => load.completion.finished().await.unwrap(),
        Lookup::Missing(ticket, load) => {
            ticket.fill(Ok(page(cache, 1).await));
            load.completion.finished().await.unwrap()
        }
    };
    entry.chunk().unwrap().into_bytes()
}

fn missing(lookup: Lookup) -> (Ticket, Load) {
    match lookup {
        Lookup::Missing(ticket, load) => (ticket, load),
        other => panic!("{other:?}"),
    }
}

fn joined(lookup: Lookup) -> Load {
    match lookup {
        Lookup::Loading(load) => load,
        other => panic!("{other:?}"),
    }
}

async fn outcome(load: &Load) -> Result<Bytes> {
    Ok(load.completion.finished().await?.chunk()?.into_bytes())
}

#[tokio::test]
async fn many_readers_of_one_chunk_cost_one_load() {
    let cache = cache(8, 8);
    let (ticket, first) = missing(cache.look_up(key(0), 0));
    let others: Vec<Load> = (0..7).map(|_| joined(cache.look_up(key(0), 0))).collect();
    assert_eq!(cache.loads_running(), 1);
    ticket.fill(Ok(page(&cache, 7).await));
    for load in others.iter().chain([&first]) {
        assert_eq!(outcome(load).await.unwrap()[0], 7);
    }
    assert_eq!(
        (cache.metrics.cache_hits.get(), cache.metrics.cache_misses.get()),
        (7, 1)
    );
    assert!(matches!(cache.look_up(key(0), 0), Lookup::Hit(_)));
}

#[tokio::test]
async fn a_failed_load_is_tried_again_by_the_next_reader() {
    let cache = cache(8, 8);
    let (ticket, load) = missing(cache.look_up(key(0), 0));
    ticket.fill(Err(Error::new(ErrorKind::Unavailable, "no")));
    assert_eq!(outcome(&load).await.unwrap_err().kind(), ErrorKind::Unavailable);
    // One that is given up, as by a panic or a runtime that ends.
    let (ticket, load) = missing(cache.look_up(key(0), 0));
    drop(ticket);
    assert_eq!(outcome(&load).await.unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(cache.loads_running(), 0);
    assert_eq!(read(&cache, 0).await.len(), 4096);
    assert_eq!(cache.metrics.cache_load_failures.get(), 2);
}

#[tokio::test]
async fn a_purge_also_stops_a_load_under_way_from_leaving_its_chunk() {
    let cache = cache(8, 8);
    let (old, old_load) = missing(cache.look_up(key(0), 0));
    cache.purge(segment());
    assert!(!old.is_registered());
    let (new, new_load) = missing(cache.look_up(key(0), 0));
    old.fill(Ok(page(&cache, 1).await));
    assert_eq!(outcome(&old_load).await.unwrap()[0], 1);
    assert_eq!((cache.entries(), cache.loads_running()), (0, 1));
    new.fill(Ok(page(&cache, 2).await));
    assert_eq!(outcome(&new_load).await.unwrap()[0], 2);
    assert_eq!(read(&cache, 0).await[0], 2);
    cache.purge(segment());
    drop((old_load, new_load));
    assert_eq!((cache.entries(), cache.load_bytes()), (0, 0));
}

#[tokio::test]
async fn the_limit_holds_and_the_most_recent_stay() {
    let cache = cache(10, 12);
    for index in 0..100 {
        read(&cache, index).await;
        assert!(cache.bytes() <= cache.capacity(), "{} after {index}", cache.bytes());
    }
    assert_eq!((cache.entries(), cache.load_bytes()), (10, 0));
    assert!(matches!(cache.look_up(key(99), 0), Lookup::Hit(_)));
    assert!(matches!(cache.look_up(key(0), 0), Lookup::Missing(..)));
}

/// Each chunk is asked for four times at growing places, as Kafka does with streams of a mebibyte.
#[tokio::test(start_paused = true)]
async fn a_segment_read_from_end_to_end_does_not_push_out_what_is_used_again() {
    let cache = cache(10, 12);
    let later = || tokio::time::advance(Duration::from_secs(2));
    for index in 0..4 {
        read(&cache, index).await;
    }
    later().await;
    for index in 0..4 {
        read(&cache, index).await;
    }
    for index in 100..200 {
        read(&cache, index).await;
        // The second at a batch before the last place.
        for place in [2, 1, 3, 4] {
            assert!(matches!(cache.look_up(key(index), place), Lookup::Hit(_)));
        }
    }
    for index in 0..4 {
        assert!(matches!(cache.look_up(key(index), 0), Lookup::Hit(_)), "{index}");
    }
    // What is used again takes half at most, so a reader who goes on always has the rest.
    for index in 0..20 {
        read(&cache, index).await;
        later().await;
        read(&cache, index).await;
    }
    assert!(cache.lock().order.kept_bytes() <= cache.capacity() / 2);
}

#[tokio::test(start_paused = true)]
async fn what_all_have_passed_goes_before_what_one_is_still_to_read() {
    let cache = cache(4, 4);
    for index in 0..4 {
        read(&cache, index).await;
    }
    // Somebody follows, late: he is not the one for whom they are kept.
    tokio::time::advance(Duration::from_secs(5)).await;
    let follows = Use {
        place: 0,
        follows: true,
    };
    for index in [0, 1] {
        assert!(matches!(cache.look_up(key(index), follows), Lookup::Hit(_)));
    }
    cache.passed(&key(0));
    assert_eq!(cache.lock().order.kept_bytes(), 0);
    read(&cache, 9).await;
    assert!(matches!(cache.look_up(key(0), 0), Lookup::Missing(..)));
    assert!((1..4).all(|index| cache.has(&key(index))));
}

#[tokio::test]
async fn what_is_loaded_ahead_waits_for_its_reader_and_takes_nothing_from_others() {
    let cache = cache(5, 5);
    let stock = Stock::new();
    let ahead = |index| {
        let mut ticket = cache.claim_ahead(key(index))?;
        let (reservation, stocked) = cache.try_reserve_ahead(PAGE, &stock, (u64::MAX, cache.ahead_max()))?;
        ticket.stock(stocked);
        ticket.fill(Ok(in_page(&cache, reservation, 9)));
        Some(())
    };
    assert!(ahead(0).is_some() && ahead(1).is_some());
    assert!(cache.claim_ahead(key(0)).is_none(), "it is here");
    // What is used once goes first, although it came later.
    read(&cache, 50).await;
    read(&cache, 51).await;
    assert!(ahead(2).is_some() && ahead(3).is_some());
    assert!(matches!(cache.look_up(key(50), 0), Lookup::Missing(..)));
    assert!(ahead(4).is_none(), "a part is for what readers wait for");
    assert_eq!(cache.loads_running(), 0);
    // For somebody who waits it does go, the furthest ahead first.
    let held = cache.reserve(2 * PAGE).await.unwrap();
    drop(held);
    assert!(matches!(cache.look_up(key(3), 0), Lookup::Missing(..)));
    assert!(matches!(cache.look_up(key(0), 0), Lookup::Hit(_)));
    assert_eq!(cache.metrics.cache_unused_evictions.get(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_was_loaded_ahead_and_forgotten_goes_first() {
    let cache = cache(2, 2);
    let mut ticket = cache.claim_ahead(key(0)).unwrap();
    let (reservation, stocked) = cache.try_reserve_ahead(PAGE, &Stock::new(), (PAGE, PAGE)).unwrap();
    ticket.stock(stocked);
    ticket.fill(Ok(in_page(&cache, reservation, 9)));
    read(&cache, 1).await;
    tokio::time::advance(Duration::from_secs(11)).await;
    read(&cache, 2).await;
    assert!(matches!(cache.look_up(key(1), 0), Lookup::Hit(_)));
    assert!(matches!(cache.look_up(key(0), 0), Lookup::Missing(..)));
}

#[tokio::test(start_paused = true)]
async fn what_was_loaded_ahead_stays_as_long_as_its_reader_is_on_his_way() {
    let cache = cache(4, 4);
    let (on_his_way, gone) = (Stock::new(), Stock::new());
    for (index, stock) in [(0, &on_his_way), (1, &gone)] {
        let mut ticket = cache.claim_ahead(key(index)).unwrap();
        let (reservation, stocked) = cache.try_reserve_ahead(PAGE, stock, (PAGE, 4 * PAGE)).unwrap();
        ticket.stock(stocked);
        ticket.fill(Ok(in_page(&cache, reservation, 9)));
    }
    for _ in 0..6 {
        tokio::time::advance(Duration::from_secs(5)).await;
        on_his_way.touch();
        // His share is full.
        let more = cache.try_reserve_ahead(PAGE, &on_his_way, (PAGE, 4 * PAGE));
        assert!(more.is_none());
    }
    assert_eq!((cache.has(&key(0)), cache.has(&key(1))), (true, false));
}

#[tokio::test]
async fn who_waits_to_load_ahead_looks_again_when_there_may_be_memory_and_not_before() {
    let cache = cache(8, 8);
    let stock = Stock::new();
    let held = cache.reserve(6 * PAGE).await.unwrap();
    let mut ticket = cache.claim_ahead(key(0)).unwrap();
    let (reservation, stocked) = cache.try_reserve_ahead(PAGE, &stock, (2 * PAGE, 8 * PAGE)).unwrap();
    ticket.stock(stocked);
    let changed = cache.changed();
    tokio::pin!(changed);
    changed.as_mut().enable();
    // Two who looked and found nothing would else wake each other for ever.
    assert!(
        cache
            .try_reserve_ahead(2 * PAGE, &stock, (8 * PAGE, 8 * PAGE))
            .is_none(),
        "no memory"
    );
    assert!(
        cache
            .try_reserve_ahead(2 * PAGE, &stock, (2 * PAGE, 8 * PAGE))
            .is_none(),
        "no share"
    );
    assert_eq!(cache.ahead_bytes(), PAGE);
    assert!(changed.as_mut().now_or_never().is_none());
    // Used, and so its share is free again.
    ticket.fill(Ok(in_page(&cache, reservation, 9)));
    assert!(changed.as_mut().now_or_never().is_none());
    assert!(matches!(cache.look_up(key(0), 0), Lookup::Hit(_)));
    assert!(changed.now_or_never().is_some());
    assert_eq!(cache.ahead_bytes(), 0);
    // Somebody else's use leaves something to evict.
    let changed = cache.changed();
    read(&cache, 5).await;
    assert!(changed.now_or_never().is_some());
    drop(held);
}

#[tokio::test]
async fn a_reader_who_joins_a_load_ahead_makes_it_wanted() {
    let cache = cache(4, 4);
    let ticket = cache.claim_ahead(key(0)).unwrap();
    assert!(!ticket.is_wanted());
    let load = joined(cache.look_up(key(0), 5));
    assert!(load.is_ahead && ticket.is_wanted());
    // Its failure is not remembered, nor counted as one that a reader saw.
    ticket.fill(Err(Error::new(ErrorKind::Corrupt, "wrong bytes")));
    assert!(outcome(&load).await.is_err());
    assert_eq!(cache.metrics.cache_load_failures.get(), 0);
    assert!(matches!(cache.look_up(key(0), 5), Lookup::Missing(..)));
}

#[derive(Debug)]
struct Keeper(Mutex<Option<Bytes>>);

impl Holder for Keeper {
    fn let_go(&self) {
        lock(&self.0).take();
    }
}

#[tokio::test(start_paused = true)]
async fn memory_that_readers_hold_counts_and_comes_back_when_it_is_short() {
    let cache = cache(2, 2);
    let keepers: Vec<_> = [read(&cache, 0).await, read(&cache, 1).await]
        .map(|bytes| Arc::new(Keeper(Mutex::new(Some(bytes)))))
        .into();
    let holders: Vec<Arc<dyn Holder>> = keepers.iter().map(|keeper| Arc::clone(keeper) as _).collect();
    holders.iter().for_each(|holder| cache.watch(Arc::downgrade(holder)));
    cache.purge(segment());
    assert_eq!((cache.bytes(), cache.load_bytes()), (0, 2 * PAGE));
    assert!(cache.try_reserve_ahead(PAGE, &Stock::new(), (PAGE, PAGE)).is_none());
    let reservation = cache.reserve(2 * PAGE).await.unwrap();
    assert!(keepers.iter().all(|keeper| lock(&keeper.0).is_none()));
    assert!(cache.try_reserve_ahead(PAGE, &Stock::new(), (PAGE, PAGE)).is_none());
    drop(reservation);
    assert_eq!(cache.load_bytes(), 0);
}

#[tokio::test(start_paused = true)]
async fn what_is_corrupt_is_not_asked_for_again_at_once() {
    let cache = cache(8, 8);
    let (ticket, _) = missing(cache.look_up(key(0), 0));
    ticket.fill(Err(Error::new(ErrorKind::Corrupt, "wrong bytes")));
    for _ in 0..100 {
        let load = joined(cache.look_up(key(0), 0));
        assert_eq!(outcome(&load).await.unwrap_err().kind(), ErrorKind::Corrupt);
    }
    assert!(cache.claim_ahead(key(0)).is_none());
    assert_eq!(cache.metrics.cache_misses.get(), 1);
    tokio::time::advance(CORRUPT_REMEMBERED).await;
    let (ticket, _) = missing(cache.look_up(key(0), 0));
    ticket.fill(Err(Error::new(ErrorKind::Corrupt, "wrong bytes")));
    cache.purge(segment());
    assert_eq!(read(&cache, 0).await.len(), 4096);
}
