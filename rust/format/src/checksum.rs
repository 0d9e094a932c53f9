//! CRC-32 (IEEE), the one checksum of the format: it can be combined, so one pass over the bytes serves chunk, part and object.

use crc32fast::Hasher;

/// The CRC-32 of some bytes, with how many they were, so that it can be continued.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Crc32 {
    value: u32,
    length: u64,
}

impl Crc32 {
    /// Of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Crc32 {
            value: crc32fast::hash(bytes),
            length: bytes.len() as u64,
        }
    }

    /// A checksum that was written down, of so many bytes.
    pub fn recorded(value: u32, length: u64) -> Self {
        Crc32 { value, length }
    }

    /// Of `self`'s bytes followed by `next`'s, without reading either again.
    #[must_use]
    pub fn then(self, next: Crc32) -> Self {
        let mut hasher = Hasher::new_with_initial_len(self.value, self.length);
        hasher.combine(&Hasher::new_with_initial_len(next.value, next.length));
        Crc32 {
            value: hasher.finalize(),
            length: self.length + next.length,
        }
    }

    /// The checksum.
    pub fn value(self) -> u32 {
        self.value
    }

    /// How many bytes it covers.
    pub fn length(self) -> u64 {
        self.length
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn combined_equals_one_pass() {
        let bytes: Vec<u8> = (0..100_000u32).flat_map(u32::to_le_bytes).collect();
        for split in [0, 1, 17, 65_536, bytes.len()] {
            let (head, tail) = bytes.split_at(split);
            assert_eq!(Crc32::of(head).then(Crc32::of(tail)), Crc32::of(&bytes));
        }
        assert_eq!(
            Crc32::of(b"123456789").value(),
            0xcbf4_3926,
            "the check value of CRC-32/ISO-HDLC"
        );
        assert_eq!(Crc32::default(), Crc32::of(b""));
    }
}
