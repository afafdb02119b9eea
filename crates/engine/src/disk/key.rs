//! Names by content: a hash of all ids up to a position, made page by page.

use checkpoint::{Checkpoint, FileStamp};
use memory::PAGE_POSITIONS;
use text::Tokenizer;
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

/// The ids of a prompt up to a position. Not proof against people who look for collisions, so whoever reads a file
/// compares its ids, too.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(pub u128);

impl Key {
    /// Nothing was read.
    pub const START: Key = Key(0);

    /// Behind these ids, at most a page of them, which follow this.
    #[must_use]
    pub fn then(self, ids: &[u32]) -> Key {
        let mut bytes = Vec::with_capacity(16 + ids.len() * 4);
        bytes.extend(self.0.to_le_bytes());
        ids.iter().for_each(|id| bytes.extend(id.to_le_bytes()));
        Key(xxh3_128(&bytes))
    }
}

/// The keys of a prompt.
#[derive(Debug)]
pub struct Chain<'a> {
    ids: &'a [u32],
    /// Before each page.
    before: Vec<Key>,
}

const PAGE: usize = PAGE_POSITIONS as usize;

impl<'a> Chain<'a> {
    /// Those of these ids.
    pub fn of(ids: &'a [u32]) -> Self {
        let mut before = vec![Key::START];
        for page in ids.chunks_exact(PAGE) {
            before.push(before[before.len() - 1].then(page));
        }
        Chain { ids, before }
    }
    /// Before page `i`, of those that begin within the ids.
    pub fn before(&self, i: usize) -> Key {
        self.before[i]
    }
    /// Behind the first `at` ids, of as many as there are.
    pub fn at(&self, at: usize) -> Key {
        let whole = at / PAGE;
        if at.is_multiple_of(PAGE) { self.before[whole] } else { self.before[whole].then(&self.ids[whole * PAGE..at]) }
    }
    /// The ids of the page that begins at `i` pages, up to `end`.
    pub fn part(&self, i: usize, end: usize) -> &'a [u32] {
        &self.ids[i * PAGE..end.min(self.ids.len()).min((i + 1) * PAGE)]
    }
    /// All of them.
    pub fn ids(&self) -> &'a [u32] {
        self.ids
    }
}

/// One number for all of these texts.
pub fn fingerprint(of: &[&str]) -> u128 {
    let mut h = Xxh3::new();
    for text in of {
        h.update(&(text.len() as u64).to_le_bytes());
        h.update(text.as_bytes());
    }
    h.digest128()
}

/// What tells a checkpoint from all others: its files as they are now, and the tensors in them. A file that was replaced
/// or touched is another one.
pub fn of_checkpoint(ck: &Checkpoint) -> String {
    let file = |f: &FileStamp| match f {
        // Where it lies says nothing about what it holds.
        FileStamp::File { size, mtime, .. } => format!("file of {size}, {mtime}"),
        FileStamp::Memory { size, sum } => format!("bytes of {size}, {sum}"),
    };
    let files = ck.identity().0.iter().map(file).collect::<Vec<_>>();
    let tensors = ck.tensors().map(|t| format!("{} {:?} {:?} {}", t.name, t.dtype, t.shape, t.at.off));
    let all = files.into_iter().chain(tensors).collect::<Vec<_>>();
    format!("{:032x}", fingerprint(&all.iter().map(String::as_str).collect::<Vec<_>>()))
}

/// What tells a vocabulary from all others.
pub fn of_tokenizer(t: &Tokenizer) -> String {
    let mut h = Xxh3::new();
    for id in 0..t.vocab_size() {
        let bytes = t.token_bytes(id).unwrap_or_default();
        h.update(&(bytes.len() as u32).to_le_bytes());
        h.update(bytes);
    }
    format!("{:032x}", h.digest128())
}
