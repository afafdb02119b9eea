//! Activations to fifteen bits.

use crate::cpu::mat::quant::{self, GROUP};
use std::arch::x86_64::*;

/// See [`crate::cpu::mat::QuantFn`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub unsafe fn quantise(x: &[f32], out: &mut [u8]) {
    let k = x.len();
    let out = out[..quant::row_bytes(k)].as_mut_ptr();
    for (g, x) in x.as_chunks::<GROUP>().0.iter().enumerate() {
        // SAFETY: 32 floats are read from the group, two times 32 bytes and one group record written inside the row.
        unsafe {
            let (a, b) = (_mm512_loadu_ps(x.as_ptr()), _mm512_loadu_ps(x.as_ptr().add(16)));
            // As integers, magnitudes order like floats, with infinity and NaN on top.
            let bits = |v| _mm512_castps_si512(_mm512_abs_ps(v));
            let amax = _mm512_reduce_max_epi32(_mm512_max_epi32(bits(a), bits(b)));
            let (d, by) = quant::scales(f32::from_bits(amax as u32));
            let by = _mm512_set1_ps(by);
            let (a, b) = (_mm512_cvtps_epi32(_mm512_mul_ps(a, by)), _mm512_cvtps_epi32(_mm512_mul_ps(b, by)));
            for (half, q) in [a, b].into_iter().enumerate() {
                let high = _mm512_srai_epi32::<{ quant::SHIFT }>(_mm512_add_epi32(q, _mm512_set1_epi32(quant::ROUND)));
                let low = _mm512_sub_epi32(q, _mm512_slli_epi32::<{ quant::SHIFT }>(high));
                let at = g * GROUP + 16 * half;
                _mm_storeu_si128(out.add(at).cast(), _mm512_cvtepi32_epi8(high));
                _mm_storeu_si128(out.add(k + at).cast(), _mm512_cvtepi32_epi8(low));
            }
            let sums = [_mm512_reduce_add_epi32(a), _mm512_reduce_add_epi32(b)];
            quant::put_group(out, k, g, quant::group(d, sums));
        }
    }
}
