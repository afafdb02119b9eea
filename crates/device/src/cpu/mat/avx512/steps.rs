//! Scales, offsets and sub-scales of sixteen rows.

use super::transpose;
use crate::cpu::mat::TILE;
use crate::cpu::mat::tile::{CHUNK_GROUPS, locate};
use crate::cpu::mat::tile_avx512::{Sixteen, TileX512, sixteen_bytes};
use crate::cpu::mat::tile_x86::{Eight, F16c, Scales};
use std::arch::x86_64::*;
use std::mem::MaybeUninit;

/// What belongs to the groups of a chunk, a lane per row. Which fields hold something is the format's matter.
#[repr(C, align(64))]
struct Fields {
    scale: [__m512; CHUNK_GROUPS],
    min: [__m512; CHUNK_GROUPS],
    sub: [[__m512i; CHUNK_GROUPS]; 2],
    /// Scale and offset as they are stored. Made floats sixteen at a time, where they are used.
    raw: [[[u16; TILE]; CHUNK_GROUPS]; 2],
}

/// The steps of a chunk.
pub struct Steps(MaybeUninit<Fields>);

/// A stored number of sixteen rows, as floats.
///
/// # Safety
/// AVX-512 as in the file's kernels; 32 bytes are readable.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub unsafe fn halves(raw: *const [u16; TILE]) -> __m512 {
    // SAFETY: the caller's promise; the load takes any alignment.
    _mm512_cvtph_ps(unsafe { _mm256_loadu_si256(raw.cast()) })
}

/// `2^(e - 128)` of sixteen exponents; 255 is NaN.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub fn half_powers(e: __m512i) -> __m512 {
    let normal = _mm512_slli_epi32::<23>(_mm512_sub_epi32(e, _mm512_set1_epi32(1)));
    // Below 2 the result is subnormal.
    let tiny = _mm512_sllv_epi32(_mm512_set1_epi32(0x0020_0000), e);
    let bits = _mm512_mask_mov_epi32(normal, _mm512_cmplt_epu32_mask(e, _mm512_set1_epi32(2)), tiny);
    let nan = _mm512_cmpeq_epu32_mask(e, _mm512_set1_epi32(255));
    _mm512_castsi512_ps(_mm512_mask_mov_epi32(bits, nan, _mm512_castps_si512(_mm512_set1_ps(f32::NAN))))
}

impl Steps {
    pub fn new() -> Self {
        Steps(MaybeUninit::uninit())
    }
    /// Reads the steps of `groups` groups of the chunks that start at `rows`.
    ///
    /// # Safety
    /// AVX-512 as in the file's kernels; the rows' groups are readable.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    pub unsafe fn read<T: TileX512>(&mut self, rows: Sixteen, groups: usize) {
        let to = self.0.as_mut_ptr();
        // SAFETY: the caller's promise; fields are of `to`.
        unsafe {
            match T::SCALES {
                Scales::F16 { d, m } => {
                    words::<T>(rows, groups, &raw mut (*to).raw[0], d);
                    if T::MIN {
                        words::<T>(rows, groups, &raw mut (*to).raw[1], m);
                    }
                }
                Scales::HalfPower { e } => exponents::<T>(rows, groups, &raw mut (*to).raw[0], e),
                Scales::Six { d } => all_sixes(rows, d, to),
                Scales::Sub { d, sub } => subs(rows, d, sub, to),
                Scales::Other if T::GROUPS == 1 => one_by_one::<T>(rows, groups, to),
                Scales::Other => block_by_block::<T>(rows, to),
            }
        }
    }
    /// Scales of group `g`.
    ///
    /// # Safety
    /// AVX-512 as in the file's kernels; [`read`](Self::read) was called for the same format and more than `g` groups.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    pub unsafe fn scale<T: TileX512>(&self, g: usize) -> __m512 {
        let from = self.0.as_ptr();
        // SAFETY: `read` wrote it.
        unsafe {
            match T::SCALES {
                Scales::F16 { .. } => halves(&raw const (*from).raw[0][g]),
                Scales::Sub { .. } => halves(&raw const (*from).raw[0][0]),
                Scales::HalfPower { .. } => {
                    half_powers(_mm512_cvtepu16_epi32(_mm256_load_si256((&raw const (*from).raw[0][g]).cast())))
                }
                _ => (*from).scale[g],
            }
        }
    }
    /// Offsets of group `g`, zeros for a format without.
    ///
    /// # Safety
    /// As [`scale`](Self::scale).
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    pub unsafe fn min<T: TileX512>(&self, g: usize) -> __m512 {
        let from = self.0.as_ptr();
        // SAFETY: `read` wrote it.
        unsafe {
            match T::SCALES {
                _ if !T::MIN => _mm512_setzero_ps(),
                Scales::F16 { .. } => halves(&raw const (*from).raw[1][g]),
                _ => (*from).min[g],
            }
        }
    }
    /// Sub-scales of group `g`, zeros for a format without.
    ///
    /// # Safety
    /// As [`scale`](Self::scale).
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    pub unsafe fn sub<T: TileX512>(&self, g: usize) -> [__m512i; 2] {
        let from = self.0.as_ptr();
        // SAFETY: `read` wrote it.
        unsafe { if T::SUB { [(*from).sub[0][g], (*from).sub[1][g]] } else { [_mm512_setzero_si512(); 2] } }
    }
}

