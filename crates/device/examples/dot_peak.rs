//! The most that dot product instructions give: `cargo run --release -p device --example dot_peak`.
//!
//! Bytes in two planes (`vpdpbusd` twice for each 64 products) against bfloat16 (`vdpbf16ps`), operands in the first cache,
//! sums in registers, one thread; the best of many short runs. A kernel cannot be faster than this.

#[cfg(target_arch = "x86_64")]
fn main() {
    if !is_x86_feature_detected!("avx512vnni") || !is_x86_feature_detected!("avx512bf16") {
        println!("this machine has not both AVX-512 VNNI and BF16");
        return;
    }
    let quads = [0x3c00_3c00; 8 * SUMS];
    // SAFETY: the instructions are there, as was asked above.
    let (bytes, floats) = unsafe { (best(|| peak::bytes(&quads)), best(|| peak::floats(&quads))) };
    println!("vpdpbusd, two planes: {bytes:.1} G madd/s, vdpbf16ps: {floats:.1} G madd/s");
}

#[cfg(not(target_arch = "x86_64"))]
fn main() {
    println!("only x86-64 has these instructions");
}

/// Sums side by side: more than the latency of an instruction times how many begin in a cycle.
const SUMS: usize = 12;
/// Rounds of a run.
const ROUNDS: usize = 20_000;

/// The best rate of `f` in 10^9 products a second, each counted once for both planes.
#[cfg(target_arch = "x86_64")]
fn best<R>(f: impl Fn() -> R) -> f64 {
    let run = |_| {
        let begun = std::time::Instant::now();
        std::hint::black_box(f());
        (ROUNDS * SUMS * 32) as f64 / begun.elapsed().as_secs_f64() / 1e9
    };
    (0..800).map(run).fold(0.0, f64::max)
}

#[cfg(target_arch = "x86_64")]
mod peak {
    use super::{ROUNDS, SUMS};
    use std::arch::x86_64::*;

    /// # Safety
    /// AVX-512 F, BW and VNNI are available.
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    pub unsafe fn bytes(quads: &[i32; 8 * SUMS]) -> i32 {
        let (mut sums, w) = ([_mm512_setzero_si512(); SUMS], _mm512_set1_epi8(3));
        for round in 0..ROUNDS {
            for (j, sum) in sums.iter_mut().enumerate() {
                *sum = _mm512_dpbusd_epi32(*sum, w, _mm512_set1_epi32(quads[round % 8 * SUMS + j]));
            }
        }
        sums.into_iter().fold(0, |all, s| all ^ _mm512_reduce_add_epi32(s))
    }

    /// # Safety
    /// AVX-512 F, BW and BF16 are available.
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    pub unsafe fn floats(quads: &[i32; 8 * SUMS]) -> f32 {
        // SAFETY: 64 bytes either way.
        let pairs = |v: __m512i| unsafe { std::mem::transmute::<__m512i, __m512bh>(v) };
        let (mut sums, w) = ([_mm512_setzero_ps(); SUMS], pairs(_mm512_set1_epi16(0x3f80)));
        for round in 0..ROUNDS {
            for (j, sum) in sums.iter_mut().enumerate() {
                *sum = _mm512_dpbf16_ps(*sum, w, pairs(_mm512_set1_epi32(quads[round % 8 * SUMS + j])));
            }
        }
        sums.into_iter().fold(0.0, |all, s| all + _mm512_reduce_add_ps(s))
    }
}
