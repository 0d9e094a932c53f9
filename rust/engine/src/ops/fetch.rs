//! `fetchLogSegment` and `fetchIndex`.

use std::{ops::Range, sync::Arc};

use alluvium_format::IndexType;
use tokio_util::sync::CancellationToken;

use super::{ObjectKeys, SegmentRef, bounded};
use crate::{
    Error, ErrorKind, Reader, Result,
    cache::CachedManifest,
    instance::Shared,
    metrics::OperationMetrics,
    read::{self, Identity, Source},
};

/// Opens a stream over a range of a segment. A segment without a manifest does not exist, which is told here and not by the first read.
pub(crate) async fn fetch(
    shared: &Arc<Shared>,
    segment: &SegmentRef,
    range: Range<u64>,
    cancel: &CancellationToken,
) -> Result<Reader> {
    let outcome = bounded(shared.config.fetch_timeout, cancel, async {
        let (keys, manifest) = manifest(shared, segment).await?;
        open(shared, keys, manifest, &range)
    })
    .await;
    counted(shared, &shared.metrics.fetch, segment, outcome)
}

/// The same without waiting; `None` when the manifest is not in the cache.
pub(crate) fn fetch_cached(shared: &Arc<Shared>, segment: &SegmentRef, range: &Range<u64>) -> Option<Result<Reader>> {
    let (keys, manifest) = cached_manifest(shared, segment)?;
    Some(counted(
        shared,
        &shared.metrics.fetch,
        segment,
        open(shared, keys, manifest, range),
    ))
}

/// Opens a stream over an index of a segment. A transaction index that the segment lacks is [`ErrorKind::NotFound`].
pub(crate) async fn fetch_index(
    shared: &Arc<Shared>,
    segment: &SegmentRef,
    index_type: IndexType,
    cancel: &CancellationToken,
) -> Result<Reader> {
    let outcome = bounded(shared.config.fetch_timeout, cancel, manifest(shared, segment)).await;
    index_of(shared, segment, index_type, outcome.map(|(_, manifest)| manifest))
}

/// The same without waiting; `None` when the manifest is not in the cache.
pub(crate) fn fetch_index_cached(
    shared: &Arc<Shared>,
    segment: &SegmentRef,
    index_type: IndexType,
) -> Option<Result<Reader>> {
    let (_, manifest) = cached_manifest(shared, segment)?;
    Some(index_of(shared, segment, index_type, Ok(manifest)))
}

fn open(shared: &Arc<Shared>, keys: ObjectKeys, manifest: Arc<CachedManifest>, range: &Range<u64>) -> Result<Reader> {
    let size = manifest.chunks().plain_length();
    if range.start > size || range.end < range.start {
        return Err(Error::new(
            ErrorKind::Invalid,
            format!(
                "positions {} to {} are not in the segment of {size} bytes",
                range.start, range.end
            ),
        ));
    }
    let source = Source {
        key: keys.log,
        manifest: manifest.without_indexes(),
    };
    let range = range.start..range.end.min(size);
    Ok(Reader::over_segment(Arc::clone(shared), Arc::new(source), range))
}

fn index_of(
    shared: &Arc<Shared>,
    segment: &SegmentRef,
    index_type: IndexType,
    manifest: Result<Arc<CachedManifest>>,
) -> Result<Reader> {
    let outcome = manifest.and_then(|manifest| {
        Reader::over_index(Arc::clone(shared), manifest, index_type).ok_or_else(|| {
            Error::new(
                ErrorKind::NotFound,
                format!("the segment has no {} index", index_type.name()),
            )
        })
    });
    match outcome {
        // Normal: Kafka asks every segment for it.
        Err(error) if error.kind() == ErrorKind::NotFound && index_type == IndexType::Transaction => {
            Err(error.during(format_args!("{}", segment.metadata)))
        }
        outcome => counted(shared, &shared.metrics.index, segment, outcome),
    }
}

fn counted(
    shared: &Arc<Shared>,
    operation: &OperationMetrics,
    segment: &SegmentRef,
    outcome: Result<Reader>,
) -> Result<Reader> {
    operation.ended(&outcome, shared.metrics.clock);
    outcome.map_err(|error| {
        shared.metrics.failed(&error);
        error.during(format_args!("cannot fetch {}", segment.metadata))
    })
}

async fn manifest(shared: &Arc<Shared>, segment: &SegmentRef) -> Result<(ObjectKeys, Arc<CachedManifest>)> {
    let keys = segment.keys(&shared.config.key_prefix)?;
    let manifest = read::manifest(
        shared,
        &keys.manifest,
        Identity::of(&segment.metadata),
        segment.manifest_length(),
    )
    .await?;
    segment.check(&manifest)?;
    Ok((keys, manifest))
}

fn cached_manifest(shared: &Arc<Shared>, segment: &SegmentRef) -> Option<(ObjectKeys, Arc<CachedManifest>)> {
    if shared.closing.is_cancelled() {
        return None;
    }
    let manifest = shared.cache.manifest(segment.metadata.segment_id)?;
    shared.metrics.cache_hits.add(1);
    // Told by the slow way.
    segment.check(&manifest).ok()?;
    let keys = segment.keys(&shared.config.key_prefix).ok()?;
    Some((keys, manifest))
}