/// Sixteen of something, one by one: of a loop the compiler would make a gather, which is slower on many machines.
macro_rules! sixteen {
    ($n:ident => $e:expr) => {
        sixteen!(@ $n $e; 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
    };
    (@ $n:ident $e:expr; $($i:literal)*) => {
        [$({
            let $n = $i;
            $e
        }),*]
    };
}

/// The word at byte `at` of each row.
///
/// # Safety
/// They are readable.
#[inline(always)]
unsafe fn one_word(rows: Sixteen, at: usize) -> [u16; TILE] {
    // SAFETY: the caller's promise.
    unsafe { sixteen!(n => rows.at(n).add(at).cast::<u16>().read_unaligned()) }
}

/// The byte at `at` of each row.
///
/// # Safety
/// They are readable.
#[inline(always)]
unsafe fn one_byte(rows: Sixteen, at: usize) -> [u16; TILE] {
    // SAFETY: the caller's promise.
    unsafe { sixteen!(n => *rows.at(n).add(at) as u16) }
}

/// Copies the 16-bit word at byte `at` of every block.
///
/// # Safety
/// AVX-512 as in the file's kernels; the rows' groups are readable, and the word is inside a block; `to` is writable.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn words<T: TileX512>(rows: Sixteen, groups: usize, to: *mut [[u16; TILE]; CHUNK_GROUPS], at: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        if groups == CHUNK_GROUPS && Words::<T>::IN_REACH {
            return eight_words::<T>(rows, to, at);
        }
        for g in 0..groups {
            (*to)[g] = one_word(rows, g * size_of::<T::Block>() + at);
        }
    }
}

/// Where the words of a chunk are, seen from two loads of 64 bytes at its blocks 0 and 4.
struct Words<T>(std::marker::PhantomData<T>);

impl<T: TileX512> Words<T> {
    const BYTES: usize = size_of::<T::Block>();
    /// Whether each load sees everything of four blocks but what follows their first bytes.
    const IN_REACH: bool = 3 * Self::BYTES + 4 <= 64 && 8 * Self::BYTES >= 4 * Self::BYTES + 64;
    /// Word of the two loads that holds byte 0 of block g.
    const FIRST: [u16; 8] = {
        let (mut all, mut g) = ([0; 8], 0);
        while g < 8 {
            all[g] = (32 * (g / 4) + g % 4 * Self::BYTES / 2) as u16;
            g += 1;
        }
        all
    };
}

