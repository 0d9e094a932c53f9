//! Where the two objects of a segment are: derived from the segment's id alone, so that copy and delete can be retried blind.

use std::fmt;

use crate::{FormatError, SegmentMetadata, error::quoted};

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
        let stem = format!(
            "{prefix}{}/{}/{}/{:020}-{}",
            segment.topic, segment.topic_id, segment.partition, segment.start_offset, segment.segment_id
        );
        SegmentKeys {
            log: format!("{stem}.log"),
            manifest: format!("{stem}.manifest"),
        }
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
