//! A file: a header of 4 KiB, then the bytes of a page or a snapshot.
//!
//! Numbers are little-endian. `magic 8, version 4, kind 4, fingerprint 16, key before 16, end 4, ids 4, page's end 4,
//! unused 4, page's key 16, bytes 8, their checksum 16, ids 4 each, zeros, checksum of all that 16`. Checksums are
//! XXH3 of 128 bits.

use super::key::Key;
use memory::PAGE_POSITIONS;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

const BLOCK: usize = 4096;
const MAGIC: &[u8; 8] = b"snugkept";
/// Changed with every change of the bytes below.
const VERSION: u32 = 1;
const IDS_AT: usize = 104;
const SUM_AT: usize = BLOCK - 16;

/// What a file holds.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// Keys and values of the ids of a page, or of the first of them.
    Page,
    /// What later positions overwrite, as it was behind the last id.
    State,
}

/// A file's name: what it holds, of which ids.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name {
    /// What it holds.
    pub kind: Kind,
    /// The ids up to its end.
    pub key: Key,
    /// How many these are.
    pub at: u32,
}

impl Name {
    /// The name in a directory.
    pub fn file(&self) -> String {
        let kind = match self.kind {
            Kind::Page => "page",
            Kind::State => "state",
        };
        format!("{:032x}-{}.{kind}", self.key.0, self.at)
    }
    /// Reads a name.
    pub fn parse(file: &str) -> Option<Name> {
        let (stem, kind) = file.split_once('.')?;
        let kind = match kind {
            "page" => Kind::Page,
            "state" => Kind::State,
            _ => return None,
        };
        let (key, at) = stem.split_once('-')?;
        let name = Name { kind, key: Key(u128::from_str_radix(key, 16).ok()?), at: at.parse().ok()? };
        (name.file() == file).then_some(name)
    }
}

/// What stands before the bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// What they are.
    pub kind: Kind,
    /// What gives them their meaning.
    pub of: u128,
    /// The ids before the page.
    pub before: Key,
    /// Positions up to the last of `ids`.
    pub at: u32,
    /// The ids from the page's beginning.
    pub ids: Vec<u32>,
    /// Of a snapshot: the page that has keys and values of its last positions; itself for a page.
    pub page: Name,
    /// How many bytes follow.
    pub bytes: u64,
}

impl Head {
    /// A page's.
    pub fn page(of: u128, before: Key, first: u32, ids: &[u32], bytes: u64) -> Head {
        let at = first + ids.len() as u32;
        let page = Name { kind: Kind::Page, key: before.then(ids), at };
        Head { kind: Kind::Page, of, before, at, ids: ids.to_vec(), page, bytes }
    }
    /// What its file is called.
    pub fn name(&self) -> Name {
        Name { kind: self.kind, key: self.before.then(&self.ids), at: self.at }
    }

    fn encode(&self, sum: u128) -> [u8; BLOCK] {
        let mut b = [0; BLOCK];
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            b[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        put(MAGIC);
        put(&VERSION.to_le_bytes());
        put(&(self.kind as u32).to_le_bytes());
        put(&self.of.to_le_bytes());
        put(&self.before.0.to_le_bytes());
        put(&self.at.to_le_bytes());
        put(&(self.ids.len() as u32).to_le_bytes());
        put(&self.page.at.to_le_bytes());
        put(&[0; 4]);
        put(&self.page.key.0.to_le_bytes());
        put(&self.bytes.to_le_bytes());
        put(&sum.to_le_bytes());
        self.ids.iter().for_each(|id| put(&id.to_le_bytes()));
        let own = xxh3_128(&b[..SUM_AT]);
        b[SUM_AT..].copy_from_slice(&own.to_le_bytes());
        b
    }

    /// A header and the checksum of what follows; `None` where it is not whole.
    fn decode(b: &[u8; BLOCK]) -> Option<(Head, u128)> {
        let n32 = |at: usize| u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]]);
        let n64 = |at: usize| u64::from(n32(at)) | u64::from(n32(at + 4)) << 32;
        let n128 = |at: usize| u128::from(n64(at)) | u128::from(n64(at + 8)) << 64;
        if &b[..8] != MAGIC || n32(8) != VERSION || n128(SUM_AT) != xxh3_128(&b[..SUM_AT]) {
            return None;
        }
        let kind = [Kind::Page, Kind::State].into_iter().find(|k| *k as u32 == n32(12))?;
        let (at, ids) = (n32(48), n32(52));
        if ids == 0 || ids > PAGE_POSITIONS || ids > at {
            return None;
        }
        let ids = (0..ids as usize).map(|i| n32(IDS_AT + i * 4)).collect();
        let page = Name { kind: Kind::Page, key: Key(n128(64)), at: n32(56) };
        Some((Head { kind, of: n128(16), before: Key(n128(32)), at, ids, page, bytes: n64(80) }, n128(88)))
    }
}

