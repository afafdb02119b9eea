//! The kernels for AVX-512 with VNNI.
//!
//! A group of sixteen weight rows is transposed so that vectors hold four consecutive codes of each of the sixteen rows;
//! an activation row then needs one `dpbusd` with four broadcast codes for 64 products, and sums stay in the lane of their
//! weight row from the first product to the last.

mod blocks;
mod decoded;
mod floats;
mod interleaved;
mod planes;
mod quantise;
mod steps;

use super::tile_avx512::in_lanes;
use std::arch::x86_64::*;

pub use blocks::{Filed, Group16, Walk, blocks, each_row, offset_and_scaled};
pub use decoded::fp8;
pub use floats::{Bf16, F16, F32, floats};
pub use interleaved::{Blocks, Interleaved512, interleaved, interleaved_planes};
pub use planes::planes;
pub use quantise::quantise;

/// Transposes sixteen rows of eight 32-bit elements: vector j holds element j of each row.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn transpose(row: impl Fn(usize) -> __m256i) -> [__m512i; 8] {
    // Rows n and n + 4 side by side, so that the last step below yields rows 0 to 15 in order.
    let pair = |n: usize| _mm512_inserti64x4::<1>(_mm512_castsi256_si512(row(n)), row(n + 4));
    // 4x4 transposition inside 128-bit lanes: [c] = elements c and c + 4 of four rows and of the four behind.
    let quad = |n: usize| in_lanes([pair(n), pair(n + 1), pair(n + 2), pair(n + 3)]);
    let (u, v) = (quad(0), quad(8));
    let mut z = [_mm512_setzero_si512(); 8];
    for c in 0..4 {
        z[c] = _mm512_shuffle_i64x2::<0b10_00_10_00>(u[c], v[c]);
        z[c + 4] = _mm512_shuffle_i64x2::<0b11_01_11_01>(u[c], v[c]);
    }
    z
}
