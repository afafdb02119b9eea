//! Every id's bytes in one allocation.

/// What an id is, as far as reading it back goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// No token has this id.
    Hole,
    /// A word, a byte, a character.
    Text,
    /// Markup a reader does not see.
    Special,
}

/// Bytes and kind per id.
pub struct Pieces {
    blob: Vec<u8>,
    ends: Vec<u32>,
    kinds: Vec<Kind>,
}

impl Pieces {
    pub fn with_capacity(n: usize) -> Self {
        Self { blob: Vec::with_capacity(n * 7), ends: Vec::with_capacity(n), kinds: Vec::with_capacity(n) }
    }

    /// Adds the next id; `write` appends its bytes.
    pub fn push(&mut self, kind: Kind, write: impl FnOnce(&mut Vec<u8>)) {
        write(&mut self.blob);
        self.ends.push(self.blob.len() as u32);
        self.kinds.push(kind);
    }

    pub fn get(&self, id: u32) -> Option<&[u8]> {
        let i = id as usize;
        if *self.kinds.get(i)? == Kind::Hole {
            return None;
        }
        let start = if i == 0 { 0 } else { self.ends[i - 1] as usize };
        self.blob.get(start..self.ends[i] as usize)
    }

    pub fn is_special(&self, id: u32) -> bool {
        self.kinds.get(id as usize) == Some(&Kind::Special)
    }

    pub fn len(&self) -> u32 {
        self.ends.len() as u32
    }
}
