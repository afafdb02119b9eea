#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| text::fuzzing::schema(bytes));
