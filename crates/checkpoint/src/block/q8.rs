//! Q8_0: 32 signed bytes with one scale.

use bytemuck::{Pod, Zeroable};

use super::{fit, half, round_half, to_half};

/// `y = d * q`.
#[derive(Copy, Clone, Pod, Zeroable, Debug)]
#[repr(C)]
pub struct BlockQ8_0 {
    /// f16 scale.
    pub d: [u8; 2],
    /// Codes, -127..=127 as written here; readers accept -128.
    pub qs: [i8; 32],
}

const _: () = assert!(size_of::<BlockQ8_0>() == 34);

impl BlockQ8_0 {
    pub(super) fn decode(&self, y: &mut [f32; 32]) {
        let d = half(self.d);
        for (y, q) in y.iter_mut().zip(self.qs) {
            *y = d * f32::from(q);
        }
    }

    pub(super) fn encode(x: &[f32; 32]) -> Self {
        let amax = x.iter().fold(0f32, |m, x| m.max(x.abs()));
        // With 255 levels a search for a better scale gains nothing worth its time; codes are taken against the scale as stored.
        let d = round_half(amax / 127.0);
        Self { d: to_half(d), qs: fit::codes(x, d, 0.0, -127.0, 127.0).map(|q| q as i8) }
    }
}
