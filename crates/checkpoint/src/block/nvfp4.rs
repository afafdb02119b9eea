//! NVFP4 as GGUF files hold it: 64 E2M1 floats with an E4M3 scale for every sixteen. Decoded only; a tensor of its own may hold one f32 more for the whole
//! matrix ([`Format::Scaled`](crate::Format::Scaled)).

use bytemuck::{Pod, Zeroable};

use super::E2M1_VALUES;
use crate::float8::e4m3;

/// `y = e2m1[q] * d[i / 16]`. Element `j` of a sixteen is the low nibble of its byte `j`, element `j + 8` the high one.
#[derive(Copy, Clone, Pod, Zeroable, Debug)]
#[repr(C)]
pub struct BlockNvfp4 {
    /// E4M3 scales, whose sign bit is not used; 0x7F is zero here.
    pub d: [u8; 4],
    /// Codes.
    pub qs: [[u8; 8]; 4],
}

const _: () = assert!(size_of::<BlockNvfp4>() == 36);

impl BlockNvfp4 {
    /// The scale of sixteen elements `i` (0..4).
    #[inline]
    pub fn scale(&self, i: usize) -> f32 {
        match self.d[i] & 0x7F {
            0x7F => 0.0,
            d => e4m3(d),
        }
    }

    pub(super) fn decode(&self, y: &mut [f32; 64]) {
        for (i, (qs, y)) in self.qs.iter().zip(y.as_chunks_mut::<16>().0).enumerate() {
            let d = self.scale(i);
            for (j, q) in qs.iter().enumerate() {
                y[j] = E2M1_VALUES[usize::from(q & 15)] * d;
                y[j + 8] = E2M1_VALUES[usize::from(q >> 4)] * d;
            }
        }
    }
}
