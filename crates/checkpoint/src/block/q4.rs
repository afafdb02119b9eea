//! Q4_0 and Q4_1: 32 nibbles with one scale, or one scale and one offset.

use bytemuck::{Pod, Zeroable};

use super::{fit, half, round_half, to_half};

/// `y = d * (q - 8)`. Element `j` is the low nibble of byte `j`, element `j + 16` the high one.
#[derive(Copy, Clone, Pod, Zeroable, Debug)]
#[repr(C)]
pub struct BlockQ4_0 {
    /// f16 scale.
    pub d: [u8; 2],
    /// Codes.
    pub qs: [u8; 16],
}

/// `y = d * q + m`, nibbles as in [`BlockQ4_0`].
#[derive(Copy, Clone, Pod, Zeroable, Debug)]
#[repr(C)]
pub struct BlockQ4_1 {
    /// f16 scale.
    pub d: [u8; 2],
    /// f16 offset.
    pub m: [u8; 2],
    /// Codes.
    pub qs: [u8; 16],
}

const _: () = assert!(size_of::<BlockQ4_0>() == 18 && size_of::<BlockQ4_1>() == 20);

/// Calls `put(element, code)` for the 32 nibbles of a half-split block.
#[inline]
pub(super) fn nibbles(qs: &[u8; 16], mut put: impl FnMut(usize, u8)) {
    for (j, b) in qs.iter().enumerate() {
        put(j, b & 15);
        put(j + 16, b >> 4);
    }
}

/// Packs 32 four-bit codes, half split.
#[inline]
pub(super) fn pack(codes: &[u8; 32]) -> [u8; 16] {
    std::array::from_fn(|j| (codes[j] & 15) | (codes[j + 16] & 15) << 4)
}

impl BlockQ4_0 {
    pub(super) fn decode(&self, y: &mut [f32; 32]) {
        let d = half(self.d);
        nibbles(&self.qs, |j, q| y[j] = d * f32::from(i16::from(q) - 8));
    }

    pub(super) fn encode(x: &[f32; 32]) -> Self {
        let d = fit::signed(x, [1.0; 32], -8.0, 7.0, round_half);
        let codes = fit::codes(x, d, 0.0, -8.0, 7.0).map(|q| (q + 8.0) as u8);
        Self { d: to_half(d), qs: pack(&codes) }
    }
}

impl BlockQ4_1 {
    pub(super) fn decode(&self, y: &mut [f32; 32]) {
        let (d, m) = (half(self.d), half(self.m));
        nibbles(&self.qs, |j, q| y[j] = d * f32::from(q) + m);
    }

    pub(super) fn encode(x: &[f32; 32]) -> Self {
        let (d, m) = fit::offset(x, [1.0; 32], 15.0, fit::Offset::Free, round_half);
        let codes = fit::codes(x, d, m, 0.0, 15.0).map(|q| q as u8);
        Self { d: to_half(d), m: to_half(m), qs: pack(&codes) }
    }
}
