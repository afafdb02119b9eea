//! MXFP4: 32 E2M1 floats with one power-of-two scale (OCP microscaling formats; GGUF nibble order).

use bytemuck::{Pod, Zeroable};

use super::q4;
use crate::float8::{e8m0, to_e2m1};

/// The sixteen E2M1 values by code.
pub const E2M1_VALUES: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// `y = e2m1[q] * 2^(e-127)`, nibbles as in Q4_0.
#[derive(Copy, Clone, Pod, Zeroable, Debug)]
#[repr(C)]
pub struct BlockMxfp4 {
    /// E8M0 scale.
    pub e: u8,
    /// Codes.
    pub qs: [u8; 16],
}

const _: () = assert!(size_of::<BlockMxfp4>() == 17);

impl BlockMxfp4 {
    pub(super) fn decode(&self, y: &mut [f32; 32]) {
        let d = e8m0(self.e);
        q4::nibbles(&self.qs, |j, q| y[j] = E2M1_VALUES[usize::from(q)] * d);
    }

    /// The exponent is the one of three that gives the smallest squared error: the largest magnitude at 4..8 (it may saturate at 6), or one step either way.
    pub(super) fn encode(x: &[f32; 32]) -> Self {
        let amax = x.iter().fold(0f32, |m, x| m.max(x.abs()));
        if amax == 0.0 {
            return Self { e: 0, qs: [0; 16] };
        }
        let base = (amax.to_bits() >> 23) as i32 - 2;
        let encode = |e: u8| Self { e, qs: q4::pack(&x.map(|x| to_e2m1((f64::from(x) / f64::from(e8m0(e))) as f32))) };
        let mut best = (f64::INFINITY, Self::zeroed());
        for e in base - 1..=base + 1 {
            let block = encode(e.clamp(0, 254) as u8);
            let mut y = [0.0; 32];
            block.decode(&mut y);
            let err = x.iter().zip(y).map(|(x, y)| (f64::from(*x) - f64::from(y)).powi(2)).sum::<f64>();
            if err < best.0 {
                best = (err, block);
            }
        }
        best.1
    }
}
