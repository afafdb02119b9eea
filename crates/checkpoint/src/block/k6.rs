//! Q6_K: sixteen sub-blocks of 16 six-bit codes, one signed byte scale each, one f16 over all.

use bytemuck::{Pod, Zeroable};

use super::{fit, half, round_half, to_half};

/// `y = d * scale * (q - 32)`. For half `n` (0, 1), quarter `k` (0..4) and `l` (0..32), element `128n + 32k + l` has its low four bits in
/// `ql[64n + 32(k % 2) + l]` (low nibble for k < 2), its high two in `qh[32n + l]` at bits `2k`, and the scale `scales[8n + 2k + l / 16]`.
#[derive(Copy, Clone, Pod, Zeroable, Debug)]
#[repr(C)]
pub struct BlockQ6K {
    /// Low four bits.
    pub ql: [u8; 128],
    /// High two bits.
    pub qh: [u8; 64],
    /// Scales, one per 16 elements in element order.
    pub scales: [i8; 16],
    /// f16 scale of the scales.
    pub d: [u8; 2],
}

const _: () = assert!(size_of::<BlockQ6K>() == 210);

/// (index into `ql`, shift there, index into `qh`, shift there) of element `i`.
#[inline]
fn place(i: usize) -> (usize, usize, usize, usize) {
    let (n, k, l) = (i / 128, i / 32 % 4, i % 32);
    (64 * n + 32 * (k % 2) + l, 4 * (k / 2), 32 * n + l, 2 * k)
}

impl BlockQ6K {
    pub(super) fn decode(&self, y: &mut [f32; 256]) {
        let d = half(self.d);
        for (j, y) in y.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let (l, ls, h, hs) = place(32 * j);
            let (ql, qh) = (&self.ql[l..l + 32], &self.qh[h..h + 32]);
            for (i, y) in y.iter_mut().enumerate() {
                let q = (ql[i] >> ls & 15) | (qh[i] >> hs & 3) << 4;
                *y = d * f32::from(self.scales[2 * j + i / 16]) * f32::from(i16::from(q) - 32);
            }
        }
    }

    pub(super) fn encode(x: &[f32; 256]) -> Self {
        let parts = x.as_chunks::<16>().0;
        let ideal: [f32; 16] =
            std::array::from_fn(|i| fit::signed(&parts[i], parts[i].map(|v| v * v), -32.0, 31.0, |d| d));
        let top = fit::extreme(&ideal);
        let mut d = round_half(top / -128.0);
        let scales = fit::codes(&ideal, d, 0.0, -128.0, 127.0);
        let codes = |d: f32| -> [f32; 256] {
            let mut q = [0.0; 256];
            for ((q, x), s) in q.as_chunks_mut::<16>().0.iter_mut().zip(parts).zip(scales) {
                *q = fit::codes(x, d * s, 0.0, -32.0, 31.0);
            }
            q
        };
        // Scales and codes fixed, the best d is one division away; it is kept if f16 rounding leaves it better.
        let mut q = codes(d);
        let basis: [f32; 256] = std::array::from_fn(|i| scales[i / 16] * q[i]);
        let refit = round_half(fit::slope(x, &basis));
        let requantised = codes(refit);
        let err =
            |d: f32, q: &[f32; 256]| -> f32 { (0..256).map(|i| (x[i] - d * scales[i / 16] * q[i]).powi(2)).sum() };
        if err(refit, &requantised) < err(d, &q) {
            (d, q) = (refit, requantised);
        }
        let mut out = Self { scales: scales.map(|s| s as i8), d: to_half(d), ..Self::zeroed() };
        for (i, q) in q.into_iter().enumerate() {
            let (q, (l, ls, h, hs)) = ((q + 32.0) as u8, place(i));
            out.ql[l] |= (q & 15) << ls;
            out.qh[h] |= q >> 4 << hs;
        }
        out
    }
}
