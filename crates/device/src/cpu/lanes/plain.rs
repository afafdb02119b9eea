//! Plain Rust: eight lanes, products and sums rounded one by one.

use super::{Lanes, Work};
use half::f16;

/// Eight lanes of any CPU.
#[derive(Copy, Clone)]
pub struct Plain([f32; 8]);

impl Plain {
    #[inline(always)]
    fn each(mut self, o: Self, f: impl Fn(f32, f32) -> f32) -> Self {
        for (x, y) in self.0.iter_mut().zip(o.0) {
            *x = f(*x, y);
        }
        self
    }
}

impl Lanes for Plain {
    const N: usize = 8;

    unsafe fn enter<W: Work>(w: W) {
        w.run::<Self>()
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: eight readable floats.
        Plain(unsafe { p.cast::<[f32; 8]>().read_unaligned() })
    }
    #[inline(always)]
    unsafe fn load_part(p: *const f32, n: usize) -> Self {
        let mut all = [0.0; 8];
        for (i, x) in all.iter_mut().enumerate().take(n) {
            // SAFETY: only the first n are read.
            *x = unsafe { p.add(i).read_unaligned() };
        }
        Plain(all)
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> Self {
        // SAFETY: eight readable halves.
        let h = unsafe { p.cast::<[u16; 8]>().read_unaligned() };
        Plain(h.map(|h| f32::from_bits((h as u32) << 16)))
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> Self {
        // SAFETY: eight readable halves.
        let h = unsafe { p.cast::<[u16; 8]>().read_unaligned() };
        Plain(h.map(|h| f16::from_bits(h).to_f32()))
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> Self {
        // SAFETY: eight readable bytes.
        Plain(unsafe { p.cast::<[i8; 8]>().read_unaligned() }.map(f32::from))
    }
    #[inline(always)]
    unsafe fn look(p: *const u8, table: &[f32; 16]) -> Self {
        // SAFETY: four readable bytes.
        let b = unsafe { p.cast::<[u8; 4]>().read_unaligned() };
        Plain(std::array::from_fn(|i| table[(b[i / 2] >> (i % 2 * 4)) as usize & 15]))
    }
    #[inline(always)]
    unsafe fn look_words(p: *const u32, shift: u32, table: &[f32; 16]) -> Self {
        // SAFETY: eight readable words.
        let w = unsafe { p.cast::<[u32; 8]>().read_unaligned() };
        Plain(w.map(|w| table[(w >> shift) as usize & 15]))
    }
    #[inline(always)]
    unsafe fn byte_of_words(p: *const u32, shift: u32) -> Self {
        // SAFETY: eight readable words.
        let w = unsafe { p.cast::<[u32; 8]>().read_unaligned() };
        Plain(w.map(|w| (w >> shift) as i8 as f32))
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: eight writable floats.
        unsafe { p.cast::<[f32; 8]>().write_unaligned(self.0) }
    }
    #[inline(always)]
    unsafe fn store_part(self, p: *mut f32, n: usize) {
        for (i, x) in self.0.into_iter().enumerate().take(n) {
            // SAFETY: only the first n are written.
            unsafe { p.add(i).write_unaligned(x) }
        }
    }
    #[inline(always)]
    fn splat(x: f32) -> Self {
        Plain([x; 8])
    }
    #[inline(always)]
    fn add(self, o: Self) -> Self {
        self.each(o, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, o: Self) -> Self {
        self.each(o, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, o: Self) -> Self {
        self.each(o, |a, b| a * b)
    }
    #[inline(always)]
    fn div(self, o: Self) -> Self {
        self.each(o, |a, b| a / b)
    }
    #[inline(always)]
    fn max(self, o: Self) -> Self {
        self.each(o, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn min(self, o: Self) -> Self {
        self.each(o, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    fn fma(self, b: Self, c: Self) -> Self {
        self.mul(b).add(c)
    }
    #[inline(always)]
    fn round(self) -> Self {
        // Adding 1.5 * 2^23 leaves no fraction; every number rounded here is far smaller.
        let big = Self::splat(12_582_912.0);
        self.add(big).sub(big)
    }
    #[inline(always)]
    fn pow2(self) -> Self {
        // The low bits of 1.5 * 2^23 + n are n. Whole numbers, so a shift of the biased exponent is exact.
        let big = self.add(Self::splat(12_582_912.0));
        Plain(big.0.map(|b| f32::from_bits(b.to_bits().wrapping_add(127) << 23)))
    }
    #[inline(always)]
    fn zero_where_below(self, x: Self, lo: Self) -> Self {
        let below = x.each(lo, |x, lo| f32::from(u8::from(x < lo)));
        self.each(below, |y, below| if below > 0.0 { 0.0 } else { y })
    }
    #[inline(always)]
    fn sum(self) -> f32 {
        let v = self.0;
        ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]))
    }
    #[inline(always)]
    fn sum4(v: [Self; 4]) -> [f32; 4] {
        v.map(Self::sum)
    }
    #[inline(always)]
    fn greatest(self) -> f32 {
        self.0.into_iter().fold(f32::NEG_INFINITY, |m, x| if x > m { x } else { m })
    }
}
