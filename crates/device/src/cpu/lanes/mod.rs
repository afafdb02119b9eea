//! One vector of f32 per instruction set, so that a loop is written once and compiled for each.
//!
//! A kernel is a [`Work`]; [`dispatch`] enters it through a function that has the set's `#[target_feature]`s, and
//! everything that is `#[inline(always)]` below it is compiled with them. A value never depends on the lane it is
//! computed in: tails are loaded padded, go through the same instructions and are stored in part.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod math;
mod plain;

use super::Isa;
use crate::view::Glu;
pub use math::square_sum;

/// Lanes of the widest set.
pub const MAX_LANES: usize = 16;

/// A vector of `N` f32. Types of this trait are named only by [`dispatch`], which has seen that the CPU has them.
pub trait Lanes: Copy {
    /// Lanes.
    const N: usize;

    /// Runs `w` compiled for this set: a call, never inlined into code for another set.
    ///
    /// # Safety
    /// The CPU has the set.
    unsafe fn enter<W: Work>(w: W);
    /// # Safety
    /// `p .. p + N` may be read.
    unsafe fn load(p: *const f32) -> Self;
    /// The first `n < N` elements, zeros behind them.
    ///
    /// # Safety
    /// `p .. p + n` may be read.
    unsafe fn load_part(p: *const f32, n: usize) -> Self;
    /// Widens bfloat16.
    ///
    /// # Safety
    /// `p .. p + N` may be read.
    unsafe fn load_bf16(p: *const u16) -> Self;
    /// Widens half floats.
    ///
    /// # Safety
    /// `p .. p + N` may be read.
    unsafe fn load_f16(p: *const u16) -> Self;
    /// Signed bytes as numbers.
    ///
    /// # Safety
    /// `p .. p + N` may be read.
    unsafe fn load_i8(p: *const i8) -> Self;
    /// The entries of `table` that N nibbles name, the low one of each byte first.
    ///
    /// # Safety
    /// `p .. p + N / 2` may be read.
    unsafe fn look(p: *const u8, table: &[f32; 16]) -> Self;
    /// The entries of `table` that bits `shift .. shift + 4` of N words name.
    ///
    /// # Safety
    /// `p .. p + N` may be read.
    unsafe fn look_words(p: *const u32, shift: u32, table: &[f32; 16]) -> Self;
    /// Bits `shift .. shift + 8` of N words as signed numbers.
    ///
    /// # Safety
    /// `p .. p + N` may be read.
    unsafe fn byte_of_words(p: *const u32, shift: u32) -> Self;
    /// # Safety
    /// `p .. p + N` may be written.
    unsafe fn store(self, p: *mut f32);
    /// The first `n < N` elements.
    ///
    /// # Safety
    /// `p .. p + n` may be written.
    unsafe fn store_part(self, p: *mut f32, n: usize);
    /// `x` in every lane.
    fn splat(x: f32) -> Self;
    /// Sum.
    fn add(self, o: Self) -> Self;
    /// Difference.
    fn sub(self, o: Self) -> Self;
    /// Product.
    fn mul(self, o: Self) -> Self;
    /// Quotient.
    fn div(self, o: Self) -> Self;
    /// The greater; `o` where one is NaN.
    fn max(self, o: Self) -> Self;
    /// The lesser; `o` where one is NaN.
    fn min(self, o: Self) -> Self;
    /// `self * b + c`, rounded once where the set can.
    fn fma(self, b: Self, c: Self) -> Self;
    /// The nearest integers.
    fn round(self) -> Self;
    /// `2^self` of integers in -126 ..= 127.
    fn pow2(self) -> Self;
    /// 0 where `x < lo`, else `self`.
    fn zero_where_below(self, x: Self, lo: Self) -> Self;
    /// Sum of the lanes in a fixed tree.
    fn sum(self) -> f32;
    /// The sums of four vectors, each in the tree of [`sum`](Self::sum).
    fn sum4(v: [Self; 4]) -> [f32; 4];
    /// The greatest lane.
    fn greatest(self) -> f32;