/// [`words`] of a whole chunk: each row's eight are picked from two loads, then sixteen rows are transposed.
///
/// # Safety
/// As [`words`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn eight_words<T: TileX512>(rows: Sixteen, to: *mut [[u16; TILE]; CHUNK_GROUPS], at: usize) {
    // SAFETY: the caller's promise; a chunk reaches beyond both loads by `IN_REACH`.
    unsafe {
        let first = _mm_loadu_si128(Words::<T>::FIRST.as_ptr().cast());
        let which = _mm512_broadcast_i32x4(_mm_add_epi16(first, _mm_set1_epi16((at / 2) as i16)));
        let row = |n: usize| {
            let a = _mm512_loadu_si512(rows.at(n).cast());
            let b = _mm512_loadu_si512(rows.at(n).add(4 * Words::<T>::BYTES).cast());
            _mm512_permutex2var_epi16(a, which, b)
        };
        // Four rows, a lane each.
        let four = |n: usize| {
            let ab = _mm512_mask_mov_epi64(row(n), 0b0000_1100, row(n + 1));
            let cd = _mm512_mask_mov_epi64(row(n + 2), 0b1100_0000, row(n + 3));
            _mm512_mask_mov_epi64(ab, 0b1111_0000, cd)
        };
        let (a, b, c, d) = (four(0), four(4), four(8), four(12));
        // Lane g: word g (or g + 4) of eight rows.
        let lane = |g: i64| {
            let low = g | (g + 8) << 16 | (g + 16) << 32 | (g + 24) << 48;
            (low, low + 0x0020_0020_0020_0020)
        };
        let pick = |first: i64| {
            let (l, m, n, o) = (lane(first), lane(first + 1), lane(first + 2), lane(first + 3));
            _mm512_setr_epi64(l.0, l.1, m.0, m.1, n.0, n.1, o.0, o.1)
        };
        for (half, which) in [pick(0), pick(4)].into_iter().enumerate() {
            let (ab, cd) = (_mm512_permutex2var_epi16(a, which, b), _mm512_permutex2var_epi16(c, which, d));
            let low = _mm512_permutex2var_epi64(ab, _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11), cd);
            let high = _mm512_permutex2var_epi64(ab, _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15), cd);
            _mm512_storeu_si512((&raw mut (*to)[4 * half]).cast(), low);
            _mm512_storeu_si512((&raw mut (*to)[4 * half + 2]).cast(), high);
        }
    }
}

/// Copies the byte at `at` of every block.
///
/// # Safety
/// As [`words`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn exponents<T: TileX512>(rows: Sixteen, groups: usize, to: *mut [[u16; TILE]; CHUNK_GROUPS], at: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        if groups == CHUNK_GROUPS && Words::<T>::IN_REACH {
            eight_words::<T>(rows, to, at);
            for g in 0..CHUNK_GROUPS {
                // The byte is the lower or the upper half of the word it was found in.
                let odd = (Words::<T>::BYTES * (g % 4) + at) % 2;
                let word = _mm256_load_si256((&raw const (*to)[g]).cast());
                let byte =
                    _mm256_and_si256(_mm256_srl_epi16(word, _mm_cvtsi32_si128(8 * odd as i32)), _mm256_set1_epi16(255));
                _mm256_store_si256((&raw mut (*to)[g]).cast(), byte);
            }
            return;
        }
        for g in 0..groups {
            (*to)[g] = one_byte(rows, g * size_of::<T::Block>() + at);
        }
    }
}

/// Scales and offsets of eight groups, a byte each, from the three packed words (`checkpoint::block::unpack_scales`).
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub fn sixes(a: __m512i, b: __m512i, c: __m512i) -> [[__m512i; 2]; 2] {
    let (nibbles, six) = (_mm512_set1_epi32(0x0F0F_0F0F), _mm512_set1_epi32(0x3F3F_3F3F));
    // The upper two bits of the last four are at the top of the first four.
    let top = |v: __m512i| _mm512_and_si512(_mm512_srli_epi32::<2>(v), _mm512_set1_epi32(0x3030_3030));
    let high = |low: __m512i, v: __m512i| _mm512_or_si512(_mm512_and_si512(low, nibbles), top(v));
    [[_mm512_and_si512(a, six), high(c, a)], [_mm512_and_si512(b, six), high(_mm512_srli_epi32::<4>(c), b)]]
}

