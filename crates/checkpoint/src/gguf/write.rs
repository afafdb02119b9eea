//! The streaming GGUF writer: every tensor is announced first, then its data is asked for, so that memory holds one piece at a time.

use std::io::{self, BufWriter, Write};
use std::path::Path;

use super::{ALIGNMENT, check_alignment, types};
use crate::error::FileName;
use crate::tensor::measure;
use crate::{DType, Dims, Error, Meta, Result};

/// A tensor that will be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewTensor {
    /// Name in the file.
    pub name: String,
    /// How it will be stored.
    pub dtype: DType,
    /// Dimensions, slowest first.
    pub shape: Dims,
}

impl NewTensor {
    /// From its parts.
    pub fn new(name: impl Into<String>, dtype: DType, shape: &[u64]) -> Self {
        Self { name: name.into(), dtype, shape: shape.into() }
    }
}

/// Where one tensor's data goes.
pub struct TensorWriter<'a> {
    out: &'a mut dyn Write,
    file: &'a FileName,
    tensor: &'a NewTensor,
    left: u64,
    want: u64,
}

impl<'a> TensorWriter<'a> {
    pub(crate) fn new(out: &'a mut dyn Write, file: &'a FileName, tensor: &'a NewTensor, want: u64) -> Self {
        Self { out, file, tensor, left: want, want }
    }

    /// The tensor being written.
    pub fn tensor(&self) -> &NewTensor {
        self.tensor
    }

    /// Appends bytes as they will be in the file.
    ///
    /// # Errors
    /// [`Error::WrongSize`] when this is more than the tensor takes, [`Error::Io`].
    pub fn bytes(&mut self, b: &[u8]) -> Result<()> {
        let Some(left) = self.left.checked_sub(b.len() as u64) else {
            return Err(self.wrong_size(self.want - self.left + b.len() as u64));
        };
        self.left = left;
        self.out.write_all(b).map_err(write_error(self.file))
    }

    /// Appends values (whole rows, or at least whole blocks), encoded in the tensor's type.
    ///
    /// # Errors
    /// As [`TensorWriter::bytes`], and [`Error::Unwritable`] or [`Error::Row`] when they cannot be encoded.
    pub fn floats(&mut self, x: &[f32]) -> Result<()> {
        let dtype = self.tensor.dtype;
        // A piece at a time: large enough to be quick, small enough not to matter.
        for piece in x.chunks(64 * 1024) {
            let mut b = vec![0; dtype.row_bytes(piece.len() as u64)? as usize];
            dtype.encode(piece, &mut b).map_err(|e| Error::Tensor {
                file: self.file.clone(),
                tensor: self.tensor.name.clone(),
                why: e.to_string(),
            })?;
            self.bytes(&b)?;
        }
        Ok(())
    }

    fn wrong_size(&self, have: u64) -> Error {
        Error::WrongSize { file: self.file.clone(), tensor: self.tensor.name.clone(), want: self.want, have }
    }

    pub(crate) fn finish(self) -> Result<()> {
        if self.left == 0 { Ok(()) } else { Err(self.wrong_size(self.want - self.left)) }
    }
}

pub(crate) fn write_error(file: &FileName) -> impl FnOnce(io::Error) -> Error {
    let file = file.clone();
    |source| Error::Io { file, action: "write", source }
}

/// Sizes of announced tensors, checked.
pub(crate) struct Plan {
    pub(crate) lens: Vec<u64>,
}

impl Plan {
    pub(crate) fn of(file: &FileName, tensors: &[NewTensor]) -> Result<Self> {
        let mut seen = std::collections::HashSet::new();
        let mut lens = Vec::with_capacity(tensors.len());
        for t in tensors {
            let bad = |why: String| Error::Tensor { file: file.clone(), tensor: t.name.clone(), why };
            if t.name.is_empty() || !seen.insert(&t.name) {
                return Err(bad("has no name, or one that is taken".into()));
            }
            lens.push(measure(t.dtype, &t.shape).map_err(bad)?);
        }
        Ok(Self { lens })
    }
}

