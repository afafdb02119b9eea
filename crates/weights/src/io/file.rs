//! The files of a checkpoint, opened for reading past the page cache.

use crate::error::Result;
use checkpoint::{ByteRange, Checkpoint, FileId, Reader};
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// What direct reads may have to be aligned to, the finest first: blocks of the disk.
const ALIGNS: [u64; 2] = [512, 4096];

/// Whether reads may leave their bytes in the page cache.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// Past it, where the file system can do that.
    #[default]
    Direct,
    /// Through it.
    PageCache,
}

#[derive(Clone, Debug)]
enum Open {
    /// Opened once more, for direct reads.
    Direct(Arc<File>),
    /// As the checkpoint has it.
    Shared(Reader),
}

/// Files by their number in the checkpoint. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Files {
    open: Arc<[Open]>,
    names: Arc<[Arc<str>]>,
    align: u64,
}

impl Files {
    /// Opens all files of a checkpoint.
    ///
    /// # Errors
    /// A file that is not there any more.
    pub fn open(ck: &Checkpoint, access: Access) -> Result<Self> {
        let (mut open, mut names, mut align) = (Vec::new(), Vec::new(), 1);
        for i in 0..ck.files() {
            let id = FileId(i);
            let path = ck.path(id);
            let direct = path.filter(|_| access == Access::Direct).and_then(direct);
            let reader = ck.reader(ByteRange { file: id, off: 0, len: 0 })?;
            names.push(path.map_or_else(|| "model in memory".into(), |p| p.display().to_string().into()));
            match direct {
                // A file that took the place of the one that was opened would have other bytes.
                Some((file, a)) if reader.is_file(&file) => {
                    align = a.max(align);
                    open.push(Open::Direct(Arc::new(file)));
                }
                _ => open.push(Open::Shared(reader)),
            }
        }
        Ok(Files { open: open.into(), names: names.into(), align })
    }
    /// How many there are.
    pub fn len(&self) -> u32 {
        self.open.len() as u32
    }
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }
    /// What offsets, lengths and addresses of reads are multiples of.
    pub fn align(&self) -> u64 {
        self.align
    }
    /// Whether all reads go past the page cache.
    pub fn is_direct(&self) -> bool {
        self.open.iter().all(|f| matches!(f, Open::Direct(_)))
    }
    /// A file's name in errors.
    pub fn name(&self, file: u32) -> Arc<str> {
        self.names.get(file as usize).cloned().unwrap_or_else(|| "no file".into())
    }
    /// The file for readers that give the system its descriptor, `None` where there is none.
    pub fn descriptor(&self, file: u32) -> Option<&File> {
        match self.open.get(file as usize)? {
            Open::Direct(f) => Some(f),
            Open::Shared(r) => r.file(),
        }
    }
    /// Reads once from `off` on; returns how many bytes.
    pub(super) fn read_once(&self, file: u32, off: u64, to: &mut [u8]) -> io::Result<usize> {
        match self.open.get(file as usize) {
            Some(Open::Direct(f)) => checkpoint::read_once(f, to, off),
            Some(Open::Shared(r)) => r.read_once(off, to),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }
}

/// The file opened for direct reads, and what they are aligned to. `None` where the file system refuses.
#[cfg(target_os = "linux")]
fn direct(path: &Path) -> Option<(File, u64)> {
    use std::os::unix::fs::OpenOptionsExt;
    let flag = rustix::fs::OFlags::DIRECT.bits() as i32;
    let file = std::fs::OpenOptions::new().read(true).custom_flags(flag).open(path).ok()?;
    // Some file systems take the flag and refuse the read; so does a disk whose blocks are larger.
    let mut room = vec![0u8; 3 * ALIGNS[1] as usize];
    let first = room.as_ptr().align_offset(ALIGNS[1] as usize);
    let align = ALIGNS.into_iter().find(|&align| {
        let at = first + align as usize;
        let probe = room.get_mut(at..at + align as usize);
        probe.is_some_and(|to| checkpoint::read_once(&file, to, align).is_ok())
    })?;
    Some((file, align))
}

#[cfg(not(target_os = "linux"))]
fn direct(_: &Path) -> Option<(File, u64)> {
    None
}
