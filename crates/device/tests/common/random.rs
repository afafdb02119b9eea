//! Seeded numbers.

/// SplitMix64.
#[derive(Clone)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Random(seed)
    }
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }
    /// Below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() % n.max(1) as u64) as usize
    }
    /// In `-by .. by`.
    pub fn float(&mut self, by: f32) -> f32 {
        ((self.bits() >> 40) as f32 / (1 << 23) as f32 - 1.0) * by
    }
    pub fn floats(&mut self, n: usize, by: f32) -> Vec<f32> {
        (0..n).map(|_| self.float(by)).collect()
    }
    /// A permutation of `0 .. n`.
    pub fn order(&mut self, n: usize) -> Vec<i32> {
        let mut all: Vec<i32> = (0..n as i32).collect();
        (1..n).for_each(|i| all.swap(i, self.below(i + 1)));
        all
    }
}
