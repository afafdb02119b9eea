//! Products of weight rows with activation rows, for every format and instruction set.
//!
//! One kernel computes a *tile*: [`TILE`] weight rows times any number of activation rows. Each number it yields is a
//! function of its own weight row and activation row alone, summed along k in one fixed order, so no tiling, row count
//! or thread count can change a bit, and the two row classes need no kernels of their own.
//!
//! - Float formats (f32, f16, bf16) meet f32 activations: sixteen f32 lanes, lane i summing the products of elements
//!   i, i + 16, ...; then lanes 8 apart are added, 4 apart, 2 apart, 1 apart.
//! - Block formats meet activations of fifteen bits (see [`quant`]): per group of 32 an exact integer dot product, then
//!   `acc += dot * (scale * d)` and, where the format has offsets, `acc += offset * d * sum(q)`, group after group in
//!   fused f32. Integers make this the same on every instruction set.
//!
//! - Codes that are floats of eight bits are decoded and then meet f32 activations as float formats do, to the bit.
//!
//! [`pick`] chooses by format and instruction set. Formats of one plane and one scale a group are in `tile32`, `tile256`
//! (what they mean) and `tile_x86` (how vectors read them), the others in `planes` and `planes_x86`; kernels are in a
//! directory per instruction set.

#[cfg(target_arch = "x86_64")]
pub mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod interleaved;
mod planes;
#[cfg(target_arch = "x86_64")]
mod planes_avx512;
#[cfg(target_arch = "x86_64")]
mod planes_x86;
pub mod quant;
mod scalar;
mod side;
mod tile;
mod tile256;
mod tile32;
#[cfg(target_arch = "x86_64")]
mod tile_avx512;
#[cfg(target_arch = "x86_64")]
mod tile_x86;

use super::isa::Isa;
use crate::view::Layout;
use checkpoint::{Block, DType, Format};
pub use side::Side;

/// Weight rows of one kernel call.
pub const TILE: usize = 16;

/// Weight rows: in file layout, or a tile of interleaved ones where there are [`TILE`].
#[derive(Copy, Clone, Debug)]
pub struct Weights {
    /// The first row, at any alignment.
    pub base: *const u8,
    /// Bytes from row to row.
    pub row: usize,
    /// Rows, `1 ..= TILE`.
    pub n: usize,
    /// Elements of a row.
    pub k: usize,
    /// Planes beside this one.
    pub side: Side,
}

impl Weights {
    /// Row `i`, or the last one beyond the end: kernels always work on whole tiles.
    #[inline(always)]
    fn at(&self, i: usize) -> *const u8 {
        // In bounds for a caller that kept the promise of `TileFn`; wrapping, so that nothing depends on it here.
        self.base.wrapping_add(i.min(self.n - 1) * self.row)
    }
}

/// Writes `acc[r][i] = x[r] . w[i]` for every activation row; columns from `w.n` on are arbitrary.
///
/// # Safety
/// The instruction set is available; all `w.n` rows are readable; each of `x` is a row of `w.k` elements in the form
/// that the kernel's [`Operand`] names; `acc` has as many rows as `x`.
pub type TileFn = unsafe fn(w: &Weights, x: &[*const u8], acc: &mut [[f32; TILE]]);

/// Quantises the f32 row `x` into `out` ([`quant::row_bytes`] of it).
///
/// # Safety
/// The instruction set is available; `x.len()` is a multiple of 32.
pub type QuantFn = unsafe fn(x: &[f32], out: &mut [u8]);

/// What a kernel reads as activations.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Operand {
    /// f32, 4-byte aligned.
    F32,
    /// Rows of [`quant`].
    Q15,
}

/// How one format is multiplied.
#[derive(Copy, Clone, Debug)]
pub struct MatKernel {
    /// Form of the activations.
    pub operand: Operand,
    /// The kernel.
    pub tile: TileFn,
}

/// The form of activations that a format meets, on every instruction set; `None` where no kernel exists.
pub fn operand(f: &Format) -> Option<Operand> {
    match f {
        Format::Plain(DType::F32 | DType::F16 | DType::BF16) => Some(Operand::F32),
        // Codes of eight bits of floating point are not integers of a few bits.
        Format::Fp8 { tile: [rows, cols], .. } => {
            let whole = (*rows <= 1 || rows.is_multiple_of(TILE as u32)) && cols.is_multiple_of(16);
            if whole { Some(Operand::F32) } else { None }
        }
        Format::Plain(DType::Block(_))
        | Format::Scaled(Block::Nvfp4)
        | Format::Affine { .. }
        | Format::Mxfp4Hf
        | Format::Nvfp4 { .. }
        | Format::Int4 { .. } => Some(Operand::Q15),
        Format::Plain(_) | Format::Scaled(_) => None,
    }
}

/// The quantiser of an instruction set.
pub fn quantiser(isa: Isa) -> QuantFn {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Amx => avx512::quantise,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => avx2::quantise,
        _ => scalar::quantise,
    }
}

