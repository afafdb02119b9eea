//! A table that stays in its file, of which a step needs a few rows: they are read before it.
//!
//! A row takes a *place*, where its planes lie as in the file, so that the device decodes it as it would in the whole
//! table. Rows stay in their places until these are wanted by others, first in, first out: words that come again are not
//! read again. A step looks rows up by their places, which [`Window::bring`] leaves at a fixed address.

use crate::bound::{Bound, Data, Role};
use crate::error::{Error, Result};
use crate::io::{self, Access, Files, Finished, Job, RangeReader, ReadQueue, ReadStats, Urgency, Wanted};
use crate::record::{MAX_ALIGN, mat};
use checkpoint::{ByteRange, Checkpoint, PLANES};
use device::{Act, Buf, Device, Mat, SharedBytes, View};
use memory::{Class, Ledger};
use std::collections::HashMap;
use std::ops::Range;

/// Rows that are read at the same time: what keeps a disk busy.
const AT_ONCE: usize = 16;

/// What a window did.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
pub struct RowStats {
    /// Rows that steps asked for, each once a step.
    pub asked: u64,
    /// Of these, rows that were read.
    pub missed: u64,
    /// What reading them took.
    pub read: ReadStats,
}

/// One plane of the table in its file, and of the places in memory.
#[derive(Clone, Debug)]
struct Plane {
    /// Its number.
    number: usize,
    /// The rows of the table.
    from: ByteRange,
    /// Bytes of a row.
    row: u64,
    /// Where the places begin in memory.
    at: u64,
    /// Where a row lands, behind the landing of the planes before.
    lands: u64,
}

/// Where everything lies in the memory of a window: the list of places, the places, and what is read into, which is
/// aligned.
struct Layout {
    planes: Vec<Plane>,
    landing: u64,
    /// Bytes that one row lands in.
    stride: u64,
    bytes: u64,
}

impl Layout {
    /// `None` for a table whose rows are not read one by one: one that is in no single tensor a plane, or has planes that
    /// serve several rows at once.
    fn of(b: &Bound, places: u32) -> Option<Self> {
        if b.role != Role::Matrix || b.side.as_ref().is_some_and(|s| s.row_step != 1) {
            return None;
        }
        let cuts = b.format().planes(b.k.into()).ok()?;
        let (mut planes, mut lands) = (Vec::new(), 0);
        let mut at = u64::from(places) * 4;
        for (number, cut) in cuts.iter().enumerate().filter_map(|(i, c)| Some((i, (*c)?))) {
            let Some(Data::Whole { range, first, .. }) = b.plane(number) else { return None };
            let inside = first.checked_add(cut.total(b.n.into())).is_some_and(|end| end <= range.len);
            if !inside || cut.rows != 1 || cut.bytes == 0 {
                return None;
            }
            let from = ByteRange { off: range.off + first, len: cut.total(b.n.into()), ..*range };
            at = at.next_multiple_of(device::arena::ALIGN);
            planes.push(Plane { number, from, row: cut.bytes, at, lands });
            at += cut.total(places.into());
            lands += (cut.bytes + MAX_ALIGN - 1).next_multiple_of(MAX_ALIGN);
        }
        let landing = at.next_multiple_of(MAX_ALIGN);
        let bytes = landing + lands * (AT_ONCE as u64).min(places.into());
        (!planes.is_empty()).then_some(Layout { planes, landing, stride: lands, bytes })
    }
}

/// See the [module](self).
pub struct Window {
    table: Bound,
    planes: Vec<Plane>,
    landing: u64,
    stride: u64,
    memory: Buf,
    shared: SharedBytes,
    mat: Mat,
    places: Places,
    ids: View,
    files: Files,
    queue: ReadQueue,
    stats: RowStats,
}

