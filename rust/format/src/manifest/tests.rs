use proptest::prelude::*;

use super::*;
use crate::{ChunkSize, Uuid, on_heap, segment::tests::example};

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
        Coding::default(),
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
                Bytes::from(vec![index_type as u8; index_type.number() * 200]),
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
fn wrap(message: &ManifestMessage, features: u16, payloads: &[u8]) -> Bytes {
    let message = message.encode_to_vec();
    let mut object = vec![0; HEADER_BYTES];
    object[..4].copy_from_slice(&MAGIC);
    object[8..12].copy_from_slice(&u32::try_from(message.len()).unwrap().to_be_bytes());
    object[12..16].copy_from_slice(&u32::try_from(payloads.len()).unwrap().to_be_bytes());
    object[16..20].copy_from_slice(&Crc32::of(&message).value().to_be_bytes());
    reseal(&mut object, FORMAT_VERSION, features);
    object.extend_from_slice(&message);
    object.extend_from_slice(payloads);
    Bytes::from(object)
}

/// The message inside an object.
fn message_of(object: &Bytes) -> ManifestMessage {
    let header = Header::of_object(object, object.len() as u64).unwrap();
    let end = HEADER_BYTES + usize::try_from(header.message_length).unwrap();
    ManifestMessage::decode(&object[HEADER_BYTES..end]).unwrap()
}

/// A key pair whose two halves do nothing.
struct Bare;

impl DataKeys for Bare {
    fn unwrap_key(&self, wrapped: &WrappedKey) -> Result<DataKey, FormatError> {
        let bytes = <[u8; 32]>::try_from(&wrapped.bytes[..]).map_err(|_| FormatError::NoDataKey {
            reason: "not 32 bytes".to_owned(),
        })?;
        Ok(DataKey::new(bytes))
    }
}

fn encryption(key: u8) -> Option<Encryption> {
    Some(Encryption {
        wrapped: WrappedKey {
            key_id: "bare".to_owned(),
            bytes: vec![key; 32],
        },
        data_key: DataKey::new([key; 32]),
    })
}

/// A segment stored as `coding` says, and the stored bytes of its chunks.
fn stored_segment(coding: &Coding, plain: &[u8], segment_id: Uuid) -> (Manifest, Vec<Bytes>) {
    let size = ChunkSize::new(crate::CHUNK_SIZE_MIN).unwrap();
    let segment = SegmentMetadata {
        segment_size: plain.len() as u64,
        segment_id,
        ..example()
    };
    let mut compressor = Compressor::new(1);
    let (mut chunks, mut objects) = (Vec::new(), Vec::new());
    for (index, piece) in (0..).zip(plain.chunks(usize::try_from(size.bytes()).unwrap())) {
        let mut stored = Vec::new();
        let chunk = coding
            .store_chunk(segment_id, ChunkIndex(index), piece, &mut compressor, &mut stored)
            .unwrap();
        chunks.push(chunk);
        objects.push(Bytes::from(stored));
    }
    let table = ChunkTable::new(size, plain.len() as u64, chunks).unwrap();
    let manifest = Manifest::new(segment, table, coding.clone(), five_indexes(), "test").unwrap();
    (manifest, objects)
}

fn all_codings() -> Vec<Coding> {
    [Codec::None, Codec::Zstd]
        .into_iter()
        .flat_map(|codec| [None, encryption(1)].map(|encryption| Coding { codec, encryption }))
        .collect()
}

