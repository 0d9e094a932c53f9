//! `deleteLogSegmentData`.

use std::sync::Arc;

use alluvium_store::Operation;
use tokio_util::sync::CancellationToken;

use super::{SegmentRef, bounded};
use crate::{Error, Result, instance::Shared, write::abort_uploads};

/// Deletes both objects of a segment in one request; absent is success. Needs no manifest and no custom metadata.
///
/// A segment without custom metadata never finished its copy: its stale multipart uploads are aborted as well.
pub(crate) async fn delete(shared: &Arc<Shared>, segment: &SegmentRef, cancel: &CancellationToken) -> Result<()> {
    let _running = shared.metrics.delete.running.enter();
    let outcome = bounded(shared.config.delete_timeout, cancel, delete_objects(shared, segment)).await;
    // Purged after the objects are gone, or a reader in between would load them anew.
    shared.purge(&segment.metadata);
    shared.metrics.delete.ended(&outcome, shared.metrics.clock);
    outcome.map_err(|error| {
        shared.metrics.failed(&error);
        error.during(format_args!("cannot delete {}", segment.metadata))
    })
}

async fn delete_objects(shared: &Arc<Shared>, segment: &SegmentRef) -> Result<()> {
    let keys = segment.keys(&shared.config.key_prefix)?;
    // Kafka calls this right after a copy was refused, on the same thread, and comes again in half a minute.
    shared.guards.breaker.refuse_while_away(Operation::Delete)?;
    // The manifest first: where the store deletes one by one, a segment is gone before its chunks are.
    let deleted = shared
        .delete_store
        .delete(&[keys.manifest.clone(), keys.log.clone()])
        .await;
    let aborted = match segment.custom_metadata {
        Some(_) => Ok(()),
        None => abort_uploads(&*shared.delete_store, &keys.log).await,
    };
    // Whatever failed, the rest was tried: after a topic's deletion nobody comes again.
    deleted.and(aborted).map_err(Error::from)
}
