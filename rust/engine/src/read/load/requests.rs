//! Requests: for a chunk that is missed, and for chunks that are claimed and filled as their bytes arrive.
//!
//! # Flow
//! A chunk that is loaded ahead takes memory when its bytes come. While there is none, the request waits and so does the store, since nobody takes its bytes; of several
//! requests of a run, the first in the order of reading gets on first.
//!
//! # Invariants
//! * What somebody has come to wait for takes memory as whatever is waited for does.
//! * A request that waits for memory gives way to those that wait for its place.
//!
//! # Cancel
//! What is given up is loaded again by whoever needs it.

use std::{collections::VecDeque, future::Future, iter, sync::Arc, time::Duration};

use alluvium_format::ChunkIndex;
use tokio::time::Instant;

use super::{
    DiskTurn, again_if_corrupt,
    chunks::{Memory, chunk_from_disk, open, restore, take_chunk},
    kept_since, limited,
    pieces::Pieces,
};
use crate::{
    Result,
    cache::{Entry, Ticket},
    completion::contained,
    instance::Shared,
    read::{Source, ahead::Run},
};

/// A chunk to be loaded ahead. It takes its memory when its bytes come.
pub(in crate::read) struct Claim {
    pub(in crate::read) index: ChunkIndex,
    pub(in crate::read) ticket: Ticket,
}

/// How a request that reads ahead ended.
enum Ended {
    /// All its chunks are here.
    WithAll,
    /// Before, for want of memory or of readers.
    GivenUp,
}

/// Loads the chunk that a reader misses, and with the same request those that are claimed behind it.
pub(in crate::read) fn start_chunk_load(
    shared: &Arc<Shared>,
    source: &Arc<Source>,
    index: ChunkIndex,
    ticket: Ticket,
    ahead: VecDeque<Claim>,
    run: &Arc<Run>,
) {
    let (instance, source, run) = (Arc::clone(shared), Arc::clone(source), Arc::clone(run));
    shared.spawn(async move {
        // Those behind come with the first request only.
        let mut ahead = Some(ahead);
        let chunk = again_if_corrupt(|| {
            let behind = ahead.take().unwrap_or_default();
            let load = load_missed(&instance, &source, index, behind, &run, &ticket);
            contained(load)
        })
        .await;
        ticket.fill(chunk);
    });
}

/// The chunk that is missed. The body goes on for the chunks behind it in a task of its own.
async fn load_missed(
    shared: &Arc<Shared>,
    source: &Arc<Source>,
    index: ChunkIndex,
    mut behind: VecDeque<Claim>,
    run: &Arc<Run>,
    ticket: &Ticket,
) -> Result<Entry> {
    let limit = shared.config.fetch_timeout;
    let follows = behind.front().is_none_or(|first| first.index.0 == index.0 + 1);
    if !follows {
        // What lies between is on disk.
        start_ahead_load(shared, source, std::mem::take(&mut behind), run);
    }
    let mut memory = match Memory::at_once(shared, source, index) {
        Some(memory) => memory,
        None => {
            // Others may want those behind, and need not wait for this one's memory.
            behind.clear();
            limited(limit, Memory::wait(shared, source, index)).await?
        }
    };
    let key = source.chunk_key(index);
    if behind.is_empty()
        && let Some(disk) = shared.disk().filter(|disk| disk.contains(&key))
        && let Some(turn) = shared.disk_reads.turn(&disk, memory.bytes()).await
    {
        if let Some(chunk) = chunk_from_disk(shared, source, index, memory, turn).await {
            return Ok(chunk);
        }
        memory = limited(limit, Memory::wait(shared, source, index)).await?;
    }
    let last = behind.back().map_or(index, |claim| claim.index);
    let mut pieces = limited(limit, open(shared, source, index..=last)).await?;
    let chunk = take_chunk(shared, source, index, memory, &mut pieces, ticket).await?;
    let chunk = restore(shared, source, index, chunk, kept_since(shared, ticket)).await?;
    if behind.is_empty() {
        // So that the connection can be used again; nobody waits for it for long.
        match tokio::time::timeout(END_AWAITED, pieces.end()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(key = %source.key, %error, "a body did not end behind its bytes"),
            Err(_) => tracing::debug!(key = %source.key, "a body did not end"),
        }
    } else {
        spawn_ahead(shared, source, run, |instance, source, run| async move {
            fill_claims(&instance, &source, behind, &run, pieces).await
        });
    }
    Ok(chunk)
}

