//! Keys that have gone wrong somewhere.

use std::collections::BTreeSet;

use super::{Outcome, Place, check, noise};

pub(super) async fn keys_with_special_characters(place: &Place) -> Outcome {
    let names = [
        "a space",
        " leading and trailing ",
        "plus+plus",
        "per%cent",
        "%20",
        "amp&ersand",
        "equals=sign",
        "tilde~",
        "quest?ion",
        "hash#tag",
        "semi;colon:colon",
        "quote'\"quote",
        "<less>greater",
        "back\\slash",
        "star*[brackets]{braces}",
        "at@dollar$comma,exclamation!",
        "ümlaut-é-ß",
        "日本語/ключ",
        "🦀",
        ".hidden",
        "...",
        "dots..dots",
    ];
    let mut expected = BTreeSet::new();
    for (seed, name) in (100..).zip(names) {
        let key = place.put(name, &noise(64, seed)).await?;
        expected.insert(key.as_str().to_owned());
    }
    for (seed, name) in (100..).zip(names) {
        place.expect(&place.key(name)?, &noise(64, seed)).await?;
    }
    let page = place.store.list(&place.prefix, None, 1000).await?;
    let listed: BTreeSet<String> = page.objects.into_iter().map(|object| object.key).collect();
    check!(listed == expected, "listed {listed:?} instead of {expected:?}");
    for name in names {
        place.store.delete(&[place.key(name)?]).await?;
    }
    let left = place.store.list(&place.prefix, None, 1000).await?;
    check!(left.objects.is_empty(), "left after deletion: {:?}", left.objects);
    Ok(())
}

pub(super) async fn component_of_249_characters(place: &Place) -> Outcome {
    // The longest topic name.
    let key = place.put(&format!("{}/x", "t".repeat(249)), &noise(100, 1)).await?;
    place.expect(&key, &noise(100, 1)).await
}

pub(super) async fn key_of_1024_bytes(place: &Place) -> Outcome {
    let mut name = String::new();
    while place.prefix.len() + name.len() + 200 < 1024 {
        name.push_str(&"c".repeat(99));
        name.push('/');
    }
    name.push_str(&"k".repeat(1024 - place.prefix.len() - name.len()));
    let key = place.put(&name, &noise(100, 1)).await?;
    check!(key.as_str().len() == 1024, "the key has {} bytes", key.as_str().len());
    place.expect(&key, &noise(100, 1)).await?;
    let page = place.store.list(&place.prefix, None, 10).await?;
    check!(
        page.objects.len() == 1 && page.objects[0].key == key.as_str(),
        "listed {:?}",
        page.objects
    );
    Ok(())
}
