//! A configuration up to the first zero byte, then a safetensors file: the logical matrices they make.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let (config, file) = bytes.split_at(bytes.iter().position(|b| *b == 0).unwrap_or(0));
    checkpoint::fuzzing::matrices(config, file.get(1..).unwrap_or_default());
});
