//! The kernels for AVX2 with FMA: those of the AVX-512 file on halves of a tile, with `maddubs` and `madd` in place of
//! `dpbusd`.

mod decoded;
mod interleaved;
mod planes;

pub use decoded::fp8;
pub use interleaved::{interleaved, interleaved_planes};
pub use planes::planes;

use super::quant::{self, GROUP};
use super::tile::{CHUNK_GROUPS, chunk_bytes, locate};
use super::tile_x86::{Eight, F16c, Scales, TileX86, prefetch};
use super::{TILE, Weights};
use std::arch::x86_64::*;

/// See [`super::QuantFn`].
#[target_feature(enable = "avx2,fma,f16c")]
pub unsafe fn quantise(x: &[f32], out: &mut [u8]) {
    let k = x.len();
    let out = out[..quant::row_bytes(k)].as_mut_ptr();
    for (g, x) in x.as_chunks::<GROUP>().0.iter().enumerate() {
        // SAFETY: 32 floats are read from the group, two times 32 bytes and one group record written inside the row.
        unsafe {
            let v: [__m256; 4] = std::array::from_fn(|i| _mm256_loadu_ps(x.as_ptr().add(8 * i)));
            // As integers, magnitudes order like floats, with infinity and NaN on top.
            let bits = v.map(|v| _mm256_and_si256(_mm256_castps_si256(v), _mm256_set1_epi32(i32::MAX)));
            let top = _mm256_max_epi32(_mm256_max_epi32(bits[0], bits[1]), _mm256_max_epi32(bits[2], bits[3]));
            let (d, by) = quant::scales(f32::from_bits(max8(top)));
            let q = v.map(|v| _mm256_cvtps_epi32(_mm256_mul_ps(v, _mm256_set1_ps(by))));
            let sums = [sum8(_mm256_add_epi32(q[0], q[1])), sum8(_mm256_add_epi32(q[2], q[3]))];
            let half = _mm256_set1_epi32(quant::ROUND);
            let high = q.map(|q| _mm256_srai_epi32::<{ quant::SHIFT as i32 }>(_mm256_add_epi32(q, half)));
            let low =
                std::array::from_fn(|i| _mm256_sub_epi32(q[i], _mm256_slli_epi32::<{ quant::SHIFT as i32 }>(high[i])));
            _mm256_storeu_si256(out.add(g * GROUP).cast(), bytes(high));
            _mm256_storeu_si256(out.add(k + g * GROUP).cast(), bytes(low));
            quant::put_group(out, k, g, quant::group(d, sums));
        }
    }
}

/// Integers that fit as bytes, in order.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn bytes(q: [__m256i; 4]) -> __m256i {
    // Packing works in 128-bit halves; the permutation puts the quads back in order.
    let packed = _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
    _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7))
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn max8(v: __m256i) -> u32 {
    let v = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256::<1>(v));
    let v = _mm_max_epi32(v, _mm_shuffle_epi32::<0b01_00_11_10>(v));
    _mm_cvtsi128_si32(_mm_max_epi32(v, _mm_shuffle_epi32::<0b10_11_00_01>(v))) as u32
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn sum8(v: __m256i) -> i32 {
    let v = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256::<1>(v));
    let v = _mm_add_epi32(v, _mm_shuffle_epi32::<0b01_00_11_10>(v));
    _mm_cvtsi128_si32(_mm_add_epi32(v, _mm_shuffle_epi32::<0b10_11_00_01>(v)))
}

/// The steps of a chunk, a lane per row.
#[repr(C, align(64))]
struct Steps {
    scale: [__m256i; CHUNK_GROUPS],
    min: [__m256i; CHUNK_GROUPS],
    sub: [[__m256i; CHUNK_GROUPS]; 2],
}

impl Steps {
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn zero() -> Self {
        let none = [_mm256_setzero_si256(); CHUNK_GROUPS];
        Steps { scale: none, min: none, sub: [none; 2] }
    }
}

/// Transposes eight rows of eight 32-bit elements: vector j holds element j of each row.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn transpose(row: impl Fn(usize) -> __m256i) -> [__m256i; 8] {
    // 4x4 transposition inside 128-bit lanes: [c] = elements c and c + 4 of four rows.
    let quad = |n: usize| in_lanes([row(n), row(n + 1), row(n + 2), row(n + 3)]);
    let (u, v) = (quad(0), quad(4));
    let mut y = [_mm256_setzero_si256(); 8];
    for c in 0..4 {
        y[c] = _mm256_permute2x128_si256::<0x20>(u[c], v[c]);
        y[c + 4] = _mm256_permute2x128_si256::<0x31>(u[c], v[c]);
    }
    y
}

