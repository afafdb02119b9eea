//! The same in 16-bit integers, with the dot products of VNNI: twice the products of f32 in an instruction. Codes become
//! integers in a register, queries and weights are rounded to 14 bits or more; sums are of 32 bits and cannot overflow,
//! because the scales of what is rounded see to it.
//!
//! Results are those of f32 arithmetic within `tolerance::ATTENTION_ROTATED`.

use super::attention::TILE;
use super::tile::HEADS;
use crate::cpu::lanes::Lanes;
use crate::kv::rotation::{MAX_WIDTH, greatest, nearest};
use crate::kv::{KEYS, tables};
use std::arch::asm;
use std::arch::x86_64::*;
use std::ops::Range;
use std::sync::LazyLock;

/// Greatest integer of a centroid. A sum over a tile of 64 values then leaves 2^17 for all weights together.
const TOP: f64 = 16383.0;
/// Greatest sum of magnitudes of a product.
const ROOM: f64 = i32::MAX as f64;
/// Sums of magnitudes in f32 may be too small by less than this.
const SLACK: f64 = 1.0 + 1e-4;
/// Elements that are looked at side by side.
const LANES: usize = 16;
/// Most heads whose sums the registers hold.
pub const MOST: usize = 6;
/// Bytes that memory is asked for at once.
const LINE: usize = 64;
/// Words of each key whose products fit 32 bits together, where codes are centroids.
const TOGETHER: usize = 2;

/// Centroids as integers, twice: an index of five bits may have anything in the fifth.
#[derive(Debug)]
pub struct Integers {
    words: [i16; 32],
    /// What 1 stands for, in units of centroids.
    unit: f32,
    top: f64,
}

impl Integers {
    /// The scale below [`TOP`] at which rounding costs least, each centroid counted by how many elements it has.
    fn new(d: usize) -> Self {
        let table = tables::of(d);
        let c = table.centroids.map(f64::from);
        let weight = |i: usize| (-c[i] * c[i] / 2.0).exp() * (c[i] - if i == 8 { -c[8] } else { c[i - 1] });
        let error = |s: f64| (8..16).map(|i| weight(i) * ((c[i] * s).round() / s - c[i]).powi(2)).sum::<f64>();
        let scales = (TOP as u32 / 2..=TOP as u32).map(|top| top as f64 / c[15]);
        let scale = scales.min_by(|a, b| error(*a).total_cmp(&error(*b))).unwrap_or(1.0);
        let words = std::array::from_fn(|i| (c[i % 16] * scale).round() as i16);
        Integers { words, unit: (1.0 / scale) as f32, top: (c[15] * scale).round() }
    }
    fn of(d: usize) -> &'static Self {
        static ALL: LazyLock<[Integers; 4]> = LazyLock::new(|| [64, 128, 256, 512].map(Integers::new));
        &ALL[(d / 128).min(3)]
    }
}

