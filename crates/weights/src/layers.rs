//! Whole layers that are read while others are computed: for models without experts that do not fit.
//!
//! The matrices of the streamed layers take turns in two buffers. Entering a layer waits until its bytes are there and
//! starts reading the next one into the buffer of the one before, which is computed by then. Vectors stay in memory.

use crate::bound::{Bound, Data, Role, WId};
use crate::cached::{CacheStats, SharedStats};
use crate::error::{Error, Result};
use crate::experts::{ExpertSource, Group, Routed, Wave};
use crate::io::{self, Files, Finished, Job, RangeReader, ReadQueue, Urgency, Wanted};
use crate::record::{MAX_ALIGN, Run, joined, mat};
use crate::sum::{CHANGED, Sum};
use checkpoint::ByteRange;
use device::{Buf, Device, Mat, SharedBytes};
use memory::{Class, Component, Ledger, Tier};
use std::collections::{BTreeMap, HashMap};

/// The matrices of one layer in their file.
#[derive(Clone, Debug)]
pub struct LayerRuns {
    /// The layer.
    pub layer: u32,
    /// Bytes of the matrices.
    pub bytes: u64,
    parts: Vec<(ByteRange, usize, usize)>,
    mats: Vec<(WId, Mat)>,
}

impl LayerRuns {
    /// The layers of a model whose matrices can be read together, in ascending order. Layers with a matrix that is not
    /// in a file as it is used are left out.
    pub fn of(bounds: &[Bound]) -> Vec<Self> {
        let mut layers: BTreeMap<u32, Vec<&Bound>> = BTreeMap::new();
        for b in bounds.iter().filter(|b| b.role == Role::Matrix) {
            if let Component::Layer(l) = b.component {
                layers.entry(l).or_default().push(b);
            }
        }
        layers.into_iter().filter_map(|(layer, of)| Self::new(layer, &of)).collect()
    }

    fn new(layer: u32, of: &[&Bound]) -> Option<Self> {
        let (mut parts, mut mats, mut bytes) = (Vec::new(), Vec::new(), 0);
        for (i, b) in of.iter().enumerate() {
            let m = mat(b);
            for (plane, reach) in device::op::extents(&m)?.into_iter().enumerate() {
                let Some(data) = b.plane(plane) else { continue };
                let Data::Whole { range, first, .. } = data else { return None };
                let len = reach?;
                let inside = first.checked_add(len).is_some_and(|end| end <= range.len);
                parts.push((inside.then_some(ByteRange { off: range.off + first, len, ..*range })?, i, plane));
            }
            bytes += b.loaded_bytes();
            mats.push((b.id, m));
        }
        Some(LayerRuns { layer, bytes, parts, mats })
    }

    /// What to read, and the bytes of a buffer that it takes.
    fn runs(&self, align: u64) -> (Vec<Run>, u64) {
        let mut runs = joined(&self.parts);
        let mut at = 0;
        for r in &mut runs {
            r.at = at;
            at += (r.from.off + r.from.len).next_multiple_of(align) - r.from.off / align * align;
        }
        (runs, at)
    }
    /// Bytes of a buffer for it, however files are aligned.
    pub fn buffer_bytes(&self) -> u64 {
        self.runs(MAX_ALIGN).1.next_multiple_of(MAX_ALIGN)
    }
    /// Its matrices in a buffer that holds its runs.
    fn placed(&self, runs: &[Run], align: u64, buf: Buf) -> Option<Vec<(WId, Mat)>> {
        let mut mats = self.mats.clone();
        for &(range, i, plane) in &self.parts {
            let end = |r: &ByteRange| r.off + r.len;
            let holds = |r: &&Run| r.from.file == range.file && r.from.off <= range.off && end(&range) <= end(&r.from);
            let run = runs.iter().find(holds)?;
            let at = run.at + (range.off - run.from.off / align * align);
            mats[i].1.planes[plane] = Some(buf.slice(at, range.len)?);
        }
        Some(mats)
    }
}

/// What streaming of layers is made of.
pub struct LayerOptions<'a> {
    /// The streamed layers, two at least, ascending.
    pub layers: Vec<LayerRuns>,
    /// Bytes of each of the two buffers.
    pub buffer_bytes: u64,
    /// Whether every layer is compared, whenever it is read again, with a sum made when it was read first.
    pub verify: bool,
    /// The files.
    pub files: Files,
    /// Who reads them.
    pub reader: Box<dyn RangeReader>,
    /// Who pays.
    pub ledger: &'a Ledger,
}

