//! Comes again, later, to where a failed copy may have left something.
//!
//! # Purpose
//! A store can finish a request long after its client gave up on it, and it can be away just when the remains of a copy are to be
//! removed. Kafka comes again only for copies that it did not cancel itself, and not for what appears after its delete.
//!
//! # Flow
//! A copy that failed with an unknown outcome, or whose clean-up failed, is noted here; its two keys are cleaned at growing distances.
//!
//! # Invariants
//! * A segment that is copied again under the same id is let alone.
//! * At most [`PENDING_MAX`] segments are noted; more are counted and left to an audit.
//!
//! # Cancel
//! Closing the instance ends all of it: what is left then is found by Kafka's delete of that segment, or an audit.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use alluvium_format::Uuid;
use tokio_util::sync::CancellationToken;

use super::abort_uploads;
use crate::{instance::Shared, ops::ObjectKeys};

/// Most segments noted at once.
const PENDING_MAX: usize = 1000;

/// The segments noted.
#[derive(Debug, Default)]
pub(crate) struct Janitor {
    pending: Mutex<HashMap<Uuid, CancellationToken>>,
}

impl Janitor {
    /// Notes a segment whose copy failed.
    pub(crate) fn note(shared: &Arc<Shared>, segment_id: Uuid, keys: ObjectKeys) {
        let let_alone = shared.closing.child_token();
        {
            let mut pending = shared.janitor.lock();
            if pending.len() >= PENDING_MAX {
                tracing::warn!(key = %keys.log, "too many failed copies to come back to all; this one is left to an audit");
                return;
            }
            if let Some(earlier) = pending.insert(segment_id, let_alone.clone()) {
                earlier.cancel();
            }
        }
        let instance = Arc::clone(shared);
        shared.spawn(async move {
            let_alone.run_until_cancelled(clean(&instance, &keys)).await;
            let mut pending = instance.janitor.lock();
            if !let_alone.is_cancelled() {
                pending.remove(&segment_id);
            }
        });
    }

    /// Lets a segment alone, for it is copied again.
    pub(crate) fn forget(&self, segment_id: Uuid) {
        if let Some(let_alone) = self.lock().remove(&segment_id) {
            let_alone.cancel();
        }
    }

    /// Segments noted.
    pub(crate) fn pending(&self) -> u64 {
        self.lock().len() as u64
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Uuid, CancellationToken>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn clean(shared: &Shared, keys: &ObjectKeys) {
    for &distance in &shared.config.janitor_distances {
        tokio::time::sleep(distance).await;
        let store = &*shared.cleanup_store;
        let aborted = abort_uploads(store, &keys.log).await;
        let deleted = store.delete(&[keys.manifest.clone(), keys.log.clone()]).await;
        match aborted.and(deleted) {
            Ok(()) => tracing::debug!(key = %keys.log, "came back to the remains of a failed copy"),
            Err(error) => {
                tracing::warn!(key = %keys.log, %error, "the remains of a failed copy still could not be removed")
            }
        }
    }
}