/// The kernel of a format in a layout on an instruction set.
pub fn pick(f: &Format, layout: Layout, isa: Isa) -> Option<MatKernel> {
    let tile = match (layout, isa) {
        (Layout::Split, _) => None,
        #[cfg(target_arch = "x86_64")]
        (Layout::File, Isa::Amx) => table!(amx, *f),
        #[cfg(target_arch = "x86_64")]
        (Layout::File, Isa::Avx512) => table!(avx512, *f),
        #[cfg(target_arch = "x86_64")]
        (Layout::File, Isa::Avx2) => table!(avx2, *f),
        (Layout::File, _) => table!(scalar, *f),
        #[cfg(target_arch = "x86_64")]
        (Layout::Interleaved, Isa::Amx) => of_interleaved!(amx, *f),
        #[cfg(target_arch = "x86_64")]
        (Layout::Interleaved, Isa::Avx512) => of_interleaved!(avx512, *f),
        #[cfg(target_arch = "x86_64")]
        (Layout::Interleaved, Isa::Avx2) => of_interleaved!(avx2, *f),
        (Layout::Interleaved, _) => of_interleaved!(scalar, *f),
    };
    Some(MatKernel { operand: operand(f)?, tile: tile? })
}

/// One line per format; the kernels of an instruction set are `floats`, `blocks`, `planes` and `fp8`, generic over what
/// they read.
macro_rules! table {
    ($isa:ident, $format:expr) => {{
        let tile: Option<TileFn> = match $format {
            Format::Plain(DType::F32) => Some($isa::floats::<$isa::F32>),
            Format::Plain(DType::F16) => Some($isa::floats::<$isa::F16>),
            Format::Plain(DType::BF16) => Some($isa::floats::<$isa::Bf16>),
            Format::Plain(DType::Block(b)) => Some(match b {
                Block::Q4_0 => $isa::blocks::<tile32::Q4_0>,
                Block::Q4_1 => $isa::blocks::<tile32::Q4_1>,
                Block::Q5_0 => $isa::blocks::<tile32::Q5_0>,
                Block::Q5_1 => $isa::blocks::<tile32::Q5_1>,
                Block::Q8_0 => $isa::blocks::<tile32::Q8_0>,
                Block::Iq4Nl => $isa::blocks::<tile32::Iq4Nl>,
                Block::Mxfp4 => $isa::blocks::<tile32::Mxfp4>,
                Block::Q2K => $isa::planes::<planes::Q2K>,
                Block::Q3K => $isa::blocks::<tile256::Q3K>,
                Block::Q4K => $isa::blocks::<tile256::Q4K>,
                Block::Q5K => $isa::blocks::<tile256::Q5K>,
                Block::Q6K => $isa::blocks::<tile256::Q6K>,
                Block::Iq3S => $isa::blocks::<tile256::Iq3S>,
                Block::Iq4Xs => $isa::blocks::<tile256::Iq4Xs>,
                Block::Nvfp4 => $isa::planes::<planes::Nvfp4Blocks>,
            }),
            Format::Scaled(Block::Nvfp4) => Some($isa::planes::<planes::Nvfp4Blocks>),
            Format::Affine { bits, .. } => match bits {
                2 => Some($isa::planes::<planes::Affine<2>>),
                3 => Some($isa::planes::<planes::Affine<3>>),
                4 => Some($isa::planes::<planes::Affine<4>>),
                5 => Some($isa::planes::<planes::Affine<5>>),
                6 => Some($isa::planes::<planes::Affine<6>>),
                8 => Some($isa::planes::<planes::Affine<8>>),
                _ => None,
            },
            Format::Mxfp4Hf => Some($isa::planes::<planes::Mxfp4>),
            Format::Nvfp4 { .. } => Some($isa::planes::<planes::Nvfp4>),
            Format::Int4 { zero: false, .. } => Some($isa::planes::<planes::Int4>),
            Format::Int4 { zero: true, .. } => Some($isa::planes::<planes::Int4Zero>),
            Format::Fp8 { .. } => Some($isa::fp8),
            Format::Plain(_) | Format::Scaled(_) => None,
        };
        tile
    }};
}
use table;

/// The same for interleaved rows, whose formats `interleave::parts` knows.
macro_rules! of_interleaved {
    ($isa:ident, $format:expr) => {{
        let tile: Option<TileFn> = match $format {
            Format::Plain(DType::Block(b)) => match b {
                Block::Q4_0 => Some($isa::interleaved::<tile32::Q4_0>),
                Block::Q4_1 => Some($isa::interleaved::<tile32::Q4_1>),
                Block::Q8_0 => Some($isa::interleaved::<tile32::Q8_0>),
                Block::Iq4Nl => Some($isa::interleaved::<tile32::Iq4Nl>),
                Block::Mxfp4 => Some($isa::interleaved::<tile32::Mxfp4>),
                Block::Q4K => Some($isa::interleaved::<tile256::Q4K>),
                Block::Q5K => Some($isa::interleaved::<tile256::Q5K>),
                Block::Q6K => Some($isa::interleaved::<tile256::Q6K>),
                _ => None,
            },
            Format::Affine { bits: 4, .. } => Some($isa::interleaved_planes::<tile32::Q4_1, planes::Affine<4>>),
            Format::Mxfp4Hf => Some($isa::interleaved_planes::<tile32::Mxfp4, planes::Mxfp4>),
            _ => None,
        };
        tile
    }};
}
use of_interleaved;

#[cfg(test)]
mod tests;
