//! Sums of what was read, by which it is known again.

/// What is said of bytes that are not those of the first time.
pub(crate) const CHANGED: &str =
    "its bytes are others than when it was read first: the file was changed, or the disk errs";

/// FNV-1a over words of eight bytes (not cryptographic).
pub(crate) struct Sum(u64);

impl Default for Sum {
    fn default() -> Self {
        Sum(0xCBF2_9CE4_8422_2325)
    }
}

impl Sum {
    /// Goes on with these bytes.
    pub fn add(&mut self, bytes: &[u8]) {
        let word = |h: u64, w: u64| (h ^ w).wrapping_mul(0x0000_0100_0000_01B3);
        let (words, rest) = bytes.as_chunks::<8>();
        let sum = words.iter().fold(self.0, |h, w| word(h, u64::from_le_bytes(*w)));
        self.0 = rest.iter().fold(sum, |h, b| word(h, (*b).into()));
    }
    /// The sum so far.
    pub fn get(&self) -> u64 {
        self.0
    }
}