/// Loads chunks that follow each other, for nobody in particular.
pub(in crate::read) fn start_ahead_load(
    shared: &Arc<Shared>,
    source: &Arc<Source>,
    claims: VecDeque<Claim>,
    run: &Arc<Run>,
) {
    spawn_ahead(shared, source, run, |instance, source, run| async move {
        load_claims(&instance, &source, claims, &run).await
    });
}

/// Runs what nobody waits for as a request of the run's. Its failure says nothing to anybody: whoever needs the chunks loads them.
fn spawn_ahead<Work>(
    shared: &Arc<Shared>,
    source: &Arc<Source>,
    run: &Arc<Run>,
    work: impl FnOnce(Arc<Shared>, Arc<Source>, Arc<Run>) -> Work,
) where
    Work: Future<Output = Result<Ended>> + Send + 'static,
{
    let running = run.begin_request();
    let key = source.key.clone();
    let work = work(Arc::clone(shared), Arc::clone(source), Arc::clone(run));
    let (instance, run) = (Arc::clone(shared), Arc::clone(run));
    shared.spawn(async move {
        let outcome = contained(work).await;
        drop(running);
        match outcome {
            Ok(Ended::WithAll) => run.go_on(&instance),
            Ok(Ended::GivenUp) => instance.metrics.ahead_abandoned.add(1),
            Err(error) => tracing::debug!(%key, %error, "reading ahead failed"),
        }
    });
}

/// Reads a chunk from disk, for nobody in particular.
pub(in crate::read) fn start_disk_load(
    shared: &Arc<Shared>,
    source: &Arc<Source>,
    Claim { index, ticket }: Claim,
    memory: Memory,
    turn: DiskTurn,
    run: &Arc<Run>,
) {
    let (instance, source, run) = (Arc::clone(shared), Arc::clone(source), Arc::clone(run));
    let running = run.begin_beside();
    shared.spawn(async move {
        // Without one, whoever needs it finds it missing.
        if let Some(chunk) = chunk_from_disk(&instance, &source, index, memory, turn).await {
            ticket.fill(Ok(chunk));
        }
        drop(running);
        run.go_on(&instance);
    });
}

async fn load_claims(
    shared: &Arc<Shared>,
    source: &Arc<Source>,
    claims: VecDeque<Claim>,
    run: &Arc<Run>,
) -> Result<Ended> {
    let (Some(first), Some(last)) = (claims.front(), claims.back()) else {
        return Ok(Ended::WithAll);
    };
    let opening = open(shared, source, first.index..=last.index);
    let pieces = limited(shared.config.fetch_timeout, opening).await?;
    fill_claims(shared, source, claims, run, pieces).await
}

