//! The kernels for AVX-512 with VNNI.
//!
//! For many activation rows a group of sixteen weight rows is transposed so that vectors hold four consecutive codes of
//! each of the sixteen rows; an activation row then needs one `dpbusd` with four broadcast codes for 64 products, and
//! sums stay in the lane of their weight row from the first product to the last. For a few, codes are used as they lie
//! in the file and the sums are put in order behind.

mod decoded;
mod planes;

pub use decoded::fp8;
pub use planes::planes;

use super::quant::{self, GROUP, Group};
use super::tile::{CHUNK_GROUPS, chunk_bytes, locate};
use super::tile_avx512::TileX512;
use super::tile_x86::{Eight, F16c, TileX86, prefetch};
use super::{TILE, Weights};
use std::arch::x86_64::*;
use std::mem::MaybeUninit;

/// See [`super::QuantFn`].
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

/// The steps of a chunk, a lane per row.
#[repr(C, align(64))]
struct Steps {
    scale: [__m512i; CHUNK_GROUPS],
    min: [__m512i; CHUNK_GROUPS],
    sub: [[__m512i; CHUNK_GROUPS]; 2],
}

/// Transposes sixteen rows of eight 32-bit elements: vector j holds element j of each row.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn transpose(row: impl Fn(usize) -> __m256i) -> [__m512i; 8] {
    // Rows n and n + 4 side by side, so that the last step below yields rows 0 to 15 in order.
    let pair = |n: usize| _mm512_inserti64x4::<1>(_mm512_castsi256_si512(row(n)), row(n + 4));
    // 4x4 transposition inside 128-bit lanes: [c] = elements c and c + 4 of four rows and of the four behind.
    let quad = |n: usize| {
        let (a, b, c, d) = (pair(n), pair(n + 1), pair(n + 2), pair(n + 3));
        let (ab, cd) = (_mm512_unpacklo_epi32(a, b), _mm512_unpacklo_epi32(c, d));
        let (ab2, cd2) = (_mm512_unpackhi_epi32(a, b), _mm512_unpackhi_epi32(c, d));
        [
            _mm512_unpacklo_epi64(ab, cd),
            _mm512_unpackhi_epi64(ab, cd),
            _mm512_unpacklo_epi64(ab2, cd2),
            _mm512_unpackhi_epi64(ab2, cd2),
        ]
    };
    let (u, v) = (quad(0), quad(8));
    let mut z = [_mm512_setzero_si512(); 8];
    for c in 0..4 {
        z[c] = _mm512_shuffle_i64x2::<0b10_00_10_00>(u[c], v[c]);
        z[c + 4] = _mm512_shuffle_i64x2::<0b11_01_11_01>(u[c], v[c]);
    }
    z
}

/// Decodes the steps of `groups` groups of the chunks that start at `rows`.
///
/// # Safety
/// AVX-512 as in the file's kernels; the rows' groups are readable.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn steps_of<T: TileX86>(rows: &[*const u8; TILE], groups: usize, steps: &mut MaybeUninit<Steps>) {
    let to = steps.as_mut_ptr();
    // SAFETY: the caller's promise.
    unsafe {
        if T::GROUPS == 1 {
            for g in 0..groups {
                let (scale, min) = (&raw mut (*to).scale[g], &raw mut (*to).min[g]);
                for (n, row) in rows.iter().enumerate() {
                    let steps = T::steps::<F16c>(locate::<T>(*row, g).0, 0);
                    *scale.cast::<f32>().add(n) = steps.scale;
                    if T::MIN {
                        *min.cast::<f32>().add(n) = steps.min;
                    }
                }
            }
        } else {
            let mut steps = [Eight::zero(); TILE];
            for (steps, row) in steps.iter_mut().zip(rows) {
                *steps = T::eight(locate::<T>(*row, 0).0);
            }
            (*to).scale = transpose(|n| _mm256_castps_si256(steps[n].scale));
            if T::MIN {
                (*to).min = transpose(|n| _mm256_castps_si256(steps[n].min));
            }
            if T::SUB {
                (*to).sub = [transpose(|n| steps[n].sub[0]), transpose(|n| steps[n].sub[1])];
            }
        }
    }
}

