//! Kafka's `Uuid`: 128 bits, written as URL-safe base64 without padding.

use std::fmt;

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};

use crate::{FormatError, error::quoted};

/// A topic id or a segment id.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Uuid([u8; 16]);

impl Uuid {
    /// From the two halves that `Uuid.getMostSignificantBits` and `getLeastSignificantBits` give.
    pub fn from_u64_pair(most: u64, least: u64) -> Self {
        Uuid(((u128::from(most) << 64) | u128::from(least)).to_be_bytes())
    }

    /// From the 16 bytes, most significant first.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Uuid(bytes)
    }

    /// The 16 bytes, most significant first.
    pub fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// Parses what [`fmt::Display`] writes.
    ///
    /// # Errors
    /// [`FormatError::Malformed`] when it is not 22 characters of URL-safe base64.
    pub fn parse(text: &str) -> Result<Self, FormatError> {
        let malformed = || {
            let reason = format!("{} is not 22 characters of URL-safe base64", quoted(text));
            FormatError::malformed("uuid", reason)
        };
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| malformed())?;
        Ok(Uuid(bytes.try_into().map_err(|_| malformed())?))
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&URL_SAFE_NO_PAD.encode(self.0))
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_that_of_kafka() {
        // org.apache.kafka.common.Uuid.METADATA_TOPIC_ID and a hand-computed value.
        assert_eq!(Uuid::from_u64_pair(0, 1).to_string(), "AAAAAAAAAAAAAAAAAAAAAQ");
        assert_eq!(
            Uuid::from_u64_pair(u64::MAX, u64::MAX).to_string(),
            "_____________________w"
        );
    }

    #[test]
    fn parse_reverses_display_and_refuses_the_rest() {
        let id = Uuid::from_u64_pair(0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210);
        assert_eq!(Uuid::parse(&id.to_string()), Ok(id));
        for bad in [
            "",
            "AAAA",
            "AAAAAAAAAAAAAAAAAAAAAQ==",
            "AAAAAAAAAAAAAAAAAAAAA+",
            "AAAAAAAAAAAAAAAAAAAAAAAAAAAA",
        ] {
            assert!(Uuid::parse(bad).is_err(), "{bad}");
        }
    }
}
