//! The segment behind a segment.
//!
//! # Flow
//! Keys are in the order of offsets, so one listing from a segment's key on finds what follows. It is remembered: all consumers of a partition
//! come by the same end.

use std::{
    num::NonZeroUsize,
    sync::{Arc, Mutex},
    time::Duration,
};

use alluvium_format::{SegmentKeys, Uuid};
use alluvium_store::Key;
use lru::LruCache;
use tokio::{sync::OnceCell, time::Instant};

use super::{Leg, lock};
use crate::{
    Result,
    instance::Shared,
    read::{
        Source,
        load::{self, Identity},
    },
};

/// Segments looked for behind one: with duplicates, which are normal after a change of leader, the one that follows is among them.
const SIBLINGS_LISTED: u32 = 16;

/// How long it is remembered that nothing follows yet: the next segment comes when Kafka has rolled one.
const NOTHING_REMEMBERED: Duration = Duration::from_secs(10);

/// Successors that are remembered.
const REMEMBERED_MAX: NonZeroUsize = NonZeroUsize::new(4096).expect("it is not zero");

/// How long it is believed that nothing follows a segment, or that it cannot be found out.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

/// What comes behind a run's segment.
#[derive(Debug)]
pub(super) enum Next {
    NotLookedFor,
    LookedFor,
    Found(Leg),
    /// Nothing that is known, at this time.
    None(Instant),
}

impl Next {
    /// Whether it is not known, or was not for long.
    pub(super) fn is_to_be_looked_for(&self) -> bool {
        match self {
            Next::NotLookedFor => true,
            Next::None(looked) => looked.elapsed() >= LOOK_AGAIN,
            Next::LookedFor | Next::Found(_) => false,
        }
    }
}

/// Which segments are known to follow which.
#[derive(Debug)]
pub(super) struct Successors(Mutex<LruCache<Uuid, Arc<Found>>>);

/// What was found, and when.
type Found = OnceCell<(Option<Successor>, Instant)>;

/// What a listing tells of a segment.
#[derive(Clone, Debug)]
struct Successor {
    start_offset: i64,
    segment_id: Uuid,
    key: Key,
    manifest_key: Key,
    manifest_length: u64,
}

impl Successors {
    pub(super) fn new() -> Self {
        Successors(Mutex::new(LruCache::new(REMEMBERED_MAX)))
    }

    /// The segment behind this one, with its manifest in the cache; `None`: there is none yet, or it was deleted.
    ///
    /// # Cancel safety
    /// Dropping it leaves the listing to the next who asks.
    pub(super) async fn of(&self, shared: &Arc<Shared>, source: &Source) -> Result<Option<Source>> {
        let segment = source.manifest.segment();
        let found = {
            let mut remembered = lock(&self.0);
            let is_old = |found: &Found| {
                found
                    .get()
                    .is_some_and(|(successor, when)| successor.is_none() && when.elapsed() > NOTHING_REMEMBERED)
            };
            if remembered.peek(&segment.segment_id).is_some_and(|found| is_old(found)) {
                remembered.pop(&segment.segment_id);
            }
            Arc::clone(remembered.get_or_insert(segment.segment_id, Arc::default))
        };
        let look = || async {
            look_for(shared, source)
                .await
                .map(|successor| (successor, Instant::now()))
        };
        let (Some(successor), _) = found.get_or_try_init(look).await? else {
            return Ok(None);
        };
        let identity = Identity::sibling(segment, (successor.start_offset, successor.segment_id));
        let length = Some(successor.manifest_length);
        match load::manifest(shared, &successor.manifest_key, identity, length).await {
            Ok(manifest) => Ok(Some(Source {
                key: successor.key.clone(),
                manifest: manifest.without_indexes(),
            })),
            Err(error) => {
                // Perhaps it was deleted by another broker.
                lock(&self.0).pop(&segment.segment_id);
                Err(error)
            }
        }
    }

    /// Forgets what leads from or to a segment that is deleted.
    pub(super) fn purge(&self, segment_id: Uuid) {
        let mut remembered = lock(&self.0);
        let leads_there =
            |found: &Found| matches!(found.get(), Some((Some(successor), _)) if successor.segment_id == segment_id);
        let gone: Vec<Uuid> = remembered
            .iter()
            .filter(|(from, found)| **from == segment_id || leads_there(found))
            .map(|(from, _)| *from)
            .collect();
        for from in gone {
            remembered.pop(&from);
        }
    }
}

/// Of those that begin in a segment or just behind it, the one that begins last, since others of them are duplicates.
async fn look_for(shared: &Shared, source: &Source) -> Result<Option<Successor>> {
    let Some((folder, _)) = source.key.as_str().rsplit_once('/') else {
        return Ok(None);
    };
    let folder = format!("{folder}/");
    let page = shared
        .fetch_store
        .list(&folder, Some(source.key.as_str()), 2 * SIBLINGS_LISTED)
        .await?;
    let leg = Leg::of(source);
    let follows = page
        .objects
        .iter()
        .filter_map(|object| Some((SegmentKeys::of_manifest(&folder, &object.key)?, object)))
        .filter(|((offset, _), _)| leg.goes_on_at(*offset))
        .max_by_key(|((offset, _), _)| *offset);
    let Some(((start_offset, segment_id), object)) = follows else {
        return Ok(None);
    };
    let stem = object.key.strip_suffix(".manifest").unwrap_or(&object.key);
    let (Ok(manifest_key), Ok(key)) = (Key::new(object.key.clone()), Key::new(format!("{stem}.log"))) else {
        return Ok(None);
    };
    Ok(Some(Successor {
        start_offset,
        segment_id,
        key,
        manifest_key,
        manifest_length: object.length,
    }))
}
