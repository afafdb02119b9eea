//! From files to a device that is not the host: threads read ahead, in order, while the device copies and repacks.

use crate::error::{Error, Result};
use checkpoint::{ByteRange, Files};
use device::{Buf, Device, Mat};
use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Bytes read at a time.
const PIECE: u64 = 8 << 20;
/// Threads that read. One copies from the page cache at about half the rate that a device takes bytes at.
const READERS: usize = 4;
/// Pieces in memory at a time: one at the device, one for each reader, and as many that wait.
const PIECES: usize = 2 * READERS + 1;

/// Host bytes that pieces take.
pub const STAGING: u64 = PIECES as u64 * PIECE;

/// Where bytes go.
#[derive(Copy, Clone, Debug)]
pub enum To {
    /// Rows of a matrix from `first` on, in its layout.
    Rows {
        /// The matrix.
        mat: Mat,
        /// The first.
        first: u64,
        /// Bytes of a row in the file.
        row: u64,
    },
    /// A buffer, as they are.
    Bytes(Buf),
}

/// Something to read.
#[derive(Copy, Clone, Debug)]
pub struct Fill {
    /// Where it goes.
    pub to: To,
    /// Where it is.
    pub range: ByteRange,
}

/// At most [`PIECE`] bytes of a fill, whole rows (one row where a row is longer), from byte `at` of it on.
#[derive(Copy, Clone)]
struct Piece {
    fill: usize,
    at: u64,
    range: ByteRange,
}

fn cut(fills: &[Fill]) -> Vec<Piece> {
    let mut all = Vec::new();
    for (fill, f) in fills.iter().enumerate() {
        let each = match f.to {
            To::Rows { row, .. } => (PIECE / row.max(1)).max(1) * row.max(1),
            To::Bytes(_) => PIECE,
        };
        let mut at = 0;
        while at < f.range.len {
            let len = each.min(f.range.len - at);
            all.push(Piece { fill, at, range: ByteRange { file: f.range.file, off: f.range.off + at, len } });
            at += len;
        }
    }
    all
}

/// What readers and the one who hands on to the device share.
struct Desk {
    next: usize,
    free: Vec<Vec<u8>>,
    read: BTreeMap<usize, Result<Vec<u8>>>,
    /// Nobody wants more.
    over: bool,
}

struct Shared {
    desk: Mutex<Desk>,
    moved: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Desk> {
        // A reader does not panic while it holds the desk.
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }
    fn wait<'a>(&self, d: MutexGuard<'a, Desk>) -> MutexGuard<'a, Desk> {
        self.moved.wait(d).unwrap_or_else(PoisonError::into_inner)
    }
    /// Reads pieces until there are none. Who has a buffer takes the lowest piece, so the one that is waited for is
    /// always under way.
    fn read_all(&self, ck: &Files, pieces: &[Piece]) {
        loop {
            let mut d = self.lock();
            while !d.over && d.free.is_empty() && d.next < pieces.len() {
                d = self.wait(d);
            }
            let (false, Some(piece), Some(mut buf)) = (d.over, pieces.get(d.next), d.free.pop()) else { return };
            let i = d.next;
            d.next += 1;
            drop(d);
            buf.resize(piece.range.len as usize, 0);
            let got = ck.read_at(piece.range, &mut buf).map(|()| buf).map_err(Error::from);
            self.lock().read.insert(i, got);
            self.moved.notify_all();
        }
    }
    fn take(&self, i: usize) -> Result<Vec<u8>> {
        let mut d = self.lock();
        loop {
            match d.read.remove(&i) {
                Some(got) => return got,
                None => d = self.wait(d),
            }
        }
    }
    fn give(&self, buf: Vec<u8>) {
        self.lock().free.push(buf);
        self.moved.notify_all();
    }
    fn end(&self) {
        self.lock().over = true;
        self.moved.notify_all();
    }
}

/// Reads everything and hands it to the device in order; `done` hears of bytes that arrived.
///
/// # Errors
/// The file's and the device's.
pub fn fill(ck: &Files, dev: &mut dyn Device, fills: &[Fill], done: &mut dyn FnMut(u64)) -> Result<()> {
    let pieces = cut(fills);
    let free = (0..PIECES.min(pieces.len())).map(|_| Vec::new()).collect();
    let desk = Mutex::new(Desk { next: 0, free, read: BTreeMap::new(), over: false });
    let shared = Shared { desk, moved: Condvar::new() };
    std::thread::scope(|s| {
        for _ in 0..READERS.min(pieces.len()) {
            s.spawn(|| shared.read_all(ck, &pieces));
        }
        let mut hand_on = || {
            for (i, p) in pieces.iter().enumerate() {
                let buf = shared.take(i)?;
                put(dev, &fills[p.fill].to, p.at, &buf)?;
                done(p.range.len);
                shared.give(buf);
            }
            Ok(())
        };
        let out = hand_on();
        shared.end();
        out
    })
}