/// One of the two buffers.
#[derive(Default)]
struct Room {
    /// Which of the streamed layers it holds, or will hold.
    held: Option<usize>,
    /// Runs that did not land yet.
    left: usize,
    /// Whether nobody used what was read.
    fresh: bool,
    failed: Option<Error>,
}

/// See the [module](self). Around a source of experts, which it leaves alone.
pub struct LayerStream {
    inner: Box<dyn ExpertSource + Send>,
    layers: Vec<(LayerRuns, Vec<Run>)>,
    index: HashMap<u32, usize>,
    memory: SharedBytes,
    buffer_bytes: u64,
    files: Files,
    queue: ReadQueue,
    rooms: [Room; 2],
    /// The streamed layer that was entered last.
    last: Option<usize>,
    /// Sums of layers that were read before, where they are compared.
    sums: Option<Vec<Option<u64>>>,
    jobs: HashMap<Job, (usize, Run)>,
    next_job: u64,
    stats: SharedStats,
    missed: u64,
}

impl LayerStream {
    /// Empty buffers, and the streamed matrices as they will lie in them.
    ///
    /// # Errors
    /// Those of device and ledger.
    pub fn new(
        how: LayerOptions,
        inner: Box<dyn ExpertSource + Send>,
        dev: &mut dyn Device,
    ) -> Result<(Self, Vec<(WId, Mat)>)> {
        let LayerOptions { layers, buffer_bytes, verify, files, reader, ledger } = how;
        let paid = ledger.reserve_planned(Tier::Host, Class::Weights, "streamed layers", 2 * buffer_bytes)?;
        let buf = dev.alloc(paid)?;
        let memory = dev.share(buf).ok_or(Error::NoSlots)?;
        let (align, mut mats) = (files.align(), Vec::new());
        let mut all = Vec::new();
        for (i, l) in layers.into_iter().enumerate() {
            let (runs, bytes) = l.runs(align);
            let room = buf.slice(i as u64 % 2 * buffer_bytes, buffer_bytes).filter(|b| bytes <= b.bytes());
            let placed = room.and_then(|b| l.placed(&runs, align, b));
            mats.extend(placed.ok_or_else(|| Error::NotLoaded(format!("layer {}", l.layer)))?);
            all.push((l, runs));
        }
        let sums = verify.then(|| vec![None; all.len()]);
        let index = all.iter().enumerate().map(|(i, (l, _))| (l.layer, i)).collect();
        let queue = ReadQueue::new(reader, align);
        let (rooms, jobs, stats) = (<[Room; 2]>::default(), HashMap::new(), SharedStats::default());
        let (next_job, missed) = (0, 0);
        let stream = LayerStream {
            inner,
            layers: all,
            index,
            memory,
            buffer_bytes,
            files,
            queue,
            rooms,
            last: None,
            sums,
            jobs,
            next_job,
            stats,
            missed,
        };
        Ok((stream, mats))
    }
    /// What it did so far, shared with whoever asks later.
    pub fn stats(&self) -> SharedStats {
        self.stats.clone()
    }

    /// Starts reading the `i`th streamed layer into its buffer, of which nothing is under way.
    fn start(&mut self, i: usize) {
        let room = i % 2;
        let (l, runs) = &self.layers[i];
        for run in runs {
            let job = Job(self.next_job);
            self.next_job += 1;
            let at = room as u64 * self.buffer_bytes + run.at;
            let to = self.memory.clone();
            let w = Wanted { file: run.from.file.0, off: run.from.off, len: run.from.len, to, at };
            self.queue.read(job, &w, Urgency::Demand);
            self.jobs.insert(job, (room, *run));
        }
        self.missed += l.bytes;
        self.rooms[room] = Room { held: Some(i), left: runs.len(), fresh: true, failed: None };
    }

    fn poll(&mut self, wait: bool) -> Result<()> {
        let mut finished: Vec<Finished> = Vec::new();
        let polled = self.queue.poll(wait, &mut finished);
        for f in finished {
            let Some((room, run)) = self.jobs.remove(&f.job) else { continue };
            self.rooms[room].left -= 1;
            if let Err(e) = f.result {
                let layer = self.rooms[room].held.map_or(0, |i| self.layers[i].0.layer);
                let error = unread(&self.files, layer, &run, io::why(&e));
                self.rooms[room].failed.get_or_insert(error);
            }
        }
        polled.map_err(|e| Error::Reader { reader: self.queue.reader(), why: e.to_string() })
    }

