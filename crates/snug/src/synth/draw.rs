//! Random weights by counter: a value depends on the seed, the tensor's name and its place, on nothing that was drawn
//! before it, so that pieces can be drawn in any order and on all cores.

use checkpoint::block::pack_scales;
use checkpoint::float8::e4m3;
use checkpoint::{Block, DType, Format};
use half::{bf16, f16};

/// Root mean square of the sixteen E2M1 values: sqrt(68.5 / 8).
const E2M1_RMS: f32 = 2.9262;
/// Of the magnitudes of IQ3_S's code book.
const IQ3_RMS: f32 = 7.5942;

const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// A sequence of random words that can be entered anywhere.
#[derive(Copy, Clone, Debug)]
pub struct Stream(u64);

impl Stream {
    /// That of a tensor: FNV-1a of the name, mixed with the seed.
    pub fn of(seed: u64, name: &str) -> Self {
        let fnv = |h: u64, b: u8| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3);
        let name = name.bytes().fold(0xcbf2_9ce4_8422_2325, fnv);
        Stream(mix(name ^ mix(seed.wrapping_add(GOLDEN))))
    }
    /// That of piece `i`.
    pub fn piece(self, i: u64) -> Self {
        Stream(mix(self.0 ^ mix(i.wrapping_add(1).wrapping_mul(GOLDEN))))
    }
    /// Word `i`.
    fn word(self, i: u64) -> u64 {
        mix(self.0.wrapping_add(i.wrapping_add(1).wrapping_mul(GOLDEN)))
    }
    /// Value `i`, even in [-1, 1).
    pub fn unit(self, i: u64) -> f32 {
        const HALF: i32 = 1 << 23;
        ((self.word(i) >> 40) as i32 - HALF) as f32 / HALF as f32
    }
}

/// SplitMix64's finaliser.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Whether [`noise`] can fill this type.
pub fn drawable(dtype: DType) -> bool {
    match dtype {
        DType::F32 | DType::F16 | DType::BF16 => true,
        DType::Block(b) => !matches!(b, Block::Iq4Nl | Block::Iq4Xs),
        _ => false,
    }
}

/// Fills whole elements or blocks with values of mean 0 and this standard deviation: even floats, or even codes under
/// scales that give it. Nothing is written for a type that is not [`drawable`].
pub fn noise(dtype: DType, std: f32, s: Stream, out: &mut [u8]) {
    let amp = std * 3f32.sqrt();
    match dtype {
        DType::F32 => floats(out, |i| (s.unit(i) * amp).to_le_bytes()),
        DType::F16 => floats(out, |i| f16::from_f32(s.unit(i) * amp).to_le_bytes()),
        DType::BF16 => floats(out, |i| bf16::from_f32(s.unit(i) * amp).to_le_bytes()),
        DType::Block(b) => {
            words(out, s);
            let scales = s.piece(u64::MAX);
            for (i, block) in out.chunks_exact_mut(b.bytes()).enumerate() {
                set_scales(b, std, scales.word(i as u64), block);
            }
        }
        _ => {}
    }
}

fn floats<const N: usize>(out: &mut [u8], f: impl Fn(u64) -> [u8; N]) {
    for (i, c) in out.as_chunks_mut::<N>().0.iter_mut().enumerate() {
        *c = f(i as u64);
    }
}

fn words(out: &mut [u8], s: Stream) {
    for (i, c) in out.chunks_mut(8).enumerate() {
        c.copy_from_slice(&s.word(i as u64).to_le_bytes()[..c.len()]);
    }
}

/// Standard deviation of even integers `0..n`.
fn spread(n: u32) -> f32 {
    ((f64::from(n) * f64::from(n) - 1.0) / 12.0).sqrt() as f32
}

