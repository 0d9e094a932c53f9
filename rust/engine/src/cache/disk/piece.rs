//! What a file holds, and what it is called.
//!
//! # Invariants
//! * A name stands for one piece and a piece has one name: a name that does not come back the same from its piece is foreign.

use alluvium_format::{ChunkIndex, Uuid};

use crate::cache::EntryKey;

/// The name of a manifest's file.
const MANIFEST: &str = "manifest";

/// How the names of chunks' files begin.
const CHUNK: &str = "chunk-";

/// A manifest or a chunk, in the order of segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Piece {
    /// Of which segment.
    pub(super) segment_id: Uuid,
    /// Which chunk; `None` is the manifest.
    pub(super) chunk: Option<u32>,
}

impl Piece {
    /// The piece that a file of this name holds, in the directory of the segment.
    pub(super) fn parse(segment_id: Uuid, name: &str) -> Option<Self> {
        let chunk = match name.strip_prefix(CHUNK) {
            Some(number) => Some(number.parse().ok()?),
            None => None,
        };
        let piece = Piece { segment_id, chunk };
        (piece.file_name() == name).then_some(piece)
    }

    /// The name of its file.
    pub(super) fn file_name(&self) -> String {
        match self.chunk {
            // As many digits as the longest segment has chunks, so that a listing is in order.
            Some(index) => format!("{CHUNK}{index:05}"),
            None => MANIFEST.to_owned(),
        }
    }

    /// The name of its segment's directory.
    pub(super) fn directory_name(&self) -> String {
        self.segment_id.to_string()
    }
}

impl From<&EntryKey> for Piece {
    fn from(key: &EntryKey) -> Self {
        match *key {
            EntryKey::Manifest(segment_id) => Piece {
                segment_id,
                chunk: None,
            },
            EntryKey::Chunk(segment_id, ChunkIndex(index)) => Piece {
                segment_id,
                chunk: Some(index),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stands_for_one_piece() {
        let segment_id = Uuid::from_u64_pair(1, 2);
        for chunk in [None, Some(0), Some(7), Some(99_999), Some(100_000), Some(u32::MAX)] {
            let piece = Piece { segment_id, chunk };
            assert_eq!(Piece::parse(segment_id, &piece.file_name()), Some(piece));
        }
        for foreign in [
            "",
            "chunk",
            "chunk-",
            "chunk-1",
            "chunk-+0001",
            "chunk-000001",
            "chunk-99999999999",
            "Manifest",
            ".tmp-1",
            "manifest~",
        ] {
            assert_eq!(Piece::parse(segment_id, foreign), None, "{foreign}");
        }
    }
}
