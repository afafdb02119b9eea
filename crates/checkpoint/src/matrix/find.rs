//! Finding the tensors of a matrix by their names, and what they make together.

use super::MatrixInfo;
use super::scheme::Mode;
use crate::{Block, Checkpoint, DType, Dims, Error, Format, Global, PLANES, Result, TensorInfo};

/// The name that the unquantised checkpoint has for the matrix whose codes are in the tensor `name`.
pub(super) fn logical(name: &str) -> String {
    let packed = name.strip_suffix(".weight_packed").map(|base| format!("{base}.weight"));
    packed.or_else(|| name.strip_suffix("_blocks").map(str::to_string)).unwrap_or_else(|| name.to_string())
}

/// A tensor that is its own only plane.
pub(super) fn plain(t: &TensorInfo) -> MatrixInfo {
    let planes = [Some(t.clone()), None, None, None];
    MatrixInfo { name: t.name.clone(), format: Format::Plain(t.dtype), shape: t.shape.clone(), planes }
}

/// See [`Checkpoint::matrix`].
pub(super) fn matrix(ck: &Checkpoint, name: &str) -> Result<Option<MatrixInfo>> {
    let base = name.strip_suffix(".weight").unwrap_or(name);
    let seek = Seek { ck, name, base };
    if let Some(t) = ck.tensor(name) {
        return seek.with_weight(t).map(Some);
    }
    if let Some(t) = ck.tensor(&format!("{base}.weight_packed")) {
        return seek.packed(t).map(Some);
    }
    if let Some(t) = ck.tensor(&format!("{name}_blocks")) {
        return seek.blocks(t).map(Some);
    }
    match ck.tensor(&format!("{base}.qweight")) {
        Some(t) => Err(seek.bad(t, format!("GPTQ and AWQ layouts are not supported{}", ck.scheme().named()))),
        None => Ok(None),
    }
}

/// A matrix being looked for.
struct Seek<'a> {
    ck: &'a Checkpoint,
    name: &'a str,
    /// The name without `.weight`.
    base: &'a str,
}

impl<'a> Seek<'a> {
    fn bad(&self, t: &TensorInfo, why: String) -> Error {
        self.ck.named(t)(Error::Matrix(why))
    }

