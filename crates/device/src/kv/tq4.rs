//! Four bits an element: the nearest of sixteen centroids of the rotated vector over its norm, and a norm that makes the
//! product with the vector itself exact.

use super::rotation::MAX_WIDTH;
use super::{Signs, tables};
use half::f16;

/// Encodes `x`. Element i lies in byte i / 2 of `codes`, even ones in the low nibble; ties go to the lower centroid.
///
/// The norm that is returned is `|x| / <u, v>`, u the rotated unit vector and v its centroids: with `|x|` alone every
/// score would be about 1% too small, because centroids are means and so nearer to 0 than what they stand for. What is
/// not finite anywhere is stored as no number everywhere.
#[inline(always)]
pub fn encode(signs: &Signs, x: &[f32], codes: &mut [u8]) -> f16 {
    let (d, table) = (x.len(), tables::of(x.len()));
    let mut y = [0.0f32; MAX_WIDTH];
    let y = &mut y[..d];
    y.copy_from_slice(x);
    let norm = square_sum(y).sqrt();
    if !norm.is_finite() {
        codes.fill(0);
        return f16::NAN;
    }
    signs.spread(y);
    // Elements of the spread vector over its norm are coordinates in units of 1 / sqrt(d).
    let by = 1.0 / norm as f32;
    let by = if by.is_finite() { by } else { 0.0 };
    let mut index = [0u8; MAX_WIDTH];
    let index = &mut index[..d];
    for (y, index) in y.iter_mut().zip(index.iter_mut()) {
        *y *= by;
        for m in &table.middles {
            *index += (*y > *m) as u8;
        }
    }
    let along = y.iter().zip(index.iter()).map(|(&y, &i)| y as f64 * table.centroids[i as usize] as f64).sum::<f64>();
    for (to, pair) in codes.iter_mut().zip(index.chunks_exact(2)) {
        *to = pair[0] | pair[1] << 4;
    }
    let along = along / d as f64;
    super::scale(if by == 0.0 { 0.0 } else { (norm / along) as f32 })
}

/// Sum of squares in eight running sums, so that it is quick and the same everywhere.
#[inline(always)]
fn square_sum(x: &[f32]) -> f64 {
    let mut s = [0.0f64; 8];
    for x in x.chunks_exact(8) {
        for (s, &x) in s.iter_mut().zip(x) {
            *s += x as f64 * x as f64;
        }
    }
    s.iter().sum()
}

/// The rotated vector that codes stand for: `norm * centroid / sqrt(d)`.
#[inline(always)]
pub fn decode(codes: &[u8], norm: f16, y: &mut [f32]) {
    let table = tables::of(y.len());
    let by = norm.to_f32() / (y.len() as f32).sqrt();
    for (y, &c) in y.chunks_exact_mut(2).zip(codes) {
        y[0] = by * table.centroids[(c & 15) as usize];
        y[1] = by * table.centroids[(c >> 4) as usize];
    }
}
