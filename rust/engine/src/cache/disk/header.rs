//! What a file says of itself, in front of its bytes.
//!
//! # Invariants
//! * A header is believed only when its own checksum is right, and a file only when its header names the piece that was looked for.
//!   A file that was cut short, mixed up, or never reached the disk before a power cut is found out by it.
//!
//! # Not here
//! Whether the bytes are those of the segment: their manifest says so.

use alluvium_format::{Crc32, Uuid};

use super::piece::Piece;

/// Length of a header.
pub(super) const HEADER_BYTES: usize = 52;

const MAGIC: [u8; 8] = *b"ALVPIECE";

/// Of the header and what follows it. A file of another version is no use to this release, and is removed.
const VERSION: u32 = 1;

/// In the place of the kind.
const MANIFEST: u32 = 0;
const CHUNK: u32 = 1;

/// The header of `payload`, which is `piece`.
pub(super) fn encode(piece: Piece, payload: &[u8]) -> [u8; HEADER_BYTES] {
    let kind = if piece.chunk.is_some() { CHUNK } else { MANIFEST };
    let mut header = [0; HEADER_BYTES];
    let mut rest = &mut header[..];
    for field in [
        &MAGIC[..],
        &VERSION.to_be_bytes(),
        &kind.to_be_bytes(),
        piece.segment_id.as_bytes(),
        &piece.chunk.unwrap_or(0).to_be_bytes(),
        &(payload.len() as u64).to_be_bytes(),
        &Crc32::of(payload).value().to_be_bytes(),
    ] {
        let (place, after) = std::mem::take(&mut rest).split_at_mut(field.len());
        place.copy_from_slice(field);
        rest = after;
    }
    let (checked, checksum) = header.split_at_mut(HEADER_BYTES - 4);
    checksum.copy_from_slice(&Crc32::of(checked).value().to_be_bytes());
    header
}

/// The checksum of the payload of `length` bytes, when this is the header of it, and of `piece`; else what is wrong.
pub(super) fn check(header: &[u8; HEADER_BYTES], piece: Piece, length: u64) -> Result<Crc32, &'static str> {
    let (checked, checksum) = header.split_at(HEADER_BYTES - 4);
    if Crc32::of(checked).value().to_be_bytes() != checksum {
        return Err("the header is damaged");
    }
    let mut rest = checked;
    if take(&mut rest) != Some(MAGIC) || number(&mut rest) != Some(VERSION) {
        return Err("the header is that of something else, or of another release");
    }
    let (kind, segment_id, index) = (number(&mut rest), take(&mut rest), number(&mut rest));
    let found = Piece {
        segment_id: segment_id.map(Uuid::from_bytes).ok_or("the header is short")?,
        chunk: index.filter(|_| kind == Some(CHUNK)),
    };
    if found != piece || !matches!(kind, Some(CHUNK | MANIFEST)) {
        return Err("it is another piece than its name says");
    }
    if take(&mut rest).map(u64::from_be_bytes) != Some(length) {
        return Err("it is not as long as its header says");
    }
    let value = number(&mut rest).ok_or("the header is short")?;
    Ok(Crc32::recorded(value, length))
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (field, after) = rest.split_first_chunk()?;
    *rest = after;
    Some(*field)
}

fn number(rest: &mut &[u8]) -> Option<u32> {
    take(rest).map(u32::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces() -> [Piece; 4] {
        let piece = |id, chunk| Piece {
            segment_id: Uuid::from_u64_pair(1, id),
            chunk,
        };
        [piece(1, None), piece(1, Some(0)), piece(1, Some(1)), piece(2, Some(1))]
    }

    #[test]
    fn a_header_is_that_of_its_own_piece_only() {
        let payload = b"stored bytes";
        for piece in pieces() {
            let header = encode(piece, payload);
            for other in pieces() {
                let checked = check(&header, other, 12);
                assert_eq!(checked.is_ok(), piece == other, "{piece:?} taken for {other:?}");
            }
            assert_eq!(check(&header, piece, 12), Ok(Crc32::of(payload)));
            assert!(check(&header, piece, 11).is_err() && check(&header, piece, 13).is_err());
        }
    }

    #[test]
    fn any_bit_that_changes_is_found() {
        let piece = pieces()[2];
        let header = encode(piece, b"stored bytes");
        for bit in 0..HEADER_BYTES * 8 {
            let mut damaged = header;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(check(&damaged, piece, 12), Err("the header is damaged"), "bit {bit}");
        }
        assert!(check(&[0; HEADER_BYTES], piece, 12).is_err());
    }

    #[test]
    fn a_header_of_another_version_is_refused() {
        let piece = pieces()[1];
        let mut header = encode(piece, b"stored bytes");
        header[11] += 1;
        let checksum = Crc32::of(&header[..HEADER_BYTES - 4]).value().to_be_bytes();
        header[HEADER_BYTES - 4..].copy_from_slice(&checksum);
        assert!(check(&header, piece, 12).unwrap_err().contains("another release"));
    }
}
