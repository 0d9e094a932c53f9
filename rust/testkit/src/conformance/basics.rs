//! Put, get, head, delete.

use alluvium_store::{ErrorKind, Payload};
use bytes::Bytes;
use futures::StreamExt;

use super::{Outcome, Place, check, expect_kind, noise};

pub(super) async fn put_then_get(place: &Place) -> Outcome {
    let bytes = noise(100_000, 1);
    let key = place.put("dir/object", &bytes).await?;
    place.expect(&key, &bytes).await
}

pub(super) async fn put_replaces(place: &Place) -> Outcome {
    place.put("object", &noise(5000, 1)).await?;
    let key = place.put("object", &noise(10, 2)).await?;
    place.expect(&key, &noise(10, 2)).await?;
    place.put("object", &noise(7000, 3)).await?;
    place.expect(&key, &noise(7000, 3)).await
}

pub(super) async fn empty_object(place: &Place) -> Outcome {
    let key = place.put("empty", &Bytes::new()).await?;
    let mut answer = place.store.get(&key, None).await?;
    check!(
        answer.range == (0..0) && answer.object_length == 0,
        "an empty object came as {answer:?}"
    );
    while let Some(piece) = answer.body.next().await {
        let piece = piece?;
        check!(piece.is_empty(), "an empty object has {} bytes", piece.len());
    }
    check!(
        place.store.head(&key).await?.length == 0,
        "the length of an empty object is not 0"
    );
    expect_kind(place.store.get(&key, Some(0..1)).await, ErrorKind::Invalid)
}

pub(super) async fn object_of_five_mebibytes_and_one(place: &Place) -> Outcome {
    let bytes = noise((5 << 20) + 1, 5);
    let key = place.put("object", &bytes).await?;
    place.expect(&key, &bytes).await
}

pub(super) async fn ranges(place: &Place) -> Outcome {
    let bytes = noise(3_000_000, 6);
    let length = bytes.len() as u64;
    let key = place.put("object", &bytes).await?;
    let wanted = [
        (0..1, 0..1),
        (length - 1..length, length - 1..length),
        (1_000_000..2_100_000, 1_000_000..2_100_000),
        (0..length, 0..length),
        (length - 10..length + 1000, length - 10..length),
        (5..u64::MAX, 5..length),
    ];
    for (asked, given) in wanted {
        let answer = place.store.get(&key, Some(asked.clone())).await?;
        check!(
            answer.range == given && answer.object_length == length,
            "asked for {asked:?} of {length}, expected {given:?}, got {answer:?}"
        );
        let read = answer.collect().await?;
        let position = |at: u64| usize::try_from(at).map_err(|error| format!("position {at}: {error}"));
        let expected = bytes.slice(position(given.start)?..position(given.end)?);
        check!(read == expected, "the bytes of {asked:?} are others than were written");
    }
    Ok(())
}

pub(super) async fn ranges_that_cannot_be(place: &Place) -> Outcome {
    let key = place.put("object", &noise(1000, 7)).await?;
    #[expect(clippy::reversed_empty_ranges, reason = "an inverted range is what is refused")]
    for range in [1000..1001, 1000..u64::MAX, 5000..6000, 10..10, 20..10] {
        expect_kind(place.store.get(&key, Some(range)).await, ErrorKind::Invalid)?;
    }
    Ok(())
}

pub(super) async fn head_tells_length_and_checksum(place: &Place) -> Outcome {
    let payload = Payload::new(noise(12_345, 8));
    let key = place.key("object")?;
    place.store.put(&key, payload.clone()).await?;
    let info = place.store.head(&key).await?;
    check!(
        info.key == key.as_str() && info.length == 12_345,
        "wrong head: {info:?}"
    );
    check!(
        info.crc32.is_none_or(|crc32| crc32 == payload.crc32()),
        "wrong checksum in head: {info:?}"
    );
    Ok(())
}

pub(super) async fn absent_objects(place: &Place) -> Outcome {
    let key = place.key("dir/absent")?;
    expect_kind(place.store.get(&key, None).await, ErrorKind::NotFound)?;
    expect_kind(place.store.get(&key, Some(0..10)).await, ErrorKind::NotFound)?;
    expect_kind(place.store.head(&key).await, ErrorKind::NotFound)?;
    // A directory is no object.
    place.put("dir/present", &noise(10, 9)).await?;
    let directory = place.key("dir")?;
    expect_kind(place.store.get(&directory, None).await, ErrorKind::NotFound)?;
    expect_kind(place.store.head(&directory).await, ErrorKind::NotFound)?;
    place.store.delete(&[directory]).await?;
    place.expect(&place.key("dir/present")?, &noise(10, 9)).await
}

pub(super) async fn wrong_checksum_is_refused(place: &Place) -> Outcome {
    let bytes = noise(50_000, 10);
    let key = place.key("object")?;
    let wrong = Payload::with_crc32(bytes.clone(), crc32fast::hash(&bytes) ^ 1);
    expect_kind(place.store.put(&key, wrong.clone()).await, ErrorKind::ChecksumMismatch)?;
    expect_kind(place.store.head(&key).await, ErrorKind::NotFound)?;
    let kept = noise(100, 11);
    place.put("object", &kept).await?;
    expect_kind(place.store.put(&key, wrong).await, ErrorKind::ChecksumMismatch)?;
    place.expect(&key, &kept).await
}

pub(super) async fn delete_twice(place: &Place) -> Outcome {
    let key = place.put("a/b/c/object", &noise(10, 12)).await?;
    for _ in 0..2 {
        place.store.delete(std::slice::from_ref(&key)).await?;
        expect_kind(place.store.head(&key).await, ErrorKind::NotFound)?;
    }
    place.store.delete(&[]).await?;
    // What a delete tidied away can be written again.
    place.put("a/b/c/object", &noise(20, 13)).await?;
    place.expect(&key, &noise(20, 13)).await
}

pub(super) async fn delete_a_thousand(place: &Place) -> Outcome {
    let mut keys = Vec::new();
    for number in 0..1000 {
        keys.push(place.key(&format!("many/{number:04}"))?);
    }
    let written: Vec<Outcome> = futures::stream::iter(keys.clone())
        .map(|key| async move { Ok(place.store.put(&key, Payload::new(Bytes::from_static(b"x"))).await?) })
        .buffer_unordered(16)
        .collect()
        .await;
    written.into_iter().collect::<Outcome>()?;
    place.store.delete(&keys).await?;
    let left = place.store.list(&place.prefix, None, 1000).await?;
    check!(
        left.objects.is_empty(),
        "{} objects are left after their deletion",
        left.objects.len()
    );
    Ok(())
}

pub(super) async fn delete_existing_and_missing_together(place: &Place) -> Outcome {
    let bytes = noise(10, 14);
    let keys = [
        place.put("one", &bytes).await?,
        place.key("missing")?,
        place.put("two/three", &bytes).await?,
        place.key("two/missing/deeper")?,
    ];
    let kept = place.put("two/kept", &bytes).await?;
    place.store.delete(&keys).await?;
    for key in &keys {
        expect_kind(place.store.head(key).await, ErrorKind::NotFound)?;
    }
    place.expect(&kept, &bytes).await
}