/// Overwrites the scales of a block of random codes. Formats whose codes are not centred get the offset that centres
/// them, or, where they have none, a scale of either sign. `r` is the block's random word.
fn set_scales(b: Block, std: f32, r: u64, block: &mut [u8]) {
    let sign = if r & 1 == 0 { 1.0 } else { -1.0 };
    let mut put = |at: usize, x: f32| block[at..at + 2].copy_from_slice(&f16::from_f32(x).to_le_bytes());
    match b {
        Block::Q4_0 => put(0, sign * std / spread(16)),
        Block::Q5_0 => put(0, sign * std / spread(32)),
        Block::Q8_0 => put(0, sign * std / spread(256)),
        Block::Q4_1 => {
            put(0, std / spread(16));
            put(2, -7.5 * std / spread(16));
        }
        Block::Q5_1 => {
            put(0, std / spread(32));
            put(2, -15.5 * std / spread(32));
        }
        Block::Q4K => k_scales(std / spread(16), 7.5, r, block),
        Block::Q5K => k_scales(std / spread(32), 15.5, r, block),
        // Sixteen random signed scales, then the codes' own spread; the f16 over all is the last field.
        Block::Q6K => put(b.bytes() - 2, sign * std / (spread(256) * spread(64))),
        Block::Mxfp4 => block[0] = power(std, r),
        Block::Nvfp4 => (0..4).for_each(|i| block[i] = small_float(std, r.rotate_left(16 * i as u32))),
        Block::Q2K => {
            // Scales even in 8..16 with minimums equal to them; root mean square 11.73.
            put(80, std / (spread(4) * 11.726));
            put(82, 1.5 * std / (spread(4) * 11.726));
            (0..16).for_each(|i| block[i] = 0x88 | ((r >> (4 * i) & 7) as u8 * 0x11));
        }
        // Sixteen random signed scales times codes of -4..4: root mean squares 18.48 and 2.345.
        Block::Q3K => put(b.bytes() - 2, sign * std / (18.48 * 2.345)),
        // Odd scales up to 31 and the code book: root mean squares 18.47 and IQ3_RMS.
        Block::Iq3S => put(0, sign * std / (18.466 * IQ3_RMS)),
        Block::Iq4Nl | Block::Iq4Xs => {}
    }
}

/// Fills a part of plane `plane` of a format with several: codes are even, scales give values this standard deviation
/// about a mean of 0.
pub fn plane_noise(format: Format, plane: usize, std: f32, s: Stream, out: &mut [u8]) {
    let each = |out: &mut [u8], dtype: DType, f: &dyn Fn(u64) -> f32| match dtype {
        DType::F32 => floats(out, |i| f(i).to_le_bytes()),
        DType::F16 => floats(out, |i| f16::from_f32(f(i)).to_le_bytes()),
        _ => floats(out, |i| bf16::from_f32(f(i)).to_le_bytes()),
    };
    match (format, plane) {
        (Format::Fp8 { .. }, 0) => {
            words(out, s);
            // The codes that are no numbers become others.
            out.iter_mut().filter(|b| **b & 0x7F == 0x7F).for_each(|b| *b ^= 0x40);
        }
        (_, 0) => words(out, s),
        (Format::Affine { bits, scale, .. }, _) => {
            let step = std / spread(1 << bits);
            let bias = -step * ((1u32 << bits) - 1) as f32 / 2.0;
            each(out, scale, &|_| if plane == 1 { step } else { bias });
        }
        (Format::Mxfp4Hf, _) => out.iter_mut().zip(0..).for_each(|(b, i)| *b = power(std, s.word(i))),
        (Format::Nvfp4 { .. }, 1) => out.fill(0x38),
        (Format::Nvfp4 { .. }, _) => each(out, DType::F32, &|_| std / E2M1_RMS),
        (Format::Fp8 { scale, .. }, _) => each(out, scale, &|_| std / e4m3_rms()),
        (Format::Int4 { scale, .. }, _) => {
            each(out, scale, &|i| if s.word(i) & 1 == 0 { std / spread(16) } else { -std / spread(16) });
        }
        (Format::Plain(_) | Format::Scaled(_), _) => {}
    }
}

