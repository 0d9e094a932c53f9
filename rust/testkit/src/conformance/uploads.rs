//! Multipart uploads.

use alluvium_store::{ErrorKind, Key, Payload, UploadId, UploadedPart};
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};

use super::{Failure, Outcome, Place, check, expect_kind, noise};

/// The smallest part that is not the last.
const PART: usize = 5 << 20;

/// Sends `bytes` in parts of `size`, four at a time.
async fn send(
    place: &Place,
    key: &Key,
    upload: &UploadId,
    bytes: &Bytes,
    size: usize,
) -> Result<Vec<UploadedPart>, Failure> {
    let pieces = (1..).zip((0..bytes.len()).step_by(size)).map(|(number, start)| {
        let piece = bytes.slice(start..bytes.len().min(start + size));
        async move { place.store.upload_part(key, upload, number, Payload::new(piece)).await }
    });
    Ok(futures::stream::iter(pieces).buffered(4).try_collect().await?)
}

async fn whole(place: &Place, name: &str, bytes: &Bytes, size: usize) -> Result<Key, Failure> {
    let key = place.key(name)?;
    let upload = place.upload(&key).await?;
    let parts = send(place, &key, &upload, bytes, size).await?;
    place
        .store
        .complete_upload(&key, &upload, &parts, crc32fast::hash(bytes))
        .await?;
    Ok(key)
}

pub(super) async fn three_parts_with_a_small_last(place: &Place) -> Outcome {
    let bytes = noise(2 * PART + 12_345, 1);
    let key = whole(place, "dir/object", &bytes, PART).await?;
    place.expect(&key, &bytes).await?;
    let info = place.store.head(&key).await?;
    check!(info.length == bytes.len() as u64, "the head says {info:?}");
    check!(
        info.crc32.is_none_or(|crc32| crc32 == crc32fast::hash(&bytes)),
        "wrong checksum in head: {info:?}"
    );
    let answer = place.store.get(&key, Some(PART as u64 - 5..PART as u64 + 5)).await?;
    check!(
        answer.collect().await? == bytes.slice(PART - 5..PART + 5),
        "wrong bytes where two parts meet"
    );
    check!(
        place.store.list_uploads(&key).await?.is_empty(),
        "a completed upload is listed"
    );
    Ok(())
}

pub(super) async fn one_small_part(place: &Place) -> Outcome {
    let bytes = noise(777, 2);
    let key = whole(place, "object", &bytes, PART).await?;
    place.expect(&key, &bytes).await
}

pub(super) async fn parts_out_of_order_and_twice(place: &Place) -> Outcome {
    let bytes = noise(2 * PART + 1, 3);
    let key = place.key("object")?;
    let upload = place.upload(&key).await?;
    let mut parts = Vec::new();
    for number in [3, 2, 1, 2] {
        let start = (number as usize - 1) * PART;
        let piece = bytes.slice(start..bytes.len().min(start + PART));
        parts.push(
            place
                .store
                .upload_part(&key, &upload, number, Payload::new(piece))
                .await?,
        );
    }
    let listed = [parts[2].clone(), parts[3].clone(), parts[0].clone()];
    place
        .store
        .complete_upload(&key, &upload, &listed, crc32fast::hash(&bytes))
        .await?;
    place.expect(&key, &bytes).await
}

pub(super) async fn replaces_an_object(place: &Place) -> Outcome {
    place.put("object", &noise(20, 4)).await?;
    let bytes = noise(PART + 1, 5);
    let key = whole(place, "object", &bytes, PART).await?;
    place.expect(&key, &bytes).await
}

pub(super) async fn visible_only_when_complete(place: &Place) -> Outcome {
    let bytes = noise(PART + 1, 6);
    let key = place.key("object")?;
    let upload = place.upload(&key).await?;
    let parts = send(place, &key, &upload, &bytes, PART).await?;
    expect_kind(place.store.head(&key).await, ErrorKind::NotFound)?;
    expect_kind(place.store.get(&key, None).await, ErrorKind::NotFound)?;
    place
        .store
        .complete_upload(&key, &upload, &parts, crc32fast::hash(&bytes))
        .await?;
    place.expect(&key, &bytes).await
}

pub(super) async fn complete_twice(place: &Place) -> Outcome {
    let bytes = noise(PART + 1, 7);
    let key = place.key("object")?;
    let upload = place.upload(&key).await?;
    let parts = send(place, &key, &upload, &bytes, PART).await?;
    for _ in 0..2 {
        place
            .store
            .complete_upload(&key, &upload, &parts, crc32fast::hash(&bytes))
            .await?;
    }
    place.expect(&key, &bytes).await
}

