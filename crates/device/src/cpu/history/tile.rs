//! A tile of keys and values read where they lie, against one query of each of several heads.

use super::attention::{TILE, exp1};
use super::packed::outside;
use super::stored::Stored;
use crate::cpu::lanes::{Lanes, MAX_LANES};

/// Query heads whose scores of a tile are held at once.
pub const HEADS: usize = 8;

/// Some keys and values against the queries of up to `HEADS` heads.
pub struct Tile {
    pub q: [*const f32; HEADS],
    /// Weighted values so far.
    pub acc: [*mut f32; HEADS],
    pub keys: *const u8,
    pub values: *const u8,
    /// Bytes of a key or value.
    pub vector: usize,
    pub n: usize,
    pub d: usize,
    pub scale: f32,
}

#[expect(clippy::needless_range_loop, reason = "heads and vectors index several arrays at once")]
impl Tile {
    /// Scaled products of `H` queries with the keys, four keys at a time: lane-strided sums and a fixed tree each.
    ///
    /// # Safety
    /// The tile's addresses hold what its numbers say, from head `first` on.
    #[inline(always)]
    pub unsafe fn score<L: Lanes, S: Stored, const H: usize>(&self, s: S, first: usize, to: &mut [[f32; TILE]; HEADS]) {
        let (n, d, whole) = (self.n, self.d, self.d / L::N * L::N);
        for at in (0..n).step_by(4) {
            // The last key stands in for those behind it.
            let key = |j: usize| self.keys.wrapping_add((at + j).min(n - 1) * self.vector);
            let k = [key(0), key(1), key(2), key(3)];
            let mut acc = [[L::zero(); 4]; H];
            // SAFETY: d elements of each key and query.
            unsafe {
                for i in (0..whole).step_by(L::N) {
                    let k: [L; 4] = [s.load(k[0], i), s.load(k[1], i), s.load(k[2], i), s.load(k[3], i)];
                    for h in 0..H {
                        let x = L::load(self.q[first + h].add(i));
                        for j in 0..4 {
                            acc[h][j] = x.fma(k[j], acc[h][j]);
                        }
                    }
                }
                if whole < d {
                    for h in 0..H {
                        let x = L::load_part(self.q[first + h].add(whole), d - whole);
                        for j in 0..4 {
                            acc[h][j] = x.fma(s.load_part(k[j], whole, d - whole), acc[h][j]);
                        }
                    }
                }
            }
            for h in 0..H {
                let sums = L::sum4(acc[h]);
                for j in 0..4.min(n - at) {
                    to[first + h][at + j] = sums[j] * self.scale;
                }
            }
        }
    }

    /// `acc = kept * acc + sum_j p[j] v[j]` for `H` heads, keys in ascending order.
    ///
    /// # Safety
    /// As [`score`](Self::score).
    #[inline(always)]
    pub unsafe fn weigh<L: Lanes, S: Stored, const H: usize>(
        &self,
        s: S,
        first: usize,
        p: &[[f32; TILE]; HEADS],
        kept: &[f32; HEADS],
    ) {
        let mut i = 0;
        // SAFETY: d elements.
        unsafe {
            while i + 2 * L::N <= self.d {
                self.columns::<L, S, H, 2>(s, first, p, kept, i);
                i += 2 * L::N;
            }
            while i + L::N <= self.d {
                self.columns::<L, S, H, 1>(s, first, p, kept, i);
                i += L::N;
            }
            if i < self.d {
                self.edge::<L, S, H>(s, first, p, kept, i);
            }
        }
    }
    /// `C` vectors from column `i` on.
    #[inline(always)]
    unsafe fn columns<L: Lanes, S: Stored, const H: usize, const C: usize>(
        &self,
        s: S,
        first: usize,
        p: &[[f32; TILE]; HEADS],
        kept: &[f32; HEADS],
        i: usize,
    ) {
        let mut sum = [[L::zero(); C]; H];
        // SAFETY: columns inside, n values.
        unsafe {
            for h in 0..H {
                for c in 0..C {
                    let so_far = L::load(self.acc[first + h].add(i + c * L::N));
                    sum[h][c] = so_far.mul(L::splat(kept[first + h]));
                }
            }
            for j in 0..self.n {
                let from = self.values.add(j * self.vector);
                let mut v = [L::zero(); C];
                for (c, v) in v.iter_mut().enumerate() {
                    *v = s.load(from, i + c * L::N);
                }
                for h in 0..H {
                    let w = L::splat(*p[first + h].as_ptr().add(j));
                    for c in 0..C {
                        sum[h][c] = w.fma(v[c], sum[h][c]);
                    }
                }
            }
            for h in 0..H {
                for c in 0..C {
                    sum[h][c].store(self.acc[first + h].add(i + c * L::N));
                }
            }
        }
    }
    /// The last, incomplete vector.
    #[inline(always)]
    unsafe fn edge<L: Lanes, S: Stored, const H: usize>(
        &self,
        s: S,
        first: usize,
        p: &[[f32; TILE]; HEADS],
        kept: &[f32; HEADS],
        i: usize,
    ) {
        let left = self.d - i;
        for h in first..first + H {
            // SAFETY: `left` columns from i on, n values.
            unsafe {
                let mut sum = L::load_part(self.acc[h].add(i), left).mul(L::splat(kept[h]));
                for (j, &w) in p[h][..self.n].iter().enumerate() {
                    sum = L::splat(w).fma(s.load_part(self.values.add(j * self.vector), i, left), sum);
                }
                sum.store_part(self.acc[h].add(i), left);
            }
        }
    }
}

