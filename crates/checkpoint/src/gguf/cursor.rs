//! A bounds-checked walk over a header whose length is not known beforehand.

use std::borrow::Cow;
use std::ops::Range;

use crate::source::{Bytes, Stored};
use crate::{Error, Result};

/// First read of a file; later ones double it.
const FIRST: u64 = 256 << 10;
/// No header is larger. The largest vocabularies take about 20 MB.
const MAX: u64 = 1 << 30;

/// Reads the start of a file piece by piece and keeps it, so that values can refer to it. In memory it refers to what is there.
pub(super) struct Cursor<'a> {
    stored: &'a Stored,
    window: Cow<'a, [u8]>,
    pos: usize,
    /// What is being read, for messages.
    pub(super) at: At,
}

/// A place in a GGUF header.
pub(super) enum At {
    Start,
    Key(u64),
    Value(std::sync::Arc<str>),
    Tensor(u64),
}

impl std::fmt::Display for At {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Start => f.write_str("the first 24 bytes"),
            Self::Key(i) => write!(f, "metadata key {i}"),
            Self::Value(k) => write!(f, "the value of {k:?}"),
            Self::Tensor(i) => write!(f, "the description of tensor {i}"),
        }
    }
}

impl<'a> Cursor<'a> {
    pub(super) fn new(stored: &'a Stored) -> Self {
        let window = stored.bytes().map_or(Cow::Borrowed(&[][..]), |b| Cow::Borrowed(b.as_slice()));
        Self { stored, window, pos: 0, at: At::Start }
    }

    pub(super) fn pos(&self) -> u64 {
        self.pos as u64
    }

    pub(super) fn header(&self, why: impl Into<String>) -> Error {
        Error::Header { file: self.stored.name.clone(), why: why.into() }
    }

    fn truncated(&self, need: u64) -> Error {
        Error::Truncated {
            file: self.stored.name.clone(),
            container: "GGUF",
            at: self.at.to_string(),
            need,
            have: self.stored.len,
        }
    }

    /// Checks that `n` things of at least `size` bytes each can still follow.
    pub(super) fn room(&self, n: u64, size: u64) -> Result<()> {
        let end = n.checked_mul(size).and_then(|b| b.checked_add(self.pos()));
        match end {
            Some(end) if end <= self.stored.len => Ok(()),
            _ => Err(self.truncated(end.unwrap_or(u64::MAX))),
        }
    }

    /// The next `n` bytes, as a place in the header.
    pub(super) fn take(&mut self, n: u64) -> Result<Range<usize>> {
        self.room(n, 1)?;
        let end = self.pos() + n;
        if end > self.window.len() as u64 {
            self.grow(end)?;
        }
        let from = std::mem::replace(&mut self.pos, end as usize);
        Ok(from..self.pos)
    }

    fn grow(&mut self, end: u64) -> Result<()> {
        if end > MAX {
            return Err(self.header(format!("{} takes more than {} MB: the file is damaged", self.at, MAX >> 20)));
        }
        let have = self.window.len();
        let size = end.max(2 * have as u64).max(FIRST).min(self.stored.len) as usize;
        let window = self.window.to_mut();
        window.reserve_exact(size - have);
        window.resize(size, 0);
        self.stored.read_at(have as u64, &mut window[have..])
    }

    /// The bytes of a place that [`Cursor::take`] gave.
    pub(super) fn bytes(&self, at: Range<usize>) -> &[u8] {
        self.window.get(at).unwrap_or_default()
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let at = self.take(N as u64)?;
        let mut out = [0; N];
        out.copy_from_slice(self.bytes(at));
        Ok(out)
    }

    pub(super) fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// A string's bytes: u64 length, then as many.
    pub(super) fn string(&mut self) -> Result<Range<usize>> {
        let n = self.u64()?;
        self.take(n)
    }

    /// Everything read so far, to be kept. Bytes in memory are shared, not copied.
    pub(super) fn into_bytes(mut self) -> Bytes {
        match self.stored.bytes() {
            Some(b) => b.clone(),
            None => {
                let window = self.window.to_mut();
                window.truncate(self.pos);
                Bytes::Shared(std::mem::take(window).into())
            }
        }
    }
}
