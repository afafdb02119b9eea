//! Random signs and the Hadamard transform.

/// What the signs are drawn with: a counter is mixed by SplitMix64's finaliser.
pub const GENERATOR: &str = "splitmix64";
/// Its seed.
pub const SEED: u64 = 0x736e_7567_5f6b_7631;
/// Greatest width of a vector.
pub const MAX_WIDTH: usize = 512;
const WORDS: usize = MAX_WIDTH / 64;

/// The signs of one stream: bit i set where element i changes its sign.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Signs([u64; WORDS]);

/// Number `counter` of the stream of random numbers.
fn word(counter: u64) -> u64 {
    let z = SEED.wrapping_add(counter.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Signs {
    /// Those of the keys (`plane` 0) or values (`plane` 1) of a head.
    pub fn new(layer: u32, plane: u32, head: u32) -> Self {
        let stream = ((layer as u64) << 1 | plane as u64) << 32 | head as u64;
        Signs(std::array::from_fn(|i| word(stream.wrapping_mul(WORDS as u64).wrapping_add(i as u64))))
    }
    #[inline(always)]
    fn flip(&self, x: &mut [f32]) {
        for (word, x) in self.0.iter().zip(x.chunks_mut(64)) {
            for (i, x) in x.iter_mut().enumerate() {
                *x = f32::from_bits(x.to_bits() ^ ((word >> i) as u32 & 1) << 31);
            }
        }
    }
    /// `x <- H (s * x)`, longer than the rotation by `sqrt(d)`; `d` a power of two up to [`MAX_WIDTH`].
    #[inline(always)]
    pub fn spread(&self, x: &mut [f32]) {
        self.flip(x);
        hadamard(x);
    }
    /// `x <- R x = H (s * x) / sqrt(d)`.
    #[inline(always)]
    pub fn rotate(&self, x: &mut [f32]) {
        self.spread(x);
        let by = 1.0 / (x.len() as f32).sqrt();
        x.iter_mut().for_each(|x| *x *= by);
    }
    /// `x <- R^-1 x = s * H x / sqrt(d)`: H is its own inverse but for the factor d.
    #[inline(always)]
    pub fn unrotate(&self, x: &mut [f32]) {
        hadamard(x);
        let by = 1.0 / (x.len() as f32).sqrt();
        x.iter_mut().for_each(|x| *x *= by);
        self.flip(x);
    }
}

/// `x <- H x`, H_ij = (-1)^popcount(i & j), by sums and differences in log2 d steps. Each element is computed in the same
/// order of exact f32 operations on every instruction set.
#[inline(always)]
pub fn hadamard(x: &mut [f32]) {
    let (blocks, _) = x.as_chunks_mut::<BLOCK>();
    let mut half = if blocks.is_empty() { 1 } else { BLOCK };
    for b in blocks {
        *b = small(*b);
    }
    while half < x.len() {
        for pair in x.chunks_exact_mut(2 * half) {
            let (a, b) = pair.split_at_mut(half);
            for (a, b) in a.iter_mut().zip(b) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
        half *= 2;
    }
}

/// Elements whose steps fit a vector register.
const BLOCK: usize = 16;

/// The first four steps.
#[inline(always)]
fn small(x: [f32; BLOCK]) -> [f32; BLOCK] {
    step::<8>(step::<4>(step::<2>(step::<1>(x))))
}

/// One of them: sums and differences of elements that are `HALF` apart.
#[inline(always)]
fn step<const HALF: usize>(x: [f32; BLOCK]) -> [f32; BLOCK] {
    let mut y = [0.0; BLOCK];
    for (i, y) in y.iter_mut().enumerate() {
        let (other, own) = (x[i ^ HALF], x[i]);
        *y = if i & HALF == 0 { own + other } else { other - own };
    }
    y
}

/// The greatest magnitude, not a number where one is none: without their signs, numbers are in the order of their bits, which
/// can be compared side by side.
#[inline(always)]
pub fn greatest(x: &[f32]) -> f32 {
    f32::from_bits(x.iter().fold(0, |m, x| m.max(x.abs().to_bits())))
}

/// `x` rounded to a whole number, halves to even, for `|x|` up to 2^22: the bits below one fall off a sum with 1.5 * 2^23. The
/// function of the standard library is a call where code is compiled for any x86-64 and only then becomes part of a kernel.
#[inline(always)]
pub fn nearest(x: f32) -> f32 {
    const WHOLE: f32 = 12_582_912.0;
    (x + WHOLE) - WHOLE
}