/// A query head before a tile of rotated vectors.
#[derive(Copy, Clone)]
pub struct Query {
    /// Factor of its products with keys, which are in units of the keys' scales.
    pub by: f32,
    /// First and end of what it sees of the tile.
    pub seen: [usize; 2],
    /// Its greatest score so far, and its sum of weights.
    pub state: *mut f32,
}

impl Query {
    fn hide(&self, x: &mut [f32; TILE], with: f32) {
        let [first, end] = self.seen;
        if end - first < TILE {
            outside(x, &(first..end), with);
        }
    }
}

/// Turns products of queries with the keys of a tile into weights of its values, as [`soften`] does, each times the scale
/// of its value and `unit`; 0 where nothing is seen. Returns the factors of what was summed before. `scales` are those of
/// the tile's keys and values. Step by step for all heads: none waits for the sums across lanes of the one before it.
///
/// # Safety
/// `TILE` scales of both may be read; each state is two floats that nobody else touches.
#[inline(always)]
pub unsafe fn soften_all<L: Lanes>(
    x: &mut [[f32; TILE]],
    of: &[Query],
    scales: [*const u16; 2],
    unit: f32,
) -> [f32; HEADS] {
    let (mut by, mut max, mut sums) = ([[0.0f32; TILE]; 2], [0.0; HEADS], [L::zero(); HEADS]);
    let (mut kept, mut before) = ([0.0; MAX_LANES], [0.0; MAX_LANES]);
    // SAFETY: the caller's promise; arrays of whole registers.
    unsafe {
        for i in (0..TILE).step_by(L::N) {
            L::load_f16(scales[0].add(i)).store(by[0].as_mut_ptr().add(i));
            L::load_f16(scales[1].add(i)).mul(L::splat(unit)).store(by[1].as_mut_ptr().add(i));
        }
        for (x, q) in x.iter_mut().zip(of) {
            for i in (0..TILE).step_by(L::N) {
                let to = x.as_mut_ptr().add(i);
                L::load(to).mul(L::load(by[0].as_ptr().add(i)).mul(L::splat(q.by))).store(to);
            }
            q.hide(x, f32::NEG_INFINITY);
        }
        for (h, (x, q)) in x.iter().zip(of).enumerate() {
            before[h] = *q.state;
            let mut all = L::splat(before[h]);
            for part in x.chunks_exact(L::N) {
                all = all.max(L::load(part.as_ptr()));
            }
            max[h] = all.greatest();
            before[h] -= max[h];
        }
        for (h, (x, q)) in x.iter_mut().zip(of).enumerate() {
            for i in (0..TILE).step_by(L::N) {
                let to = x.as_mut_ptr().add(i);
                let w = L::load(to).sub(L::splat(max[h])).exp();
                sums[h] = sums[h].add(w);
                w.mul(L::load(by[1].as_ptr().add(i))).store(to);
            }
            q.hide(x, 0.0);
        }
        for i in (0..of.len()).step_by(L::N) {
            L::load(before.as_ptr().add(i)).exp().store(kept.as_mut_ptr().add(i));
        }
        for first in (0..of.len()).step_by(4) {
            let four = L::sum4([sums[first], sums[first + 1], sums[first + 2], sums[first + 3]]);
            for (h, (q, sum)) in (first..).zip(of[first..].iter().zip(four)) {
                *q.state = max[h];
                *q.state.add(1) = *q.state.add(1) * kept[h] + sum;
            }
        }
    }
    std::array::from_fn(|h| kept[h])
}

/// `x[j] *= unit * scale[j]` for `n` stored scales.
///
/// # Safety
/// n scales may be read.
#[inline(always)]
pub unsafe fn by_scales<L: Lanes>(x: &mut [f32; TILE], n: usize, scales: *const u16, unit: f32) {
    for i in (0..n).step_by(L::N) {
        // SAFETY: n scales; TILE is a multiple of N.
        unsafe {
            let by = L::get_f16(scales.add(i), n - i).mul(L::splat(unit));
            let to = x.as_mut_ptr().add(i);
            // Lanes behind the last keep what they are.
            L::get(to, n - i).mul(by).put(to, n - i);
        }
    }
}

/// Turns scores (minus infinity behind the first `n`) into weights `e^(s - m)`, m the greatest of them and of `before`.
/// Returns m, `e^(before - m)` and the sum of the weights.
#[inline(always)]
pub fn soften<L: Lanes>(s: &mut [f32; TILE], n: usize, before: f32) -> (f32, f32, f32) {
    let mut max = L::splat(before);
    for part in s[..n.next_multiple_of(L::N)].chunks_exact(L::N) {
        // SAFETY: N elements; TILE is a multiple of N.
        max = max.max(unsafe { L::load(part.as_ptr()) });
    }
    let m = max.greatest();
    let mut sum = L::zero();
    for part in s[..n.next_multiple_of(L::N)].chunks_exact_mut(L::N) {
        // SAFETY: as above.
        unsafe {
            let w = L::load(part.as_ptr()).sub(L::splat(m)).exp();
            w.store(part.as_mut_ptr());
            sum = sum.add(w);
        }
    }
    (m, exp1::<L>(before - m), sum.sum())
}
