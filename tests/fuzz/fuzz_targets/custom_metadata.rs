//! Bytes that Kafka hands back as custom metadata.

#![no_main]

use alluvium_format::{CUSTOM_METADATA_BYTES_MAX, CustomMetadata};
use alluvium_fuzz::check_error;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    match CustomMetadata::decode(bytes) {
        Ok(metadata) => {
            assert!(bytes.len() <= CUSTOM_METADATA_BYTES_MAX);
            assert_eq!(metadata.encode(), bytes, "there is one encoding");
        }
        Err(error) => check_error(&error),
    }
});