/// Transposes 32-bit elements of four vectors inside their 128-bit lanes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn in_lanes([a, b, c, d]: [__m256i; 4]) -> [__m256i; 4] {
    let (ab, cd) = (_mm256_unpacklo_epi32(a, b), _mm256_unpacklo_epi32(c, d));
    let (ab2, cd2) = (_mm256_unpackhi_epi32(a, b), _mm256_unpackhi_epi32(c, d));
    [
        _mm256_unpacklo_epi64(ab, cd),
        _mm256_unpackhi_epi64(ab, cd),
        _mm256_unpacklo_epi64(ab2, cd2),
        _mm256_unpackhi_epi64(ab2, cd2),
    ]
}

/// Codes of group `g` of eight rows: vector j holds codes 4 j to 4 j + 3 of each, made signed where the offset is 128.
///
/// # Safety
/// AVX2, FMA, F16C; the rows' groups are readable.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn columns<T: TileX86>(rows: &[*const u8; 8], g: usize) -> [__m256i; 8] {
    let signed = |v: __m256i| if T::OFFSET == 128 { _mm256_xor_si256(v, _mm256_set1_epi8(-128)) } else { v };
    // SAFETY: the caller's promise.
    unsafe {
        if T::PACKED {
            let row = |n: usize| _mm_loadu_si128(T::bytes(locate::<T>(rows[n], g).0).as_ptr().cast());
            // Lane l of vector q is row 4 l + q.
            let pair = |q: usize| _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(row(q)), row(4 + q));
            let [a, b, c, d] = in_lanes([pair(0), pair(1), pair(2), pair(3)]);
            let (a, b, c, d) = (T::split(a), T::split(b), T::split(c), T::split(d));
            let low = [signed(a[0]), signed(b[0]), signed(c[0]), signed(d[0])];
            [low[0], low[1], low[2], low[3], signed(a[1]), signed(b[1]), signed(c[1]), signed(d[1])]
        } else {
            transpose(|n| {
                let (b, g) = locate::<T>(rows[n], g);
                signed(T::vector(b, g))
            })
        }
    }
}

/// Reads the steps of `groups` groups of the chunks that start at `rows`.
///
/// # Safety
/// AVX2, FMA, F16C; the rows' groups are readable.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn read_steps<T: TileX86>(rows: &[*const u8; 8], groups: usize, to: &mut Steps) {
    // SAFETY: the caller's promise.
    unsafe {
        if T::GROUPS == 1 {
            for g in 0..groups {
                let word = |n: usize, at: usize| {
                    let block = rows[n].add(g * size_of::<T::Block>() + at);
                    block.cast::<i16>().read_unaligned()
                };
                let eight = |at: usize| {
                    let w = |n: usize| word(n, at);
                    _mm256_cvtph_ps(_mm_setr_epi16(w(0), w(1), w(2), w(3), w(4), w(5), w(6), w(7)))
                };
                if let Scales::F16 { d, m } = T::SCALES {
                    to.scale[g] = _mm256_castps_si256(eight(d));
                    if T::MIN {
                        to.min[g] = _mm256_castps_si256(eight(m));
                    }
                    continue;
                }
                let (scale, min) = (&raw mut to.scale[g], &raw mut to.min[g]);
                for (n, row) in rows.iter().enumerate() {
                    let steps = T::steps::<F16c>(locate::<T>(*row, g).0, 0);
                    *scale.cast::<f32>().add(n) = steps.scale;
                    if T::MIN {
                        *min.cast::<f32>().add(n) = steps.min;
                    }
                    if T::SUB {
                        *(&raw mut to.sub[0][g]).cast::<i32>().add(n) = steps.sub[0];
                        *(&raw mut to.sub[1][g]).cast::<i32>().add(n) = steps.sub[1];
                    }
                }
            }
        } else {
            let mut steps = [Eight::zero(); 8];
            for (steps, row) in steps.iter_mut().zip(rows) {
                *steps = T::eight(locate::<T>(*row, 0).0);
            }
            to.scale = transpose(|n| _mm256_castps_si256(steps[n].scale));
            if T::MIN {
                to.min = transpose(|n| _mm256_castps_si256(steps[n].min));
            }
            if T::SUB {
                to.sub = [transpose(|n| steps[n].sub[0]), transpose(|n| steps[n].sub[1])];
            }
        }
    }
}

/// How many sums of two products may be added in 16 bits before they could overflow: activations are at most 127.
const fn deep<T: TileX86>() -> usize {
    let most = if T::OFFSET == 128 { 128 } else { T::MOST };
    match 32767 / (2 * 127 * most) {
        8.. => 8,
        4.. => 4,
        2.. => 2,
        _ => 1,
    }
}

