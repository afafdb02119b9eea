//! How numbers of one run of elements are stored.

use std::fmt;

use half::{bf16, f16};

use crate::float8::{e4m3, e8m0};
use crate::{Block, Error, Result, Unwritable};

/// How the elements of a tensor are stored. Little endian throughout.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum DType {
    /// IEEE binary64.
    F64,
    /// IEEE binary32.
    F32,
    /// IEEE binary16.
    F16,
    /// The upper half of an f32.
    BF16,
    /// Signed 8 bit.
    I8,
    /// Signed 16 bit.
    I16,
    /// Signed 32 bit.
    I32,
    /// Signed 64 bit.
    I64,
    /// Unsigned 8 bit; also packed codes of several formats.
    U8,
    /// Unsigned 16 bit.
    U16,
    /// Unsigned 32 bit; also packed codes of several formats.
    U32,
    /// Unsigned 64 bit.
    U64,
    /// One byte, 0 or 1.
    Bool,
    /// OCP FP8 E4M3 (the "fn" variant: no infinities).
    F8E4M3,
    /// OCP FP8 E5M2.
    F8E5M2,
    /// A power of two: the byte `e` means 2^(e-127); 255 is NaN (OCP microscaling formats).
    E8M0,
    /// Quantised in blocks that carry their own scales.
    Block(Block),
    /// Known by name and size, so that it can be listed and copied, but never decoded.
    Opaque(Opaque),
}

/// GGUF types that are recognised, listed and refused by name when used. Sizes as in ggml's type table.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs, reason = "the names are the field's own")]
#[non_exhaustive]
pub enum Opaque {
    Q8_1,
    Q8K,
    Iq2Xxs,
    Iq2Xs,
    Iq3Xxs,
    Iq1S,
    Iq2S,
    Iq1M,
    Tq1_0,
    Tq2_0,
    Q1_0,
}

impl Opaque {
    /// (name, elements of a block, bytes of a block).
    const fn row(self) -> (&'static str, usize, usize) {
        match self {
            Self::Q8_1 => ("Q8_1", 32, 36),
            Self::Q8K => ("Q8_K", 256, 292),
            Self::Iq2Xxs => ("IQ2_XXS", 256, 66),
            Self::Iq2Xs => ("IQ2_XS", 256, 74),
            Self::Iq3Xxs => ("IQ3_XXS", 256, 98),
            Self::Iq1S => ("IQ1_S", 256, 50),
            Self::Iq2S => ("IQ2_S", 256, 82),
            Self::Iq1M => ("IQ1_M", 256, 56),
            Self::Tq1_0 => ("TQ1_0", 256, 54),
            Self::Tq2_0 => ("TQ2_0", 256, 66),
            Self::Q1_0 => ("Q1_0", 128, 18),
        }
    }
}

