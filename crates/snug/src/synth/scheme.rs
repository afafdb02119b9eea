//! Formats of several planes that safetensors files can be drawn in, by publisher.

use super::draw::{Stream, plane_noise};
use checkpoint::{DType, Format, Global, NewTensor, Plane};
use memory::Component;
use model::want::Want;
use serde_json::{Value, json};
use std::fmt;
use weights::Role;

/// How matrices are stored.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// MLX's affine codes of these bits, in groups of 64.
    Mlx(u8),
    /// gpt-oss: stacks of experts alone, everything else as floats.
    GptOss,
    /// E4M3 in tiles of 128 x 128.
    Fp8,
    /// modelopt's four-bit floats.
    Nvfp4,
    /// compressed-tensors' integers in groups of 128.
    Int4,
}

/// What matrices are drawn as.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Elements or blocks of a type.
    Type(DType),
    /// Several planes.
    Scheme(Scheme),
}

/// Names on the command line.
const NAMES: [(&str, Scheme); 5] = [
    ("mlx4", Scheme::Mlx(4)),
    ("mlx8", Scheme::Mlx(8)),
    ("fp8", Scheme::Fp8),
    ("nvfp4", Scheme::Nvfp4),
    ("int4", Scheme::Int4),
];

impl Kind {
    /// From a type's name, or one of `mlx4`, `mlx8`, `fp8`, `nvfp4` and `int4`.
    ///
    /// # Errors
    /// A name nobody knows, with those that are.
    pub fn parse(name: &str) -> anyhow::Result<Self> {
        let lower = name.to_ascii_lowercase();
        if let Some((_, s)) = NAMES.iter().find(|(n, _)| *n == lower) {
            return Ok(Kind::Scheme(*s));
        }
        let also = NAMES.map(|(n, _)| n).join(", ");
        let t = crate::quantize::parse_type(name);
        t.map(Kind::Type).map_err(|e| anyhow::anyhow!("{e}; in safetensors also {also}"))
    }
}

impl Kind {
    /// The type of what is stored plainly.
    pub fn plain(self) -> DType {
        if let Kind::Type(t) = self { t } else { DType::BF16 }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Type(t) => write!(f, "{t}"),
            Kind::Scheme(s) => write!(f, "{}", s.format()),
        }
    }
}

impl Scheme {
    /// The format of each matrix.
    pub fn format(self) -> Format {
        match self {
            Scheme::Mlx(bits) => Format::Affine { bits, group: 64, scale: DType::BF16 },
            Scheme::GptOss => Format::Mxfp4Hf,
            Scheme::Fp8 => Format::Fp8 { tile: [128, 128], scale: DType::F32 },
            Scheme::Nvfp4 => Format::Nvfp4 { global: Global::Multiplies },
            Scheme::Int4 => Format::Int4 { group: 128, zero: false, scale: DType::BF16 },
        }
    }

    /// Whether publishers store this parameter so. Only MLX does embeddings and heads, and only stacks of experts are gpt-oss'.
    pub fn takes(self, w: &Want) -> bool {
        let outer = matches!(w.component, Component::Embed | Component::Head);
        match self {
            Scheme::Mlx(_) => w.role != Role::Vector,
            Scheme::GptOss => matches!(w.role, Role::Experts { .. }),
            _ => w.role != Role::Vector && !outer,
        }
    }

    /// What the configuration says about it: a key and its value.
    pub fn config(self) -> (&'static str, Value) {
        let by = |method: &str| ("quantization_config", json!({"quant_method": method}));
        match self {
            Scheme::Mlx(bits) => ("quantization", json!({"group_size": 64, "bits": bits, "mode": "affine"})),
            Scheme::GptOss => by("mxfp4"),
            Scheme::Fp8 => ("quantization_config", json!({"quant_method": "fp8", "weight_block_size": [128, 128]})),
            Scheme::Nvfp4 => ("quantization_config", json!({"quant_method": "modelopt", "quant_algo": "NVFP4"})),
            Scheme::Int4 => by("compressed-tensors"),
        }
    }

    /// The tensors of a matrix or stack, plane by plane, `None` where its rows cannot be stored so.
    pub fn tensors(self, name: &str, shape: &[u64]) -> Option<Vec<(usize, NewTensor)>> {
        let (outer, [n, k]) = shape.split_last_chunk::<2>()?;
        let cuts = self.format().planes(*k).ok()?;
        let base = name.strip_suffix(".weight").unwrap_or(name);
        let present = cuts.into_iter().enumerate().filter_map(|(i, cut)| Some((i, cut?)));
        Some(present.map(|(i, cut)| (i, self.tensor(base, outer, *n, i, cut))).collect())
    }

    fn tensor(self, base: &str, outer: &[u64], n: u64, plane: usize, cut: Plane) -> NewTensor {
        let suffix = match (self, plane) {
            (Scheme::GptOss, 0) => "_blocks",
            (Scheme::GptOss, _) => "_scales",
            (Scheme::Mlx(_), 1) => ".scales",
            (Scheme::Mlx(_), 2) => ".biases",
            (Scheme::Int4, 0) => ".weight_packed",
            (_, 0) => ".weight",
            (Scheme::Fp8, _) => ".weight_scale_inv",
            (_, 3) => ".weight_scale_2",
            (_, _) => ".weight_scale",
        };
        let dtype = if cut.dtype == DType::E8M0 { DType::U8 } else { cut.dtype };
        let mut shape = outer.to_vec();
        if cut.rows > 0 {
            shape.extend([n.div_ceil(cut.rows.into()), cut.bytes / dtype.bytes() as u64]);
        }
        if self == Scheme::GptOss && plane == 0 {
            let bytes = shape.pop().unwrap_or(0);
            shape.extend([bytes / 16, 16]);
        }
        NewTensor::new(format!("{base}{suffix}"), dtype, &shape)
    }

    /// Draws bytes of a plane whose values are to have this standard deviation.
    pub fn draw(self, plane: usize, std: f32, s: Stream, out: &mut [u8]) {
        plane_noise(self.format(), plane, std, s, out);
    }
}