/// The dot products of one group of eight weight rows with one activation row, exact.
///
/// # Safety
/// AVX2; 32 bytes are readable in both planes `x` (high, low).
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn dots<T: TileX86>(y: &[__m256i; 8], sub: &[__m256i; 2], x: [*const u8; 2], sums: [i32; 2]) -> __m256i {
    // SAFETY: the caller's promise.
    unsafe {
        let two = |x: *const u8, j: usize| {
            let x = _mm256_set1_epi32(x.add(4 * j).cast::<i32>().read_unaligned());
            // 2 * 128 * 127 stays inside 16 bits, 2 * 255 * 127 would not.
            if T::OFFSET == 128 {
                _mm256_maddubs_epi16(_mm256_abs_epi8(y[j]), _mm256_sign_epi8(x, y[j]))
            } else {
                _mm256_maddubs_epi16(y[j], x)
            }
        };
        let chain = |x: *const u8, first: usize, n: usize, start: __m256i| {
            let run = deep::<T>().min(n);
            (first..first + n).step_by(run).fold(start, |acc, j| {
                let pairs = (j + 1..j + run).fold(two(x, j), |sum, j| _mm256_add_epi16(sum, two(x, j)));
                _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
            })
        };
        // The high plane counts 128 times the low one, which carries the offset.
        let part = |first: usize, n: usize, sum: i32| {
            let offset = if T::OFFSET == 128 { 0 } else { T::OFFSET };
            let high = chain(x[0], first, n, _mm256_setzero_si256());
            let low = chain(x[1], first, n, _mm256_set1_epi32(-offset * sum));
            _mm256_add_epi32(_mm256_slli_epi32::<{ quant::SHIFT as i32 }>(high), low)
        };
        if T::SUB {
            let (a, b) = (part(0, 4, sums[0]), part(4, 4, sums[1]));
            _mm256_add_epi32(_mm256_mullo_epi32(a, sub[0]), _mm256_mullo_epi32(b, sub[1]))
        } else {
            part(0, 8, sums[0] + sums[1])
        }
    }
}

/// Adds what group `at` of the weights, group `g` of the chunk, contributes to the sums of activation row `x`.
///
/// # Safety
/// AVX2, FMA, F16C; `x` is a row of `k` elements, `acc` has eight; the steps of the group were read.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn add<T: TileX86>(
    acc: &mut [f32],
    y: &[__m256i; 8],
    steps: &Steps,
    g: usize,
    x: *const u8,
    k: usize,
    at: usize,
) {
    let sub = if T::SUB { [steps.sub[0][g], steps.sub[1][g]] } else { [y[0]; 2] };
    // SAFETY: the caller's promise.
    unsafe {
        let of = quant::get_group(x, k, at);
        let high = x.add(at * GROUP);
        let dot = dots::<T>(y, &sub, [high, high.add(k)], of.sums);
        let by = _mm256_mul_ps(_mm256_castsi256_ps(steps.scale[g]), _mm256_set1_ps(of.d));
        let mut sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), by, _mm256_loadu_ps(acc.as_ptr()));
        if T::MIN {
            sum = _mm256_fmadd_ps(_mm256_castsi256_ps(steps.min[g]), _mm256_set1_ps(of.dsum), sum);
        }
        _mm256_storeu_ps(acc.as_mut_ptr(), sum);
    }
}

/// See [`super::TileFn`].
#[target_feature(enable = "avx2,fma,f16c")]
pub unsafe fn blocks<T: TileX86>(w: &Weights, x: &[*const u8], acc: &mut [[f32; TILE]]) {
    acc.fill([0.0; TILE]);
    let groups = w.k / GROUP;
    let mut steps = Steps::zero();
    for first in (0..groups).step_by(CHUNK_GROUPS) {
        let here = CHUNK_GROUPS.min(groups - first);
        prefetch(w, TILE * w.row * first / groups, TILE * w.row * (first + here) / groups);
        for side in [0, 8] {
            let rows = std::array::from_fn(|n| w.at(side + n).wrapping_add(first / CHUNK_GROUPS * chunk_bytes::<T>()));
            // SAFETY: the promise of `TileFn`. What is read of the steps was written for the same groups.
            unsafe {
                read_steps::<T>(&rows, here, &mut steps);
                for g in 0..here {
                    let y = columns::<T>(&rows, g);
                    for (&x, acc) in x.iter().zip(acc.iter_mut()) {
                        add::<T>(&mut acc[side..side + 8], &y, &steps, g, x, w.k, first + g);
                    }
                }
            }
        }
    }
}

/// A float format.
pub trait Elem {
    const BYTES: usize;
    /// Eight elements.
    ///
    /// # Safety
    /// AVX2 and F16C; eight elements are readable.
    unsafe fn load(p: *const u8) -> __m256;
}