/// Writes a file whole: aside first, then under its name. Parts must come to as many bytes as the header says. How many
/// bytes it takes.
///
/// # Errors
/// Those of the file system; nothing is left then, unless removing it fails as well.
pub fn write<'a>(dir: &Path, head: &Head, parts: impl Iterator<Item = &'a [u8]> + Clone) -> io::Result<u64> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let mut sum = Xxh3::new();
    parts.clone().for_each(|p| sum.update(p));
    let name = head.name().file();
    let n = COUNT.fetch_add(1, Ordering::Relaxed);
    let aside = dir.join(format!("{name}.{}-{n}.tmp", std::process::id()));
    let put = || -> io::Result<()> {
        let mut f = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&aside)?;
        f.write_all(&head.encode(sum.digest128()))?;
        parts.clone().try_for_each(|p| f.write_all(p))?;
        // What is renamed before it is written can be empty after a crash; its checksums would say so, but it would be
        // lost. The pages of the cache are given back, which a budget may count.
        f.sync_data()?;
        let _ = rustix::fs::fadvise(&f, 0, None, rustix::fs::Advice::DontNeed);
        std::fs::rename(&aside, dir.join(&name))
    };
    put().inspect_err(|_| _ = std::fs::remove_file(&aside))?;
    Ok(BLOCK as u64 + head.bytes)
}

/// A file that is being read. Its bytes mean nothing until [`finish`](Self::finish) says so.
pub struct Opened {
    /// Its header, which is whole.
    pub head: Head,
    path: PathBuf,
    file: File,
    want: u128,
    sum: Xxh3,
    left: u64,
}

impl Opened {
    /// Opens a file of this name and fingerprint with so many bytes. `None` where there is none such; one that is there
    /// and broken is removed.
    pub fn open(dir: &Path, name: Name, of: u128, bytes: u64) -> Option<Opened> {
        let path = dir.join(name.file());
        let mut file = File::open(&path).ok()?;
        let mut block = [0; BLOCK];
        let whole =
            file.read_exact(&mut block).is_ok() && file.metadata().is_ok_and(|m| m.len() == BLOCK as u64 + bytes);
        let head = Head::decode(&block).filter(|(h, _)| whole && h.of == of && h.name() == name && h.bytes == bytes);
        let Some((head, want)) = head else {
            remove(&path);
            return None;
        };
        Some(Opened { head, path, file, want, sum: Xxh3::new(), left: bytes })
    }
    /// The next bytes; `false` where they are not there.
    pub fn fill(&mut self, to: &mut [u8]) -> bool {
        let ok = to.len() as u64 <= self.left && self.file.read_exact(to).is_ok();
        if ok {
            self.left -= to.len() as u64;
            self.sum.update(to);
        }
        ok
    }
    /// Whether everything was read and is what was written. A file that is not is removed.
    pub fn finish(self) -> bool {
        let _ = rustix::fs::fadvise(&self.file, 0, None, rustix::fs::Advice::DontNeed);
        let ok = self.left == 0 && self.sum.digest128() == self.want;
        if !ok {
            remove(&self.path);
        }
        ok
    }
}

/// Removes a file that is of no use. Another server may have done so, and one that cannot be removed is passed over the
/// next time, too.
fn remove(path: &Path) {
    let _ = std::fs::remove_file(path);
}
