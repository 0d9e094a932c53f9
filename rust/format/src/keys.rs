//! Where the two objects of a segment are: derived from the segment's id alone, so that copy and delete can be retried blind.

use std::fmt;

use crate::{FormatError, SegmentMetadata, Uuid, error::quoted};

/// Longest prefix in bytes of UTF-8: it must fit into Kafka's custom metadata (see [`crate::CustomMetadata`]).
pub const KEY_PREFIX_BYTES_MAX: usize = 96;

/// What every key of this cluster begins with; may be empty. No empty, `.` or `..` path component and no leading `/`: MinIO
/// refuses such keys.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct KeyPrefix(String);

impl KeyPrefix {
    /// Checks and wraps a prefix. It is put before the topic as it is: end it with `/` to get a folder.
    ///
    /// # Errors
    /// [`FormatError::Malformed`] names the rule it breaks.
    pub fn new(prefix: impl Into<String>) -> Result<Self, FormatError> {
        let prefix = prefix.into();
        let malformed = |reason: &str| {
            Err(FormatError::malformed(
                "key prefix",
                format!("{} {reason}", quoted(&prefix)),
            ))
        };
        if prefix.len() > KEY_PREFIX_BYTES_MAX {
            return malformed(&format!(
                "has {} bytes, at most {KEY_PREFIX_BYTES_MAX} fit",
                prefix.len()
            ));
        }
        // U+FFFE and U+FFFF cannot be written in XML, in which keys are deleted.
        if prefix
            .chars()
            .any(|letter| letter.is_control() || matches!(letter, '\u{fffe}' | '\u{ffff}'))
        {
            return malformed("has control characters");
        }
        let folder = prefix.strip_suffix('/').unwrap_or(&prefix);
        if !prefix.is_empty() && folder.split('/').any(|component| matches!(component, "" | "." | "..")) {
            return malformed("starts with '/' or has an empty, '.' or '..' path component");
        }
        Ok(KeyPrefix(prefix))
    }

    /// The prefix.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for KeyPrefix {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// The keys of a segment's two objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentKeys {
    /// Key of the chunks.
    pub log: String,
    /// Key of the manifest.
    pub manifest: String,
}

impl SegmentKeys {
    /// `{prefix}{topic}/{topic id}/{partition}/{base offset, 20 digits}-{segment id}` with the suffixes `.log` and `.manifest`.
    ///
    /// Topic and id are two components: MinIO and file systems refuse one over 255 bytes, and a topic may have 249.
    pub fn new(prefix: &KeyPrefix, segment: &SegmentMetadata) -> Self {
        let folder = Self::folder(prefix, segment);
        let stem = format!("{folder}{:020}-{}", segment.start_offset, segment.segment_id);
        SegmentKeys {
            log: format!("{stem}.log"),
            manifest: format!("{stem}.manifest"),
        }
    }

    /// What the keys of all segments of its partition begin with. In order of keys, segments are in order of their base offsets.
    pub fn folder(prefix: &KeyPrefix, segment: &SegmentMetadata) -> String {
        format!("{prefix}{}/{}/{}/", segment.topic, segment.topic_id, segment.partition)
    }

    /// Base offset and id of the segment whose manifest has this key in `folder`; `None` for any other object.
    pub fn of_manifest(folder: &str, key: &str) -> Option<(i64, Uuid)> {
        let stem = key.strip_prefix(folder)?.strip_suffix(".manifest")?;
        let (offset, id) = stem.split_once('-')?;
        Some((offset.parse().ok()?, Uuid::parse(id).ok()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::tests::example;

    #[test]
    fn keys_are_those_of_the_design() {
        let keys = SegmentKeys::new(&KeyPrefix::new("tier/").unwrap(), &example());
        assert_eq!(
            keys.log,
            "tier/orders/AAAAAAAAAAEAAAAAAAAAAg/7/00000000000001000000-AAAAAAAAAAMAAAAAAAAABA.log"
        );
        assert_eq!(keys.manifest, keys.log.replace(".log", ".manifest"));
        let folder = SegmentKeys::folder(&KeyPrefix::new("tier/").unwrap(), &example());
        let told = SegmentKeys::of_manifest(&folder, &keys.manifest);
        assert_eq!(told, Some((example().start_offset, example().segment_id)));
        for other in [&keys.log, "tier/orders/x.manifest", &keys.manifest[5..], &folder] {
            assert_eq!(SegmentKeys::of_manifest(&folder, other), None, "{other}");
        }
    }

    #[test]
    fn prefixes_that_stores_refuse_are_refused() {
        for good in ["", "a", "a/", "a b+ü/", "a/b", "..a/", &"p".repeat(96)] {
            assert!(KeyPrefix::new(good).is_ok(), "{good}");
        }
        for bad in [
            "/",
            "/a",
            "a//",
            "a//b",
            ".",
            "..",
            "../",
            "a/../b",
            "a/./",
            "a\n",
            "a\u{ffff}",
            &"p".repeat(97),
        ] {
            assert!(KeyPrefix::new(bad).is_err(), "{bad}");
        }
    }
}