/// Root mean square of what even bytes are as E4M3.
fn e4m3_rms() -> f32 {
    let squares = (0..=255u8).map(|b| e4m3(if b & 0x7F == 0x7F { b ^ 0x40 } else { b }).powi(2));
    (squares.sum::<f32>() / 256.0).sqrt()
}

/// An E4M3 scale: one of the two codes around the wanted one, the larger as often as makes the variance right.
fn small_float(std: f32, r: u64) -> u8 {
    let wanted = std / E2M1_RMS;
    let low = (0..0x7Du8).rev().find(|c| e4m3(*c) <= wanted).unwrap_or(0);
    let (a, b) = (e4m3(low).powi(2), e4m3(low + 1).powi(2));
    let up = (r >> 40) as f32 / (1u64 << 24) as f32;
    low + u8::from(up < (wanted.powi(2) - a) / (b - a))
}

/// Sub-scales are even in 32..64 and the minimums equal to them, so that one ratio centres all sub-blocks.
fn k_scales(step: f32, centre: f32, r: u64, block: &mut [u8]) {
    // Root mean square of 32..64: 47.5^2 + (32^2 - 1) / 12.
    const RMS: f32 = 48.389;
    let scale = |j: usize| 32 + (r >> (5 * j) & 31) as u8;
    let pairs: [(u8, u8); 8] = std::array::from_fn(|j| (scale(j), scale(j)));
    let d = step / RMS;
    block[..2].copy_from_slice(&f16::from_f32(d).to_le_bytes());
    block[2..4].copy_from_slice(&f16::from_f32(d * centre).to_le_bytes());
    block[4..16].copy_from_slice(&pack_scales(&pairs));
}

/// An exponent byte (2^(e - 127)): one of the two around the wanted scale, the larger as often as makes the variance right.
fn power(std: f32, r: u64) -> u8 {
    let exact = (std / E2M1_RMS).log2();
    let (low, part) = (exact.floor(), exact - exact.floor());
    let chance = (4f32.powf(part) - 1.0) / 3.0;
    let up = (r >> 40) as f32 / (1u64 << 24) as f32;
    (127.0 + low + if up < chance { 1.0 } else { 0.0 }).clamp(0.0, 254.0) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draw(dtype: DType, std: f32, s: Stream) -> Vec<f32> {
        let n = 1 << 18;
        let mut bytes = vec![0; dtype.row_bytes(n).unwrap() as usize];
        noise(dtype, std, s, &mut bytes);
        let mut out = vec![0.0; n as usize];
        dtype.decode(&bytes, &mut out).unwrap();
        out
    }

    fn all() -> Vec<DType> {
        let floats = [DType::F32, DType::F16, DType::BF16];
        floats.into_iter().chain(Block::ALL.map(DType::Block)).filter(|t| drawable(*t)).collect()
    }

    #[test]
    fn every_type_has_the_mean_and_the_spread_that_was_asked_for() {
        for dtype in all() {
            for std in [1.0 / 24.0, 1.0 / 131.9] {
                let v = draw(dtype, std, Stream::of(1, "x"));
                let n = v.len() as f32;
                let (mean, rms) = (v.iter().sum::<f32>() / n, (v.iter().map(|x| x * x).sum::<f32>() / n).sqrt());
                assert!(mean.abs() < 0.02 * std && (rms / std - 1.0).abs() < 0.03, "{dtype}: {mean} {rms} {std}");
            }
        }
    }

    #[test]
    fn values_depend_on_seed_name_and_piece() {
        for dtype in all() {
            let of = |seed, name, piece| draw(dtype, 0.1, Stream::of(seed, name).piece(piece));
            let first = of(1, "a", 0);
            assert_eq!(first, of(1, "a", 0), "{dtype}");
            for other in [of(2, "a", 0), of(1, "b", 0), of(1, "a", 1)] {
                let same = first.iter().zip(&other).filter(|(a, b)| a == b).count();
                assert!(same < first.len() / 3, "{dtype}: {same} of {} are the same", first.len());
            }
        }
    }
}
