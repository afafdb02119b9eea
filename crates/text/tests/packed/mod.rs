//! Recorded answers, kept packed because most of what they say repeats.

use lzma_rust2::LzmaReader;
use serde::de::DeserializeOwned;

/// Packed JSON.
pub fn packed<T: DeserializeOwned>(lzma: &[u8]) -> T {
    serde_json::from_reader(LzmaReader::new_mem_limit(lzma, u32::MAX, None).unwrap()).unwrap()
}