/// What codes stand for.
#[derive(Copy, Clone)]
pub enum Codes {
    /// Not for these kernels.
    None,
    /// Signed bytes.
    Bytes,
    /// Nibbles that name centroids, vectors of 64.
    Narrow(&'static Integers),
    /// Nibbles that name centroids.
    Wide(&'static Integers),
}

impl Codes {
    pub fn nibbles(d: usize) -> Self {
        if d < 128 { Codes::Narrow(Integers::of(d)) } else { Codes::Wide(Integers::of(d)) }
    }
    /// Elements of a key in a word, and pairs of elements in the order in which a word gives them.
    fn word(self) -> (usize, &'static [(usize, usize)]) {
        match self {
            Codes::Bytes => (4, &[(0, 2), (1, 3)]),
            _ => (8, &[(0, 4), (1, 5), (2, 6), (3, 7)]),
        }
    }
    fn top(self) -> f64 {
        match self {
            Codes::Narrow(t) | Codes::Wide(t) => t.top,
            _ => 127.0,
        }
    }
    fn unit(self) -> f32 {
        match self {
            Codes::Narrow(t) | Codes::Wide(t) => t.unit,
            _ => 1.0,
        }
    }
    /// Calls `f(i, element)` for every weighted sum `i` of a vector of `d`, with the element that it belongs to.
    #[inline(always)]
    pub fn elements(self, d: usize, mut f: impl FnMut(usize, usize)) {
        for (set, k) in (0..d / 64).flat_map(|set| (0..4).map(move |k| (set, k))) {
            (0..16).for_each(|lane| f(64 * set + 16 * k + lane, self.element(set, k, lane)));
        }
    }
    /// The element of the sum in `lane` of the k-th register of a set of 64.
    #[inline(always)]
    fn element(self, set: usize, k: usize, lane: usize) -> usize {
        // Sums of a pair of vectors come from the lower or upper four words of each 128 bits.
        let word = |half: usize| 8 * (lane / 4) + 4 * half + lane % 4;
        match self {
            Codes::Bytes => 64 * set + 32 * (k / 2) + word(k % 2),
            Codes::Narrow(_) => 4 * lane + k,
            _ => 128 * (set / 2) + 4 * word(set % 2) + k,
        }
    }
    /// Rounds a rotated query to pairs of integers in the order of the keys' words; returns what 1 stands for in a product
    /// with codes.
    #[inline(always)]
    pub fn query(self, q: &[f32], to: &mut [i32]) -> f32 {
        let (elements, pairs) = self.word();
        let chunk = if matches!(self, Codes::Bytes) { q.len() } else { TOGETHER * elements };
        let most = greatest(q);
        // Lane by lane, so that no addition waits for the one before it.
        let sum = |c: &[f32]| {
            let mut sums = [0.0f32; LANES];
            for c in c.as_chunks::<LANES>().0 {
                for (sum, x) in sums.iter_mut().zip(c) {
                    *sum += x.abs();
                }
            }
            sums.iter().sum::<f32>()
        };
        let mut together = 0.0f32;
        for c in q.chunks(chunk) {
            together = together.max(sum(c));
        }
        // Each rounding may add a half.
        let room = ROOM / self.top() - chunk as f64;
        let by = if most > 0.0 { (32767.0 / most as f64).min(room / (together as f64 * SLACK)) } else { 1.0 };
        if !most.is_finite() || !by.is_finite() || by == 0.0 {
            to.fill(0);
            return f32::NAN;
        }
        let mut whole = [0i32; MAX_WIDTH];
        for (to, x) in whole.iter_mut().zip(q) {
            *to = (nearest(x * by as f32) as i32).clamp(-32767, 32767) & 0xffff;
        }
        for (word, to) in whole[..q.len()].chunks_exact(elements).zip(to.chunks_exact_mut(pairs.len())) {
            for (to, &(a, b)) in to.iter_mut().zip(pairs) {
                *to = word[a] | word[b] << 16;
            }
        }
        self.unit() / by as f32
    }
    /// Rounds weights to integers; returns what 1 stands for in a product with codes.
    ///
    /// # Safety
    /// The CPU has AVX-512 F, BW, VL and DQ.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    pub unsafe fn weights(self, p: &[f32; TILE], to: &mut [i16; TILE]) -> f32 {
        // SAFETY: four registers of the array.
        let p: [__m512; 4] = std::array::from_fn(|i| unsafe { _mm512_loadu_ps(p.as_ptr().add(16 * i)) });
        let size = p.map(|p| _mm512_abs_ps(p));
        let sum = _mm512_reduce_add_ps(_mm512_add_ps(_mm512_add_ps(size[0], size[1]), _mm512_add_ps(size[2], size[3])));
        let most =
            _mm512_reduce_max_ps(_mm512_max_ps(_mm512_max_ps(size[0], size[1]), _mm512_max_ps(size[2], size[3])));
        let room = (ROOM / self.top()) as f32 - 2.0 * TILE as f32;
        let by = (32767.0 / most).min(room / sum);
        if !sum.is_finite() || !by.is_finite() {
            to.fill(0);
            // Where all weights are zero, or too small for their scale to be a number, nothing is added.
            return if sum.is_finite() { 0.0 } else { f32::NAN };
        }
        for (i, p) in p.into_iter().enumerate() {
            let ints = _mm512_cvtps_epi32(_mm512_mul_ps(p, _mm512_set1_ps(by)));
            // SAFETY: sixteen elements of the array.
            unsafe { _mm256_storeu_si256(to.as_mut_ptr().add(16 * i).cast(), _mm512_cvtsepi32_epi16(ints)) };
        }
        self.unit() / by
    }
}

/// How codes become integers.
trait Spread: Copy {
    /// Registers of pairs that 16 words of keys become.
    const PAIRS: usize;
    /// Words whose products are summed in 32 bits before they become f32.
    const TOGETHER: usize;
    /// Pairs of elements of 16 keys out of a word of each.
    ///
    /// # Safety
    /// The CPU has the set.
    unsafe fn keys(self, words: __m512i) -> [__m512i; 4];
    /// Pairs of the same 64 elements of two vectors.
    ///
    /// # Safety
    /// The CPU has the set; both vectors may be read.
    unsafe fn values(self, x: *const u8, y: *const u8, set: usize) -> [__m512i; 4];
}

#[derive(Copy, Clone)]
struct SignedBytes;

impl Spread for SignedBytes {
    const PAIRS: usize = 2;
    const TOGETHER: usize = 128;
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
    unsafe fn keys(self, w: __m512i) -> [__m512i; 4] {
        let even = _mm512_srai_epi16::<8>(_mm512_slli_epi16::<8>(w));
        [even, _mm512_srai_epi16::<8>(w), even, even]
    }
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
    unsafe fn values(self, x: *const u8, y: *const u8, set: usize) -> [__m512i; 4] {
        // SAFETY: 64 bytes of each vector from its set on.
        let wide = |p: *const u8, c: usize| unsafe {
            _mm512_cvtepi8_epi16(_mm256_loadu_si256(p.add(64 * set + 32 * c).cast()))
        };
        let [x0, y0, x1, y1] = [wide(x, 0), wide(y, 0), wide(x, 1), wide(y, 1)];
        [
            _mm512_unpacklo_epi16(x0, y0),
            _mm512_unpackhi_epi16(x0, y0),
            _mm512_unpacklo_epi16(x1, y1),
            _mm512_unpackhi_epi16(x1, y1),
        ]
    }
}

/// Four looks at a register of words, a nibble of each word at a time.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
fn look(table: __m512i, w: __m512i) -> [__m512i; 4] {
    [
        _mm512_permutexvar_epi16(w, table),
        _mm512_permutexvar_epi16(_mm512_srli_epi16::<4>(w), table),
        _mm512_permutexvar_epi16(_mm512_srli_epi16::<8>(w), table),
        _mm512_permutexvar_epi16(_mm512_srli_epi16::<12>(w), table),
    ]
}

#[derive(Copy, Clone)]
struct Centroids<const WIDE: bool>(__m512i);

impl<const WIDE: bool> Spread for Centroids<WIDE> {
    const PAIRS: usize = 4;
    const TOGETHER: usize = TOGETHER;
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
    unsafe fn keys(self, w: __m512i) -> [__m512i; 4] {
        look(self.0, w)
    }
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
    unsafe fn values(self, x: *const u8, y: *const u8, set: usize) -> [__m512i; 4] {
        let w = if WIDE {
            // SAFETY: 64 bytes of each vector, 128 elements, of which the set has half the words of each 128 bits.
            let (x, y) = unsafe {
                (_mm512_loadu_si512(x.add(set / 2 * 64).cast()), _mm512_loadu_si512(y.add(set / 2 * 64).cast()))
            };
            if set.is_multiple_of(2) { _mm512_unpacklo_epi16(x, y) } else { _mm512_unpackhi_epi16(x, y) }
        } else {
            // SAFETY: 32 bytes of each vector.
            let (x, y) = unsafe { (_mm256_loadu_si256(x.cast()), _mm256_loadu_si256(y.cast())) };
            let (x, y) = (_mm512_cvtepu16_epi32(x), _mm512_cvtepu16_epi32(y));
            _mm512_or_si512(x, _mm512_slli_epi32::<16>(y))
        };
        look(self.0, w)
    }
}

/// `acc + x . y` by pairs. Written as the instruction, because the compiler takes the intrinsic apart into a product and a
/// sum where it sees a chain of them.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
fn dot(mut acc: __m512i, x: __m512i, y: __m512i) -> __m512i {
    // SAFETY: registers only.
    unsafe {
        asm!("vpdpwssd {acc}, {x}, {y}", acc = inout(zmm_reg) acc, x = in(zmm_reg) x, y = in(zmm_reg) y,
            options(pure, nomem, nostack, preserves_flags));
    }
    acc
}

/// As [`dot`], with the pair at `y` in every lane.
///
/// # Safety
/// It may be read.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn dot_all(mut acc: __m512i, x: __m512i, y: *const i32) -> __m512i {
    // SAFETY: the caller's promise.
    unsafe {
        asm!("vpdpwssd {acc}, {x}, dword ptr [{y}]{{1to16}}", acc = inout(zmm_reg) acc, x = in(zmm_reg) x, y = in(reg) y,
            options(pure, readonly, nostack, preserves_flags));
    }
    acc
}

