//! Encoders of the formats of several planes: round to nearest, with the scales that their publishers' tools choose. For synthetic checkpoints, tests, and
//! MLX files; block formats have better ones beside their layouts.

use super::{Format, Global, PLANES};
use crate::float8::{e4m3, e8m0, to_e2m1, to_e4m3};
use crate::{DType, Error, Result, Unwritable};

/// `x` as it will be read back from a scale of this type.
fn stored(dtype: DType, x: f32, out: &mut Vec<u8>) -> Result<f32> {
    let mut bytes = [0; 4];
    let bytes = &mut bytes[..dtype.bytes()];
    if dtype == DType::E8M0 {
        // The next power of two: nothing saturates.
        bytes[0] = (127.0 + x.max(f32::MIN_POSITIVE).log2().ceil()).clamp(0.0, 254.0) as u8;
    } else {
        dtype.encode(&[x], bytes)?;
    }
    out.extend_from_slice(bytes);
    let mut back = [0.0];
    dtype.decode(bytes, &mut back)?;
    Ok(back[0])
}

fn largest(x: &[f32]) -> f32 {
    x.iter().fold(0f32, |m, x| m.max(x.abs()))
}

/// `x / d`, or 0 where there is no step.
fn steps(x: f32, d: f32) -> f32 {
    if d == 0.0 { 0.0 } else { x / d }
}

/// Appends `codes` as a little-endian stream of `bits`-wide codes.
fn pack(codes: impl Iterator<Item = u8>, bits: usize, out: &mut Vec<u8>) {
    let (mut word, mut have) = (0u32, 0);
    for q in codes {
        word |= u32::from(q) << have;
        have += bits;
        while have >= 8 {
            out.push(word as u8);
            word >>= 8;
            have -= 8;
        }
    }
}

/// Scale and bias of an affine group: the end of the range that is farther from zero is hit exactly, and zero itself by a whole code.
fn affine(x: &[f32], bits: u8) -> (f32, f32) {
    let (low, high) = x.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(l, h), x| (l.min(*x), h.max(*x)));
    let top = ((1u32 << bits) - 1) as f32;
    let step = ((high - low) / top).max(1e-7);
    let (edge, step) = if low.abs() > high.abs() { (low, step) } else { (high, -step) };
    let zero = (edge / step).round();
    if zero == 0.0 { (step, 0.0) } else { (edge / zero, edge) }
}

impl Format {
    /// Encodes a whole matrix of `n` rows into its planes.
    ///
    /// # Errors
    /// [`Error::Plane`] when rows cannot have this length, [`Error::Unwritable`] for block formats without an encoder and values that are not finite.
    pub fn encode(&self, n: u64, values: &[f32]) -> Result<[Vec<u8>; PLANES]> {
        let k = (values.len() as u64).checked_div(n).unwrap_or(0);
        let cuts = self.planes(k).map_err(|why| Error::Plane { format: *self, why })?;
        if let Some(index) = values.iter().position(|x| !x.is_finite()) {
            let dtype = cuts[0].map_or(DType::F32, |c| c.dtype);
            return Err(Unwritable::NotFinite { dtype, index, value: values[index] }.into());
        }
        let mut out: [Vec<u8>; PLANES] = Default::default();
        if k == 0 {
            return Ok(out);
        }
        match *self {
            Self::Plain(d) => {
                out[0] = vec![0; cuts[0].map_or(0, |c| c.total(n)) as usize];
                d.encode(values, &mut out[0])?;
            }
            Self::Scaled(block) => return Err(Unwritable::NoEncoder { dtype: block.into() }.into()),
            Self::Affine { bits, group, scale } => {
                for x in values.chunks(group as usize) {
                    let (d, bias) = affine(x, bits);
                    let (d, bias) = (stored(scale, d, &mut out[1])?, stored(scale, bias, &mut out[2])?);
                    let top = ((1u32 << bits) - 1) as f32;
                    pack(x.iter().map(|x| steps(x - bias, d).round().clamp(0.0, top) as u8), bits.into(), &mut out[0]);
                }
            }
            Self::Mxfp4Hf => {
                for x in values.chunks(32) {
                    // E2M1 reaches 6 and has two bits of exponent: the power of two of the largest, less two.
                    let e = ((largest(x).to_bits() >> 23) as i32 - 2).clamp(0, 254) as u8;
                    out[1].push(e);
                    pack(x.iter().map(|x| to_e2m1(x / e8m0(e))), 4, &mut out[0]);
                }
            }
            Self::Nvfp4 { global } => {
                let all =
                    if global == Global::None { 1.0 } else { largest(values).max(f32::MIN_POSITIVE) / (6.0 * 448.0) };
                match global {
                    Global::None => {}
                    Global::Multiplies => out[3].extend(all.to_le_bytes()),
                    Global::Divides => out[3].extend((1.0 / all).to_le_bytes()),
                }
                for x in values.chunks(16) {
                    let s = to_e4m3(largest(x) / 6.0 / all);
                    out[1].push(s);
                    pack(x.iter().map(|x| to_e2m1(steps(*x, e4m3(s) * all))), 4, &mut out[0]);
                }
            }
            Self::Fp8 { tile, scale } => fp8(values, k as usize, tile, scale, &mut out)?,
            Self::Int4 { group, zero, scale } => int4(values, k as usize, group as usize, zero, scale, &mut out)?,
        }
        Ok(out)
    }
}

fn fp8(values: &[f32], k: usize, tile: [u32; 2], scale: DType, out: &mut [Vec<u8>; PLANES]) -> Result<()> {
    let n = values.len() / k;
    let edge = |t: u32, all: usize| if t == 0 { all } else { t as usize };
    let (rows, cols) = (edge(tile[0], n), edge(tile[1], k));
    out[0] = vec![0; values.len()];
    for band in (0..n).step_by(rows) {
        for first in (0..k).step_by(cols) {
            let at = |i: usize| i * k + first..i * k + k.min(first + cols);
            let lines = band..n.min(band + rows);
            let top = lines.clone().map(|i| largest(&values[at(i)])).fold(0f32, f32::max);
            let d = stored(scale, top / 448.0, &mut out[1])?;
            for i in lines {
                for (q, x) in out[0][at(i)].iter_mut().zip(&values[at(i)]) {
                    *q = to_e4m3(steps(*x, d));
                }
            }
        }
    }
    Ok(())
}

fn int4(values: &[f32], k: usize, group: usize, zero: bool, scale: DType, out: &mut [Vec<u8>; PLANES]) -> Result<()> {
    let groups = k / group;
    let mut zeros = Vec::new();
    for row in values.chunks(k) {
        for x in row.chunks(group) {
            let (low, high) = x.iter().fold((0f32, 0f32), |(l, h), x| (l.min(*x), h.max(*x)));
            let d = if zero { (high - low) / 15.0 } else { largest(x) / 7.5 };
            let d = stored(scale, d, &mut out[1])?;
            let z = if zero { (-steps(low, d)).round().clamp(0.0, 15.0) } else { 8.0 };
            zeros.push(z as u8);
            pack(x.iter().map(|x| (steps(*x, d) + z).round().clamp(0.0, 15.0) as u8), 4, &mut out[0]);
        }
    }
    if zero {
        let n = values.len() / k;
        for band in (0..n).step_by(8) {
            for g in 0..groups {
                let of = |i: usize| zeros.get((band + i) * groups + g).copied().unwrap_or(0);
                pack((0..8).map(of), 4, &mut out[2]);
            }
        }
    }
    Ok(())
}