/// Six-bit scales and offsets times those of the block, for eight groups.
///
/// # Safety
/// As [`Steps::read`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn all_sixes(rows: Sixteen, at: usize, to: *mut Fields) {
    // SAFETY: the caller's promise.
    let [d, a, b, c] = unsafe { sixteen_bytes(rows, at) };
    let [scales, mins] = sixes(a, b, c);
    let half = |v: __m512i| _mm512_cvtph_ps(_mm512_cvtepi32_epi16(v));
    let minus = _mm512_xor_ps(half(_mm512_srli_epi32::<16>(d)), _mm512_set1_ps(-0.0));
    for (by, bytes, out) in
        // SAFETY: fields of `to`.
        unsafe { [(half(d), scales, &raw mut (*to).scale), (minus, mins, &raw mut (*to).min)] }
    {
        for g in 0..CHUNK_GROUPS {
            let byte = _mm512_srl_epi32(bytes[g / 4], _mm_cvtsi32_si128(8 * (g % 4) as i32));
            let byte = _mm512_and_si512(byte, _mm512_set1_epi32(0xFF));
            // SAFETY: writable by the caller's promise.
            unsafe { (*out)[g] = _mm512_mul_ps(by, _mm512_cvtepi32_ps(byte)) }
        }
    }
}

/// A scale for all groups and sixteen sub-scales.
///
/// # Safety
/// As [`Steps::read`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn subs(rows: Sixteen, d: usize, sub: usize, to: *mut Fields) {
    // SAFETY: the caller's promise; a row's block has all of these bytes.
    unsafe {
        (*to).raw[0][0] = one_word(rows, d);
        let bytes = sixteen_bytes(rows, sub);
        for i in 0..2 * CHUNK_GROUPS {
            let up = _mm512_sll_epi32(bytes[i / 4], _mm_cvtsi32_si128(24 - 8 * (i % 4) as i32));
            (*to).sub[i % 2][i / 2] = _mm512_srai_epi32::<24>(up);
        }
    }
}

/// Whatever [`Tile::steps`](crate::cpu::mat::tile::Tile::steps) says.
///
/// # Safety
/// As [`Steps::read`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn one_by_one<T: TileX512>(rows: Sixteen, groups: usize, to: *mut Fields) {
    for g in 0..groups {
        // SAFETY: the caller's promise; sixteen floats or integers each.
        unsafe {
            let (scale, min) = (&raw mut (*to).scale[g], &raw mut (*to).min[g]);
            let sub = [&raw mut (*to).sub[0][g], &raw mut (*to).sub[1][g]];
            for (n, row) in (0..TILE).map(|n| (n, rows.at(n))) {
                let steps = T::steps::<F16c>(locate::<T>(row, g).0, 0);
                *scale.cast::<f32>().add(n) = steps.scale;
                if T::MIN {
                    *min.cast::<f32>().add(n) = steps.min;
                }
                if T::SUB {
                    *sub[0].cast::<i32>().add(n) = steps.sub[0];
                    *sub[1].cast::<i32>().add(n) = steps.sub[1];
                }
            }
        }
    }
}

/// Whatever [`TileX86::eight`](crate::cpu::mat::tile_x86::TileX86::eight) says.
///
/// # Safety
/// As [`Steps::read`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn block_by_block<T: TileX512>(rows: Sixteen, to: *mut Fields) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut steps = [Eight::zero(); TILE];
        for (n, steps) in steps.iter_mut().enumerate() {
            *steps = T::eight(locate::<T>(rows.at(n), 0).0);
        }
        (*to).scale = transpose(|n| _mm256_castps_si256(steps[n].scale)).map(|v| _mm512_castsi512_ps(v));
        if T::MIN {
            (*to).min = transpose(|n| _mm256_castps_si256(steps[n].min)).map(|v| _mm512_castsi512_ps(v));
        }
        if T::SUB {
            (*to).sub = [transpose(|n| steps[n].sub[0]), transpose(|n| steps[n].sub[1])];
        }
    }
}
