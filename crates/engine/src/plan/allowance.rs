//! H foreseen: what a process will hold beyond what it reserves.
//!
//! The constants were measured as differences between processes with and without the part in question
//! (`scripts/check-budget`, docs/benchmarks.md); the rule is their sum, and the check is that the plan's total stays
//! within 5% of what the system saw at most.

use checkpoint::{Checkpoint, Meta};
use device::Caps;
use memory::Plan;

/// The program's own pages, its libraries, and the heap of a process that did nothing yet.
const PROGRAM: u64 = 27 << 19;
/// The part of a kernel thread's stack that is ever touched, with what the C library keeps for a thread.
const THREAD: u64 = 96 << 10;
/// Of a tokenizer made from lists: for each token and each merge, besides their bytes.
const TOKEN: u64 = 175;
const MERGE: u64 = 50;
/// Of one made from a `tokenizer.json`: for ten bytes of it.
const JSON_TEN: u64 = 55;
/// A page of the system's tables holds as many addresses.
const TABLE_ENTRIES: u64 = 512;
/// Bytes of a logit that was read back.
const LOGIT: u64 = 4;
/// The sampler's own lists, for each token of the vocabulary.
const SAMPLER: u64 = 8;

/// What the process will hold besides the model, in bytes.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Allowance {
    /// The program.
    pub program: u64,
    /// Its threads.
    pub threads: u64,
    /// Tokenizer and chat template.
    pub text: u64,
    /// Of a checkpoint inside the program, what lies before its tensors: its metadata are read where they are, like the
    /// tensors that are loaded.
    pub mapped: u64,
    /// What the caller adds: a server's connections, say.
    pub more: u64,
}

impl Allowance {
    /// For a checkpoint on a backend.
    pub fn of(ck: &Checkpoint, caps: &Caps) -> Self {
        let embedded = ck.tensors().filter(|t| ck.embedded(t.at).is_some());
        let mapped = embedded.map(|t| t.at.off).min().unwrap_or(0);
        Allowance { program: PROGRAM, threads: THREAD * caps.threads as u64, text: text(ck.meta()), mapped, more: 0 }
    }
    /// With what follows from the plan: copies of logits, the sampler's lists, and the system's tables of all pages.
    pub(super) fn bytes(&self, p: &Plan, vocab: u32, logit_rows: u32) -> u64 {
        let histories = if p.beside.is_empty() { 1 } else { 2 };
        let rows = logit_rows.max(p.few) as u64 * histories;
        let logits = (LOGIT * rows + SAMPLER * p.parallel as u64).saturating_mul(vocab as u64);
        let tables = p.reserved_bytes() / TABLE_ENTRIES;
        let records = p.slots.as_ref().map_or(0, |s| s.heap);
        let parts = [self.program, self.threads, self.text, self.mapped, self.more, logits, tables, records];
        // The total is whole pages, as every limit of the system is.
        let total = parts.into_iter().fold(p.reserved_bytes(), u64::saturating_add);
        total.checked_next_multiple_of(4096).unwrap_or(u64::MAX) - p.reserved_bytes()
    }
}

/// Bytes of a tokenizer: what its lists hold, once as text and once more as keys of a map.
fn text(meta: &Meta) -> u64 {
    let listed = |key: &str, entry: u64| {
        let list = meta.strs(key).ok().flatten().unwrap_or_default();
        list.iter().map(|s| 2 * s.len() as u64 + entry).sum::<u64>()
    };
    let json = meta.hf().and_then(|h| h.tokenizer_json().ok().flatten()).map_or(0, |j| j.len() as u64);
    listed("tokenizer.ggml.tokens", TOKEN) + listed("tokenizer.ggml.merges", MERGE) + json / 10 * JSON_TEN
}
