//! An opened checkpoint: metadata, tensors, and reads at checked places.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::matrix::Scheme;
use crate::meta::Hf;
use crate::source::{Bytes, FileIds, Stored};
use crate::{ByteRange, Error, FileId, Meta, Result, Source, TensorInfo, locate};

/// A model's files, opened: everything about them was checked except the weights themselves, which are read when asked for.
#[derive(Debug)]
pub struct Checkpoint {
    meta: Meta,
    files: Files,
    tensors: Vec<TensorInfo>,
    index: HashMap<Arc<str>, usize>,
    scheme: Scheme,
    vision: Vec<PathBuf>,
}

impl Checkpoint {
    /// Opens a checkpoint and reads its headers.
    ///
    /// # Errors
    /// Anything in [`Error`]; the message names the file and the key or tensor.
    pub fn open(source: impl Into<Source>) -> Result<Self> {
        match source.into() {
            Source::Path(p) => locate::open(&p),
            Source::Embedded(b) => locate::open_memory(Bytes::Static(b)),
            Source::Bytes(b) => locate::open_memory(Bytes::Shared(b)),
        }
    }

    pub(crate) fn gguf(files: Vec<Stored>, meta: Meta, tensors: Vec<TensorInfo>) -> Self {
        let index = tensors.iter().enumerate().map(|(i, t)| (t.name.clone(), i)).collect();
        let scheme = Scheme::of(meta.config());
        let files = Files { all: files.into_iter().map(Arc::new).collect(), name: meta.file().into() };
        Self { meta, files, tensors, index, scheme, vision: Vec::new() }
    }

    pub(crate) fn beside(self, vision: Vec<PathBuf>) -> Self {
        Self { vision, ..self }
    }

    /// Files with vision towers that lie beside a GGUF. They are not part of this checkpoint.
    pub fn vision_files(&self) -> &[PathBuf] {
        &self.vision
    }

    pub(crate) fn hf(files: Vec<Stored>, tensors: Vec<TensorInfo>, hf: Hf, dir: &Path) -> Self {
        Self::gguf(files, Meta::for_hf(dir.display().to_string().into(), hf), tensors)
    }

    /// What the checkpoint says about itself.
    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    /// A tensor by name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.index.get(name).map(|i| &self.tensors[*i])
    }

    /// All tensors, file by file, in the order of their data.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = &TensorInfo> {
        self.tensors.iter()
    }

    /// Bytes of all tensors.
    pub fn weight_bytes(&self) -> u64 {
        self.tensors.iter().map(|t| t.at.len).sum()
    }

    /// Reads a range into `dst`, which has its length. May be called from several threads at once.
    ///
    /// # Errors
    /// [`Error::Shrunk`] when the file has become shorter or the range is not one of this checkpoint, [`Error::Io`].
    pub fn read_at(&self, r: ByteRange, dst: &mut [u8]) -> Result<()> {
        self.files.read_at(r, dst)
    }

    /// Its files, for reading weights when this checkpoint is gone.
    pub fn stored(&self) -> Files {
        self.files.clone()
    }

    /// The file of a range, for reading it when this checkpoint is gone.
    ///
    /// # Errors
    /// [`Error::Shrunk`] when the range is not one of this checkpoint.
    pub fn reader(&self, r: ByteRange) -> Result<Reader> {
        let file = self.files.all.get(r.file.0 as usize).cloned();
        file.map(Reader).ok_or_else(|| self.files.foreign(r))
    }

    /// Checks that a tensor can be decoded, so that a format without a decoder is refused by name before anything is read.
    ///
    /// # Errors
    /// [`Error::Tensor`].
    pub fn usable(&self, t: &TensorInfo) -> Result<()> {
        if t.dtype.decodable() { Ok(()) } else { Err(self.named(t)(Error::Undecodable { dtype: t.dtype })) }
    }

    /// Reads and decodes the slices `first..first + n` along the slowest dimension of a tensor (see [`TensorInfo::slice0`]); `dst` has exactly their
    /// elements. Meant for small tensors and single rows.
    ///
    /// # Errors
    /// [`Error::Tensor`] when the type has no decoder or `dst` another length, [`Error::Slice`], and as [`Checkpoint::read_at`].
    pub fn read_f32(&self, t: &TensorInfo, first: u64, n: u64, dst: &mut [f32]) -> Result<()> {
        self.usable(t)?;
        let range = if t.shape.is_empty() { t.at } else { t.slice0(first, n)? };
        let mut bytes = vec![0; usize::try_from(range.len).unwrap_or(usize::MAX)];
        self.read_at(range, &mut bytes)?;
        t.dtype.decode(&bytes, dst).map_err(self.named(t))
    }

    /// The same with another configuration's settings of quantisation.
    pub(crate) fn with_config(self, config: Option<&serde_json::Value>) -> Self {
        Self { scheme: Scheme::of(config), ..self }
    }

    /// What the configuration says about quantisation.
    pub(crate) fn scheme(&self) -> &Scheme {
        &self.scheme
    }

    pub(crate) fn named(&self, t: &TensorInfo) -> impl Fn(Error) -> Error {
        let file = self.files.all.get(t.at.file.0 as usize).map_or_else(|| self.meta.file().into(), |f| f.name.clone());
        let tensor = t.name.to_string();
        move |e| Error::Tensor { file: file.clone(), tensor: tensor.clone(), why: e.to_string() }
    }

    /// The bytes of a range where they lie, if the checkpoint is linked into the program.
    pub fn embedded(&self, r: ByteRange) -> Option<&'static [u8]> {
        self.files.embedded(r)
    }

    /// The path of a file, for readers that open it in their own way; `None` for bytes in memory.
    pub fn path(&self, file: FileId) -> Option<&Path> {
        self.files.all.get(file.0 as usize)?.path()
    }

    /// Number of files; their ids count from 0.
    pub fn files(&self) -> u32 {
        self.files.all.len() as u32
    }

    /// Which files these were when they were opened. For bytes in memory a checksum is computed.
    pub fn identity(&self) -> FileIds {
        FileIds(self.files.all.iter().map(|f| f.stamp()).collect())
    }
}