    /// The streamed layer that is needed next.
    fn after(&self, i: usize) -> usize {
        (i + 1) % self.layers.len()
    }

    /// Starts reading a layer whose buffer nobody computes with, unless it is there.
    fn foresee(&mut self, i: usize) -> Result<()> {
        if self.rooms[i % 2].held == Some(i) {
            return Ok(());
        }
        self.settle(i % 2)?;
        self.start(i);
        self.poll(false)
    }

    /// A layer that stays in memory is entered. Of an odd number of streamed layers the last has the buffer that the first
    /// one needs: it is done with now.
    fn pass_by(&mut self) -> Result<()> {
        let Some(i) = self.last.take() else { return Ok(()) };
        let next = self.after(i);
        if next % 2 == i % 2 { self.foresee(next) } else { Ok(()) }
    }

    /// Compares a layer that has landed with what it was when it was read first, where that is wanted.
    fn verify(&mut self, i: usize) -> Result<Option<Error>> {
        let Some(sums) = &mut self.sums else { return Ok(None) };
        let (l, runs) = &self.layers[i];
        let (align, base) = (self.files.align(), i as u64 % 2 * self.buffer_bytes);
        let mut sum = Sum::default();
        for run in runs {
            let at = base + run.at + run.from.off % align;
            let address = self.memory.address(at, run.from.len).ok_or(device::Error::BadBuf)?;
            // SAFETY: the run's bytes inside its buffer, which nobody writes: all reads of the layer have landed.
            sum.add(unsafe { std::slice::from_raw_parts(address, run.from.len as usize) });
        }
        let changed = *sums[i].get_or_insert(sum.get()) != sum.get();
        let error = |run: &Run| unread(&self.files, l.layer, run, CHANGED.into());
        Ok(runs.first().filter(|_| changed).map(error))
    }

    /// Waits until nothing is under way into a buffer.
    fn settle(&mut self, room: usize) -> Result<()> {
        while self.rooms[room].left > 0 {
            self.poll(true)?;
        }
        Ok(())
    }
}

/// Why a layer is not there.
fn unread(files: &Files, layer: u32, run: &Run, why: String) -> Error {
    Error::ReadLayer { file: files.name(run.from.file.0), off: run.from.off, layer, why }
}

impl ExpertSource for LayerStream {
    fn enter(&mut self, dev: &mut dyn Device, layer: u32) -> Result<()> {
        self.inner.enter(dev, layer)?;
        // What landed makes room for what is asked for next.
        self.poll(false)?;
        let Some(&i) = self.index.get(&layer) else { return self.pass_by() };
        let room = i % 2;
        if self.rooms[room].held != Some(i) {
            self.settle(room)?;
            self.start(i);
        }
        self.settle(room)?;
        if self.rooms[room].fresh && self.rooms[room].failed.is_none() {
            self.rooms[room].failed = self.verify(i)?;
        }
        self.rooms[room].fresh = false;
        if let Some(e) = self.rooms[room].failed.take() {
            self.rooms[room].held = None;
            return Err(e);
        }
        self.last = Some(i);
        let next = self.after(i);
        if next % 2 != room {
            self.foresee(next)?;
        }
        self.stats.set(CacheStats { read: self.queue.stats(), missed_bytes: self.missed, ..CacheStats::default() });
        Ok(())
    }
    fn begin(&mut self, d: &mut dyn Device, r: &Routed) -> Result<Wave> {
        self.poll(false)?;
        self.inner.begin(d, r)
    }
    fn next(&mut self, d: &mut dyn Device, w: &mut Wave) -> Result<Option<Group>> {
        self.inner.next(d, w)
    }
    fn wants_hints(&self, layer: u32) -> bool {
        self.inner.wants_hints(layer)
    }
    fn hint(&mut self, layer: u32, ids: Vec<u32>) {
        self.inner.hint(layer, ids);
    }
    fn ahead(&mut self, d: &mut dyn Device, layer: u32) -> Result<()> {
        self.inner.ahead(d, layer)
    }
}
