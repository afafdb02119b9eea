#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| checkpoint::fuzzing::safetensors(bytes));
