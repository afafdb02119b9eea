//! Opening a file takes memory in proportion to its size, whatever it claims; one test, because the allocator is counted for the whole process.

mod common;

use std::alloc::System;

use cap::Cap;
use common::{Raw, open, valid_gguf, valid_safetensors};

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

/// The most that was allocated at one time during `f`, beyond what was before. An attempt to take more than `limit` ends the process.
fn within<R>(limit: usize, f: impl FnOnce() -> R) -> R {
    ALLOCATOR.set_limit(ALLOCATOR.allocated() + limit).expect("the limit is above what is in use");
    let r = f();
    ALLOCATOR.set_limit(usize::MAX).expect("no limit");
    r
}

#[test]
fn memory_follows_the_size_of_the_file() {
    // Claims of huge counts and lengths in every eight bytes of valid files.
    for whole in [valid_gguf(), valid_safetensors()] {
        for at in 0..whole.len() - 8 {
            for claim in [1u64 << 20, 1 << 32, 1 << 40, 1 << 62, u64::MAX] {
                let mut b = whole.clone();
                b[at..at + 8].copy_from_slice(&claim.to_le_bytes());
                let b: std::sync::Arc<[u8]> = b.into();
                let limit = 16 * b.len() + (16 << 10);
                within(limit, || drop(open(b)));
            }
        }
    }

    // A vocabulary in memory is not copied: opening allocates far less than its size.
    let tokens: Vec<String> = (0..49_152).map(|i| format!("token number {i}")).collect();
    let bytes: &'static [u8] = Raw::new().key("tokens", tokens).bytes().leak();
    let c = within(16 << 10, || checkpoint::Checkpoint::open(checkpoint::Source::Embedded(bytes)).unwrap());
    assert_eq!(c.meta().strs("tokens").unwrap().unwrap().len(), 49_152);

    // A file of nothing but tensors is the worst case.
    let mut raw = Raw::new();
    for i in 0..10_000 {
        raw = raw.tensor(&format!("{i}"), &[1], 0, 32 * i);
    }
    let b: std::sync::Arc<[u8]> = raw.data(320_000).bytes().into();
    let limit = 8 * b.len();
    assert_eq!(within(limit, || open(b).unwrap()).tensors().len(), 10_000);
}
