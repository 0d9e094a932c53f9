//! Bytes as a manifest object: as they are, and once more with the checksums and lengths of the header made right.

#![no_main]

use alluvium_format::{Manifest, on_heap};
use alluvium_fuzz::{
    FEATURE_ENCRYPTION, FEATURE_ZSTD, HEADER_BYTES, Keys, check_accepted, check_error, manifest_object,
};
use bytes::Bytes;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    attempt(Bytes::copy_from_slice(bytes));
    if let Some(object) = mended(bytes) {
        attempt(object);
    }
});

fn attempt(object: Bytes) {
    let header = Manifest::check_header(&object, object.len() as u64);
    match Manifest::decode(object.clone(), &Keys, on_heap) {
        Ok(manifest) => check_accepted(&object, &manifest),
        Err(error) => check_error(&error),
    }
    if let Err(error) = header {
        assert_eq!(
            Manifest::decode(object, &Keys, on_heap),
            Err(error),
            "the header alone decides as the whole does"
        );
    }
}

/// With the length of the message that the header tells, if it is possible; without a tag, which only a structured input gets right.
fn mended(bytes: &[u8]) -> Option<Bytes> {
    let (header, rest) = bytes.split_at_checked(HEADER_BYTES)?;
    let features = u16::from_be_bytes([header[6], header[7]]) & (FEATURE_ZSTD | FEATURE_ENCRYPTION);
    let told = u32::from_be_bytes([header[8], header[9], header[10], header[11]]);
    let (message, payloads) = rest.split_at_checked(told as usize).unwrap_or((rest, &[]));
    Some(manifest_object(message, features, None, payloads))
}
