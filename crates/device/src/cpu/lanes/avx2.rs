//! AVX2 and FMA: eight lanes.

use super::{Lanes, Work};
use std::arch::x86_64::*;

/// Instructions of this file's set, which `dispatch` has seen before any value of the type exists.
macro_rules! have {
    ($e:expr) => {
        // SAFETY: the CPU has AVX2 and FMA; addresses are the caller's promise.
        unsafe { $e }
    };
}

/// One YMM register.
#[derive(Copy, Clone)]
pub struct Avx2(__m256);

/// All ones in the first `n` lanes.
#[inline(always)]
fn mask(n: usize) -> __m256i {
    let lane = have!(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    have!(_mm256_cmpgt_epi32(_mm256_set1_epi32(n as i32), lane))
}

/// Entries by the lowest four bits of each index.
#[inline(always)]
fn look(index: __m256i, table: &[f32; 16]) -> __m256 {
    let table = table.as_ptr();
    // A permutation looks at three bits; the fourth chooses the half of the table.
    let low = have!(_mm256_permutevar8x32_ps(_mm256_loadu_ps(table), index));
    let high = have!(_mm256_permutevar8x32_ps(_mm256_loadu_ps(table.add(8)), index));
    have!(_mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32::<28>(index))))
}

impl Lanes for Avx2 {
    const N: usize = 8;

    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn enter<W: Work>(w: W) {
        w.run::<Self>()
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        Avx2(have!(_mm256_loadu_ps(p)))
    }
    #[inline(always)]
    unsafe fn load_part(p: *const f32, n: usize) -> Self {
        Avx2(have!(_mm256_maskload_ps(p, mask(n))))
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> Self {
        let wide = have!(_mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast())));
        Avx2(have!(_mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))))
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> Self {
        Avx2(have!(_mm256_cvtph_ps(_mm_loadu_si128(p.cast()))))
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> Self {
        Avx2(have!(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(p.cast())))))
    }
    #[inline(always)]
    unsafe fn look(p: *const u8, table: &[f32; 16]) -> Self {
        // Of each byte b the words b (of which only four bits count) and b >> 4.
        let b = have!(_mm256_cvtepu8_epi64(_mm_cvtsi32_si128(p.cast::<i32>().read_unaligned())));
        let index = have!(_mm256_or_si256(b, _mm256_slli_epi64::<28>(b)));
        Avx2(look(index, table))
    }
    #[inline(always)]
    unsafe fn look_words(p: *const u32, shift: u32, table: &[f32; 16]) -> Self {
        let words = have!(_mm256_loadu_si256(p.cast()));
        Avx2(look(have!(_mm256_srl_epi32(words, _mm_cvtsi32_si128(shift as i32))), table))
    }
    #[inline(always)]
    unsafe fn byte_of_words(p: *const u32, shift: u32) -> Self {
        let up = have!(_mm256_sll_epi32(_mm256_loadu_si256(p.cast()), _mm_cvtsi32_si128(24 - shift as i32)));
        Avx2(have!(_mm256_cvtepi32_ps(_mm256_srai_epi32::<24>(up))))
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        have!(_mm256_storeu_ps(p, self.0))
    }
    #[inline(always)]
    unsafe fn store_part(self, p: *mut f32, n: usize) {
        have!(_mm256_maskstore_ps(p, mask(n), self.0))
    }
    #[inline(always)]
    fn splat(x: f32) -> Self {
        Avx2(have!(_mm256_set1_ps(x)))
    }
    #[inline(always)]
    fn add(self, o: Self) -> Self {
        Avx2(have!(_mm256_add_ps(self.0, o.0)))
    }
    #[inline(always)]
    fn sub(self, o: Self) -> Self {
        Avx2(have!(_mm256_sub_ps(self.0, o.0)))
    }
    #[inline(always)]
    fn mul(self, o: Self) -> Self {
        Avx2(have!(_mm256_mul_ps(self.0, o.0)))
    }
    #[inline(always)]
    fn div(self, o: Self) -> Self {
        Avx2(have!(_mm256_div_ps(self.0, o.0)))
    }
    #[inline(always)]
    fn max(self, o: Self) -> Self {
        Avx2(have!(_mm256_max_ps(self.0, o.0)))
    }
    #[inline(always)]
    fn min(self, o: Self) -> Self {
        Avx2(have!(_mm256_min_ps(self.0, o.0)))
    }
    #[inline(always)]
    fn fma(self, b: Self, c: Self) -> Self {
        Avx2(have!(_mm256_fmadd_ps(self.0, b.0, c.0)))
    }
    #[inline(always)]
    fn round(self) -> Self {
        Avx2(have!(_mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(self.0)))
    }
    #[inline(always)]
    fn pow2(self) -> Self {
        let n = have!(_mm256_add_epi32(_mm256_cvtps_epi32(self.0), _mm256_set1_epi32(127)));
        Avx2(have!(_mm256_castsi256_ps(_mm256_slli_epi32::<23>(n))))
    }
    #[inline(always)]
    fn zero_where_below(self, x: Self, lo: Self) -> Self {
        let keep = have!(_mm256_cmp_ps::<_CMP_NLT_UQ>(x.0, lo.0));
        Avx2(have!(_mm256_and_ps(self.0, keep)))
    }
    #[inline(always)]
    fn sum(self) -> f32 {
        Self::sum4([self; 4])[0]
    }
    #[inline(always)]
    fn sum4(v: [Self; 4]) -> [f32; 4] {
        let (a, b) = have!((_mm256_hadd_ps(v[0].0, v[1].0), _mm256_hadd_ps(v[2].0, v[3].0)));
        let both = have!(_mm256_hadd_ps(a, b));
        let four = have!(_mm_add_ps(_mm256_castps256_ps128(both), _mm256_extractf128_ps::<1>(both)));
        let mut out = [0.0; 4];
        have!(_mm_storeu_ps(out.as_mut_ptr(), four));
        out
    }
    #[inline(always)]
    fn greatest(self) -> f32 {
        let four = have!(_mm_max_ps(_mm256_castps256_ps128(self.0), _mm256_extractf128_ps::<1>(self.0)));
        let two = have!(_mm_max_ps(four, _mm_movehl_ps(four, four)));
        have!(_mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps::<1>(two, two))))
    }
}
