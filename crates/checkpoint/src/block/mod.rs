//! Block formats: fixed groups of elements that carry their own scales. One file a family, each with the byte layout (ggml's block definitions), the scalar
//! decoder that is the oracle for every kernel, and the encoder where there is one.

mod fit;
mod iq3;
mod iq4;
mod k2k3;
mod k4k5;
mod k6;
mod mxfp4;
mod nvfp4;
mod q4;
mod q5;
mod q8;

use std::fmt;

use bytemuck::Pod;
use half::f16;

use crate::DType;

pub use iq3::BlockIq3S;
pub use iq4::{BlockIq4Nl, BlockIq4Xs, IQ4_VALUES};
pub use k2k3::{BlockQ2K, BlockQ3K};
pub use k4k5::{BlockQ4K, BlockQ5K, pack_scales, unpack_scales};
pub use k6::BlockQ6K;
pub use mxfp4::{BlockMxfp4, E2M1_VALUES};
pub use nvfp4::BlockNvfp4;
pub use q4::{BlockQ4_0, BlockQ4_1};
pub use q5::{BlockQ5_0, BlockQ5_1};
pub use q8::BlockQ8_0;

/// Names of all block formats, for messages.
pub(crate) const NAMES: &str =
    "Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ3_S, IQ4_NL, IQ4_XS, MXFP4, NVFP4";

/// A block format that can be decoded.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs, reason = "the names are the field's own; the layouts are described with the block structs")]
pub enum Block {
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
    Iq3S,
    Iq4Nl,
    Iq4Xs,
    Mxfp4,
    Nvfp4,
}

/// Why values cannot be written in a format.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Unwritable {
    /// There is a decoder (or not even that) but no encoder.
    #[error(
        "there is no encoder for {dtype}: write Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K, MXFP4, F16, BF16 or F32 instead"
    )]
    NoEncoder {
        /// Type asked for.
        dtype: DType,
    },
    /// A value is NaN or infinite.
    #[error("element {index} is {value}, which {dtype} cannot hold: the source weights are damaged")]
    NotFinite {
        /// Type asked for.
        dtype: DType,
        /// Where in the row.
        index: usize,
        /// The value.
        value: f32,
    },
    /// A value is beyond what the format's 16-bit scale can reach.
    #[error("element {index} is {value}, beyond the range of {dtype}: store this tensor as BF16 or F32")]
    TooLarge {
        /// Type asked for.
        dtype: DType,
        /// Where in the row.
        index: usize,
        /// The value.
        value: f32,
    },
    /// The slices do not belong together.
    #[error("{elems} elements and {bytes} bytes are not the same whole number of {block} blocks")]
    Length {
        /// Format asked for.
        block: Block,
        /// Values given.
        elems: usize,
        /// Bytes of room given.
        bytes: usize,
    },
}

impl Block {
    /// All formats.
    pub const ALL: [Self; 15] = [
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q2K,
        Self::Q3K,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
        Self::Iq3S,
        Self::Iq4Nl,
        Self::Iq4Xs,
        Self::Mxfp4,
        Self::Nvfp4,
    ];

