//! Q2_K and Q3_K: sixteen sub-blocks of 16 codes of two or three bits. Decoded only.

use bytemuck::{Pod, Zeroable};

use super::half;

/// `y = d * (s & 15) * q - dmin * (s >> 4)`, `s` the byte of the element's sixteen. For half `n` (0, 1), quarter `j` (0..4) and `l` (0..32), element
/// `128n + 32j + l` is bits `2j` of `qs[32n + l]`.
#[derive(Copy, Clone, Pod, Zeroable, Debug)]
#[repr(C)]
pub struct BlockQ2K {
    /// Four-bit scale and, above it, four-bit minimum of each sixteen elements, in element order.
    pub scales: [u8; 16],
    /// Codes.
    pub qs: [u8; 64],
    /// f16 scale of the scales.
    pub d: [u8; 2],
    /// f16 scale of the minimums.
    pub dmin: [u8; 2],
}

/// `y = d * (s - 32) * (q - 4)`. The low two bits of a code lie as in [`BlockQ2K`]; its third, of element `128n + 32j + l`, is bit `4n + j` of `hmask[l]`.
#[derive(Copy, Clone, Pod, Zeroable, Debug)]
#[repr(C)]
pub struct BlockQ3K {
    /// Third bits.
    pub hmask: [u8; 32],
    /// Low two bits.
    pub qs: [u8; 64],
    /// Sixteen six-bit scales: [`BlockQ3K::scale`].
    pub scales: [u8; 12],
    /// f16 scale of the scales.
    pub d: [u8; 2],
}

const _: () = assert!(size_of::<BlockQ2K>() == 84 && size_of::<BlockQ3K>() == 110);

impl BlockQ2K {
    pub(super) fn decode(&self, y: &mut [f32; 256]) {
        let (d, dmin) = (half(self.d), half(self.dmin));
        for (g, y) in y.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let (n, j) = (g / 4, g % 4);
            for (l, y) in y.iter_mut().enumerate() {
                let s = self.scales[2 * g + l / 16];
                let q = self.qs[32 * n + l] >> (2 * j) & 3;
                *y = d * f32::from(s & 15) * f32::from(q) - dmin * f32::from(s >> 4);
            }
        }
    }
}

impl BlockQ3K {
    /// The signed scale of sixteen elements `i` (0..16): four low bits in nibble `i / 8` of byte `i % 8`, two high ones in byte `8 + i % 4` at bits `2 (i / 4)`.
    pub fn scale(&self, i: usize) -> i8 {
        let low = self.scales[i % 8] >> (4 * (i / 8)) & 15;
        let high = self.scales[8 + i % 4] >> (2 * (i / 4)) & 3;
        (low | high << 4) as i8 - 32
    }

    pub(super) fn decode(&self, y: &mut [f32; 256]) {
        let d = half(self.d);
        for (g, y) in y.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let (n, j) = (g / 4, g % 4);
            for (l, y) in y.iter_mut().enumerate() {
                let q = self.qs[32 * n + l] >> (2 * j) & 3 | (self.hmask[l] >> g & 1) << 2;
                *y = d * f32::from(self.scale(2 * g + l / 16)) * f32::from(q as i8 - 4);
            }
        }
    }
}