#[test]
fn every_coding_gives_back_its_chunks_and_indexes() {
    let plain: Vec<u8> = (0..200_000u32).flat_map(|number| (number / 7).to_be_bytes()).collect();
    for coding in all_codings() {
        let (manifest, objects) = stored_segment(&coding, &plain, example().segment_id);
        for compressor in [None, Some(&mut Compressor::new(1))] {
            let compressed = compressor.is_some() || coding.codec == Codec::Zstd;
            let encoded = manifest.encode(compressor).unwrap();
            assert_eq!(
                encoded.features & FEATURE_ZSTD != 0,
                compressed || coding.codec == Codec::Zstd
            );
            assert_eq!(encoded.features & FEATURE_ENCRYPTION != 0, coding.encryption.is_some());
            let decoded = Manifest::decode(encoded.object, &Bare, on_heap).unwrap();
            assert_eq!(decoded, manifest);
        }
        let mut restored = Vec::new();
        for (index, object) in (0..).zip(&objects) {
            let chunk = manifest
                .restore_chunk(ChunkIndex(index), object.to_vec(), on_heap)
                .unwrap();
            restored.extend_from_slice(chunk.bytes());
        }
        assert_eq!(restored, plain);
        assert_eq!(manifest.chunks().plain_crc32(), Crc32::of(&plain));
        assert_eq!(manifest.chunks().object_crc32(), Crc32::of(&objects.concat()));
    }
}

#[test]
fn compression_makes_a_manifest_smaller_and_encryption_hides_it() {
    let index = IndexPayload::new(IndexType::Offset, Bytes::from(b"8 bytes ".repeat(10_000)));
    let plain = example_manifest(&[1], vec![index]);
    let secret = Manifest {
        coding: Coding {
            codec: Codec::None,
            encryption: encryption(1),
        },
        ..plain.clone()
    };
    let compressed = plain.encode(Some(&mut Compressor::new(1))).unwrap();
    assert!(compressed.object.len() < 2000, "{}", compressed.object.len());
    let object = secret.encode(None).unwrap().object;
    assert!(!object.windows(8).any(|window| window == b"8 bytes "));
    let refused = Manifest::decode(object, &NoKeys, on_heap).unwrap_err();
    assert!(matches!(refused, FormatError::NoDataKey { .. }), "{refused}");
}

/// Tampering by someone who cannot read the data key, but makes every checksum right.
#[test]
fn changed_swapped_moved_and_truncated_pieces_of_an_encrypted_segment_are_refused() {
    let plain: Vec<u8> = (0..50_000u32).flat_map(u32::to_be_bytes).collect();
    for codec in [Codec::None, Codec::Zstd] {
        let coding = Coding {
            codec,
            encryption: encryption(1),
        };
        let (manifest, objects) = stored_segment(&coding, &plain, example().segment_id);
        let (_, others) = stored_segment(&coding, &plain, Uuid::from_u64_pair(9, 9));
        // The reader believes any checksum here, so that only the seal is left to refuse.
        let restore = |index: u32, stored: &[u8]| {
            let range = manifest.chunks().plain_range(ChunkIndex(index)).unwrap();
            let piece = &plain[usize::try_from(range.start.0).unwrap()..usize::try_from(range.end.0).unwrap()];
            coding.transform(manifest.segment.segment_id).restore_own(
                Sealed::Chunk(index),
                String::new,
                (stored.to_vec(), stored.len()),
                (Crc32::of(stored), Crc32::of(piece)),
                on_heap,
            )
        };
        restore(0, &objects[0]).unwrap();
        let mut changed = objects[0].to_vec();
        changed[10] ^= 1;
        for (name, index, stored) in [
            ("changed", 0, &changed[..]),
            ("swapped", 0, &objects[1][..]),
            ("moved", 1, &objects[0][..]),
            ("of another segment", 0, &others[0][..]),
            ("truncated", 0, &objects[0][..objects[0].len() - 1]),
            ("cut to a tag", 0, &objects[0][..TAG_BYTES]),
            ("cut below a tag", 0, &objects[0][..TAG_BYTES - 1]),
        ] {
            assert!(restore(index, stored).is_err(), "{name}");
        }
    }
}

