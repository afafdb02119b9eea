//! How one logical matrix is stored: over which planes, in what layout.
//!
//! A *plane* is a run of bytes with one part of all rows: codes, scales, minimums or zeros, and a number for the whole matrix. A block format has one
//! plane; the formats of safetensors files have two to four, each a tensor of its own.

mod decode;
mod encode;

use std::fmt;

use crate::{Block, DType};

/// Planes a matrix has at most: codes, scales, minimums or zeros, the number for the whole matrix.
pub const PLANES: usize = 4;

/// How one logical matrix `[n, k]` is stored over one to four planes.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum Format {
    /// One plane: row-major elements or blocks.
    Plain(DType),
    /// One plane of blocks, and (plane 3) one f32 that multiplies all of them.
    Scaled(Block),
    /// `w = scale * q + bias` with unsigned `bits`-wide codes in a little-endian bit stream along each row, one scale (plane 1) and one bias (plane 2) per
    /// `group` elements of a row: MLX.
    Affine {
        /// Bits of a code: 2, 3, 4, 5, 6 or 8.
        bits: u8,
        /// Elements that share a scale.
        group: u32,
        /// Type of scales and biases: F32, F16 or BF16.
        scale: DType,
    },
    /// E2M1 nibbles (low nibble = even element) with one E8M0 scale per 32 elements (plane 1): gpt-oss, MLX, compressed-tensors, DeepSeek.
    Mxfp4Hf,
    /// E2M1 nibbles (low nibble = even element), one E4M3 scale per 16 elements (plane 1), and as a rule one f32 for the whole matrix (plane 3).
    Nvfp4 {
        /// What that f32 does.
        global: Global,
    },
    /// E4M3 codes with one scale (plane 1) per tile of `tile[0]` rows and `tile[1]` columns, 0 standing for all of them.
    Fp8 {
        /// Rows and columns of a tile.
        tile: [u32; 2],
        /// Type of the scales: F32, F16, BF16 or E8M0.
        scale: DType,
    },
    /// Eight nibbles per little-endian 32-bit word along k, one scale (plane 1) per `group` elements: compressed-tensors' pack-quantized.
    /// `w = (q - zero) * scale`.
    Int4 {
        /// Elements that share a scale.
        group: u32,
        /// Zeros are stored (plane 2), eight rows to a word; without them the zero is 8.
        zero: bool,
        /// Type of the scales: F32, F16 or BF16.
        scale: DType,
    },
}

/// What the f32 of a whole NVFP4 matrix does.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum Global {
    /// There is none.
    None,
    /// It multiplies (modelopt's `weight_scale_2`).
    Multiplies,
    /// It divides (compressed-tensors' `weight_global_scale`).
    Divides,
}

/// How a plane is cut: `bytes` for every `rows` rows of the matrix.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Plane {
    /// Type of the elements in the file.
    pub dtype: DType,
    /// Bytes of one cut.
    pub bytes: u64,
    /// Rows of the matrix that it serves; 0 for all of them.
    pub rows: u32,
}

impl Plane {
    /// Bytes of the plane of a matrix with `n` rows; saturating, so that no size check can pass by overflow.
    pub fn total(&self, n: u64) -> u64 {
        match self.rows {
            0 => self.bytes,
            rows => n.div_ceil(u64::from(rows)).saturating_mul(self.bytes),
        }
    }
    /// Where the cut of a row begins.
    pub fn at(&self, row: u64) -> u64 {
        match self.rows {
            0 => 0,
            rows => (row / u64::from(rows)).saturating_mul(self.bytes),
        }
    }
}

/// Elements of a row that kernels take together, which the rows of every format with scales along them must be whole multiples of.
const STEP: u64 = 32;