macro_rules! elem {
    ($name:ident, $n:expr, |$p:ident| $body:expr) => {
        #[doc = concat!(stringify!($name), " weights.")]
        pub struct $name;
        impl Elem for $name {
            const BYTES: usize = $n;
            #[inline]
            #[target_feature(enable = "avx2,fma,f16c")]
            unsafe fn load($p: *const u8) -> __m256 {
                // SAFETY: the caller's promise.
                unsafe { $body }
            }
        }
    };
}
elem!(F32, 4, |p| _mm256_loadu_ps(p.cast()));
elem!(F16, 2, |p| _mm256_cvtph_ps(_mm_loadu_si128(p.cast())));
elem!(Bf16, 2, |p| {
    let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
});

/// `R` activation rows times two weight rows; `ahead` is called before every step along k.
///
/// # Safety
/// AVX2, FMA, F16C; all rows have `k` readable elements.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn register_tile<E: Elem, const R: usize>(
    w: [*const u8; 2],
    x: [*const u8; R],
    k: usize,
    ahead: impl Fn(usize),
) -> [[f32; 2]; R] {
    // SAFETY: the caller's promise: whole steps stay below k, and the last one works on copies.
    unsafe {
        let mut acc = [[[_mm256_setzero_ps(); 2]; 2]; R];
        let whole = k / 16 * 16;
        for at in (0..whole).step_by(16) {
            ahead(at);
            step::<E, R>(&mut acc, w.map(|w| w.add(at * E::BYTES)), x.map(|x| x.cast::<f32>().add(at)));
        }
        if whole < k {
            let (mut ws, mut xs) = ([[0u8; 64]; 2], [[0f32; 16]; R]);
            for (to, w) in ws.iter_mut().zip(w) {
                std::ptr::copy_nonoverlapping(w.add(whole * E::BYTES), to.as_mut_ptr(), (k - whole) * E::BYTES);
            }
            for (to, x) in xs.iter_mut().zip(x) {
                std::ptr::copy_nonoverlapping(x.cast::<f32>().add(whole), to.as_mut_ptr(), k - whole);
            }
            step::<E, R>(&mut acc, ws.each_ref().map(|w| w.as_ptr()), xs.each_ref().map(|x| x.as_ptr()));
        }
        acc.map(|row| row.map(|v| sum(v)))
    }
}

/// The products of the first sixteen elements.
///
/// # Safety
/// As [`register_tile`]; the elements are readable.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn step<E: Elem, const R: usize>(acc: &mut [[[__m256; 2]; 2]; R], w: [*const u8; 2], x: [*const f32; R]) {
    for half in [0, 1] {
        // SAFETY: the caller's promise.
        unsafe {
            let w = w.map(|w| E::load(w.add(8 * half * E::BYTES)));
            for (acc, x) in acc.iter_mut().zip(x) {
                let x = _mm256_loadu_ps(x.add(8 * half));
                for (acc, w) in acc.iter_mut().zip(w) {
                    acc[half] = _mm256_fmadd_ps(w, x, acc[half]);
                }
            }
        }
    }
}

/// Lanes 8 apart, 4 apart, 2 apart, 1 apart.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn sum(v: [__m256; 2]) -> f32 {
    let v = _mm256_add_ps(v[0], v[1]);
    let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
    let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
    _mm_cvtss_f32(_mm_add_ss(v, _mm_movehdup_ps(v)))
}

/// See [`super::TileFn`].
#[target_feature(enable = "avx2,fma,f16c")]
pub unsafe fn floats<E: Elem>(w: &Weights, x: &[*const u8], acc: &mut [[f32; TILE]]) {
    for n in (0..w.n).step_by(2) {
        let rows = [w.at(n), w.at(n + 1)];
        let (pairs, rest) = x.as_chunks::<2>();
        let put = |acc: &mut [[f32; TILE]], y: &[[f32; 2]]| {
            acc.iter_mut().zip(y).for_each(|(acc, y)| acc[n..n + 2].copy_from_slice(y));
        };
        // With one row, weights arrive as fast as they are used.
        let ahead = |at: usize| {
            let from = n * w.row + at * 2 * E::BYTES;
            prefetch(w, from, from + 16 * 2 * E::BYTES);
        };
        // SAFETY: the promise of `TileFn`.
        unsafe {
            for (x, acc) in pairs.iter().zip(acc.chunks_mut(2)) {
                put(acc, &register_tile::<E, 2>(rows, *x, w.k, |_| {}));
            }
            if let [last] = *rest {
                put(&mut acc[2 * pairs.len()..], &register_tile::<E, 1>(rows, [last], w.k, ahead));
            }
        }
    }
}
