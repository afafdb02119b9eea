//! The scalar decoder of every format: what kernels are compared with.

use super::{Format, Global, PLANES};
use crate::float8::{e2m1, e4m3};
use crate::{DType, Error, Result};

/// Element `i` of a run of small elements, as f32; NaN beyond its end.
fn scalar(dtype: DType, bytes: &[u8], i: usize) -> f32 {
    let size = dtype.bytes();
    let mut one = [f32::NAN];
    match bytes.get(i * size..(i + 1) * size) {
        Some(b) if dtype.decode(b, &mut one).is_ok() => one[0],
        _ => f32::NAN,
    }
}

/// Code `i` of a little-endian stream of `bits`-wide codes.
fn code(stream: &[u8], bits: usize, i: usize) -> u8 {
    let at = i * bits;
    let byte = |n: usize| u16::from(stream.get(n).copied().unwrap_or(0));
    ((byte(at / 8) | byte(at / 8 + 1) << 8) >> (at % 8)) as u8 & ((1u16 << bits) - 1) as u8
}

impl Format {
    /// Decodes row `row` of a matrix whose planes (from the matrix's first row on; empty where the format has none) are `planes`, into its
    /// `dst.len()` elements.
    ///
    /// # Errors
    /// [`Error::Undecodable`], [`Error::Plane`] when rows cannot have this length or a plane ends before the row.
    pub fn decode_row(&self, planes: [&[u8]; PLANES], row: u64, dst: &mut [f32]) -> Result<()> {
        let k = dst.len() as u64;
        let bad = |why: String| Error::Plane { format: *self, why };
        let cuts = self.planes(k).map_err(bad)?;
        let mut part = [&[][..]; PLANES];
        for (i, cut) in cuts.iter().enumerate() {
            let Some(cut) = cut else { continue };
            let from = usize::try_from(cut.at(row)).unwrap_or(usize::MAX);
            let end = from.saturating_add(cut.bytes as usize);
            part[i] = planes[i].get(from..end).ok_or_else(|| bad(format!("plane {i} ends before row {row}")))?;
        }
        let [codes, scales, mins, global] = part;
        let number = || scalar(DType::F32, global, 0);
        match *self {
            Self::Plain(d) => return d.decode(codes, dst),
            Self::Scaled(b) => {
                b.decode(codes, dst);
                let by = number();
                dst.iter_mut().for_each(|y| *y *= by);
            }
            Self::Affine { bits, group, scale } => {
                for (i, y) in dst.iter_mut().enumerate() {
                    let g = i / group as usize;
                    *y = scalar(scale, scales, g) * f32::from(code(codes, bits.into(), i)) + scalar(scale, mins, g);
                }
            }
            Self::Mxfp4Hf => {
                for (i, y) in dst.iter_mut().enumerate() {
                    *y = e2m1(code(codes, 4, i)) * scalar(DType::E8M0, scales, i / 32);
                }
            }
            Self::Nvfp4 { global } => {
                for (i, y) in dst.iter_mut().enumerate() {
                    let w = e2m1(code(codes, 4, i)) * e4m3(scales[i / 16]);
                    *y = match global {
                        Global::None => w,
                        Global::Multiplies => w * number(),
                        Global::Divides => w / number(),
                    };
                }
            }
            Self::Fp8 { tile: [_, cols], scale } => {
                for (i, y) in dst.iter_mut().enumerate() {
                    let tile = if cols == 0 { 0 } else { i / cols as usize };
                    *y = e4m3(codes[i]) * scalar(scale, scales, tile);
                }
            }
            Self::Int4 { group, zero, scale } => {
                for (i, y) in dst.iter_mut().enumerate() {
                    let g = i / group as usize;
                    let offset = if zero { code(&mins[4 * g..], 4, (row % 8) as usize) } else { 8 };
                    let q = i16::from(code(codes, 4, i)) - i16::from(offset);
                    *y = f32::from(q) * scalar(scale, scales, g);
                }
            }
        }
        Ok(())
    }
}