/// The open files of a checkpoint. Cheap to clone; several threads may read them at once.
#[derive(Clone, Debug)]
pub struct Files {
    all: Vec<Arc<Stored>>,
    name: Arc<str>,
}

impl Files {
    /// Reads a range into `dst`, which has its length.
    ///
    /// # Errors
    /// As [`Checkpoint::read_at`].
    pub fn read_at(&self, r: ByteRange, dst: &mut [u8]) -> Result<()> {
        let file = self.file(r)?;
        if r.len != dst.len() as u64 {
            let name = file.name.clone();
            return Err(Error::Shrunk { file: name, off: r.off, want: r.len, have: dst.len() as u64 });
        }
        file.read_at(r.off, dst)
    }

    /// The bytes of a range where they lie, if they are linked into the program.
    pub fn embedded(&self, r: ByteRange) -> Option<&'static [u8]> {
        let Bytes::Static(b) = self.file(r).ok()?.bytes()? else { return None };
        b.get(usize::try_from(r.off).ok()?..)?.get(..usize::try_from(r.len).ok()?)
    }

    fn file(&self, r: ByteRange) -> Result<&Stored> {
        self.all.get(r.file.0 as usize).map(Arc::as_ref).ok_or_else(|| self.foreign(r))
    }

    fn foreign(&self, r: ByteRange) -> Error {
        Error::Shrunk { file: self.name.clone(), off: r.off, want: r.len, have: 0 }
    }
}

/// An open file of a checkpoint. Several threads may read it at once.
#[derive(Clone, Debug)]
pub struct Reader(Arc<Stored>);

impl Reader {
    /// Fills `dst` from byte `off` of the file on.
    ///
    /// # Errors
    /// [`Error::Shrunk`] when the file has become shorter, [`Error::Io`].
    pub fn read_at(&self, off: u64, dst: &mut [u8]) -> Result<()> {
        self.0.read_at(off, dst)
    }
    /// Reads from byte `off` on, as much as the system gives at once; at the end of the file nothing.
    ///
    /// # Errors
    /// The system's.
    pub fn read_once(&self, off: u64, dst: &mut [u8]) -> std::io::Result<usize> {
        self.0.read_once(off, dst)
    }
    /// The open file; `None` for bytes in memory.
    pub fn file(&self) -> Option<&std::fs::File> {
        self.0.file()
    }
    /// Whether an open file is this one, as it was when the checkpoint was opened.
    pub fn is_file(&self, file: &std::fs::File) -> bool {
        self.0.is(file)
    }
}
