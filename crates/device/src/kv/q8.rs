//! Eight bits an element: the rotated vector in 255 even steps up to its greatest element, which is stored.

use super::Signs;
use super::rotation::{MAX_WIDTH, greatest, nearest};
use half::f16;

/// Steps from zero to the greatest element.
pub const STEPS: f32 = 127.0;

/// Encodes `x` as signed bytes; returns the greatest magnitude of the rotated vector. What is not finite anywhere is
/// stored as no number everywhere.
#[inline(always)]
pub fn encode(signs: &Signs, x: &[f32], codes: &mut [u8]) -> f16 {
    let mut y = [0.0f32; MAX_WIDTH];
    let y = &mut y[..x.len()];
    y.copy_from_slice(x);
    signs.rotate(y);
    let most = greatest(y);
    if !most.is_finite() {
        codes.fill(0);
        return f16::NAN;
    }
    let stored = super::scale(most);
    // Steps of what was stored, not of what was meant.
    let by = STEPS / stored.to_f32();
    let by = if by.is_finite() { by } else { 0.0 };
    for (to, y) in codes.iter_mut().zip(y) {
        *to = nearest(*y * by).clamp(-STEPS, STEPS) as i8 as u8;
    }
    stored
}

/// The rotated vector that codes stand for.
#[inline(always)]
pub fn decode(codes: &[u8], most: f16, y: &mut [f32]) {
    let by = most.to_f32() / STEPS;
    for (y, &c) in y.iter_mut().zip(codes) {
        *y = by * c as i8 as f32;
    }
}