#[test]
fn a_changed_message_of_an_encrypted_manifest_is_refused() {
    let coding = Coding {
        codec: Codec::None,
        encryption: encryption(1),
    };
    let (manifest, _) = stored_segment(&coding, &[7; 150_000], example().segment_id);
    let object = manifest.encode(None).unwrap().object;
    let good = message_of(&object);
    let header = Header::of_object(&object, object.len() as u64).unwrap();
    let payloads = object.slice(HEADER_BYTES + usize::try_from(header.message_length).unwrap()..);
    let decode =
        |message: &ManifestMessage, features| Manifest::decode(wrap(message, features, &payloads), &Bare, on_heap);
    assert_eq!(decode(&good, FEATURE_ENCRYPTION), Ok(manifest));
    assert!(
        decode(&good, FEATURE_ENCRYPTION | FEATURE_ZSTD).is_err(),
        "a feature more"
    );
    type Change = fn(&mut ManifestMessage);
    let changes: &[(&str, Change)] = &[
        ("end offset", |message| {
            message.segment.as_mut().unwrap().end_offset += 1
        }),
        ("a leader epoch", |message| {
            message.segment.as_mut().unwrap().leader_epochs.insert(77, 5);
        }),
        ("the last chunk cut off", |message| {
            message.segment.as_mut().unwrap().segment_size = 131_072;
            message.stored_lengths.pop();
            message.stored_crc32s.pop();
            message.plain_crc32s.pop();
            message.object_crc32 = (0..2)
                .fold(Crc32::default(), |whole, chunk| {
                    whole.then(Crc32::recorded(
                        message.stored_crc32s[chunk],
                        u64::from(message.stored_lengths[chunk]),
                    ))
                })
                .value();
        }),
        ("indexes swapped", |message| message.indexes.swap(1, 2)),
        ("the writer", |message| message.writer = "somebody".to_owned()),
        ("another key", |message| {
            message.encryption.as_mut().unwrap().wrapped_key[0] ^= 1
        }),
        ("no encryption", |message| message.encryption = None),
        ("another algorithm", |message| {
            message.encryption.as_mut().unwrap().algorithm = 2
        }),
    ];
    for (name, change) in changes {
        let mut changed = good.clone();
        change(&mut changed);
        assert!(decode(&changed, FEATURE_ENCRYPTION).is_err(), "{name}");
    }
}

#[test]
fn a_codec_that_the_features_do_not_announce_is_refused() {
    let coding = Coding {
        codec: Codec::Zstd,
        encryption: None,
    };
    let (manifest, _) = stored_segment(&coding, &[7; 150_000], example().segment_id);
    let object = manifest.encode(None).unwrap().object;
    let mut unannounced = object.to_vec();
    reseal(&mut unannounced, FORMAT_VERSION, 0);
    assert!(Manifest::decode(Bytes::from(unannounced), &NoKeys, on_heap).is_err());

    let index = IndexPayload::new(IndexType::Offset, Bytes::from(vec![0; 10_000]));
    let compressed = example_manifest(&[1], vec![index])
        .encode(Some(&mut Compressor::new(1)))
        .unwrap();
    let mut unannounced = compressed.object.to_vec();
    reseal(&mut unannounced, FORMAT_VERSION, 0);
    assert!(Manifest::decode(Bytes::from(unannounced), &NoKeys, on_heap).is_err());
}

#[test]
fn an_index_that_swells_is_refused_before_it_does() {
    let mut frame = Vec::new();
    Compressor::new(1).compress(&vec![0; 128 << 20], &mut frame).unwrap();
    let stored = Crc32::of(&frame);
    let mut message = message_of(&example_manifest(&[1], vec![]).encode(None).unwrap().object);
    message.indexes.push(IndexMessage {
        index_type: 0,
        stored_length: u32::try_from(frame.len()).unwrap(),
        stored_crc32: stored.value(),
        plain_length: 128 << 20,
        plain_crc32: 0,
        codec: 1,
    });
    assert!(Manifest::decode(wrap(&message, FEATURE_ZSTD, &frame), &NoKeys, on_heap).is_err());
}

#[test]
fn a_manifest_that_nobody_would_read_is_not_written() {
    let long = Manifest {
        writer: "w".repeat(usize::try_from(MESSAGE_BYTES_MAX).unwrap()),
        ..example_manifest(&[1], vec![])
    };
    assert!(long.encode(None).is_err());
}

