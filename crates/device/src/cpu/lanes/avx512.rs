//! AVX-512: sixteen lanes.

use super::{Lanes, Work};
use std::arch::x86_64::*;

/// Instructions of this file's set, which `dispatch` has seen before any value of the type exists.
macro_rules! have {
    ($e:expr) => {
        // SAFETY: the CPU has AVX-512 F, BW, VL and DQ; addresses are the caller's promise.
        unsafe { $e }
    };
}

/// One ZMM register.
#[derive(Copy, Clone)]
pub struct Avx512(__m512);

/// The first `n` lanes.
#[inline(always)]
fn mask(n: usize) -> __mmask16 {
    ((1u32 << n) - 1) as __mmask16
}

/// Upper half onto lower half.
#[inline(always)]
fn folded(v: __m512) -> __m256 {
    have!(_mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v)))
}

impl Lanes for Avx512 {
    const N: usize = 16;

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
    unsafe fn enter<W: Work>(w: W) {
        w.run::<Self>()
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        Avx512(have!(_mm512_loadu_ps(p)))
    }
    #[inline(always)]
    unsafe fn load_part(p: *const f32, n: usize) -> Self {
        Avx512(have!(_mm512_maskz_loadu_ps(mask(n), p)))
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> Self {
        let wide = have!(_mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast())));
        Avx512(have!(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))))
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> Self {
        Avx512(have!(_mm512_cvtph_ps(_mm256_loadu_si256(p.cast()))))
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> Self {
        Avx512(have!(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast())))))
    }
    #[inline(always)]
    unsafe fn look(p: *const u8, table: &[f32; 16]) -> Self {
        // Of each byte b the words b (of which a permutation looks at four bits) and b >> 4.
        let b = have!(_mm512_cvtepu8_epi64(_mm_loadl_epi64(p.cast())));
        let index = have!(_mm512_or_si512(b, _mm512_slli_epi64::<28>(b)));
        Avx512(have!(_mm512_permutexvar_ps(index, _mm512_loadu_ps(table.as_ptr()))))
    }
    #[inline(always)]
    unsafe fn look_words(p: *const u32, shift: u32, table: &[f32; 16]) -> Self {
        // A permutation looks at the lowest four bits of its indices.
        let index = have!(_mm512_srl_epi32(_mm512_loadu_si512(p.cast()), _mm_cvtsi32_si128(shift as i32)));
        Avx512(have!(_mm512_permutexvar_ps(index, _mm512_loadu_ps(table.as_ptr()))))
    }
    #[inline(always)]
    unsafe fn byte_of_words(p: *const u32, shift: u32) -> Self {
        let up = have!(_mm512_sll_epi32(_mm512_loadu_si512(p.cast()), _mm_cvtsi32_si128(24 - shift as i32)));
        Avx512(have!(_mm512_cvtepi32_ps(_mm512_srai_epi32::<24>(up))))
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        have!(_mm512_storeu_ps(p, self.0))
    }
    #[inline(always)]
    unsafe fn store_part(self, p: *mut f32, n: usize) {
        have!(_mm512_mask_storeu_ps(p, mask(n), self.0))
    }
    #[inline(always)]
    fn splat(x: f32) -> Self {
        Avx512(have!(_mm512_set1_ps(x)))
    }
    #[inline(always)]
    fn add(self, o: Self) -> Self {
        Avx512(have!(_mm512_add_ps(self.0, o.0)))
    }
    #[inline(always)]
    fn sub(self, o: Self) -> Self {
        Avx512(have!(_mm512_sub_ps(self.0, o.0)))
    }
    #[inline(always)]
    fn mul(self, o: Self) -> Self {
        Avx512(have!(_mm512_mul_ps(self.0, o.0)))
    }
    #[inline(always)]
    fn div(self, o: Self) -> Self {
        Avx512(have!(_mm512_div_ps(self.0, o.0)))
    }
    #[inline(always)]
    fn max(self, o: Self) -> Self {
        Avx512(have!(_mm512_max_ps(self.0, o.0)))
    }
    #[inline(always)]
    fn min(self, o: Self) -> Self {
        Avx512(have!(_mm512_min_ps(self.0, o.0)))
    }
    #[inline(always)]
    fn fma(self, b: Self, c: Self) -> Self {
        Avx512(have!(_mm512_fmadd_ps(self.0, b.0, c.0)))
    }
    #[inline(always)]
    fn round(self) -> Self {
        Avx512(have!(_mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(self.0)))
    }
    #[inline(always)]
    fn pow2(self) -> Self {
        let n = have!(_mm512_add_epi32(_mm512_cvtps_epi32(self.0), _mm512_set1_epi32(127)));
        Avx512(have!(_mm512_castsi512_ps(_mm512_slli_epi32::<23>(n))))
    }
    #[inline(always)]
    fn zero_where_below(self, x: Self, lo: Self) -> Self {
        let keep = have!(_mm512_cmp_ps_mask::<_CMP_NLT_UQ>(x.0, lo.0));
        Avx512(have!(_mm512_maskz_mov_ps(keep, self.0)))
    }
    #[inline(always)]
    fn sum(self) -> f32 {
        Self::sum4([self; 4])[0]
    }
    #[inline(always)]
    fn sum4(v: [Self; 4]) -> [f32; 4] {
        let a = have!(_mm256_hadd_ps(folded(v[0].0), folded(v[1].0)));
        let b = have!(_mm256_hadd_ps(folded(v[2].0), folded(v[3].0)));
        let both = have!(_mm256_hadd_ps(a, b));
        let four = have!(_mm_add_ps(_mm256_castps256_ps128(both), _mm256_extractf128_ps::<1>(both)));
        let mut out = [0.0; 4];
        have!(_mm_storeu_ps(out.as_mut_ptr(), four));
        out
    }
    #[inline(always)]
    fn greatest(self) -> f32 {
        have!(_mm512_reduce_max_ps(self.0))
    }
}
