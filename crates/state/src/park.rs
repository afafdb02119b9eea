//! Recurrent states as bytes for keeping: a snapshot that cannot be computed again except by reading everything anew.
//!
//! The state of a layer is `f32[heads, d_k, d_v]`. In f32 it comes back as it was, so that answers are the same with and
//! without reuse; the smaller formats err by what `tests` and `docs/experiments.md` say.

use half::bf16;

/// How a state is kept.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Park {
    /// As it is.
    F32,
    /// Rounded to nearest even.
    Bf16,
    /// Signed bytes, in 127 even steps up to the greatest element of each row of `d_v`, which is kept as f32.
    Int8,
}

/// Bytes that are no state of that format and shape.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a state of {rows} rows of {cols} is {want} bytes as {park:?}, not {got}")]
pub struct NotThatState {
    park: Park,
    rows: usize,
    cols: usize,
    want: usize,
    got: usize,
}

const STEPS: f32 = 127.0;

impl Park {
    /// All, widest first.
    pub const ALL: [Park; 3] = [Park::F32, Park::Bf16, Park::Int8];

    /// Bytes of `rows` rows of `cols` elements.
    pub const fn bytes(self, rows: usize, cols: usize) -> usize {
        match self {
            Park::F32 => rows * cols * 4,
            Park::Bf16 => rows * cols * 2,
            Park::Int8 => rows * (cols + 4),
        }
    }
    /// Encodes whole rows of `cols` elements.
    pub fn encode(self, state: &[f32], cols: usize) -> Vec<u8> {
        match self {
            Park::F32 => state.iter().flat_map(|x| x.to_le_bytes()).collect(),
            Park::Bf16 => state.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes()).collect(),
            Park::Int8 => state.chunks_exact(cols.max(1)).flat_map(int8_row).collect(),
        }
    }
    /// The rows that bytes stand for.
    ///
    /// # Errors
    /// [`NotThatState`] when there are more or fewer bytes than these rows have.
    pub fn decode(self, bytes: &[u8], rows: usize, cols: usize) -> Result<Vec<f32>, NotThatState> {
        let want = self.bytes(rows, cols);
        if bytes.len() != want {
            return Err(NotThatState { park: self, rows, cols, want, got: bytes.len() });
        }
        Ok(match self {
            Park::F32 => bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
            Park::Bf16 => bytes.chunks_exact(2).map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
            Park::Int8 => bytes.chunks_exact(cols + 4).flat_map(|row| from_int8(row).collect::<Vec<_>>()).collect(),
        })
    }
}

/// The scale, then a byte an element. A row with anything that is not finite comes back as no numbers.
fn int8_row(row: &[f32]) -> Vec<u8> {
    let most = row.iter().fold(0.0f32, |m, x| if x.abs() > m || x.is_nan() { x.abs() } else { m });
    let most = if most.is_finite() { most } else { f32::NAN };
    let by = if most > 0.0 { STEPS / most } else { 0.0 };
    // A greatest element so small that the factor is no number: the row is nothing.
    let by = if by.is_finite() { by } else { 0.0 };
    let code = |x: &f32| ((x * by).round_ties_even() as i8) as u8;
    most.to_le_bytes().into_iter().chain(row.iter().map(code)).collect()
}

fn from_int8(row: &[u8]) -> impl Iterator<Item = f32> {
    let (scale, codes) = row.split_at(4);
    let by = f32::from_le_bytes([scale[0], scale[1], scale[2], scale[3]]) / STEPS;
    codes.iter().map(move |&c| by * c as i8 as f32)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A state as the delta rule leaves it: products of unit keys and values, the older the smaller.
    fn state(d_k: usize, d_v: usize) -> Vec<f32> {
        let (mut s, mut seed) = (vec![0.0f32; d_k * d_v], 1u64);
        let mut draw = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 40) as f32 / (1u64 << 23) as f32 - 1.0
        };
        for _ in 0..200 {
            let k: Vec<f32> = (0..d_k).map(|_| draw()).collect();
            let v: Vec<f32> = (0..d_v).map(|_| draw()).collect();
            let norm = k.iter().map(|k| k * k).sum::<f32>().sqrt();
            for (row, k) in s.chunks_exact_mut(d_v).zip(k) {
                row.iter_mut().zip(&v).for_each(|(s, v)| *s = 0.97 * *s + k / norm * v);
            }
        }
        s
    }

    #[test]
    fn what_comes_back_errs_by_no_more_than_its_format() {
        let (d_k, d_v) = (128, 128);
        let s = state(d_k, d_v);
        let square: f32 = s.iter().map(|x| x * x).sum();
        for (park, most, bytes) in [(Park::F32, 0.0, 65_536), (Park::Bf16, 2e-3, 32_768), (Park::Int8, 8e-3, 16_896)] {
            let parked = park.encode(&s, d_v);
            assert_eq!((parked.len(), park.bytes(d_k, d_v)), (bytes, bytes));
            let back = park.decode(&parked, d_k, d_v).unwrap();
            let off = s.iter().zip(&back).map(|(a, b)| (a - b).powi(2)).sum::<f32>();
            assert!((off / square).sqrt() <= most, "{park:?}: {}", (off / square).sqrt());
            // Twice is once.
            assert_eq!(park.encode(&back, d_v), parked, "{park:?}");
        }
    }

    #[test]
    fn zeros_huge_numbers_and_none_come_back_as_such() {
        for row in [[0.0; 4], [3e38, -3e38, 1e38, 0.0], [1e-40, 0.0, -1e-40, 0.0], [f32::NAN, 1.0, 2.0, 3.0]] {
            for park in Park::ALL {
                let back = park.decode(&park.encode(&row, 4), 1, 4).unwrap();
                let most = row.iter().fold(0.0f32, |m, x| m.max(x.abs())) / 100.0;
                let near = |(a, b): (&f32, &f32)| {
                    if row[0].is_nan() { a.is_nan() } else { (a / 100.0 - b / 100.0).abs() <= most }
                };
                assert!(back.iter().zip(&row).take(1).all(near), "{park:?} {row:?} {back:?}");
            }
        }
    }

    #[test]
    fn bytes_of_another_shape_are_refused() {
        let e = Park::Int8.decode(&[0; 7], 1, 4).unwrap_err();
        assert!(e.to_string().contains("8 bytes as Int8, not 7"), "{e}");
    }
}