impl Format {
    /// One of every kind over several planes, with who writes it. Tests of kernels and of whole models run over all of them, and the table of formats in
    /// `docs/models.md` is made of it.
    pub const KINDS: [(&'static str, Self); 14] = {
        const fn affine(bits: u8, scale: DType) -> Format {
            Format::Affine { bits, group: 64, scale }
        }
        [
            ("gpt-oss; MLX mxfp4; compressed-tensors mxfp4-pack-quantized; DeepSeek-V4's experts", Self::Mxfp4Hf),
            ("MLX", affine(2, DType::F16)),
            ("MLX", affine(3, DType::BF16)),
            ("MLX", affine(4, DType::BF16)),
            ("MLX", affine(5, DType::BF16)),
            ("MLX", affine(6, DType::BF16)),
            ("MLX", affine(8, DType::BF16)),
            ("MLX nvfp4", Self::Nvfp4 { global: Global::None }),
            ("modelopt NVFP4", Self::Nvfp4 { global: Global::Multiplies }),
            ("compressed-tensors nvfp4-pack-quantized", Self::Nvfp4 { global: Global::Divides }),
            ("FP8 of Qwen and DeepSeek", Self::Fp8 { tile: [128, 128], scale: DType::F32 }),
            ("MLX mxfp8", Self::Fp8 { tile: [1, 32], scale: DType::E8M0 }),
            ("compressed-tensors pack-quantized", Self::Int4 { group: 32, zero: false, scale: DType::BF16 }),
            ("compressed-tensors pack-quantized, asymmetric", Self::Int4 { group: 32, zero: true, scale: DType::F16 }),
        ]
    };

    /// The planes of a matrix whose rows have `k` elements.
    ///
    /// # Errors
    /// Why such rows cannot be, as a clause for a message that names the tensor.
    pub fn planes(&self, k: u64) -> Result<[Option<Plane>; PLANES], String> {
        let plane = |dtype: DType, bytes: u64, rows: u32| Some(Plane { dtype, bytes, rows });
        let of = |dtype: DType, n: u64| plane(dtype, n.saturating_mul(dtype.bytes() as u64), 1);
        let global = plane(DType::F32, 4, 0);
        let whole = |per: u64, what: &str| {
            if per > 0 && k.is_multiple_of(per) {
                Ok(())
            } else {
                Err(format!("rows of {k} elements are not whole {what} of {per}"))
            }
        };
        Ok(match *self {
            Self::Plain(d) => [plane(d, d.row_bytes(k).map_err(|e| e.to_string())?, 1), None, None, None],
            Self::Scaled(b) => {
                let d = DType::Block(b);
                [plane(d, d.row_bytes(k).map_err(|e| e.to_string())?, 1), None, None, global]
            }
            Self::Affine { bits, group, scale } => {
                if ![2, 3, 4, 5, 6, 8].contains(&bits) {
                    return Err(format!("codes of {bits} bits are not known; 2, 3, 4, 5, 6 and 8 are"));
                }
                group_of(group)?;
                whole(group.into(), "groups")?;
                let groups = k / u64::from(group);
                [of(DType::U32, k / STEP * u64::from(bits)), of(scale, groups), of(scale, groups), None]
            }
            Self::Mxfp4Hf => {
                whole(STEP, "groups")?;
                [of(DType::U8, k / 2), of(DType::E8M0, k / STEP), None, None]
            }
            Self::Nvfp4 { global: g } => {
                whole(STEP, "pairs of groups, which have")?;
                let global = if g == Global::None { None } else { global };
                [of(DType::U8, k / 2), of(DType::F8E4M3, k / 16), None, global]
            }
            Self::Fp8 { tile: [rows, cols], scale } => {
                let across = if cols == 0 { 1 } else { k.div_ceil(u64::from(cols)) };
                [of(DType::F8E4M3, k), plane(scale, across.saturating_mul(scale.bytes() as u64), rows), None, None]
            }
            Self::Int4 { group, zero, scale } => {
                group_of(group)?;
                whole(group.into(), "groups")?;
                let groups = k / u64::from(group);
                let zeros = if zero { plane(DType::I32, groups * 4, 8) } else { None };
                [of(DType::I32, k / 8), of(scale, groups), zeros, None]
            }
        })
    }

    /// Bytes of a whole matrix `[n, k]` over all planes, 0 where such rows cannot be.
    pub fn bytes(&self, n: u64, k: u64) -> u64 {
        let planes = self.planes(k).unwrap_or_default();
        planes.iter().flatten().fold(0, |sum, p| sum.saturating_add(p.total(n)))
    }

    /// Whether there is a decoder.
    pub const fn decodable(&self) -> bool {
        match self {
            Self::Plain(d) => d.decodable(),
            _ => true,
        }
    }

    /// Bits a weight takes, scales included but for those of whole matrices.
    pub fn bits(&self) -> f64 {
        // A width that all formats divide.
        const K: u64 = 1 << 16;
        self.bytes(K, K) as f64 * 8.0 / (K * K) as f64
    }
}

fn group_of(group: u32) -> Result<(), String> {
    if u64::from(group) >= STEP && u64::from(group).is_multiple_of(STEP) {
        return Ok(());
    }
    Err(format!("groups of {group} elements are not supported; they must be multiples of {STEP}"))
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match *self {
            Self::Plain(d) => d.name().to_string(),
            Self::Scaled(b) => format!("{b} scaled"),
            Self::Affine { bits, group, .. } => format!("affine {bits}-bit g{group}"),
            Self::Mxfp4Hf => "MXFP4 planes".into(),
            Self::Nvfp4 { .. } => "NVFP4 planes".into(),
            Self::Fp8 { tile: [0, 0], .. } => "FP8 E4M3".into(),
            Self::Fp8 { tile: [rows, cols], .. } => {
                let edge = |n: u32| if n == 0 { "all".to_string() } else { n.to_string() };
                format!("FP8 E4M3 {}x{}", edge(rows), edge(cols))
            }
            Self::Int4 { group, zero: false, .. } => format!("int4 g{group}"),
            Self::Int4 { group, zero: true, .. } => format!("int4 g{group} with zeros"),
        };
        f.pad(&text)
    }
}

impl From<DType> for Format {
    fn from(d: DType) -> Self {
        Self::Plain(d)
    }
}

impl From<Block> for Format {
    fn from(b: Block) -> Self {
        Self::Plain(b.into())
    }
}