#[test]
fn a_manifest_is_read_back_as_it_was_written() {
    for (plain, indexes) in [
        (vec![], vec![]),
        (vec![7; 1], five_indexes()),
        (vec![7; 200_000], five_indexes()),
    ] {
        let manifest = example_manifest(&plain, indexes);
        let decoded = Manifest::decode(manifest.encode(None).unwrap().object, &NoKeys, on_heap).unwrap();
        assert_eq!(decoded, manifest);
        assert_eq!(decoded.chunks().object_crc32(), Crc32::of(&plain));
    }
}

#[test]
fn an_empty_index_is_there_and_a_missing_one_is_not() {
    let manifest = example_manifest(&[1], vec![IndexPayload::new(IndexType::Offset, Bytes::new())]);
    let decoded = Manifest::decode(manifest.encode(None).unwrap().object, &NoKeys, on_heap).unwrap();
    assert_eq!(
        decoded.index(IndexType::Offset).map(|index| index.bytes().len()),
        Some(0)
    );
    assert_eq!(decoded.index(IndexType::Transaction), None);
}

#[test]
fn every_truncation_and_every_added_byte_is_an_error() {
    let object = example_manifest(&[1; 70_000], five_indexes())
        .encode(None)
        .unwrap()
        .object;
    for length in 0..object.len() {
        assert!(
            Manifest::decode(object.slice(..length), &NoKeys, on_heap).is_err(),
            "{length} of {} bytes",
            object.len()
        );
    }
    assert!(Manifest::decode(Bytes::from([&object[..], &[0]].concat()), &NoKeys, on_heap).is_err());
}

#[test]
fn every_flipped_bit_is_an_error() {
    let object = example_manifest(&[1; 70_000], five_indexes())
        .encode(None)
        .unwrap()
        .object;
    for position in 0..object.len() {
        for bit in 0..8 {
            let mut damaged = object.to_vec();
            damaged[position] ^= 1 << bit;
            assert!(
                Manifest::decode(Bytes::from(damaged), &NoKeys, on_heap).is_err(),
                "bit {bit} of byte {position}"
            );
        }
    }
}

#[test]
fn a_later_version_and_an_unknown_feature_are_named() {
    let object = example_manifest(&[1], vec![]).encode(None).unwrap().object;
    let mut later = object.to_vec();
    reseal(&mut later, 2, 0);
    assert_eq!(
        Manifest::decode(Bytes::from(later), &NoKeys, on_heap),
        Err(FormatError::UnknownVersion { found: 2, known: 1 })
    );
    let mut featured = object.to_vec();
    reseal(&mut featured, 1, 0x8000);
    assert_eq!(
        Manifest::decode(Bytes::from(featured), &NoKeys, on_heap),
        Err(FormatError::UnknownFeatures { unknown: 0x8000 })
    );
    assert_eq!(
        Manifest::decode(Bytes::from_static(b"PK\x03\x04 something else"), &NoKeys, on_heap),
        Err(FormatError::BadMagic { found: *b"PK\x03\x04" })
    );
}

#[test]
fn unknown_fields_of_a_later_release_are_ignored() {
    let manifest = example_manifest(&[1], five_indexes());
    let object = manifest.encode(None).unwrap().object;
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
    assert_eq!(Manifest::decode(Bytes::from(later), &NoKeys, on_heap), Ok(manifest));
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
    let message = message_of(&good.encode(None).unwrap().object);
    assert_eq!(
        Manifest::decode(wrap(&message, 0, &payloads), &NoKeys, on_heap),
        Ok(good)
    );
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
        assert!(
            Manifest::decode(wrap(&changed, 0, &payloads), &NoKeys, on_heap).is_err(),
            "{name}"
        );
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
        let _ = Manifest::decode(Bytes::from(bytes), &NoKeys, on_heap);
    }

    #[test]
    fn a_foreign_message_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300), features in 0u16..4) {
        if let Ok(message) = ManifestMessage::decode(&bytes[..]) {
            let _ = Manifest::decode(wrap(&message, features, &[]), &NoKeys, on_heap);
        }
    }
}