/// Writes a GGUF (version 3): first a temporary file beside `out`, which takes its name when all is written, so that `out` is never half a file.
///
/// `fill(i, w)` is called once for every tensor in order and writes exactly its bytes. Keys that describe a split set are left out. The alignment is 32
/// unless `meta` has `general.alignment`.
///
/// # Errors
/// Anything `fill` returns, [`Error::Tensor`] for a tensor that GGUF cannot hold, [`Error::WrongSize`], [`Error::Io`].
pub fn write_gguf<E: From<Error>>(
    out: &Path,
    meta: &Meta,
    tensors: &[NewTensor],
    fill: impl FnMut(usize, &mut TensorWriter<'_>) -> Result<(), E>,
) -> Result<(), E> {
    atomically(out, |w, file| write_to(w, file, meta, tensors, fill).map(|()| 0))
}

/// As [`write_gguf`] without any data: behind the header comes a hole of the right length, which reads as zeros and takes no room on the disk. The file can
/// be opened, listed and planned for; its weights are nothing.
///
/// # Errors
/// As [`write_gguf`].
pub fn write_gguf_hole(out: &Path, meta: &Meta, tensors: &[NewTensor]) -> Result<()> {
    atomically(out, |w, file| {
        let (plan, alignment) = (Plan::of(file, tensors)?, alignment(file, meta)?);
        w.write_all(&head(file, meta, tensors, &plan, alignment)?).map_err(write_error(file))?;
        // The header has checked that the sum fits.
        Ok(plan.lens.iter().map(|len| len.next_multiple_of(alignment)).sum())
    })
}

/// As [`write_gguf`], to any writer, for instance a `Vec<u8>`.
///
/// # Errors
/// As [`write_gguf`].
pub fn write_gguf_to<E: From<Error>>(
    mut out: impl Write,
    meta: &Meta,
    tensors: &[NewTensor],
    fill: impl FnMut(usize, &mut TensorWriter<'_>) -> Result<(), E>,
) -> Result<(), E> {
    write_to(&mut out, &"new GGUF".into(), meta, tensors, fill)
}

fn write_to<E: From<Error>>(
    out: &mut dyn Write,
    file: &FileName,
    meta: &Meta,
    tensors: &[NewTensor],
    mut fill: impl FnMut(usize, &mut TensorWriter<'_>) -> Result<(), E>,
) -> Result<(), E> {
    let (plan, alignment) = (Plan::of(file, tensors)?, alignment(file, meta)?);
    let head = head(file, meta, tensors, &plan, alignment)?;
    out.write_all(&head).map_err(write_error(file))?;
    for (i, (t, len)) in tensors.iter().zip(plan.lens).enumerate() {
        let mut w = TensorWriter::new(out, file, t, len);
        fill(i, &mut w)?;
        w.finish()?;
        pad(out, len, alignment).map_err(write_error(file))?;
    }
    Ok(())
}

fn alignment(file: &FileName, meta: &Meta) -> Result<u64> {
    let bad = |why| Error::Key { file: file.clone(), key: "general.alignment".into(), why };
    match meta.u64("general.alignment")? {
        Some(a) => check_alignment(a).map_err(bad),
        None => Ok(ALIGNMENT),
    }
}

fn pad(out: &mut dyn Write, len: u64, alignment: u64) -> io::Result<()> {
    let n = len.next_multiple_of(alignment) - len;
    io::copy(&mut io::Read::take(io::repeat(0), n), out).map(drop)
}

/// Everything before the data, padded.
fn head(file: &FileName, meta: &Meta, tensors: &[NewTensor], plan: &Plan, alignment: u64) -> Result<Vec<u8>> {
    let pairs: Vec<_> = meta.encoded_entries().filter(|(k, _)| !k.starts_with("split.")).collect();
    let mut h = b"GGUF".to_vec();
    h.extend(3u32.to_le_bytes());
    h.extend((tensors.len() as u64).to_le_bytes());
    h.extend((pairs.len() as u64).to_le_bytes());
    let string = |h: &mut Vec<u8>, s: &str| {
        h.extend((s.len() as u64).to_le_bytes());
        h.extend(s.as_bytes());
    };
    for (key, value) in pairs {
        string(&mut h, key);
        h.extend((value.kind as u32).to_le_bytes());
        h.extend(value.raw());
    }
    let mut offset = 0u64;
    for (t, len) in tensors.iter().zip(&plan.lens) {
        let bad = |why: String| Error::Tensor { file: file.clone(), tensor: t.name.clone(), why };
        let id = types::id_of(t.dtype).ok_or_else(|| bad(format!("is {}, which GGUF has no type for", t.dtype)))?;
        if !(1..=4).contains(&t.shape.len()) || t.shape.contains(&0) {
            return Err(bad(format!("has shape {:?}; GGUF holds 1 to 4 dimensions, none empty", t.shape.as_slice())));
        }
        string(&mut h, &t.name);
        h.extend((t.shape.len() as u32).to_le_bytes());
        t.shape.iter().rev().for_each(|d| h.extend(d.to_le_bytes()));
        h.extend(id.to_le_bytes());
        h.extend(offset.to_le_bytes());
        offset = offset
            .checked_add(*len)
            .and_then(|o| o.checked_next_multiple_of(alignment))
            .ok_or_else(|| bad("does not fit a file".into()))?;
    }
    h.resize(h.len().next_multiple_of(alignment as usize), 0);
    Ok(h)
}

/// Runs `write` on a temporary file in the directory of `out`, makes it durable and gives it its name. What `write` returns is the length of the hole that
/// ends the file.
pub(crate) fn atomically<E: From<Error>>(
    out: &Path,
    write: impl FnOnce(&mut dyn Write, &FileName) -> Result<u64, E>,
) -> Result<(), E> {
    let file: FileName = out.display().to_string().into();
    let io = |action| {
        let file = file.clone();
        move |source| Error::Io { file, action, source }
    };
    let dir = out.parent().filter(|d| !d.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut builder = tempfile::Builder::new();
    builder.prefix(".snug-").suffix(".part");
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    let temp = builder.tempfile_in(dir).map_err(io("create a file beside"))?;
    let mut w = BufWriter::with_capacity(1 << 20, temp);
    let hole = write(&mut w, &file)?;
    let temp = w.into_inner().map_err(|e| io("write")(e.into_error()))?;
    if hole > 0 {
        let end = temp.as_file().metadata().map_err(io("write"))?.len().saturating_add(hole);
        temp.as_file().set_len(end).map_err(io("extend"))?;
    }
    temp.as_file().sync_all().map_err(io("write"))?;
    temp.persist(out).map_err(|e| io("name")(e.error))?;
    Ok(())
}
