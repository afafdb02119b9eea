//! Q4_K and Q5_K: eight sub-blocks of 32, each with a six-bit scale and a six-bit minimum, two f16 over all.

use bytemuck::{Pod, Zeroable};

use super::{fit, half, round_half, to_half};

/// `y = d * scale * q - dmin * min`. Sub-block `2k` is the low nibbles of `qs[32k..32k + 32]`, sub-block `2k + 1` the high ones.
#[derive(Copy, Clone, Pod, Zeroable, Debug)]
#[repr(C)]
pub struct BlockQ4K {
    /// f16 scale of the scales.
    pub d: [u8; 2],
    /// f16 scale of the minimums.
    pub dmin: [u8; 2],
    /// Packed scales and minimums, see [`unpack_scales`].
    pub scales: [u8; 12],
    /// Codes.
    pub qs: [[u8; 32]; 4],
}

/// As [`BlockQ4K`] with a fifth bit: that of element `l` of sub-block `s` is bit `s` of `qh[l]`.
#[derive(Copy, Clone, Pod, Zeroable, Debug)]
#[repr(C)]
pub struct BlockQ5K {
    /// f16 scale of the scales.
    pub d: [u8; 2],
    /// f16 scale of the minimums.
    pub dmin: [u8; 2],
    /// Packed scales and minimums, see [`unpack_scales`].
    pub scales: [u8; 12],
    /// Fifth bits.
    pub qh: [u8; 32],
    /// Low four bits.
    pub qs: [[u8; 32]; 4],
}

const _: () = assert!(size_of::<BlockQ4K>() == 144 && size_of::<BlockQ5K>() == 176);

/// The eight (scale, minimum) pairs, six bits each: the first four in the low bits of bytes 0..4 and 4..8, the others' low four bits in
/// bytes 8..12 with their upper two in the top of bytes 0..8.
#[inline]
pub fn unpack_scales(s: &[u8; 12]) -> [(u8, u8); 8] {
    std::array::from_fn(|j| match j {
        0..4 => (s[j] & 63, s[j + 4] & 63),
        _ => ((s[j + 4] & 15) | (s[j - 4] >> 6) << 4, (s[j + 4] >> 4) | (s[j] >> 6) << 4),
    })
}

/// The inverse of [`unpack_scales`]; both numbers of a pair are at most 63.
pub fn pack_scales(pairs: &[(u8, u8); 8]) -> [u8; 12] {
    std::array::from_fn(|i| match i {
        0..4 => pairs[i].0 & 63 | (pairs[i + 4].0 >> 4) << 6,
        4..8 => pairs[i - 4].1 & 63 | (pairs[i].1 >> 4) << 6,
        _ => (pairs[i - 4].0 & 15) | (pairs[i - 4].1 & 15) << 4,
    })
}

/// The value grid of each sub-block: (step, offset) with `y = step * q + offset`.
#[inline]
fn grids(d: [u8; 2], dmin: [u8; 2], scales: &[u8; 12]) -> [(f32, f32); 8] {
    let (d, dmin) = (half(d), half(dmin));
    unpack_scales(scales).map(|(s, m)| (d * f32::from(s), -(dmin * f32::from(m))))
}

impl BlockQ4K {
    pub(super) fn decode(&self, y: &mut [f32; 256]) {
        let grids = grids(self.d, self.dmin, &self.scales);
        for (s, y) in y.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let ((step, offset), qs) = (grids[s], &self.qs[s / 2]);
            for (y, q) in y.iter_mut().zip(qs) {
                *y = step * f32::from(q >> (4 * (s % 2)) & 15) + offset;
            }
        }
    }

    pub(super) fn encode(x: &[f32; 256]) -> Self {
        let p = Quantised::of(x, 15.0);
        let mut out = Self { d: to_half(p.d), dmin: to_half(p.dmin), scales: pack_scales(&p.pairs), ..Self::zeroed() };
        for (s, q) in p.codes.as_chunks::<32>().0.iter().enumerate() {
            for (b, q) in out.qs[s / 2].iter_mut().zip(q) {
                *b |= (*q as u8) << (4 * (s % 2));
            }
        }
        out
    }
}

