use proptest::prelude::*;

use super::*;
use crate::segment::tests::example;

fn example_manifest(plain: &[u8], indexes: Vec<IndexPayload>) -> Manifest {
    let size = ChunkSize::new(crate::CHUNK_SIZE_MIN).unwrap();
    let chunks = plain
        .chunks(usize::try_from(size.bytes()).unwrap())
        .map(|piece| {
            let crc32 = Crc32::of(piece).value();
            Chunk {
                stored_length: u32::try_from(piece.len()).unwrap(),
                stored_crc32: crc32,
                plain_crc32: crc32,
            }
        })
        .collect();
    let segment = SegmentMetadata {
        segment_size: plain.len() as u64,
        ..example()
    };
    Manifest::new(
        segment,
        ChunkTable::new(size, plain.len() as u64, chunks).unwrap(),
        indexes,
        "test",
    )
    .unwrap()
}

fn five_indexes() -> Vec<IndexPayload> {
    IndexType::ALL
        .iter()
        .map(|&index_type| {
            IndexPayload::new(
                index_type,
                Bytes::from(vec![index_type as u8; index_type.number() * 100]),
            )
        })
        .collect()
}

/// Writes the header anew over a changed object, as a hostile or later writer could.
fn reseal(object: &mut [u8], version: u16, features: u16) {
    object[4..6].copy_from_slice(&version.to_be_bytes());
    object[6..8].copy_from_slice(&features.to_be_bytes());
    let crc32 = Crc32::of(&object[..20]).value();
    object[20..24].copy_from_slice(&crc32.to_be_bytes());
}

/// An object around a message of our making.
fn wrap(message: &ManifestMessage, payloads: &[u8]) -> Bytes {
    let message = message.encode_to_vec();
    let mut object = vec![0; HEADER_BYTES];
    object[..4].copy_from_slice(&MAGIC);
    object[8..12].copy_from_slice(&u32::try_from(message.len()).unwrap().to_be_bytes());
    object[12..16].copy_from_slice(&u32::try_from(payloads.len()).unwrap().to_be_bytes());
    object[16..20].copy_from_slice(&Crc32::of(&message).value().to_be_bytes());
    reseal(&mut object, FORMAT_VERSION, 0);
    object.extend_from_slice(&message);
    object.extend_from_slice(payloads);
    Bytes::from(object)
}

#[test]
fn a_manifest_is_read_back_as_it_was_written() {
    for (plain, indexes) in [
        (vec![], vec![]),
        (vec![7; 1], five_indexes()),
        (vec![7; 200_000], five_indexes()),
    ] {
        let manifest = example_manifest(&plain, indexes);
        let decoded = Manifest::decode(manifest.encode().unwrap()).unwrap();
        assert_eq!(decoded, manifest);
        assert_eq!(decoded.chunks().object_crc32(), Crc32::of(&plain));
    }
}

#[test]
fn an_empty_index_is_there_and_a_missing_one_is_not() {
    let manifest = example_manifest(&[1], vec![IndexPayload::new(IndexType::Offset, Bytes::new())]);
    let decoded = Manifest::decode(manifest.encode().unwrap()).unwrap();
    assert_eq!(
        decoded.index(IndexType::Offset).map(|index| index.bytes().len()),
        Some(0)
    );
    assert_eq!(decoded.index(IndexType::Transaction), None);
}

#[test]
fn every_truncation_and_every_added_byte_is_an_error() {
    let object = example_manifest(&[1; 70_000], five_indexes()).encode().unwrap();
    for length in 0..object.len() {
        assert!(
            Manifest::decode(object.slice(..length)).is_err(),
            "{length} of {} bytes",
            object.len()
        );
    }
    assert!(Manifest::decode(Bytes::from([&object[..], &[0]].concat())).is_err());
}

#[test]
fn every_flipped_bit_is_an_error() {
    let object = example_manifest(&[1; 70_000], five_indexes()).encode().unwrap();
    for position in 0..object.len() {
        for bit in 0..8 {
            let mut damaged = object.to_vec();
            damaged[position] ^= 1 << bit;
            assert!(
                Manifest::decode(Bytes::from(damaged)).is_err(),
                "bit {bit} of byte {position}"
            );
        }
    }
}

