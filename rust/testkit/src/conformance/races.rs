//! Several callers at once.

use std::{future::Future, sync::Arc, time::Duration};

use alluvium_store::{ErrorKind, GetObject, Payload, StoreResult};
use bytes::{Bytes, BytesMut};
use futures::{StreamExt, future::join_all};

use super::{Failure, Outcome, Place, check, noise};

pub(super) async fn concurrent_puts_leave_one_whole(place: &Place) -> Outcome {
    let key = place.key("dir/object")?;
    let values: Vec<Bytes> = (0..8u8)
        .map(|seed| noise(200_000 + usize::from(seed), seed.into()))
        .collect();
    let puts = values.iter().map(|value| {
        let store = Arc::clone(&place.store);
        let (key, payload) = (key.clone(), Payload::new(value.clone()));
        tokio::spawn(async move { store.put(&key, payload).await })
    });
    for outcome in join_all(puts).await {
        outcome.map_err(|error| format!("a put panicked: {error}"))??;
    }
    let read = place.store.get(&key, None).await?.collect().await?;
    check!(values.contains(&read), "the object is none of those written");
    Ok(())
}

/// Repeats what a server on a file system refuses when two requests meet in one directory: versitygw answers 500, MinIO 403 to
/// a put whose directory a delete is removing. What counts is that nothing is lost or mixed.
async fn persist<F: Future<Output = StoreResult<()>>>(request: impl Fn() -> F) -> StoreResult<()> {
    let mut last = request().await;
    for _ in 0..50 {
        match &last {
            Err(error) if error.is_retryable() || error.kind() == ErrorKind::AccessDenied => last = request().await,
            _ => break,
        }
    }
    last
}

/// A put makes the directory that a delete is about to remove.
pub(super) async fn puts_and_deletes_in_one_directory(place: &Place) -> Outcome {
    let workers = (0..6u64).map(|worker| {
        let store = Arc::clone(&place.store);
        let key = place.key(&format!("topic/partition/object-{worker}"));
        tokio::spawn(async move {
            let key = key?;
            let bytes = noise(300, worker);
            for _ in 0..25 {
                persist(|| store.put(&key, Payload::new(bytes.clone()))).await?;
                let read = store.get(&key, None).await?.collect().await?;
                check!(read == bytes, "{key} has other bytes than were written");
                persist(|| store.delete(std::slice::from_ref(&key))).await?;
            }
            Ok::<(), Failure>(())
        })
    });
    for outcome in join_all(workers).await {
        outcome.map_err(|error| format!("a worker panicked: {error}"))??;
    }
    let left = place.store.list(&place.prefix, None, 1000).await?;
    check!(left.objects.is_empty(), "left: {:?}", left.objects);
    Ok(())
}

pub(super) async fn reader_of_a_deleted_object(place: &Place) -> Outcome {
    reader_while(place, false).await
}

pub(super) async fn reader_of_a_replaced_object(place: &Place) -> Outcome {
    reader_while(place, true).await
}

/// Reads a first piece, changes the object, reads on: the old bytes, all of them, or an error.
async fn reader_while(place: &Place, replace: bool) -> Outcome {
    let old = noise(24 << 20, 1);
    let key = place.put("object", &old).await?;
    let mut answer = place.store.get(&key, None).await?;
    let mut read = BytesMut::new();
    if let Some(piece) = answer.body.next().await {
        read.extend_from_slice(&piece?);
    }
    let change = {
        let (store, key) = (Arc::clone(&place.store), key.clone());
        async move {
            match replace {
                true => store.put(&key, Payload::new(noise(24 << 20, 2))).await,
                false => store.delete(std::slice::from_ref(&key)).await,
            }
        }
    };
    let mut change = tokio::spawn(change);
    // MinIO keeps the change waiting until the reader is done.
    let changed = tokio::time::timeout(Duration::from_secs(2), &mut change).await;
    let outcome = read_on(answer, read, &old).await;
    let changed = match changed {
        Ok(changed) => changed,
        Err(_) => change.await,
    };
    changed.map_err(|error| format!("the change panicked: {error}"))??;
    outcome
}

async fn read_on(mut answer: GetObject, mut read: BytesMut, old: &Bytes) -> Outcome {
    while let Some(piece) = answer.body.next().await {
        match piece {
            Ok(piece) => read.extend_from_slice(&piece),
            Err(error) => {
                let kinds = [
                    ErrorKind::NotFound,
                    ErrorKind::Truncated,
                    ErrorKind::Unavailable,
                    ErrorKind::Unexpected,
                ];
                check!(kinds.contains(&error.kind()), "an odd error for a reader: {error:?}");
                return Ok(());
            }
        }
    }
    check!(
        read.len() == old.len(),
        "{} of {} bytes came, and no error",
        read.len(),
        old.len()
    );
    check!(
        read == old,
        "the bytes that came are not those of the object that was opened"
    );
    Ok(())
}