fn put(dev: &mut dyn Device, to: &To, at: u64, bytes: &[u8]) -> Result<()> {
    match to {
        To::Rows { mat, first, row } => {
            dev.load_rows(mat, first + at / row.max(&1), bytes.len() as u64 / row.max(&1), bytes)?
        }
        To::Bytes(buf) => dev.write(buf.slice(at, bytes.len() as u64).ok_or(device::Error::BadBuf)?, bytes)?,
    };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use checkpoint::FileId;

    #[test]
    fn pieces_are_whole_rows_and_cover_everything_once() {
        let range = |len| ByteRange { file: FileId(0), off: 100, len };
        let buf = Buf::whole(device::AllocId(0), 3 * PIECE);
        let plain = Fill { to: To::Bytes(buf), range: range(2 * PIECE + 5) };
        let mat = device::split::mat(checkpoint::Block::Q4_0.into(), 8, 64, 8, buf).unwrap();
        for row in [36, PIECE + 4] {
            let rows = Fill { to: To::Rows { mat, first: 0, row }, range: range(row * (PIECE / row + 7)) };
            let pieces = cut(&[plain, rows]);
            for (i, f) in [plain, rows].iter().enumerate() {
                let mine: Vec<_> = pieces.iter().filter(|p| p.fill == i).collect();
                let mut at = 0;
                for p in &mine {
                    assert_eq!((p.at, p.range.off), (at, 100 + at));
                    at += p.range.len;
                }
                assert_eq!(at, f.range.len);
            }
            assert!(pieces.iter().filter(|p| p.fill == 1).all(|p| p.range.len % row == 0));
        }
    }

    #[test]
    fn every_tensor_arrives_where_it_belongs_in_any_order_of_readers() {
        use device::{Device, Layout, Mat, Reference};
        use memory::{Class, Ledger, RegionSizes, Tier};
        let dir = testkit::materialise("llama-b").unwrap();
        let ck = checkpoint::Checkpoint::open(dir.path().to_path_buf()).unwrap();
        let ledger = Ledger::new(&[(Tier::Host, 1 << 30)]);
        let mut dev = Reference::new(RegionSizes { step: 4096, carry: 0 }).unwrap();
        let mut places = Vec::new();
        for (i, t) in ck.tensors().enumerate() {
            let paid = ledger.reserve(Tier::Host, Class::Weights, "test", t.at.len).unwrap();
            let buf = dev.alloc(paid).unwrap();
            // As bytes, or as rows of bytes: every other one.
            let row = 4;
            let (fmt, layout) = (checkpoint::DType::F32.into(), Layout::File);
            let mat = Mat {
                n: (t.at.len / row) as u32,
                k: 1,
                fmt,
                layout,
                row_step: 1,
                planes: [Some(buf), None, None, None],
            };
            let whole = t.at.len.is_multiple_of(row) && i % 2 == 0;
            let to = if whole { To::Rows { mat, first: 0, row } } else { To::Bytes(buf) };
            places.push((Fill { to, range: t.at }, buf));
        }
        let (fills, mut done) = (places.iter().map(|p| p.0).collect::<Vec<_>>(), 0);
        fill(&ck.stored(), &mut dev, &fills, &mut |n| done += n).unwrap();
        assert_eq!(done, fills.iter().map(|f| f.range.len).sum::<u64>());
        for (f, buf) in places {
            let (mut want, mut got) = (vec![0; f.range.len as usize], vec![1; f.range.len as usize]);
            ck.read_at(f.range, &mut want).unwrap();
            dev.read(buf, &mut got).unwrap();
            assert!(got == want);
        }
        let beyond = ByteRange { off: u64::MAX / 2, ..fills[0].range };
        assert!(
            fill(&ck.stored(), &mut dev, &[Fill { range: beyond, ..fills[0] }], &mut |_| {}).is_err(),
            "an error ends the readers"
        );
    }
}