#[test]
fn a_later_version_and_an_unknown_feature_are_named() {
    let object = example_manifest(&[1], vec![]).encode().unwrap();
    let mut later = object.to_vec();
    reseal(&mut later, 2, 0);
    assert_eq!(
        Manifest::decode(Bytes::from(later)),
        Err(FormatError::UnknownVersion { found: 2, known: 1 })
    );
    let mut featured = object.to_vec();
    reseal(&mut featured, 1, 0x8000);
    assert_eq!(
        Manifest::decode(Bytes::from(featured)),
        Err(FormatError::UnknownFeatures { unknown: 0x8000 })
    );
    assert_eq!(
        Manifest::decode(Bytes::from_static(b"PK\x03\x04 something else")),
        Err(FormatError::BadMagic { found: *b"PK\x03\x04" })
    );
}

#[test]
fn unknown_fields_of_a_later_release_are_ignored() {
    let manifest = example_manifest(&[1], five_indexes());
    let object = manifest.encode().unwrap();
    let payloads: Vec<u8> = manifest
        .indexes
        .iter()
        .flatten()
        .flat_map(|index| index.bytes().to_vec())
        .collect();
    let mut message = object[HEADER_BYTES..object.len() - payloads.len()].to_vec();
    message.extend_from_slice(&[0xf8, 0x3f, 0x2a]); // field 1023, varint 42
    let mut later = object[..HEADER_BYTES].to_vec();
    later[8..12].copy_from_slice(&u32::try_from(message.len()).unwrap().to_be_bytes());
    later[16..20].copy_from_slice(&Crc32::of(&message).value().to_be_bytes());
    reseal(&mut later, 1, 0);
    later.extend_from_slice(&message);
    later.extend_from_slice(&payloads);
    assert_eq!(Manifest::decode(Bytes::from(later)), Ok(manifest));
}

#[test]
fn messages_that_contradict_themselves_are_refused() {
    let good = example_manifest(&[1; 70_000], five_indexes());
    let payloads: Vec<u8> = good
        .indexes
        .iter()
        .flatten()
        .flat_map(|index| index.bytes().to_vec())
        .collect();
    let message = good.to_message();
    assert_eq!(Manifest::decode(wrap(&message, &payloads)), Ok(good));
    type Change = fn(&mut ManifestMessage);
    let changes: &[(&str, Change)] = &[
        ("no segment", |message| message.segment = None),
        ("segment size", |message| {
            message.segment.as_mut().unwrap().segment_size += 1
        }),
        ("topic id", |message| {
            message.segment.as_mut().unwrap().topic_id.truncate(15)
        }),
        ("topic", |message| {
            message.segment.as_mut().unwrap().topic = "../x".into()
        }),
        ("chunk size", |message| message.chunk_size = 65_537),
        ("huge chunk size", |message| message.chunk_size = u32::MAX),
        ("one checksum less", |message| message.plain_crc32s.truncate(1)),
        ("one chunk more", |message| {
            message.stored_lengths.push(1);
            message.stored_crc32s.push(1);
            message.plain_crc32s.push(1);
        }),
        ("lengths shifted", |message| {
            message.stored_lengths[0] -= 1;
            message.stored_lengths[1] += 1;
        }),
        ("empty chunk", |message| message.stored_lengths[1] = 0),
        ("object checksum", |message| message.object_crc32 ^= 1),
        ("codec", |message| message.codec = 1),
        ("unknown codec", |message| message.codec = 99),
        ("encryption", |message| message.encryption = Some(Default::default())),
        ("index twice", |message| message.indexes[1].index_type = 0),
        ("index too long", |message| message.indexes[4].stored_length = u32::MAX),
        ("index too short", |message| message.indexes[4].stored_length -= 1),
        ("index codec", |message| message.indexes[4].codec = 1),
    ];
    for (name, change) in changes {
        let mut changed = message.clone();
        change(&mut changed);
        assert!(Manifest::decode(wrap(&changed, &payloads)).is_err(), "{name}");
    }
}

proptest! {
    #[test]
    fn foreign_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300), seal in any::<bool>()) {
        let mut bytes = bytes;
        if seal && bytes.len() >= HEADER_BYTES {
            bytes[..4].copy_from_slice(&MAGIC);
            reseal(&mut bytes, FORMAT_VERSION, 0);
        }
        let _ = Manifest::decode(Bytes::from(bytes));
    }

    #[test]
    fn a_foreign_message_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        if let Ok(message) = ManifestMessage::decode(&bytes[..]) {
            let _ = Manifest::decode(wrap(&message, &[]));
        }
    }
}
