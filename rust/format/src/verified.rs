//! Bytes that were checked, and bytes that were not: two types, so that the second never reach a consumer or a cache.

use bytes::Bytes;

use crate::{Crc32, FormatError};

/// Bytes from outside.
#[derive(Clone, Debug)]
pub struct Unverified(Bytes);

impl Unverified {
    /// Marks bytes from network or disk.
    pub fn new(bytes: Bytes) -> Self {
        Unverified(bytes)
    }

    /// Number of bytes.
    pub fn length(&self) -> u64 {
        self.0.len() as u64
    }

    /// The bytes, for whoever checks them himself.
    pub(crate) fn into_bytes(self) -> Bytes {
        self.0
    }

    /// Gives the bytes back when length and CRC-32 are as written down; `what` names them in the error.
    ///
    /// # Errors
    /// [`FormatError::WrongLength`] or [`FormatError::WrongChecksum`].
    pub fn verify(self, what: impl FnOnce() -> String, expected: Crc32) -> Result<Verified, FormatError> {
        check(&self.0, what, expected)?;
        Ok(Verified(self.0))
    }
}

/// Compares length and CRC-32 with what was written down; `what` names the bytes in the error.
pub(crate) fn check(bytes: &[u8], what: impl FnOnce() -> String, expected: Crc32) -> Result<(), FormatError> {
    let found = Crc32::of(bytes);
    if found.length() != expected.length() {
        return Err(FormatError::WrongLength {
            what: "stored data",
            expected: expected.length(),
            found: found.length(),
        });
    }
    if found != expected {
        return Err(FormatError::WrongChecksum {
            what: what(),
            expected: expected.value(),
            found: found.value(),
        });
    }
    Ok(())
}

/// Bytes whose length and checksum were found right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified(Bytes);

impl Verified {
    /// The bytes.
    pub fn bytes(&self) -> &Bytes {
        &self.0
    }

    /// The bytes, without the proof.
    pub fn into_bytes(self) -> Bytes {
        self.0
    }

    /// For bytes that a checksum over a larger piece has proved.
    pub(crate) fn proved(bytes: Bytes) -> Self {
        Verified(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_right_bytes_are_verified() {
        let bytes = Bytes::from_static(b"a chunk");
        let expected = Crc32::of(&bytes);
        let name = || "chunk 0".to_owned();
        assert_eq!(
            Unverified::new(bytes.clone())
                .verify(name, expected)
                .map(Verified::into_bytes),
            Ok(bytes.clone())
        );
        assert!(matches!(
            Unverified::new(bytes.slice(1..)).verify(name, expected),
            Err(FormatError::WrongLength {
                expected: 7,
                found: 6,
                ..
            })
        ));
        assert!(matches!(
            Unverified::new(Bytes::from_static(b"a chunc")).verify(name, expected),
            Err(FormatError::WrongChecksum { .. })
        ));
    }
}
