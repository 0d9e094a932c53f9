//! Purpose: an object key as a path below a directory, for any key S3 allows.
//!
//! Invariants: different keys have different paths; no path leaves the directory, whatever `/`, `..` or NUL the key
//! holds; no component is longer than a file system takes. A key of 1024 bytes may need several components, so a path
//! may have parents to create first and to remove last.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Component length in bytes: under the 255 of common file systems, with room for the suffixes.
const COMPONENT_BYTES: usize = 200;

/// Marks a directory that holds the rest of a long key. No encoded key contains it, so it cannot be confused with a
/// key.
const CONTINUED_SUFFIX: char = '+';

/// The file that describes the object `key`.
pub(super) fn description_path(directory: &Path, key: &str) -> PathBuf {
    let encoded = percent_encode(key, false);
    let mut path = directory.to_path_buf();
    let mut rest = encoded.as_str();
    while rest.len() > COMPONENT_BYTES {
        // The encoding is ASCII, so every index is a character boundary.
        let (head, tail) = rest.split_at(COMPONENT_BYTES);
        path.push(format!("{head}{CONTINUED_SUFFIX}"));
        rest = tail;
    }
    path.push(format!("{rest}.json"));
    path
}

/// Percent-encodes all but unreserved characters (and `/`, where asked), as S3 does for `encoding-type=url`.
pub(super) fn percent_encode(text: &str, keep_slash: bool) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' => encoded.push(char::from(byte)),
            b'/' if keep_slash => encoded.push('/'),
            _ => write!(encoded, "%{byte:02X}").expect("writing to a String does not fail"),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::path::Component;

    #[test]
    fn paths_are_distinct_and_stay_inside() {
        let long = "ü".repeat(512);
        let almost = format!("{}v", &long[..long.len() - 2]);
        let keys = [
            "a", "a/", "a//b", "a/b", "/a", "..", "../..", "../a", ".", "a+", "a.json", "%2F", "/", "ü", &long,
            &almost, "a\0b",
        ];
        let mut seen = HashSet::new();
        for key in keys {
            let path = description_path(Path::new("root"), key);
            assert!(path.starts_with("root"), "{path:?}");
            for component in path.components() {
                let Component::Normal(name) = component else {
                    panic!("{key:?} has {component:?}")
                };
                assert!(name.len() <= 255, "{key:?}");
            }
            assert!(seen.insert(path), "{key:?} collides");
        }
    }
}