/// Some keys and values of a head in a page: a tile, aligned.
#[derive(Clone)]
pub struct Block {
    pub codes: Codes,
    /// Keys or values of the head in the page.
    pub at: *const u8,
    /// The tile's first.
    pub base: usize,
    pub seen: Range<usize>,
    pub d: usize,
    /// Bytes of a vector.
    pub vector: usize,
    /// Where the tile that is wanted next lies. Its lines are asked for, each as the same one of this tile is read.
    pub next: *const u8,
}

/// Asks for a line of memory ahead of its use, into the second cache: tiles of this turn and the next fill the first.
#[inline(always)]
fn ask(at: *const u8) {
    // SAFETY: every x86-64 CPU has it, and it reads nothing, wherever it points.
    unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast()) }
}

/// Asks for the scales of a tile, which begin at `at`.
#[inline(always)]
pub fn ask_scales(at: *const u8) {
    (0..2 * TILE).step_by(LINE).for_each(|line| ask(at.wrapping_add(line)));
}

/// Whether lanes are those of AVX-512, which here comes with VNNI.
pub fn suit<L: Lanes>() -> bool {
    L::N == 16
}

/// Heads in blocks that the registers hold, of nearly the same size.
fn blocks(heads: usize) -> impl Iterator<Item = Range<usize>> {
    let each = heads.div_ceil(heads.div_ceil(MOST).max(1));
    (0..heads).step_by(each.max(1)).map(move |at| at..heads.min(at + each))
}