impl DType {
    /// The field's name, as in `inspect` and in error messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F64 => "F64",
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::BF16 => "BF16",
            Self::I8 => "I8",
            Self::I16 => "I16",
            Self::I32 => "I32",
            Self::I64 => "I64",
            Self::U8 => "U8",
            Self::U16 => "U16",
            Self::U32 => "U32",
            Self::U64 => "U64",
            Self::Bool => "BOOL",
            Self::F8E4M3 => "F8_E4M3",
            Self::F8E5M2 => "F8_E5M2",
            Self::E8M0 => "F8_E8M0",
            Self::Block(b) => b.name(),
            Self::Opaque(o) => o.row().0,
        }
    }

    /// Elements that are stored together: 1, or the elements of a block.
    pub const fn elems(self) -> usize {
        match self {
            Self::Block(b) => b.elems(),
            Self::Opaque(o) => o.row().1,
            _ => 1,
        }
    }

    /// Bytes of one element, or of one block.
    pub const fn bytes(self) -> usize {
        match self {
            Self::I8 | Self::U8 | Self::Bool | Self::F8E4M3 | Self::F8E5M2 | Self::E8M0 => 1,
            Self::F16 | Self::BF16 | Self::I16 | Self::U16 => 2,
            Self::F32 | Self::I32 | Self::U32 => 4,
            Self::F64 | Self::I64 | Self::U64 => 8,
            Self::Block(b) => b.bytes(),
            Self::Opaque(o) => o.row().2,
        }
    }

    /// Whether [`DType::decode`] can turn it into f32.
    pub const fn decodable(self) -> bool {
        matches!(self, Self::F32 | Self::F16 | Self::BF16 | Self::F8E4M3 | Self::E8M0 | Self::Block(_))
    }

    /// Bytes of a row of `k` elements.
    ///
    /// # Errors
    /// [`Error::Row`] when `k` is not a whole number of blocks or the size overflows.
    pub fn row_bytes(self, k: u64) -> Result<u64> {
        let (elems, bytes) = (self.elems() as u64, self.bytes() as u64);
        if !k.is_multiple_of(elems) {
            return Err(Error::Row { dtype: self, k, elems: self.elems() });
        }
        (k / elems).checked_mul(bytes).ok_or(Error::Row { dtype: self, k, elems: self.elems() })
    }

    /// Decodes a run of elements (one row or several whole ones) into f32.
    ///
    /// # Errors
    /// [`Error::Undecodable`] for types without a decoder, [`Error::Length`] or [`Error::Row`] when `src` is not exactly the bytes of `dst.len()` elements.
    pub fn decode(self, src: &[u8], dst: &mut [f32]) -> Result<()> {
        self.check(dst.len(), src.len())?;
        match self {
            Self::F32 => each(src, dst, f32::from_le_bytes),
            Self::F16 => each(src, dst, |b| f16::from_le_bytes(b).to_f32()),
            Self::BF16 => each(src, dst, |b| bf16::from_le_bytes(b).to_f32()),
            Self::F8E4M3 => each(src, dst, |[b]| e4m3(b)),
            Self::E8M0 => each(src, dst, |[b]| e8m0(b)),
            Self::Block(b) => b.decode(src, dst),
            _ => return Err(Error::Undecodable { dtype: self }),
        }
        Ok(())
    }

    /// Encodes f32 values (one row or several whole ones); the counterpart of [`DType::decode`] for F32, F16, BF16 and the blocks that have an encoder.
    ///
    /// # Errors
    /// [`Error::Unwritable`] when there is no encoder or a value does not fit, [`Error::Length`] or [`Error::Row`] when the slices do not belong together.
    pub fn encode(self, src: &[f32], dst: &mut [u8]) -> Result<()> {
        self.check(src.len(), dst.len())?;
        match self {
            Self::F32 => put(src, dst, f32::to_le_bytes),
            Self::F16 => {
                if let Some(index) = src.iter().position(|x| x.is_finite() && f16::from_f32(*x).is_infinite()) {
                    return Err(Unwritable::TooLarge { dtype: self, index, value: src[index] }.into());
                }
                put(src, dst, |x| f16::from_f32(x).to_le_bytes());
            }
            Self::BF16 => put(src, dst, |x| bf16::from_f32(x).to_le_bytes()),
            Self::Block(b) => b.encode(src, dst)?,
            _ => return Err(Unwritable::NoEncoder { dtype: self }.into()),
        }
        Ok(())
    }

    fn check(self, elems: usize, have: usize) -> Result<()> {
        let want = self.row_bytes(elems as u64)?;
        if want == have as u64 { Ok(()) } else { Err(Error::Length { dtype: self, elems, want, have }) }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl From<Block> for DType {
    fn from(b: Block) -> Self {
        Self::Block(b)
    }
}

fn each<const N: usize>(src: &[u8], dst: &mut [f32], f: impl Fn([u8; N]) -> f32) {
    for (b, y) in src.as_chunks::<N>().0.iter().zip(dst) {
        *y = f(*b);
    }
}

fn put<const N: usize>(src: &[f32], dst: &mut [u8], f: impl Fn(f32) -> [u8; N]) {
    for (x, b) in src.iter().zip(dst.as_chunks_mut::<N>().0) {
        *b = f(*x);
    }
}