impl BlockQ5K {
    pub(super) fn decode(&self, y: &mut [f32; 256]) {
        let grids = grids(self.d, self.dmin, &self.scales);
        for (s, y) in y.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let ((step, offset), qs) = (grids[s], &self.qs[s / 2]);
            for ((y, q), h) in y.iter_mut().zip(qs).zip(self.qh) {
                *y = step * f32::from((q >> (4 * (s % 2)) & 15) | (h >> s & 1) << 4) + offset;
            }
        }
    }

    pub(super) fn encode(x: &[f32; 256]) -> Self {
        let p = Quantised::of(x, 31.0);
        let mut out = Self { d: to_half(p.d), dmin: to_half(p.dmin), scales: pack_scales(&p.pairs), ..Self::zeroed() };
        for (s, q) in p.codes.as_chunks::<32>().0.iter().enumerate() {
            for ((b, h), q) in out.qs[s / 2].iter_mut().zip(&mut out.qh).zip(q) {
                let q = *q as u8;
                *b |= (q & 15) << (4 * (s % 2));
                *h |= (q >> 4) << s;
            }
        }
        out
    }
}

/// A superblock on its way to bytes: `x[32s + l] = d * pairs[s].0 * codes[32s + l] - dmin * pairs[s].1`.
struct Quantised {
    d: f32,
    dmin: f32,
    pairs: [(u8, u8); 8],
    codes: [f32; 256],
}

impl Quantised {
    /// First every sub-block gets its own best scale and minimum, then those are rounded to six bits, then the two f16 are refitted to the rounded ones by
    /// least squares and the codes taken again, as long as that lowers the error.
    fn of(x: &[f32; 256], top: f32) -> Self {
        let parts = x.as_chunks::<32>().0;
        let ideal: [(f32, f32); 8] = std::array::from_fn(|s| {
            let part = &parts[s];
            // Large weights matter more for a product with unknown activations; the floor keeps the small ones from being ignored.
            let floor = (part.iter().map(|v| v * v).sum::<f32>() / 32.0).sqrt();
            fit::offset(part, part.map(|v| floor + v.abs()), top, fit::Offset::NonPositive, |v| v)
        });
        let d = round_half(ideal.iter().fold(0f32, |m, (s, _)| m.max(*s)) / 63.0);
        let dmin = round_half(ideal.iter().fold(0f32, |m, (_, o)| m.max(-o)) / 63.0);
        let scales = fit::codes(&ideal.map(|(s, _)| s), d, 0.0, 0.0, 63.0);
        let mins = fit::codes(&ideal.map(|(_, o)| -o), dmin, 0.0, 0.0, 63.0);
        let pairs = std::array::from_fn(|s| (scales[s] as u8, mins[s] as u8));
        let mut best = Self { d, dmin, pairs, codes: [0.0; 256] };
        let mut err = best.take_codes(x, top);
        for _ in 0..3 {
            let mut next = best.refitted(x);
            let next_err = next.take_codes(x, top);
            if next_err >= err {
                break;
            }
            (best, err) = (next, next_err);
        }
        best
    }

    /// Chooses the nearest code for every element; returns the squared error.
    fn take_codes(&mut self, x: &[f32; 256], top: f32) -> f32 {
        let mut err = 0.0;
        for (s, (q, x)) in self.codes.as_chunks_mut::<32>().0.iter_mut().zip(x.as_chunks::<32>().0).enumerate() {
            let (step, offset) = (self.d * f32::from(self.pairs[s].0), -(self.dmin * f32::from(self.pairs[s].1)));
            *q = fit::codes(x, step, offset, 0.0, top);
            err += x.iter().zip(&*q).map(|(x, q)| (x - (step * q + offset)).powi(2)).sum::<f32>();
        }
        err
    }

    /// The same codes with the least-squares `d` and `dmin`.
    fn refitted(&self, x: &[f32; 256]) -> Self {
        let a: [f32; 256] = std::array::from_fn(|i| f32::from(self.pairs[i / 32].0) * self.codes[i]);
        let b: [f32; 256] = std::array::from_fn(|i| -f32::from(self.pairs[i / 32].1));
        let (d, dmin) = fit::plane(x, &a, &b).unwrap_or((self.d, self.dmin));
        Self { d: round_half(d.max(0.0)), dmin: round_half(dmin.max(0.0)), pairs: self.pairs, codes: self.codes }
    }
}
