//! IQ4_NL and IQ4_XS: nibbles that index a fixed, non-uniform table. Decoded only.

use bytemuck::{Pod, Zeroable};

use super::{half, q4};

/// The sixteen levels (ggml's `kvalues_iq4nl`).
pub const IQ4_VALUES: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// `y = d * table[q]`, nibbles as in Q4_0.
#[derive(Copy, Clone, Pod, Zeroable, Debug)]
#[repr(C)]
pub struct BlockIq4Nl {
    /// f16 scale.
    pub d: [u8; 2],
    /// Codes.
    pub qs: [u8; 16],
}

/// Eight sub-blocks of 32: `y = d * (s - 32) * table[q]`, `s` a six-bit scale in two pieces, nibbles of a sub-block as in Q4_0.
#[derive(Copy, Clone, Pod, Zeroable, Debug)]
#[repr(C)]
pub struct BlockIq4Xs {
    /// f16 scale.
    pub d: [u8; 2],
    /// Upper two bits of the sub-block scales, a little-endian u16; sub-block `i` at bits `2i`.
    pub scales_h: [u8; 2],
    /// Lower four bits, nibble `i` for sub-block `i`.
    pub scales_l: [u8; 4],
    /// Codes.
    pub qs: [[u8; 16]; 8],
}

const _: () = assert!(size_of::<BlockIq4Nl>() == 18 && size_of::<BlockIq4Xs>() == 136);

#[inline]
fn level(q: u8) -> f32 {
    f32::from(IQ4_VALUES[usize::from(q & 15)])
}

impl BlockIq4Nl {
    pub(super) fn decode(&self, y: &mut [f32; 32]) {
        let d = half(self.d);
        q4::nibbles(&self.qs, |j, q| y[j] = d * level(q));
    }
}

impl BlockIq4Xs {
    /// The signed scale of sub-block `i` (0..8).
    pub fn scale(&self, i: usize) -> i8 {
        let low = self.scales_l[i / 2] >> (4 * (i % 2)) & 15;
        let high = (u16::from_le_bytes(self.scales_h) >> (2 * i) & 3) as u8;
        (low | high << 4) as i8 - 32
    }

    pub(super) fn decode(&self, y: &mut [f32; 256]) {
        let d = half(self.d);
        for (i, (qs, y)) in self.qs.iter().zip(y.as_chunks_mut::<32>().0).enumerate() {
            let d = d * f32::from(self.scale(i));
            q4::nibbles(qs, |j, q| y[j] = d * level(q));
        }
    }
}
