//! Listing.

use super::{Failure, Outcome, Place, check, noise};

async fn names(
    place: &Place,
    prefix: &str,
    start_after: Option<&str>,
    max_keys: u32,
) -> Result<(Vec<String>, bool), Failure> {
    let start_after = start_after.map(|name| format!("{}{name}", place.prefix));
    let page = place
        .store
        .list(&format!("{}{prefix}", place.prefix), start_after.as_deref(), max_keys)
        .await?;
    let mut names = Vec::new();
    for object in page.objects {
        match object.key.strip_prefix(&place.prefix) {
            Some(name) => names.push(name.to_owned()),
            None => {
                return Err(Failure::from(format!(
                    "listed {} for prefix {}",
                    object.key, place.prefix
                )));
            }
        }
    }
    Ok((names, page.has_more))
}

pub(super) async fn order_is_of_bytes(place: &Place) -> Outcome {
    // A directory sorts by its slash (0x2f): after `-` and `.`, before `0`.
    let sorted = ["A", "a-b", "a.b", "a/b", "a/c/d", "a0", "aa", "b", "é"];
    for name in sorted.iter().rev() {
        place.put(name, &noise(name.len(), 1)).await?;
    }
    let (listed, has_more) = names(place, "", None, 1000).await?;
    check!(listed == sorted && !has_more, "listed {listed:?}, more: {has_more}");
    let page = place.store.list(&place.prefix, None, 1000).await?;
    for (object, name) in page.objects.iter().zip(sorted) {
        check!(
            object.length == name.len() as u64,
            "{name} is listed with {} bytes",
            object.length
        );
    }
    Ok(())
}

pub(super) async fn pages(place: &Place) -> Outcome {
    let mut expected = Vec::new();
    for number in 0..25 {
        let name = format!("d{}/n{number:02}", number / 10);
        place.put(&name, &noise(1, 1)).await?;
        expected.push(name);
    }
    for size in [1, 5, 7, 25, 1000] {
        let mut seen = Vec::new();
        let mut after = None;
        loop {
            let (page, has_more) = names(place, "", after.as_deref(), size).await?;
            check!(
                page.len() <= size as usize,
                "{} objects on a page of {size}",
                page.len()
            );
            check!(!has_more || !page.is_empty(), "an empty page before the last");
            after = page.last().cloned().or(after);
            seen.extend(page);
            if !has_more {
                break;
            }
        }
        check!(seen == expected, "in pages of {size}: {seen:?}");
    }
    Ok(())
}

pub(super) async fn start_after_a_key_that_is_not_there(place: &Place) -> Outcome {
    for name in ["a", "c/x", "c/z", "e"] {
        place.put(name, &noise(1, 1)).await?;
    }
    for (after, expected) in [
        ("b", vec!["c/x", "c/z", "e"]),
        ("c", vec!["c/x", "c/z", "e"]),
        ("c/y", vec!["c/z", "e"]),
        ("c/z", vec!["e"]),
        ("d", vec!["e"]),
        ("e", vec![]),
        ("zzz", vec![]),
    ] {
        let (listed, has_more) = names(place, "", Some(after), 1000).await?;
        check!(listed == expected && !has_more, "after {after}: {listed:?}");
    }
    Ok(())
}

pub(super) async fn prefix_within_a_component(place: &Place) -> Outcome {
    for name in ["top", "topic-a/0/x", "topic-a/1/y", "topic-ab/0/z", "topic-b/0/w"] {
        place.put(name, &noise(1, 1)).await?;
    }
    for (prefix, expected) in [
        ("topic-a", vec!["topic-a/0/x", "topic-a/1/y", "topic-ab/0/z"]),
        ("topic-a/", vec!["topic-a/0/x", "topic-a/1/y"]),
        ("topic-a/1/y", vec!["topic-a/1/y"]),
        ("topic-b/0/w/", vec![]),
        ("nothing", vec![]),
    ] {
        let (listed, _) = names(place, prefix, None, 1000).await?;
        check!(listed == expected, "prefix {prefix}: {listed:?}");
    }
    Ok(())
}

pub(super) async fn uploads_are_not_listed(place: &Place) -> Outcome {
    let key = place.key("object")?;
    let upload = place.upload(&key).await?;
    place
        .store
        .upload_part(&key, &upload, 1, alluvium_store::Payload::new(noise(1000, 1)))
        .await?;
    let (listed, _) = names(place, "", None, 1000).await?;
    check!(listed.is_empty(), "an upload under way is listed: {listed:?}");
    Ok(())
}
