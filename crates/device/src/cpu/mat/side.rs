//! What formats of several planes have beside their codes.

use super::quant::GROUP;
use crate::cpu::ptr::Ptr;
use crate::error::{Error, Result};
use crate::host::HostMemory;
use crate::op::extents;
use crate::view::Mat;
use checkpoint::{DType, Format, Global};
use half::{bf16, f16};

/// How the numbers of a plane of scales are stored.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Scale {
    F32,
    F16,
    BF16,
    E8M0,
}

impl Scale {
    /// That of a type, `None` where no format has such scales.
    pub fn of(dtype: DType) -> Option<Self> {
        Some(match dtype {
            DType::F32 => Scale::F32,
            DType::F16 => Scale::F16,
            DType::BF16 => Scale::BF16,
            DType::E8M0 => Scale::E8M0,
            _ => return None,
        })
    }
    /// Number `i` of a run.
    ///
    /// # Safety
    /// It is readable; any alignment.
    #[inline(always)]
    pub unsafe fn get(self, p: *const u8, i: usize) -> f32 {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Scale::F32 => p.cast::<f32>().add(i).read_unaligned(),
                Scale::F16 => f16::from_bits(p.cast::<u16>().add(i).read_unaligned()).to_f32(),
                Scale::BF16 => bf16::from_bits(p.cast::<u16>().add(i).read_unaligned()).to_f32(),
                Scale::E8M0 => checkpoint::float8::e8m0(*p.add(i)),
            }
        }
    }
}

/// One plane beside the codes.
#[derive(Copy, Clone, Debug)]
pub struct Plane {
    /// Where the tile's first row has its part.
    pub base: Ptr<u8>,
    /// Bytes from part to part.
    pub step: usize,
    /// Rows that share a part, at least 1. A tile begins where a part does, or lies in one.
    pub rows: usize,
}

impl Plane {
    /// No plane.
    pub const NONE: Plane = Plane { base: Ptr::NULL, step: 0, rows: 1 };

    /// The part of row `i`.
    #[inline(always)]
    pub fn at(&self, i: usize) -> *const u8 {
        self.base.raw().wrapping_add(i / self.rows * self.step)
    }
    /// The same plane for the tile that begins at row `first`.
    pub fn from(&self, first: usize) -> Plane {
        Plane { base: Ptr::of(self.at(first)), ..*self }
    }
}

/// Planes and numbers beside the codes of a tile.
#[derive(Copy, Clone, Debug)]
pub struct Side {
    /// Scales.
    pub scales: Plane,
    /// Offsets or zeros.
    pub mins: Plane,
    /// How scales (and offsets) are stored.
    pub scale: Scale,
    /// Groups of 32 (or, for tiles of single codes, columns) that share a scale, at least 1.
    pub per: usize,
    /// Multiplies everything.
    pub global: f32,
}

impl Side {
    /// Of formats of one plane.
    pub const NONE: Side = Side { scales: Plane::NONE, mins: Plane::NONE, scale: Scale::F32, per: 1, global: 1.0 };

    /// Of a matrix.
    ///
    /// # Errors
    /// [`Error::BadBuf`] where a plane is missing or too short, [`Error::NoKernel`] for rows its format cannot have.
    pub fn new(mem: &HostMemory, op: &'static str, m: &Mat) -> Result<Side> {
        let none = || Error::NoKernel { op, fmt: m.fmt.to_string() };
        let cuts = m.fmt.planes(m.k.into()).map_err(|_| none())?;
        let extents = extents(m).ok_or_else(none)?;
        let plane = |i: usize| -> Result<Plane> {
            let (Some(cut), Some(bytes)) = (cuts[i], extents[i]) else { return Ok(Plane::NONE) };
            let buf = m.planes[i].and_then(|b| b.slice(0, bytes)).ok_or(Error::BadBuf)?;
            let rows = if cut.rows == 0 { m.n.max(1) } else { cut.rows };
            let step = cut.bytes as usize * m.row_step as usize;
            Ok(Plane { base: Ptr::of(mem.ptr(&buf)?), step, rows: rows as usize })
        };
        let side = Side { scales: plane(1)?, mins: plane(2)?, ..Side::NONE };
        // SAFETY: four readable bytes; nobody writes weights while an op reads them.
        let number = || -> Result<f32> { Ok(unsafe { plane(3)?.base.raw().cast::<f32>().read_unaligned() }) };
        let scale = |d: DType| Scale::of(d).ok_or_else(none);
        let k = m.k as usize;
        Ok(match m.fmt {
            Format::Plain(_) => side,
            Format::Mxfp4Hf => Side { scale: Scale::E8M0, ..side },
            Format::Scaled(_) => Side { global: number()?, ..side },
            Format::Affine { group, scale: s, .. } | Format::Int4 { group, scale: s, .. } => {
                Side { scale: scale(s)?, per: group as usize / GROUP, ..side }
            }
            Format::Nvfp4 { global } => {
                let global = match global {
                    Global::None => 1.0,
                    Global::Multiplies => number()?,
                    Global::Divides => 1.0 / number()?,
                };
                Side { global, ..side }
            }
            Format::Fp8 { tile: [_, cols], scale: s } => {
                let per = if cols == 0 { k.next_multiple_of(16).max(16) } else { cols as usize };
                Side { scale: scale(s)?, per, ..side }
            }
        })
    }

    /// The same for the tile that begins at row `first`.
    pub fn from(&self, first: usize) -> Side {
        Side { scales: self.scales.from(first), mins: self.mins.from(first), ..*self }
    }
}
