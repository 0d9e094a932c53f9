//! `deleteLogSegmentData`.

use std::sync::Arc;

use alluvium_store::ErrorKind as StoreKind;
use tokio_util::sync::CancellationToken;

use super::{ObjectKeys, SegmentRef, bounded};
use crate::{Result, instance::Shared};

/// Deletes both objects of a segment in one request; absent is success. Needs no manifest and no custom metadata.
///
/// A segment without custom metadata never finished its copy: its stale multipart uploads are aborted as well.
pub(crate) async fn delete(shared: &Arc<Shared>, segment: &SegmentRef, cancel: &CancellationToken) -> Result<()> {
    let _running = shared.metrics.delete.running.enter();
    let outcome = bounded(shared.config.delete_timeout, cancel, delete_objects(shared, segment)).await;
    // Purged after the objects are gone, or a reader in between would load them anew.
    shared
        .cache
        .purge(segment.metadata.segment_id, segment.metadata.segment_size);
    shared.metrics.delete.ended(&outcome, shared.metrics.clock);
    outcome.map_err(|error| {
        shared.metrics.failed(&error);
        error.during(format_args!("cannot delete {}", segment.metadata))
    })
}

async fn delete_objects(shared: &Arc<Shared>, segment: &SegmentRef) -> Result<()> {
    let keys = segment.keys(&shared.config.key_prefix)?;
    if segment.custom_metadata.is_none() {
        abort_stale_uploads(shared, &keys).await?;
    }
    // The manifest first: where the store deletes one by one, a segment is gone before its chunks are.
    shared.store.delete(&[keys.manifest, keys.log]).await?;
    Ok(())
}

async fn abort_stale_uploads(shared: &Arc<Shared>, keys: &ObjectKeys) -> Result<()> {
    let uploads = match shared.store.list_uploads(&keys.log).await {
        Ok(uploads) => uploads,
        // The right to list is not among those that the plugin needs. The store's own expiry then frees the parts.
        Err(error) if matches!(error.kind(), StoreKind::AccessDenied | StoreKind::Invalid) => {
            tracing::warn!(%error, "stale multipart uploads cannot be looked for");
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    };
    for upload in uploads {
        shared.store.abort_upload(&keys.log, &upload).await?;
    }
    Ok(())
}
