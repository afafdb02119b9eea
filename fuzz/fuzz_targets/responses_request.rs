#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| server::fuzzing::responses(bytes));
