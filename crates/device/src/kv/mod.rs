//! Codecs of stored keys and values: plain code, the same for every backend, so that a page has the same bytes wherever
//! it was written.
//!
//! The rotated formats store `y = H (s * x) / sqrt(d)`: `s` random signs, one vector per layer, keys or values, and head;
//! `H` the Sylvester Hadamard matrix. The rotation is orthogonal, so scores and weighted sums can be computed in rotated
//! space: `q . k = (R q) . (R k)`.
//!
//! - [`rotation`]: the signs, the transform and its inverse.
//! - [`tables`]: centroids of `tq4`.
//! - [`tq4`], [`q8`]: codes and scales of a rotated vector.
//!
//! Layout of a stream's vectors of one head in a page: the elements of all of them, then their scales (f16). Elements of
//! vectors lie one vector behind the other, but for keys of the rotated formats, which are interleaved ([`Pieces`]).

pub mod q8;
pub mod rotation;
pub mod tables;
pub mod tq4;

use half::{bf16, f16};
use memory::KvFormat;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

pub use rotation::Signs;

/// What fixes the bytes of a format besides its layout: pages that were written under another fingerprint cannot be
/// read.
pub fn fingerprint(fmt: KvFormat) -> String {
    let rotation = || format!("hadamard({}, {:#x})", rotation::GENERATOR, rotation::SEED);
    match fmt {
        KvFormat::F32 | KvFormat::Bf16 => fmt.name().into(),
        KvFormat::Q8 => format!("q8/1: {}, max f16, 8 bits", rotation()),
        KvFormat::Tq4 => format!("tq4/1: {}, norm f16, lloyd-max sphere 16", rotation()),
    }
}

/// Rotated keys that lie together, and how many bytes of each in turn: one register of 16 lanes then holds a few
/// elements of 16 keys, and scores need no sums across lanes.
pub const KEYS: u32 = 16;
const PIECE: u32 = 4;

/// Where the elements of one vector lie among those of a head's vectors in a page: `count` pieces of `len` bytes, `step`
/// bytes apart.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Pieces {
    /// Byte offset of the first.
    pub first: usize,
    /// Bytes from one to the next.
    pub step: usize,
    /// Bytes of one.
    pub len: usize,
    /// How many.
    pub count: usize,
}

impl Pieces {
    /// Those of vector `at` of a page, a key (`plane` 0) or a value (`plane` 1) of width `d`.
    #[inline(always)]
    pub fn of(fmt: KvFormat, plane: u32, d: u32, at: u32) -> Self {
        let bytes = fmt.code_bytes(d) as usize;
        if plane == 0 && fmt.rotated() {
            let (group, place) = ((at / KEYS) as usize, (at % KEYS) as usize);
            let (len, keys) = (PIECE as usize, KEYS as usize);
            return Pieces { first: group * keys * bytes + place * len, step: keys * len, len, count: bytes / len };
        }
        Pieces { first: at as usize * bytes, step: bytes, len: bytes, count: 1 }
    }
    /// Byte offsets.
    #[inline(always)]
    pub fn offsets(self) -> impl Iterator<Item = usize> {
        (0..self.count).map(move |i| self.first + i * self.step)
    }
    /// The vector's elements out of those of all.
    pub fn gather(self, block: &[u8]) -> Vec<u8> {
        self.offsets().flat_map(|at| block[at..at + self.len].iter().copied()).collect()
    }
    /// The vector's elements among those of all.
    pub fn scatter(self, codes: &[u8], block: &mut [u8]) {
        for (at, piece) in self.offsets().zip(codes.chunks_exact(self.len)) {
            block[at..at + self.len].copy_from_slice(piece);
        }
    }
}

static CLAMPED: AtomicU64 = AtomicU64::new(0);

/// Scales of this process that did not fit an f16 and were stored as its greatest number.
pub fn clamped() -> u64 {
    CLAMPED.load(Relaxed)
}

/// A scale as it is stored. One beyond f16 becomes the greatest f16, and is counted.
pub fn scale(x: f32) -> f16 {
    let h = f16::from_f32(x);
    if h.is_infinite() {
        CLAMPED.fetch_add(1, Relaxed);
        return if x > 0.0 { f16::MAX } else { f16::MIN };
    }
    h
}

/// Encodes a vector of a width that the [format fits](KvFormat::fits). `codes` has the format's
/// [`code_bytes`](KvFormat::code_bytes). Returns the scale of a rotated format.
#[inline(always)]
pub fn encode(fmt: KvFormat, signs: &Signs, x: &[f32], codes: &mut [u8]) -> Option<f16> {
    match fmt {
        KvFormat::F32 => {
            codes.chunks_exact_mut(4).zip(x).for_each(|(to, x)| to.copy_from_slice(&x.to_le_bytes()));
            None
        }
        KvFormat::Bf16 => {
            let one = |(to, &x): (&mut [u8], &f32)| to.copy_from_slice(&bf16::from_f32(x).to_le_bytes());
            codes.chunks_exact_mut(2).zip(x).for_each(one);
            None
        }
        KvFormat::Q8 => Some(q8::encode(signs, x, codes)),
        KvFormat::Tq4 => Some(tq4::encode(signs, x, codes)),
    }
}

/// The vector that codes and a scale stand for, not rotated. `scale` is ignored by formats that have none.
pub fn decode(fmt: KvFormat, signs: &Signs, codes: &[u8], scale: f16, x: &mut [f32]) {
    match fmt {
        KvFormat::F32 => {
            let one = |(x, c): (&mut f32, &[u8])| *x = f32::from_le_bytes([c[0], c[1], c[2], c[3]]);
            x.iter_mut().zip(codes.chunks_exact(4)).for_each(one);
        }
        KvFormat::Bf16 => {
            let one = |(x, c): (&mut f32, &[u8])| *x = bf16::from_le_bytes([c[0], c[1]]).to_f32();
            x.iter_mut().zip(codes.chunks_exact(2)).for_each(one);
        }
        KvFormat::Q8 | KvFormat::Tq4 => {
            if fmt == KvFormat::Q8 {
                q8::decode(codes, scale, x)
            } else {
                tq4::decode(codes, scale, x)
            }
            signs.unrotate(x);
        }
    }
}

#[cfg(test)]
mod tests;
