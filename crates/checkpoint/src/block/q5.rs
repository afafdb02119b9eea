//! Q5_0 and Q5_1: as Q4_0 and Q4_1 with a fifth bit per element in a separate word.

use bytemuck::{Pod, Zeroable};

use super::{fit, half, q4, round_half, to_half};

/// `y = d * (q - 16)`. Low four bits as in Q4_0; bit `j` of `qh` is bit 4 of element `j`.
#[derive(Copy, Clone, Pod, Zeroable, Debug)]
#[repr(C)]
pub struct BlockQ5_0 {
    /// f16 scale.
    pub d: [u8; 2],
    /// Fifth bits, a little-endian u32.
    pub qh: [u8; 4],
    /// Low nibbles.
    pub qs: [u8; 16],
}

/// `y = d * q + m`, bits as in [`BlockQ5_0`].
#[derive(Copy, Clone, Pod, Zeroable, Debug)]
#[repr(C)]
pub struct BlockQ5_1 {
    /// f16 scale.
    pub d: [u8; 2],
    /// f16 offset.
    pub m: [u8; 2],
    /// Fifth bits, a little-endian u32.
    pub qh: [u8; 4],
    /// Low nibbles.
    pub qs: [u8; 16],
}

const _: () = assert!(size_of::<BlockQ5_0>() == 22 && size_of::<BlockQ5_1>() == 24);

#[inline]
fn unpack(qh: [u8; 4], qs: &[u8; 16], mut put: impl FnMut(usize, u8)) {
    let high = u32::from_le_bytes(qh);
    q4::nibbles(qs, |j, q| put(j, q | ((high >> j & 1) << 4) as u8));
}

fn pack(codes: &[u8; 32]) -> ([u8; 4], [u8; 16]) {
    let high = codes.iter().enumerate().fold(0u32, |h, (j, q)| h | u32::from(q >> 4) << j);
    (high.to_le_bytes(), q4::pack(codes))
}

impl BlockQ5_0 {
    pub(super) fn decode(&self, y: &mut [f32; 32]) {
        let d = half(self.d);
        unpack(self.qh, &self.qs, |j, q| y[j] = d * f32::from(i16::from(q) - 16));
    }

    pub(super) fn encode(x: &[f32; 32]) -> Self {
        let d = fit::signed(x, [1.0; 32], -16.0, 15.0, round_half);
        let (qh, qs) = pack(&fit::codes(x, d, 0.0, -16.0, 15.0).map(|q| (q + 16.0) as u8));
        Self { d: to_half(d), qh, qs }
    }
}

impl BlockQ5_1 {
    pub(super) fn decode(&self, y: &mut [f32; 32]) {
        let (d, m) = (half(self.d), half(self.m));
        unpack(self.qh, &self.qs, |j, q| y[j] = d * f32::from(q) + m);
    }

    pub(super) fn encode(x: &[f32; 32]) -> Self {
        let (d, m) = fit::offset(x, [1.0; 32], 31.0, fit::Offset::Free, round_half);
        let (qh, qs) = pack(&fit::codes(x, d, m, 0.0, 31.0).map(|q| q as u8));
        Self { d: to_half(d), m: to_half(m), qh, qs }
    }
}