macro_rules! by_count {
    ($n:expr, $f:ident, $s:expr, ($($arg:expr),*)) => {
        match $n {
            1 => $f::<_, 1>($s, $($arg),*),
            2 => $f::<_, 2>($s, $($arg),*),
            3 => $f::<_, 3>($s, $($arg),*),
            4 => $f::<_, 4>($s, $($arg),*),
            5 => $f::<_, 5>($s, $($arg),*),
            _ => $f::<_, 6>($s, $($arg),*),
        }
    };
}

macro_rules! with_codes {
    ($codes:expr, $n:expr, $f:ident, $args:tt) => {
        match $codes {
            Codes::None => {}
            Codes::Bytes => by_count!($n, $f, SignedBytes, $args),
            Codes::Narrow(t) => {
                let table = _mm512_loadu_si512(t.words.as_ptr().cast());
                by_count!($n, $f, Centroids::<false>(table), $args)
            }
            Codes::Wide(t) => {
                let table = _mm512_loadu_si512(t.words.as_ptr().cast());
                by_count!($n, $f, Centroids::<true>(table), $args)
            }
        }
    };
}

/// Products of queries, as [`Codes::query`] leaves them, with the keys; in units of their own.
///
/// # Safety
/// The CPU has AVX-512 F, BW, VL, DQ and VNNI. The tile lies in the page; queries have d / 2 pairs.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub unsafe fn score(b: &Block, q: &[*const i32], to: &mut [[f32; TILE]; HEADS]) {
    for heads in blocks(q.len()) {
        let (q, to) = (&q[heads.clone()], &mut to[heads]);
        // SAFETY: the caller's promise.
        unsafe { with_codes!(b.codes, q.len(), score_of, (b, q, to)) }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn score_of<S: Spread, const H: usize>(s: S, b: &Block, q: &[*const i32], to: &mut [[f32; TILE]]) {
    let keys = KEYS as usize;
    let mut j = b.seen.start / keys * keys;
    while j < b.seen.end {
        // SAFETY: groups of keys inside the tile. As many sums at once as the registers hold, so that none waits for the
        // one before it.
        unsafe {
            if H < MOST && j + keys < b.seen.end {
                groups::<S, H, 2>(s, b, j, q, to);
                j += 2 * keys;
            } else {
                groups::<S, H, 1>(s, b, j, q, to);
                j += keys;
            }
        }
    }
}

/// `G` groups of 16 keys from the tile's key `j` on.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
#[expect(clippy::needless_range_loop, reason = "heads and groups index several arrays at once")]
unsafe fn groups<S: Spread, const H: usize, const G: usize>(
    s: S,
    b: &Block,
    j: usize,
    q: &[*const i32],
    to: &mut [[f32; TILE]],
) {
    let keys = KEYS as usize;
    let (words, group) = (b.vector / 4, keys * b.vector);
    let mut sums = [[_mm512_setzero_ps(); G]; H];
    // SAFETY: `words` words of each key; queries of as many pairs as these give.
    unsafe {
        let at = b.at.add((b.base + j) / keys * group);
        let next = b.next.wrapping_add(j / keys * group);
        for first in (0..words).step_by(S::TOGETHER) {
            let mut acc = [[_mm512_setzero_si512(); G]; H];
            for t in first..words.min(first + S::TOGETHER) {
                let mut x = [[_mm512_setzero_si512(); 4]; G];
                for g in 0..G {
                    ask(next.wrapping_add(g * group + 64 * t));
                    x[g] = s.keys(_mm512_loadu_si512(at.add(g * group + 64 * t).cast()));
                }
                for k in 0..S::PAIRS {
                    for h in 0..H {
                        let pair = q[h].add(t * S::PAIRS + k);
                        for g in 0..G {
                            acc[h][g] = dot_all(acc[h][g], x[g][k], pair);
                        }
                    }
                }
            }
            for h in 0..H {
                for g in 0..G {
                    sums[h][g] = _mm512_add_ps(sums[h][g], _mm512_cvtepi32_ps(acc[h][g]));
                }
            }
        }
        for h in 0..H {
            for g in 0..G {
                _mm512_storeu_ps(to[h].as_mut_ptr().add(j + keys * g), sums[h][g]);
            }
        }
    }
}

/// What [`weigh`] takes of one head.
#[derive(Copy, Clone)]
pub struct Head {
    /// As [`Codes::weights`] leaves them, 0 where nothing is seen.
    pub weights: [i16; TILE],
    /// What 1 stands for in a product of a weight and a code.
    pub unit: f32,
    /// Factor of what has been summed so far.
    pub kept: f32,
    /// Sums of d elements in the order of [`Codes::element`].
    pub sums: *mut f32,
}

/// `sums = kept * sums + unit * sum_j weights[j] codes[j]` for all heads.
///
/// # Safety
/// As [`score`]; each head's sums are d floats that nobody else touches.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub unsafe fn weigh(b: &Block, heads: &[Head]) {
    for of in blocks(heads.len()) {
        let heads = &heads[of];
        // SAFETY: the caller's promise.
        unsafe { with_codes!(b.codes, heads.len(), weigh_of, (b, heads)) }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
#[expect(clippy::needless_range_loop, reason = "heads index several arrays at once")]
unsafe fn weigh_of<S: Spread, const H: usize>(s: S, b: &Block, heads: &[Head]) {
    // SAFETY: pairs of vectors of the tile, whose second is in the page because tiles are even; 64 elements at a time.
    unsafe {
        for set in 0..b.d / 64 {
            let mut acc = [[_mm512_setzero_si512(); 4]; H];
            for j in (b.seen.start / 2 * 2..b.seen.end).step_by(2) {
                let at = b.at.add((b.base + j) * b.vector);
                let c = s.values(at, at.add(b.vector), set);
                // The sets share the lines of two vectors.
                for line in (set * LINE..2 * b.vector).step_by(b.d / 64 * LINE) {
                    ask(b.next.wrapping_add(j * b.vector + line));
                }
                for h in 0..H {
                    let pair = heads[h].weights.as_ptr().add(j).cast::<i32>().read_unaligned();
                    for k in 0..4 {
                        acc[h][k] = dot(acc[h][k], c[k], _mm512_set1_epi32(pair));
                    }
                }
            }
            for h in 0..H {
                let (kept, unit) = (_mm512_set1_ps(heads[h].kept), _mm512_set1_ps(heads[h].unit));
                for k in 0..4 {
                    let to = heads[h].sums.add(64 * set + 16 * k);
                    let before = _mm512_loadu_ps(to);
                    // Once the greatest score is found, nothing is rescaled any more.
                    let before = if heads[h].kept == 1.0 { before } else { _mm512_mul_ps(before, kept) };
                    _mm512_storeu_ps(to, _mm512_fmadd_ps(_mm512_cvtepi32_ps(acc[h][k]), unit, before));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::Isa;

    #[test]
    fn integers_are_near_the_centroids_and_sums_cannot_overflow() {
        for d in [64, 128, 256, 512] {
            let (t, c) = (Integers::of(d), tables::of(d).centroids);
            assert_eq!(t.words[15] as f64, t.top, "{d}");
            for (i, c) in c.iter().enumerate().take(16) {
                assert_eq!((t.words[i], t.words[i]), (t.words[i + 16], -t.words[15 - i]));
                assert!((t.words[i] as f32 * t.unit - c).abs() < 1.5e-4, "{d} {i}");
            }
            let codes = Codes::nibbles(d);
            // The worst there is: all of one size, with codes to match.
            let (mut q, mut p) = (vec![0; d / 2], [0; TILE]);
            codes.query(&vec![3.0; d], &mut q);
            let one = (q[0] & 0xffff) as i64;
            assert!(
                one * 16 * t.top as i64 <= i32::MAX as i64 && one * 17 * t.top as i64 > i32::MAX as i64 / 2,
                "{one}"
            );
            if Isa::Avx512.available() {
                // SAFETY: the set is there.
                unsafe { codes.weights(&[0.25; TILE], &mut p) };
            } else {
                p.fill(1001);
            }
            assert!(p[0] as i64 * 64 * t.top as i64 <= i32::MAX as i64 && p[0] > 1000, "{}", p[0]);
        }
    }

    #[test]
    fn every_element_has_one_sum() {
        for (codes, d) in [64, 128, 256, 512].into_iter().flat_map(|d| [(Codes::nibbles(d), d), (Codes::Bytes, d)]) {
            let mut all = vec![usize::MAX; d];
            codes.elements(d, |i, element| all[i] = element);
            all.sort_unstable();
            assert!(all.into_iter().eq(0..d));
        }
    }

    #[test]
    fn what_is_no_number_stays_none() {
        if !Isa::Avx512.available() {
            return;
        }
        let codes = Codes::nibbles(64);
        // SAFETY: the set is there.
        let weights = |p: &[f32; TILE], to: &mut [i16; TILE]| unsafe { codes.weights(p, to) };
        let (mut q, mut p) = ([1; 32], [1; TILE]);
        assert!(codes.query(&[f32::NAN; 64], &mut q).is_nan() && codes.query(&[f32::INFINITY; 64], &mut q).is_nan());
        assert!(weights(&[f32::NAN; TILE], &mut p).is_nan());
        assert_eq!((weights(&[0.0; TILE], &mut p), p), (0.0, [0; TILE]));
        assert!(codes.query(&[0.0; 64], &mut q).is_finite() && q == [0; 32]);
    }
}