impl Window {
    /// Bytes of a window with so many places, `None` for a table that can have none.
    pub fn bytes(table: &Bound, places: u32) -> Option<u64> {
        Layout::of(table, places).map(|l| l.bytes)
    }
    /// An empty one. `make` makes who reads the files.
    ///
    /// # Errors
    /// [`Error::Unusable`] for a table that can have none; those of files, ledger and device.
    pub fn new(
        ck: &Checkpoint,
        table: &Bound,
        places: u32,
        access: Access,
        make: impl Fn(&Files) -> std::io::Result<Box<dyn RangeReader>>,
        ledger: &Ledger,
        dev: &mut dyn Device,
    ) -> Result<Self> {
        let unusable =
            || Error::Unusable { tensor: table.name.to_string(), what: "its rows cannot be read alone".into() };
        let Layout { planes, landing, stride, bytes } = Layout::of(table, places).ok_or_else(unusable)?;
        let files = Files::open(ck, access)?;
        let queue = queue(&files, make)?;
        let memory =
            dev.alloc(ledger.reserve_planned(dev.tier(), Class::Workspace, "rows of the embedding", bytes)?)?;
        let shared = dev.share(memory).ok_or_else(unusable)?;
        let mut mat = Mat { n: places, ..mat(table) };
        let part = |at, len| memory.slice(at, len).ok_or(device::Error::BadBuf);
        for p in &planes {
            mat.planes[p.number] = Some(part(p.at, p.row * u64::from(places))?);
        }
        let ids = View::dense(part(0, u64::from(places) * 4)?, Act::I32, places, 1);
        let (table, places, stats) = (table.clone(), Places::new(places), RowStats::default());
        Ok(Window { table, planes, landing, stride, memory, shared, mat, places, ids, files, queue, stats })
    }
    /// Has the files read by another reader from now on, and forgets every row.
    ///
    /// # Errors
    /// Where `make` fails.
    pub fn read_with(&mut self, make: impl Fn(&Files) -> std::io::Result<Box<dyn RangeReader>>) -> Result<()> {
        self.queue = queue(&self.files, make)?;
        self.places = Places::new(self.mat.n);
        Ok(())
    }
    /// The places, as a matrix of as many rows.
    pub fn mat(&self) -> Mat {
        self.mat
    }
    /// `i32[places, 1]`: where the places of the ids are that rows were brought for last.
    pub fn ids(&self) -> View {
        self.ids
    }
    /// What it did so far.
    pub fn stats(&self) -> RowStats {
        RowStats { read: self.queue.stats(), ..self.stats }
    }

    /// Makes the rows `ids` be in places, and writes the place of each. An id outside the table gets none, and is looked up
    /// as one: as zeros. At most as many ids as there are places.
    ///
    /// # Errors
    /// [`Error::ReadRow`] for the first row that cannot be read; the others are in their places. [`Error::Unusable`] for
    /// too many ids; those of reader and device.
    pub fn bring(&mut self, dev: &mut dyn Device, ids: &[u32]) -> Result<()> {
        if ids.len() > self.mat.n as usize {
            let what = format!("{} of its rows for {} places", ids.len(), self.mat.n);
            return Err(Error::Unusable { tensor: self.table.name.to_string(), what });
        }
        let inside = |id: &&u32| **id < self.table.n;
        let missing = self.places.take(ids.iter().filter(inside).copied(), &mut self.stats);
        let mut failed = None;
        for some in missing.chunks(AT_ONCE) {
            if let Err(e) = self.read(dev, some) {
                failed.get_or_insert(e);
            }
        }
        if let Some(e) = failed {
            return Err(e);
        }
        let place = |id: &u32| self.places.of.get(id).map_or(-1, |&p| p as i32);
        let at: Vec<i32> = ids.iter().map(place).collect();
        dev.write_i32(self.ids.rows(0, ids.len() as u32), &at)?;
        Ok(())
    }

    /// Waits for more that is finished.
    fn poll(&mut self, finished: &mut Vec<Finished>) -> Result<()> {
        let polled = self.queue.poll(true, finished);
        polled.map_err(|e| Error::Reader { reader: self.queue.reader(), why: e.to_string() })
    }

    /// Waits for what a reader that could not go on left under way: it would land on what is read next.
    fn settle(&mut self) -> Result<()> {
        while self.queue.unfinished() > 0 {
            self.poll(&mut Vec::new())?;
        }
        Ok(())
    }