/// The dot products of one transposed group with one activation row, exact.
///
/// # Safety
/// AVX-512 as in the file's kernels; 32 bytes are readable in both planes `x` (high, low).
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn dots<T: TileX86>(z: &[__m512i; 8], sub: &[__m512i; 2], x: [*const u8; 2], sums: [i32; 2]) -> __m512i {
    // SAFETY: the caller's promise.
    unsafe {
        let quad = |x: *const u8, j: usize| _mm512_set1_epi32(x.add(4 * j).cast::<i32>().read_unaligned());
        let start = |sum: i32| _mm512_set1_epi32(-T::OFFSET * sum);
        let chain = |x: *const u8, first: usize, start: __m512i| {
            (first..first + 4).fold(start, |acc, j| _mm512_dpbusd_epi32(acc, z[j], quad(x, j)))
        };
        // The high plane counts 128 times the low one, which carries the offset.
        let half = |first: usize, start: __m512i| {
            let (high, low) = (chain(x[0], first, _mm512_setzero_si512()), chain(x[1], first, start));
            _mm512_add_epi32(_mm512_slli_epi32::<{ quant::SHIFT }>(high), low)
        };
        if T::SUB {
            let (a, b) = (half(0, start(sums[0])), half(4, start(sums[1])));
            _mm512_add_epi32(_mm512_mullo_epi32(a, sub[0]), _mm512_mullo_epi32(b, sub[1]))
        } else {
            let b = half(4, _mm512_setzero_si512());
            _mm512_add_epi32(half(0, start(sums[0] + sums[1])), b)
        }
    }
}

/// The dot products of one group that lies as in the file, a row per 128-bit lane, with one activation row, exact.
///
/// # Safety
/// AVX-512 as in the file's kernels; 32 bytes are readable in both planes `x` (high, low).
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn dots_in_place<T: TileX512>(
    quads: &[[__m512i; 2]; 4],
    sub: &[__m512i; 2],
    x: [*const u8; 2],
    sums: [i32; 2],
) -> __m512i {
    // SAFETY: the caller's promise.
    let half = |x: *const u8, i: usize| unsafe { _mm512_broadcast_i32x4(_mm_loadu_si128(x.add(16 * i).cast())) };
    let offset = |sum: i32| _mm512_set1_epi32(T::OFFSET * sum);
    // The high plane counts 128 times the low one.
    let both = |high: __m512i, low: __m512i| _mm512_add_epi32(_mm512_slli_epi32::<{ quant::SHIFT }>(high), low);
    if T::SUB {
        let one = |h: usize| {
            let (high, low) = (half(x[0], h), half(x[1], h));
            let zero = _mm512_setzero_si512();
            let dot = |q: usize| {
                both(_mm512_dpbusd_epi32(zero, quads[q][h], high), _mm512_dpbusd_epi32(zero, quads[q][h], low))
            };
            let dot = gather(dot(0), dot(1), dot(2), dot(3));
            _mm512_mullo_epi32(_mm512_sub_epi32(dot, offset(sums[h])), sub[h])
        };
        _mm512_add_epi32(one(0), one(1))
    } else {
        let planes = x.map(|x| [half(x, 0), half(x, 1)]);
        let plane = |q: usize, x: [__m512i; 2]| {
            let first = _mm512_dpbusd_epi32(_mm512_setzero_si512(), quads[q][0], x[0]);
            _mm512_dpbusd_epi32(first, quads[q][1], x[1])
        };
        let dot = |q: usize| both(plane(q, planes[0]), plane(q, planes[1]));
        let dot = gather(dot(0), dot(1), dot(2), dot(3));
        if T::OFFSET == 0 { dot } else { _mm512_sub_epi32(dot, offset(sums[0] + sums[1])) }
    }
}

