//! The bytes behind a checkpoint: files read at positions, or memory. Nothing is mapped, so a file that shrinks gives an error and never a signal.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use crate::error::FileName;
use crate::{Error, Result};

/// Where a checkpoint comes from.
#[derive(Clone, Debug)]
pub enum Source {
    /// A `.gguf` file (any part of a split set), a `.safetensors` file, or a directory with either.
    Path(PathBuf),
    /// A GGUF or safetensors file linked into the program.
    Embedded(&'static [u8]),
    /// A GGUF or safetensors file in memory.
    Bytes(Arc<[u8]>),
}

impl From<PathBuf> for Source {
    fn from(p: PathBuf) -> Self {
        Self::Path(p)
    }
}

impl From<&Path> for Source {
    fn from(p: &Path) -> Self {
        Self::Path(p.into())
    }
}

/// Which bytes a checkpoint was opened from; equal as long as no file was replaced or touched.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct FileIds(pub Vec<FileStamp>);

/// One file's identity.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum FileStamp {
    /// A file in a file system.
    File {
        /// Bytes.
        size: u64,
        /// Modification time, nanoseconds since 1970; 0 if the system does not tell.
        mtime: i128,
        /// Device and inode; 0 where there are none.
        inode: (u64, u64),
    },
    /// Bytes in memory.
    Memory {
        /// Bytes.
        size: u64,
        /// A checksum of all of them (not cryptographic).
        sum: u64,
    },
}

/// Bytes in memory that can be shared.
#[derive(Clone, Debug)]
pub(crate) enum Bytes {
    Static(&'static [u8]),
    Shared(Arc<[u8]>),
}

impl Bytes {
    pub(crate) fn as_slice(&self) -> &[u8] {
        match self {
            Self::Static(b) => b,
            Self::Shared(b) => b,
        }
    }
}

/// One opened file.
#[derive(Debug)]
pub(crate) struct Stored {
    pub(crate) name: FileName,
    pub(crate) len: u64,
    backing: Backing,
}

#[derive(Debug)]
enum Backing {
    File { file: File, path: PathBuf, stamp: FileStamp },
    Memory(Bytes),
}

impl Stored {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let name: FileName = path.display().to_string().into();
        let io = |action| {
            let file = name.clone();
            move |source| Error::Io { file, action, source }
        };
        let file = File::open(path).map_err(io("open"))?;
        let meta = file.metadata().map_err(io("inspect"))?;
        if !meta.is_file() {
            return Err(Error::NotACheckpoint { file: name, what: "is neither a file nor a directory".into() });
        }
        let stamp = stamp(&meta);
        Ok(Self { name, len: meta.len(), backing: Backing::File { file, path: path.into(), stamp } })
    }

    pub(crate) fn memory(bytes: Bytes) -> Self {
        let name = match bytes {
            Bytes::Static(_) => "built-in model",
            Bytes::Shared(_) => "model in memory",
        };
        Self { name: name.into(), len: bytes.as_slice().len() as u64, backing: Backing::Memory(bytes) }
    }

    pub(crate) fn path(&self) -> Option<&Path> {
        match &self.backing {
            Backing::File { path, .. } => Some(path),
            Backing::Memory(_) => None,
        }
    }

    /// All bytes, if they are in memory anyway.
    pub(crate) fn bytes(&self) -> Option<&Bytes> {
        match &self.backing {
            Backing::File { .. } => None,
            Backing::Memory(b) => Some(b),
        }
    }

    pub(crate) fn stamp(&self) -> FileStamp {
        match &self.backing {
            Backing::File { stamp, .. } => stamp.clone(),
            Backing::Memory(b) => FileStamp::Memory { size: self.len, sum: checksum(b.as_slice()) },
        }
    }

    /// The open file, where there is one.
    pub(crate) fn file(&self) -> Option<&File> {
        match &self.backing {
            Backing::File { file, .. } => Some(file),
            Backing::Memory(_) => None,
        }
    }

    /// Whether an open file is the one that this was opened from, unchanged.
    pub(crate) fn is(&self, other: &File) -> bool {
        let Ok(meta) = other.metadata() else { return false };
        self.stamp() == stamp(&meta)
    }

    /// Reads once from `off` on; at the end of the file nothing.
    pub(crate) fn read_once(&self, off: u64, dst: &mut [u8]) -> std::io::Result<usize> {
        match &self.backing {
            Backing::File { file, .. } => read_once(file, dst, off),
            Backing::Memory(b) => {
                let from = b.as_slice().get(usize::try_from(off).unwrap_or(usize::MAX)..).unwrap_or_default();
                let n = from.len().min(dst.len());
                dst[..n].copy_from_slice(&from[..n]);
                Ok(n)
            }
        }
    }

    /// Fills `dst` from `off`, or says how much there was.
    pub(crate) fn read_at(&self, off: u64, dst: &mut [u8]) -> Result<()> {
        let want = dst.len() as u64;
        let have = match &self.backing {
            Backing::File { file, .. } => fill_at(file, off, dst).map_err(|source| Error::Io {
                file: self.name.clone(),
                action: "read",
                source,
            })?,
            Backing::Memory(b) => {
                let from = b.as_slice().get(usize::try_from(off).unwrap_or(usize::MAX)..).unwrap_or_default();
                let n = from.len().min(dst.len());
                dst[..n].copy_from_slice(&from[..n]);
                n
            }
        } as u64;
        if have == want { Ok(()) } else { Err(Error::Shrunk { file: self.name.clone(), off, want, have }) }
    }
}

fn stamp(meta: &std::fs::Metadata) -> FileStamp {
    let mtime = meta.modified().ok().map_or(0, |t| match t.duration_since(UNIX_EPOCH) {
        Ok(d) => d.as_nanos() as i128,
        Err(e) => -(e.duration().as_nanos() as i128),
    });
    FileStamp::File { size: meta.len(), mtime, inode: inode(meta) }
}

/// Reads until `dst` is full or the file ends; returns the bytes read. Several threads may read one file at once.
fn fill_at(file: &File, off: u64, dst: &mut [u8]) -> std::io::Result<usize> {
    let mut done = 0;
    while done < dst.len() {
        match read_once(file, &mut dst[done..], off.saturating_add(done as u64)) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}

/// Reads from byte `off` on, as much as the system gives at once.
///
/// # Errors
/// The system's.
#[cfg(unix)]
pub fn read_once(file: &File, dst: &mut [u8], off: u64) -> std::io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, dst, off)
}

/// Reads from byte `off` on, as much as the system gives at once.
///
/// # Errors
/// The system's.
#[cfg(windows)]
pub fn read_once(file: &File, dst: &mut [u8], off: u64) -> std::io::Result<usize> {
    std::os::windows::fs::FileExt::seek_read(file, dst, off)
}

#[cfg(unix)]
fn inode(m: &std::fs::Metadata) -> (u64, u64) {
    use std::os::unix::fs::MetadataExt;
    (m.dev(), m.ino())
}

#[cfg(not(unix))]
fn inode(_: &std::fs::Metadata) -> (u64, u64) {
    (0, 0)
}

/// FNV-1a over 64-bit words, so that tens of megabytes take milliseconds.
fn checksum(b: &[u8]) -> u64 {
    const PRIME: u64 = 0x0000_0100_0000_01B3;
    let (words, rest) = b.as_chunks::<8>();
    let h = words.iter().fold(0xCBF2_9CE4_8422_2325, |h: u64, w| (h ^ u64::from_le_bytes(*w)).wrapping_mul(PRIME));
    rest.iter().fold(h, |h, b| (h ^ u64::from(*b)).wrapping_mul(PRIME))
}
