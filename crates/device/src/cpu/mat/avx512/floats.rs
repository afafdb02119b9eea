//! Float formats times f32 activations.

use crate::cpu::mat::tile_x86::prefetch;
use crate::cpu::mat::{TILE, Weights};
use std::arch::x86_64::*;

/// A float format.
pub trait Elem {
    const BYTES: usize;
    /// Sixteen elements, or those of `mask` and zeros.
    ///
    /// # Safety
    /// AVX-512 as in the file's kernels; the elements of `mask` are readable.
    unsafe fn load(p: *const u8, mask: u16) -> __m512;
}

macro_rules! elem {
    ($name:ident, $n:expr, |$p:ident, $mask:ident| $body:expr) => {
        #[doc = concat!(stringify!($name), " weights.")]
        pub struct $name;
        impl Elem for $name {
            const BYTES: usize = $n;
            #[inline]
            #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
            unsafe fn load($p: *const u8, $mask: u16) -> __m512 {
                // SAFETY: the caller's promise; masked-off elements are not touched.
                unsafe { $body }
            }
        }
    };
}
elem!(F32, 4, |p, mask| _mm512_maskz_loadu_ps(mask, p.cast()));
elem!(F16, 2, |p, mask| _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, p.cast())));
elem!(Bf16, 2, |p, mask| {
    let wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, p.cast()));
    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
});

/// `R` activation rows times four weight rows; `ahead` is called before every step along k.
///
/// # Safety
/// AVX-512 as in the file's kernels; all rows have `k` readable elements.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn register_tile<E: Elem, const R: usize>(
    w: [*const u8; 4],
    x: [*const u8; R],
    k: usize,
    ahead: impl Fn(usize),
) -> [[f32; 4]; R] {
    // SAFETY: the caller's promise: the mask covers exactly the elements below k.
    unsafe {
        let mut acc = [[_mm512_setzero_ps(); 4]; R];
        let whole = k / 16 * 16;
        for at in (0..whole).step_by(16) {
            ahead(at);
            step::<E, R>(&mut acc, w, x, at, u16::MAX);
        }
        if whole < k {
            step::<E, R>(&mut acc, w, x, whole, (1 << (k - whole)) - 1);
        }
        acc.map(|row| row.map(|v| sum(v)))
    }
}

/// The products of the elements of `mask` behind `at`.
///
/// # Safety
/// As [`register_tile`]; the elements are readable.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn step<E: Elem, const R: usize>(
    acc: &mut [[__m512; 4]; R],
    w: [*const u8; 4],
    x: [*const u8; R],
    at: usize,
    mask: u16,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let w = w.map(|w| E::load(w.add(at * E::BYTES), mask));
        for (acc, x) in acc.iter_mut().zip(x) {
            let x = _mm512_maskz_loadu_ps(mask, x.cast::<f32>().add(at));
            for (acc, w) in acc.iter_mut().zip(w) {
                *acc = _mm512_fmadd_ps(w, x, *acc);
            }
        }
    }
}

/// Lanes 8 apart, 4 apart, 2 apart, 1 apart.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub fn sum(v: __m512) -> f32 {
    let v = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v));
    let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
    let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
    _mm_cvtss_f32(_mm_add_ss(v, _mm_movehdup_ps(v)))
}

/// See [`crate::cpu::mat::TileFn`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub unsafe fn floats<E: Elem>(w: &Weights, x: &[*const u8], acc: &mut [[f32; TILE]]) {
    for n in (0..w.n).step_by(4) {
        let rows = std::array::from_fn(|i| w.at(n + i));
        let (fours, rest) = x.as_chunks::<4>();
        let put = |acc: &mut [[f32; TILE]], y: &[[f32; 4]]| {
            acc.iter_mut().zip(y).for_each(|(acc, y)| acc[n..n + 4].copy_from_slice(y));
        };
        // With one row, weights arrive as fast as they are used.
        let ahead = |at: usize| {
            let from = n * w.row + at * 4 * E::BYTES;
            prefetch(w, from, from + 16 * 4 * E::BYTES);
        };
        // SAFETY: the promise of `TileFn`.
        unsafe {
            for (x, acc) in fours.iter().zip(acc.chunks_mut(4)) {
                put(acc, &register_tile::<E, 4>(rows, *x, w.k, |_| {}));
            }
            let acc = &mut acc[4 * fours.len()..];
            match *rest {
                [a] => put(acc, &register_tile::<E, 1>(rows, [a], w.k, ahead)),
                [a, b] => put(acc, &register_tile::<E, 2>(rows, [a, b], w.k, |_| {})),
                [a, b, c] => put(acc, &register_tile::<E, 3>(rows, [a, b, c], w.k, |_| {})),
                _ => {}
            }
        }
    }
}