/// Sums each 128-bit lane of four vectors; sum q of lane l goes to lane 4 l + q.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn gather(a: __m512i, b: __m512i, c: __m512i, d: __m512i) -> __m512i {
    let ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    let cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
    _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd))
}

/// Activation rows up to which transposing codes costs more than it saves (`examples/linear_speed`): sub-scales make
/// sums in place dearer. Both ways compute the same integers.
const fn in_place<T: TileX86>() -> usize {
    if T::SUB { 3 } else { 6 }
}

/// See [`super::TileFn`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub unsafe fn blocks<T: TileX512>(w: &Weights, x: &[*const u8], acc: &mut [[f32; TILE]]) {
    acc.fill([0.0; TILE]);
    let groups = w.k / GROUP;
    let mut steps = MaybeUninit::uninit();
    for first in (0..groups).step_by(CHUNK_GROUPS) {
        let here = CHUNK_GROUPS.min(groups - first);
        prefetch(w, TILE * w.row * first / groups, TILE * w.row * (first + here) / groups);
        let rows = std::array::from_fn(|n| w.at(n).wrapping_add(first / CHUNK_GROUPS * chunk_bytes::<T>()));
        // Lane l of quad q is row 4 l + q, as `gather` wants it.
        let quad = |q: usize| [rows[q], rows[4 + q], rows[8 + q], rows[12 + q]];
        let quads = [quad(0), quad(1), quad(2), quad(3)];
        // SAFETY: the promise of `TileFn`. What is read of the steps was written by `steps_of` for the same groups.
        unsafe {
            steps_of::<T>(&rows, here, &mut steps);
            let steps: *const Steps = steps.as_ptr();
            for g in 0..here {
                let scale = _mm512_castsi512_ps((*steps).scale[g]);
                let min = if T::MIN { _mm512_castsi512_ps((*steps).min[g]) } else { scale };
                let sub = if T::SUB { [(*steps).sub[0][g], (*steps).sub[1][g]] } else { [_mm512_setzero_si512(); 2] };
                let at = first + g;
                if x.len() <= in_place::<T>() {
                    let codes =
                        [T::quad(&quads[0], g), T::quad(&quads[1], g), T::quad(&quads[2], g), T::quad(&quads[3], g)];
                    for (&x, acc) in x.iter().zip(acc.iter_mut()) {
                        let of = quant::get_group(x, w.k, at);
                        let high = x.add(at * GROUP);
                        let dot = dots_in_place::<T>(&codes, &sub, [high, high.add(w.k)], of.sums);
                        add::<T>(acc, dot, scale, min, of);
                    }
                } else {
                    let codes = transpose(|n| {
                        let (b, g) = locate::<T>(rows[n], g);
                        T::vector(b, g)
                    });
                    for (&x, acc) in x.iter().zip(acc.iter_mut()) {
                        let of = quant::get_group(x, w.k, at);
                        let high = x.add(at * GROUP);
                        let dot = dots::<T>(&codes, &sub, [high, high.add(w.k)], of.sums);
                        add::<T>(acc, dot, scale, min, of);
                    }
                }
            }
        }
    }
}

/// Adds what a group contributes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn add<T: TileX86>(acc: &mut [f32; TILE], dot: __m512i, scale: __m512, min: __m512, of: Group) {
    // SAFETY: sixteen floats are read and written.
    let mut sum = unsafe { _mm512_loadu_ps(acc.as_ptr()) };
    sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), _mm512_mul_ps(scale, _mm512_set1_ps(of.d)), sum);
    if T::MIN {
        sum = _mm512_fmadd_ps(min, _mm512_set1_ps(of.dsum), sum);
    }
    // SAFETY: as above.
    unsafe { _mm512_storeu_ps(acc.as_mut_ptr(), sum) }
}

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
fn sum(v: __m512) -> f32 {
    let v = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v));
    let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
    let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
    _mm_cvtss_f32(_mm_add_ss(v, _mm_movehdup_ps(v)))
}

/// See [`super::TileFn`].
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