    /// The field's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Q4_0 => "Q4_0",
            Self::Q4_1 => "Q4_1",
            Self::Q5_0 => "Q5_0",
            Self::Q5_1 => "Q5_1",
            Self::Q8_0 => "Q8_0",
            Self::Q2K => "Q2_K",
            Self::Q3K => "Q3_K",
            Self::Q4K => "Q4_K",
            Self::Q5K => "Q5_K",
            Self::Q6K => "Q6_K",
            Self::Iq3S => "IQ3_S",
            Self::Iq4Nl => "IQ4_NL",
            Self::Iq4Xs => "IQ4_XS",
            Self::Mxfp4 => "MXFP4",
            Self::Nvfp4 => "NVFP4",
        }
    }

    /// Elements of a block.
    pub const fn elems(self) -> usize {
        match self {
            Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Q8_0 | Self::Iq4Nl | Self::Mxfp4 => 32,
            Self::Nvfp4 => 64,
            Self::Q2K | Self::Q3K | Self::Q4K | Self::Q5K | Self::Q6K | Self::Iq3S | Self::Iq4Xs => 256,
        }
    }

    /// Bytes of a block.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Q4_0 => size_of::<BlockQ4_0>(),
            Self::Q4_1 => size_of::<BlockQ4_1>(),
            Self::Q5_0 => size_of::<BlockQ5_0>(),
            Self::Q5_1 => size_of::<BlockQ5_1>(),
            Self::Q8_0 => size_of::<BlockQ8_0>(),
            Self::Q2K => size_of::<BlockQ2K>(),
            Self::Q3K => size_of::<BlockQ3K>(),
            Self::Q4K => size_of::<BlockQ4K>(),
            Self::Q5K => size_of::<BlockQ5K>(),
            Self::Q6K => size_of::<BlockQ6K>(),
            Self::Iq3S => size_of::<BlockIq3S>(),
            Self::Iq4Nl => size_of::<BlockIq4Nl>(),
            Self::Iq4Xs => size_of::<BlockIq4Xs>(),
            Self::Mxfp4 => size_of::<BlockMxfp4>(),
            Self::Nvfp4 => size_of::<BlockNvfp4>(),
        }
    }

    /// Decodes `src.len() / bytes()` blocks. The slices must hold the same whole number of blocks (checked in debug builds; [`DType::decode`] checks always);
    /// what is beyond the shorter one stays untouched.
    pub fn decode(self, src: &[u8], dst: &mut [f32]) {
        debug_assert!(self.paired(dst.len(), src.len()), "{self}: {} bytes for {} elements", src.len(), dst.len());
        match self {
            Self::Q4_0 => decode_all(src, dst, BlockQ4_0::decode),
            Self::Q4_1 => decode_all(src, dst, BlockQ4_1::decode),
            Self::Q5_0 => decode_all(src, dst, BlockQ5_0::decode),
            Self::Q5_1 => decode_all(src, dst, BlockQ5_1::decode),
            Self::Q8_0 => decode_all(src, dst, BlockQ8_0::decode),
            Self::Q2K => decode_all(src, dst, BlockQ2K::decode),
            Self::Q3K => decode_all(src, dst, BlockQ3K::decode),
            Self::Q4K => decode_all(src, dst, BlockQ4K::decode),
            Self::Q5K => decode_all(src, dst, BlockQ5K::decode),
            Self::Q6K => decode_all(src, dst, BlockQ6K::decode),
            Self::Iq3S => decode_all(src, dst, BlockIq3S::decode),
            Self::Iq4Nl => decode_all(src, dst, BlockIq4Nl::decode),
            Self::Iq4Xs => decode_all(src, dst, BlockIq4Xs::decode),
            Self::Mxfp4 => decode_all(src, dst, BlockMxfp4::decode),
            Self::Nvfp4 => decode_all(src, dst, BlockNvfp4::decode),
        }
    }

    /// Encodes `src.len() / elems()` blocks, choosing scales that keep the squared error small.
    ///
    /// # Errors
    /// [`Unwritable`] when there is no encoder for this format, when the slices do not belong together, or when a value is not finite or too large.
    pub fn encode(self, src: &[f32], dst: &mut [u8]) -> Result<(), Unwritable> {
        let dtype = DType::Block(self);
        if !self.paired(src.len(), dst.len()) {
            return Err(Unwritable::Length { block: self, elems: src.len(), bytes: dst.len() });
        }
        if let Some(index) = src.iter().position(|x| !x.is_finite()) {
            return Err(Unwritable::NotFinite { dtype, index, value: src[index] });
        }
        // Scales and mins are f16. Real weights stay far below its maximum; one rule for all formats keeps the encoders simple.
        if self != Self::Mxfp4
            && let Some(index) = src.iter().position(|x| x.abs() > f16::MAX.to_f32())
        {
            return Err(Unwritable::TooLarge { dtype, index, value: src[index] });
        }
        match self {
            Self::Q4_0 => encode_all(src, dst, BlockQ4_0::encode),
            Self::Q4_1 => encode_all(src, dst, BlockQ4_1::encode),
            Self::Q5_0 => encode_all(src, dst, BlockQ5_0::encode),
            Self::Q5_1 => encode_all(src, dst, BlockQ5_1::encode),
            Self::Q8_0 => encode_all(src, dst, BlockQ8_0::encode),
            Self::Q4K => encode_all(src, dst, BlockQ4K::encode),
            Self::Q5K => encode_all(src, dst, BlockQ5K::encode),
            Self::Q6K => encode_all(src, dst, BlockQ6K::encode),
            Self::Mxfp4 => encode_all(src, dst, BlockMxfp4::encode),
            Self::Q2K | Self::Q3K | Self::Iq3S | Self::Iq4Nl | Self::Iq4Xs | Self::Nvfp4 => {
                return Err(Unwritable::NoEncoder { dtype });
            }
        }
        Ok(())
    }

    fn paired(self, elems: usize, bytes: usize) -> bool {
        elems.is_multiple_of(self.elems())
            && bytes.is_multiple_of(self.bytes())
            && elems / self.elems() == bytes / self.bytes()
    }
}

impl fmt::Display for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The whole blocks at the start of `src`. Every layout consists of byte arrays, so any address is aligned.
fn whole<B: Pod>(src: &[u8]) -> &[B] {
    bytemuck::cast_slice(&src[..src.len() / size_of::<B>() * size_of::<B>()])
}

fn decode_all<B: Pod, const N: usize>(src: &[u8], dst: &mut [f32], decode: impl Fn(&B, &mut [f32; N])) {
    for (b, y) in whole::<B>(src).iter().zip(dst.as_chunks_mut::<N>().0) {
        decode(b, y);
    }
}

fn encode_all<B: Pod, const N: usize>(src: &[f32], dst: &mut [u8], encode: impl Fn(&[f32; N]) -> B) {
    for (x, out) in src.as_chunks::<N>().0.iter().zip(dst.chunks_exact_mut(size_of::<B>())) {
        out.copy_from_slice(bytemuck::bytes_of(&encode(x)));
    }
}

/// A stored f16 as f32.
#[inline]
fn half(b: [u8; 2]) -> f32 {
    f16::from_le_bytes(b).to_f32()
}

/// The f32 that storing `x` as f16 gives back.
#[inline]
fn round_half(x: f32) -> f32 {
    f16::from_f32(x).to_f32()
}

#[inline]
fn to_half(x: f32) -> [u8; 2] {
    f16::from_f32(x).to_le_bytes()
}