pub(super) async fn abort_frees_and_refuses(place: &Place) -> Outcome {
    let key = place.key("dir/object")?;
    let upload = place.upload(&key).await?;
    place
        .store
        .upload_part(&key, &upload, 1, Payload::new(noise(1000, 8)))
        .await?;
    let listed = place.store.list_uploads(&key).await?;
    check!(listed == [upload.clone()], "before the abort: {listed:?}");
    place.store.abort_upload(&key, &upload).await?;
    let listed = place.store.list_uploads(&key).await?;
    check!(listed.is_empty(), "after the abort: {listed:?}");
    let late = place
        .store
        .upload_part(&key, &upload, 1, Payload::new(noise(1000, 8)))
        .await;
    expect_kind(late, ErrorKind::UploadNotFound)?;
    expect_kind(place.store.head(&key).await, ErrorKind::NotFound)
}

pub(super) async fn abort_twice(place: &Place) -> Outcome {
    let key = place.key("object")?;
    let upload = place.upload(&key).await?;
    place.store.abort_upload(&key, &upload).await?;
    Ok(place.store.abort_upload(&key, &upload).await?)
}

pub(super) async fn complete_after_abort(place: &Place) -> Outcome {
    let bytes = noise(1000, 9);
    let key = place.key("object")?;
    let upload = place.upload(&key).await?;
    let parts = send(place, &key, &upload, &bytes, PART).await?;
    place.store.abort_upload(&key, &upload).await?;
    let crc32 = crc32fast::hash(&bytes);
    expect_kind(
        place.store.complete_upload(&key, &upload, &parts, crc32).await,
        ErrorKind::UploadNotFound,
    )?;
    // Another object of that name is no success either.
    let other = noise(1001, 10);
    place.put("object", &other).await?;
    match place.store.complete_upload(&key, &upload, &parts, crc32).await {
        Ok(()) => return Err(Failure::from("an aborted upload was completed".to_owned())),
        Err(error) => check!(!error.is_retryable(), "a retry is of no use: {error:?}"),
    }
    place.expect(&key, &other).await
}

pub(super) async fn two_uploads_of_a_key_are_listed(place: &Place) -> Outcome {
    let key = place.key("object")?;
    let longer = place.key("object-2")?;
    let mut uploads = vec![place.upload(&key).await?, place.upload(&key).await?];
    let other = place.upload(&longer).await?;
    check!(uploads[0] != uploads[1], "two uploads have one id");
    let mut listed = place.store.list_uploads(&key).await?;
    listed.sort_by(|left, right| left.0.cmp(&right.0));
    uploads.sort_by(|left, right| left.0.cmp(&right.0));
    check!(listed == uploads, "listed {listed:?} instead of {uploads:?}");
    let listed = place.store.list_uploads(&longer).await?;
    check!(listed == [other], "of the longer key: {listed:?}");
    Ok(())
}

pub(super) async fn unknown_upload(place: &Place) -> Outcome {
    let key = place.key("object")?;
    // An id of another key's upload is well formed wherever ids have a form.
    let upload = place.upload(&place.key("other")?).await?;
    let part = place
        .store
        .upload_part(&key, &upload, 1, Payload::new(noise(10, 11)))
        .await;
    expect_kind(part, ErrorKind::UploadNotFound)?;
    Ok(place.store.abort_upload(&key, &upload).await?)
}

pub(super) async fn part_with_a_wrong_checksum(place: &Place) -> Outcome {
    let bytes = noise(5000, 12);
    let key = place.key("object")?;
    let upload = place.upload(&key).await?;
    let crc32 = crc32fast::hash(&bytes);
    let wrong = Payload::with_crc32(bytes.clone(), !crc32);
    expect_kind(
        place.store.upload_part(&key, &upload, 1, wrong).await,
        ErrorKind::ChecksumMismatch,
    )?;
    let parts = send(place, &key, &upload, &bytes, PART).await?;
    place.store.complete_upload(&key, &upload, &parts, crc32).await?;
    place.expect(&key, &bytes).await
}

pub(super) async fn sixty_four_mebibytes_in_parallel(place: &Place) -> Outcome {
    let bytes = noise(64 << 20, 13);
    let key = whole(place, "object", &bytes, 16 << 20).await?;
    place.expect(&key, &bytes).await
}