/// Fills one chunk after the other. Stops between two when the readers are gone, or when there is no memory for long; what is left is given up.
async fn fill_claims(
    shared: &Arc<Shared>,
    source: &Arc<Source>,
    mut claims: VecDeque<Claim>,
    run: &Arc<Run>,
    mut pieces: Pieces,
) -> Result<Ended> {
    while let Some(mut claim) = claims.pop_front() {
        let share = shared.ahead.share(shared, source.chunk_size());
        let memory = match Memory::ahead(shared, source, claim.index, &mut claim.ticket, run, share) {
            Some(memory) => Some(memory),
            None => {
                pieces.pause();
                memory_late(shared, source, &mut claim, &claims, run).await?
            }
        };
        let Some(memory) = memory else {
            run.gave_up(source, claim.index);
            return Ok(Ended::GivenUp);
        };
        let Claim { index, ticket } = claim;
        let abandoned = async {
            loop {
                tokio::time::sleep(LOOK_AT_READERS).await;
                if !ticket.is_registered() || (run.is_forgotten() && !ticket.is_wanted()) {
                    return;
                }
            }
        };
        let chunk = tokio::select! {
            biased;
            chunk = take_chunk(shared, source, index, memory, &mut pieces, &ticket) => chunk?,
            () = abandoned => return Ok(Ended::GivenUp),
        };
        if source.manifest.coding().is_plain() {
            let since = kept_since(shared, &ticket);
            ticket.fill(restore(shared, source, index, chunk, since).await);
        } else {
            // The next one arrives while this one is decoded.
            let (instance, source) = (Arc::clone(shared), Arc::clone(source));
            shared.spawn(async move {
                let since = kept_since(&instance, &ticket);
                let restored = contained(restore(&instance, &source, index, chunk, since)).await;
                ticket.fill(restored);
            });
        }
    }
    pieces.end().await?;
    Ok(Ended::WithAll)
}

/// Whether somebody waits for a place among the requests.
fn is_place_wanted(shared: &Shared) -> bool {
    shared.guards.limits.reads().waiting > 0
}

async fn place_wanted(shared: &Shared) {
    loop {
        tokio::time::sleep(LOOK_AGAIN).await;
        if is_place_wanted(shared) {
            return;
        }
    }
}

/// How long the end of a body is waited for behind its bytes.
const END_AWAITED: Duration = Duration::from_millis(100);

/// How often it is looked whether anybody still reads what is loaded ahead.
const LOOK_AT_READERS: Duration = Duration::from_millis(250);

/// How often a request that waits for memory looks again at least.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// A request that finds no memory for so long is given up: its readers are slower than was thought, and the store will not wait for ever.
const MEMORY_AWAITED: Duration = Duration::from_secs(5);

/// Memory for a chunk of a request that is on its way, when there was none at once; meanwhile, the store is made to wait. `None`: the request is to be
/// given up.
async fn memory_late(
    shared: &Arc<Shared>,
    source: &Arc<Source>,
    claim: &mut Claim,
    behind: &VecDeque<Claim>,
    run: &Arc<Run>,
) -> Result<Option<Memory>> {
    shared.metrics.ahead_memory_waits.add(1);
    let turn = run.turns().take(source, claim.index);
    let given_up_at = Instant::now() + MEMORY_AWAITED;
    loop {
        let changed = shared.cache.changed();
        tokio::pin!(changed);
        changed.as_mut().enable();
        if turn.is_first()
            && let share = shared.ahead.share(shared, source.chunk_size())
            && let Some(memory) = Memory::ahead(shared, source, claim.index, &mut claim.ticket, run, share)
        {
            return Ok(Some(memory));
        }
        let tickets = behind.iter().map(|claim| &claim.ticket);
        if Ticket::is_any_wanted(iter::once(&claim.ticket).chain(tickets)) {
            let waiting = limited(shared.config.fetch_timeout, Memory::wait(shared, source, claim.index));
            return tokio::select! {
                biased;
                memory = waiting => memory.map(Some),
                // Whoever waits for a place may hold the memory: readers do without this request.
                () = place_wanted(shared) => Ok(None),
            };
        }
        if Instant::now() >= given_up_at {
            run.slow_down();
            return Ok(None);
        }
        if run.is_forgotten() || !claim.ticket.is_registered() || is_place_wanted(shared) {
            return Ok(None);
        }
        // What readers let go of comes without a change.
        let _ = tokio::time::timeout(LOOK_AGAIN, changed).await;
    }
}