    /// `n <= N` elements, zeros behind them.
    ///
    /// # Safety
    /// `p .. p + n` may be read.
    #[inline(always)]
    unsafe fn get(p: *const f32, n: usize) -> Self {
        // SAFETY: the caller's promise.
        unsafe { if n >= Self::N { Self::load(p) } else { Self::load_part(p, n) } }
    }
    /// The first `n <= N` elements.
    ///
    /// # Safety
    /// `p .. p + n` may be written.
    #[inline(always)]
    unsafe fn put(self, p: *mut f32, n: usize) {
        // SAFETY: the caller's promise.
        unsafe { if n >= Self::N { self.store(p) } else { self.store_part(p, n) } }
    }
    /// The first lane.
    #[inline(always)]
    fn first(self) -> f32 {
        let mut all = [0.0; MAX_LANES];
        // SAFETY: N <= MAX_LANES.
        unsafe { self.store(all.as_mut_ptr()) };
        all[0]
    }
    /// `n < N` bfloat16, zeros behind them.
    ///
    /// # Safety
    /// `p .. p + n` may be read.
    #[inline(always)]
    unsafe fn load_bf16_part(p: *const u16, n: usize) -> Self {
        let mut all = [0u16; MAX_LANES];
        // SAFETY: n < N <= MAX_LANES, then N of the array.
        unsafe {
            std::ptr::copy_nonoverlapping(p.cast::<u8>(), all.as_mut_ptr().cast(), 2 * n);
            Self::load_bf16(all.as_ptr())
        }
    }
    /// `n <= N` half floats, zeros behind them.
    ///
    /// # Safety
    /// `p .. p + n` may be read.
    #[inline(always)]
    unsafe fn get_f16(p: *const u16, n: usize) -> Self {
        let mut all = [0u16; MAX_LANES];
        // SAFETY: the caller's promise; less than N are copied into the array first.
        unsafe {
            if n >= Self::N {
                return Self::load_f16(p);
            }
            std::ptr::copy_nonoverlapping(p.cast::<u8>(), all.as_mut_ptr().cast(), 2 * n);
            Self::load_f16(all.as_ptr())
        }
    }
    /// Zeros.
    #[inline(always)]
    fn zero() -> Self {
        Self::splat(0.0)
    }
    /// `e^self`: within 2 units of the last place, 0 below -87, infinity from 88.7 on, NaN for NaN.
    #[inline(always)]
    fn exp(self) -> Self {
        math::exp(self)
    }
    /// `1 / (1 + e^-self)`.
    #[inline(always)]
    fn sigmoid(self) -> Self {
        math::sigmoid(self)
    }
    /// `self * sigmoid(self)`.
    #[inline(always)]
    fn silu(self) -> Self {
        self.mul(math::sigmoid(self))
    }
    /// The hyperbolic tangent.
    #[inline(always)]
    fn tanh(self) -> Self {
        math::tanh(self)
    }
    /// A gated linear unit of the gate `self`.
    #[inline(always)]
    fn glu(self, glu: Glu, up: Self) -> Self {
        math::glu(self, glu, up)
    }
}

/// A piece of a kernel, written over [`Lanes`]. Implementations are `#[inline(always)]`.
pub trait Work {
    /// Does it.
    fn run<L: Lanes>(self);
}

/// Runs `w` with the set's instructions.
pub fn dispatch<W: Work>(isa: Isa, w: W) {
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: an `Isa` other than Scalar is chosen only where `Isa::available` said so.
        Isa::Avx512 | Isa::Amx => unsafe { avx512::Avx512::enter(w) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Isa::Avx2 => unsafe { avx2::Avx2::enter(w) },
        // SAFETY: plain Rust runs everywhere.
        _ => unsafe { plain::Plain::enter(w) },
    }
}