    /// The companion `{base}{suffix}`.
    fn beside(&self, suffix: &str) -> Option<&'a TensorInfo> {
        self.ck.tensor(&format!("{}{suffix}", self.base))
    }

    fn need(&self, t: &TensorInfo, suffix: &str) -> Result<&'a TensorInfo> {
        self.beside(suffix).ok_or_else(|| self.bad(t, format!("its '{}{suffix}' is missing", self.base)))
    }

    /// The codes go by the plain name.
    fn with_weight(&self, t: &TensorInfo) -> Result<MatrixInfo> {
        match t.dtype {
            DType::U32 if t.shape.len() >= 2 => self.mlx(t),
            DType::F8E4M3 if t.shape.len() >= 2 => self.fp8(t),
            DType::U8 | DType::I8 if t.shape.len() >= 2 => {
                if let Some(s) = self.beside(".weight_scale").or_else(|| self.beside(".scale")) {
                    return self.nibbles(t, s, self.beside(".weight_scale_2"), Global::Multiplies);
                }
                let what = format!("codes of {} without a scale are in no scheme that is supported", t.dtype);
                Err(self.bad(t, what + &self.ck.scheme().named()))
            }
            DType::Block(b @ Block::Nvfp4) => match self.beside(".scale").filter(|s| s.dtype == DType::F32) {
                Some(s) => self.finish(Format::Scaled(b), t.shape.clone(), [Some(t), None, None, Some(s)]),
                None => Ok(plain(t)),
            },
            _ => Ok(plain(t)),
        }
    }

    fn mlx(&self, t: &TensorInfo) -> Result<MatrixInfo> {
        let scales = self.need(t, ".scales")?;
        let none = || self.bad(t, "'quantization' in config.json does not say its bits and group_size".into());
        let m = self.ck.scheme().mlx(self.base).ok_or_else(none)?;
        let stream = t.shape.last().copied().unwrap_or(0).saturating_mul(32);
        if m.bits == 0 || !stream.is_multiple_of(m.bits.into()) {
            return Err(self.bad(t, format!("shape {:?} does not hold codes of {} bits", t.shape, m.bits)));
        }
        let mut shape = t.shape.clone();
        if let Some(k) = shape.last_mut() {
            *k = stream / u64::from(m.bits);
        }
        let wrong =
            |what: &str| self.bad(t, format!("{what} with {} bits in groups of {} is not known", m.bits, m.group));
        let (format, biases) = match (m.mode, m.bits, m.group) {
            (Mode::Affine, bits, group) => {
                self.scale_type(scales)?;
                let bits = u8::try_from(bits).map_err(|_| wrong("MLX affine"))?;
                (Format::Affine { bits, group, scale: scales.dtype }, Some(self.need(t, ".biases")?))
            }
            (Mode::Mxfp4, 4, 32) => (Format::Mxfp4Hf, None),
            (Mode::Nvfp4, 4, 16) => (Format::Nvfp4 { global: Global::None }, None),
            (Mode::Mxfp8, 8, 32) => (Format::Fp8 { tile: [1, 32], scale: DType::E8M0 }, None),
            _ => return Err(wrong("an MLX mode")),
        };
        if let Some(b) = biases.filter(|b| b.dtype != scales.dtype) {
            return Err(self.bad(b, format!("biases of {} beside scales of {}", b.dtype, scales.dtype)));
        }
        self.finish(format, shape, [Some(t), Some(scales), biases, None])
    }

    /// Refuses scales that are no floats.
    fn scale_type(&self, s: &TensorInfo) -> Result<()> {
        match s.dtype {
            DType::F32 | DType::F16 | DType::BF16 => Ok(()),
            other => Err(self.bad(s, format!("scales of {other}; F32, F16 and BF16 can be used"))),
        }
    }

    fn fp8(&self, t: &TensorInfo) -> Result<MatrixInfo> {
        let found = [".weight_scale_inv", ".weight_scale", ".scale"].iter().find_map(|s| self.beside(s));
        let s = found.ok_or_else(|| self.bad(t, format!("its '{}.weight_scale_inv' is missing", self.base)))?;
        let scale = match s.dtype {
            DType::U8 => DType::E8M0,
            DType::E8M0 => DType::E8M0,
            _ => {
                self.scale_type(s)?;
                s.dtype
            }
        };
        let (stack, matrix) = t.shape.split_at(t.shape.len() - 2);
        let (n, k, e) = (matrix[0], matrix[1], stack.iter().product::<u64>());
        let [rows, cols] = self.ck.scheme().tile.unwrap_or([128, 128]);
        let tiled = |r: u32, c: u32| r > 0 && c > 0 && s.shape.ends_with(&[n.div_ceil(r.into()), k.div_ceil(c.into())]);
        let each = s.elems().checked_div(e).unwrap_or(0);
        // Kernels take sixteen rows at a time and sixteen elements of each.
        let whole = |t: u32| t.is_multiple_of(16);
        let tile = if tiled(rows, cols) && whole(rows) && whole(cols) {
            [rows, cols]
        } else if each == 1 {
            [0, 0]
        } else if each == n {
            [1, 0]
        } else {
            let (a, b) = (n.div_ceil(rows.max(1).into()), k.div_ceil(cols.max(1).into()));
            let shape = &s.shape;
            return Err(self.bad(
                s,
                format!("scales of shape {shape:?}; a matrix [{n}, {k}] in tiles of {rows} x {cols} needs [{a}, {b}]"),
            ));
        };
        self.finish(Format::Fp8 { tile, scale }, t.shape.clone(), [Some(t), Some(s), None, None])
    }

    /// E2M1 nibbles, two to a byte.
    fn nibbles(&self, t: &TensorInfo, s: &TensorInfo, global: Option<&TensorInfo>, does: Global) -> Result<MatrixInfo> {
        let mut shape = t.shape.clone();
        if let Some(k) = shape.last_mut() {
            *k = k.saturating_mul(2);
        }
        let format = match s.dtype {
            DType::F8E4M3 => {
                let name = if does == Global::Divides { "weight_global_scale" } else { "weight_scale_2" };
                let global = global.ok_or_else(|| self.bad(t, format!("its '{}.{name}' is missing", self.base)))?;
                if global.dtype != DType::F32 {
                    return Err(self.bad(global, format!("a global scale of {}; F32 is needed", global.dtype)));
                }
                return self.finish(Format::Nvfp4 { global: does }, shape, [Some(t), Some(s), None, Some(global)]);
            }
            DType::U8 | DType::E8M0 => Format::Mxfp4Hf,
            other => return Err(self.bad(s, format!("scales of {other} for four-bit floats"))),
        };
        self.finish(format, shape, [Some(t), Some(s), None, None])
    }

    /// compressed-tensors.
    fn packed(&self, t: &TensorInfo) -> Result<MatrixInfo> {
        let s = self.need(t, ".weight_scale")?;
        if t.dtype == DType::U8 {
            return self.nibbles(t, s, self.beside(".weight_global_scale"), Global::Divides);
        }
        if t.dtype != DType::I32 {
            return Err(self.bad(t, format!("packed codes of {}; U8 and I32 are known", t.dtype)));
        }
        self.scale_type(s)?;
        let mut shape = t.shape.clone();
        let (Some(k), Some(&groups)) = (shape.last_mut(), s.shape.last()) else {
            return Err(self.bad(t, "packed codes have no rows".into()));
        };
        *k = k.saturating_mul(8);
        let k = *k;
        self.four_bits(t, &shape)?;
        if groups == 0 || !k.is_multiple_of(groups) {
            return Err(self.bad(s, format!("{groups} scales a row do not divide rows of {k} elements")));
        }
        let group = u32::try_from(k / groups).map_err(|_| self.bad(s, format!("groups of {} elements", k / groups)))?;
        let zero = self.beside(".weight_zero_point");
        let format = Format::Int4 { group, zero: zero.is_some(), scale: s.dtype };
        self.finish(format, shape, [Some(t), Some(s), zero, None])
    }

    /// That `weight_shape`, where there is one, is what codes of four bits would have.
    fn four_bits(&self, t: &TensorInfo, shape: &Dims) -> Result<()> {
        let Some(s) = self.beside(".weight_shape").filter(|s| s.dtype == DType::I64) else { return Ok(()) };
        if s.at.len != 8 * shape.len() as u64 {
            return Err(self.bad(s, format!("{} bytes for {} dimensions", s.at.len, shape.len())));
        }
        let mut bytes = vec![0; s.at.len as usize];
        self.ck.read_at(s.at, &mut bytes)?;
        let said: Vec<i64> = bytes.as_chunks::<8>().0.iter().map(|b| i64::from_le_bytes(*b)).collect();
        if said.iter().zip(shape).all(|(a, b)| u64::try_from(*a) == Ok(*b)) {
            return Ok(());
        }
        Err(self.bad(t, format!("'{}.weight_shape' is {said:?}, and codes of four bits make it {shape:?}; other widths are not supported", self.base)))
    }

    /// gpt-oss: sixteen bytes a group as a dimension of their own.
    fn blocks(&self, t: &TensorInfo) -> Result<MatrixInfo> {
        let scales = format!("{}_scales", self.name);
        let s = self.ck.tensor(&scales).ok_or_else(|| self.bad(t, format!("its '{scales}' is missing")))?;
        let [outer @ .., groups, 16] = &t.shape[..] else {
            return Err(self.bad(t, format!("shape {:?}; blocks end in sixteen bytes", t.shape)));
        };
        let mut shape = Dims::from_slice(outer);
        shape.push(groups.saturating_mul(32));
        if t.dtype != DType::U8 || !matches!(s.dtype, DType::U8 | DType::E8M0) {
            return Err(self.bad(t, format!("blocks of {} with scales of {}; U8 is needed", t.dtype, s.dtype)));
        }
        self.finish(Format::Mxfp4Hf, shape, [Some(t), Some(s), None, None])
    }

    /// Checks that every plane has the bytes its matrices need.
    fn finish(&self, format: Format, shape: Dims, planes: [Option<&TensorInfo>; PLANES]) -> Result<MatrixInfo> {
        let info = MatrixInfo { name: self.name.into(), format, shape, planes: planes.map(|t| t.cloned()) };
        let (n, k, e) = (info.n(), info.k(), info.count());
        let Some(main) = planes[0] else { return Ok(info) };
        let cuts = format.planes(k).map_err(|why| self.bad(main, why))?;
        for (i, (t, cut)) in planes.into_iter().zip(cuts).enumerate() {
            let (Some(t), Some(cut)) = (t, cut) else { continue };
            let need = cut.total(n).saturating_mul(e);
            if t.at.len != need && !(i == 3 && t.at.len == 4) {
                let (shape, of) = (&t.shape, &info.shape);
                let why =
                    format!("shape {shape:?} of {} has {} bytes; {of:?} in {format} needs {need}", t.dtype, t.at.len);
                return Err(self.bad(t, why));
            }
        }
        Ok(info)
    }
}