    /// Reads rows into their places. Those that do not come have none afterwards.
    fn read(&mut self, dev: &mut dyn Device, rows: &[(u32, u32)]) -> Result<()> {
        if let Err(e) = self.settle() {
            rows.iter().for_each(|&(row, _)| self.places.forget(row));
            return Err(e);
        }
        for (i, &(row, _)) in rows.iter().enumerate() {
            for p in &self.planes {
                let (off, at) = (p.from.off + u64::from(row) * p.row, self.lands(i, p));
                let w = Wanted { file: p.from.file.0, off, len: p.row, to: self.shared.clone(), at };
                self.queue.read(Job((i * PLANES + p.number) as u64), &w, Urgency::Demand);
            }
        }
        let (mut came, mut failed, mut finished) = (vec![true; rows.len()], None, Vec::new());
        while self.queue.unfinished() > 0 {
            if let Err(e) = self.poll(&mut finished) {
                rows.iter().for_each(|&(row, _)| self.places.forget(row));
                return Err(e);
            }
            for Finished { job, result } in finished.drain(..) {
                let (i, plane) = (job.0 as usize / PLANES, job.0 as usize % PLANES);
                if let Err(why) = result {
                    came[i] = false;
                    failed.get_or_insert_with(|| self.unread(rows[i].0, plane, &why));
                }
            }
        }
        let memory = dev.host_mut(self.memory).ok_or(device::Error::BadBuf)?;
        for (i, &(row, place)) in rows.iter().enumerate() {
            if came[i] {
                self.planes.iter().for_each(|p| memory.copy_within(self.landed(i, p, row), p.place(place)));
            } else {
                self.places.forget(row);
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Where the cover of a plane of the `i`th row that is read begins.
    fn lands(&self, i: usize, p: &Plane) -> u64 {
        self.landing + i as u64 * self.stride + p.lands
    }
    /// Where its bytes are.
    fn landed(&self, i: usize, p: &Plane, row: u32) -> Range<usize> {
        let at = self.lands(i, p) + (p.from.off + u64::from(row) * p.row) % self.files.align();
        at as usize..(at + p.row) as usize
    }
    fn unread(&self, row: u32, plane: usize, why: &std::io::Error) -> Error {
        let p = self.planes.iter().find(|p| p.number == plane);
        let (file, off) = p.map_or((0, 0), |p| (p.from.file.0, p.from.off + u64::from(row) * p.row));
        let (table, file) = (self.table.name.clone(), self.files.name(file));
        Error::ReadRow { file, off, table, row, why: io::why(why) }
    }
}

impl Plane {
    /// Where a place begins.
    fn place(&self, n: u32) -> usize {
        (self.at + u64::from(n) * self.row) as usize
    }
}

fn queue(files: &Files, make: impl Fn(&Files) -> std::io::Result<Box<dyn RangeReader>>) -> Result<ReadQueue> {
    let none = |e: std::io::Error| Error::Reader { reader: "none", why: e.to_string() };
    Ok(ReadQueue::new(make(files).map_err(none)?, files.align()))
}

/// Which row is in which place.
struct Places {
    of: HashMap<u32, u32>,
    /// By place: the row, and the step that wanted it last.
    held: Vec<(Option<u32>, u64)>,
    step: u64,
    next: usize,
}

impl Places {
    fn new(n: u32) -> Self {
        Places { of: HashMap::new(), held: vec![(None, 0); n as usize], step: 0, next: 0 }
    }
    /// Gives every row of a step a place; the result has those that were in none, which are to be read there. No more
    /// rows than there are places.
    fn take(&mut self, rows: impl Iterator<Item = u32>, stats: &mut RowStats) -> Vec<(u32, u32)> {
        self.step += 1;
        let mut missing = Vec::new();
        for row in rows {
            match self.of.get(&row) {
                Some(&place) => {
                    let wanted = &mut self.held[place as usize].1;
                    stats.asked += u64::from(*wanted != self.step);
                    *wanted = self.step;
                }
                None if missing.contains(&row) => {}
                None => missing.push(row),
            }
        }
        (stats.asked, stats.missed) = (stats.asked + missing.len() as u64, stats.missed + missing.len() as u64);
        missing.into_iter().map(|row| (row, self.place(row))).collect()
    }
    /// The next place that no row of this step is in.
    fn place(&mut self, row: u32) -> u32 {
        while self.held[self.next].1 == self.step {
            self.next = (self.next + 1) % self.held.len();
        }
        let place = self.next as u32;
        if let Some(before) = self.held[self.next].0.replace(row) {
            self.of.remove(&before);
        }
        self.held[self.next].1 = self.step;
        self.next = (self.next + 1) % self.held.len();
        self.of.insert(row, place);
        place
    }
    /// A row did not come.
    fn forget(&mut self, row: u32) {
        if let Some(place) = self.of.remove(&row) {
            self.held[place as usize] = (None, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(p: &mut Places, rows: &[u32]) -> Vec<(u32, u32)> {
        p.take(rows.iter().copied(), &mut RowStats::default())
    }

    #[test]
    fn a_row_stays_until_its_place_is_wanted_and_no_step_takes_its_own() {
        let mut p = Places::new(3);
        assert_eq!(take(&mut p, &[7, 8, 7]), [(7, 0), (8, 1)]);
        assert_eq!(take(&mut p, &[8]), []);
        assert_eq!(take(&mut p, &[9]), [(9, 2)]);
        // 7 came first and goes first; 8 is wanted and stays.
        assert_eq!(take(&mut p, &[5, 8, 6]), [(5, 0), (6, 2)]);
        assert_eq!((p.of.len(), p.of.get(&9)), (3, None));
        // What did not come is asked for again.
        p.forget(8);
        assert_eq!(take(&mut p, &[8, 6]), [(8, 0)]);
    }

    #[test]
    fn as_many_rows_as_places_always_have_one() {
        let mut p = Places::new(4);
        for step in 0..50u32 {
            let rows: Vec<u32> = (0..4).map(|i| (step * 7 + i * i * 3) % 11).collect();
            take(&mut p, &rows);
            for r in rows {
                assert_eq!(p.held[p.of[&r] as usize].0, Some(r));
            }
            assert_eq!(p.of.len(), p.held.iter().filter(|h| h.0.is_some()).count());
        }
    }
}
