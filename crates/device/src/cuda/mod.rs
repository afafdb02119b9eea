//! One NVIDIA GPU. Kernels are CUDA C++ under `kernels/`, compiled ahead of time (`cargo xtask cuda`) and kept in the program;
//! the user needs nothing but a driver.
//!
//! Block formats lie in the split layout ([`crate::split`]). Few rows meet the same fifteen-bit activations as on the CPU, with
//! exact integer products of groups; Many rows meet bf16 on tensor cores. A decode step is captured once per shape and replayed.

mod args;
mod driver;
mod experts;
mod few;
mod heads;
mod held;
mod image;
mod kernels;
mod launch;
mod mixture;
mod normed;
mod norms;
mod ops;
mod range;
mod scratch;

use crate::arena::Arena;
use crate::device::{Caps, Device, Fence, GraphKey, GraphMode, Mark, ScratchFn, outside_graph};
use crate::error::{Error, Result};
use crate::op::{Op, RowClass};
use crate::split;
use crate::view::{AllocId, Buf, Layout, Mat};
use checkpoint::Format;
use driver::{Context, Event, Graph, Pinned, Ptr};
use kernels::Kernels;
use memory::{RegionSizes, Reservation, Tier};
use range::Range;
use std::collections::HashMap;
use std::time::Duration;

pub use driver::{Card, cards, one};

/// Bytes that go to the card at a time while weights are loaded.
const STAGE: usize = 8 << 20;
/// Pieces under way: one is filled while the other is copied and repacked.
const STAGES: usize = 2;

/// Bytes on their way to the card.
struct Stage {
    pinned: Pinned,
    /// Where blocks lie on the card before they are repacked.
    raw: Ptr,
    /// The last use that the queue was asked for.
    last: Option<Event>,
}

/// What the driver says about a card's memory, in bytes.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct CardMemory {
    /// All of it.
    pub total: u64,
    /// What is free now.
    pub free: u64,
    /// What was taken once the context was there and nothing else of this device: the context, and other programs.
    pub context: u64,
    /// Code of kernels.
    pub code: u64,
    /// The arena.
    pub arena: u64,
    /// Recorded steps.
    pub graphs: u64,
}

enum Held {
    /// Workspace, and what somebody pays for.
    Own {
        ptr: Ptr,
        bytes: u64,
        paid: Option<Reservation>,
    },
    Range(Range),
}

impl Held {
    fn place(&self) -> (Ptr, u64) {
        match self {
            Held::Own { ptr, bytes, .. } => (*ptr, *bytes),
            Held::Range(r) => (r.ptr, r.bytes),
        }
    }
}

/// A CUDA device.
pub struct Cuda {
    caps: Caps,
    arena: Arena,
    allocs: Vec<Option<Held>>,
    kernels: Kernels,
    tier: Tier,
    /// Made when the first weights are loaded, and let go when the first step begins.
    stages: Vec<Stage>,
    next_stage: usize,
    seen: CardMemory,
    /// Room for codes of rows, and whose they are; behind it room for what kernels of one mixture hand on.
    codes: Ptr,
    quantised: [Option<few::Quantised>; few::ROOMS],
    next_codes: usize,
    /// Products that wait for others that meet the same rows.
    pending: Vec<few::Waiting>,
    /// A norm of heads that waits for what may go with it.
    norm: Option<norms::Norm>,
    /// A norm of rows that waits for the products that meet them.
    row: Option<normed::RowNorm>,
    /// Ops that a few kernels may do together, if more of them follow.
    held: Vec<(Op, Buf)>,
    /// Points of the queue that time is taken at.
    marks: Vec<Event>,
    /// Role of the rows of the step under way.
    class: Option<RowClass>,
    graphs: HashMap<GraphKey, Graph>,
    recording: Option<GraphKey>,
    // Last, because everything above is given back through it.
    cx: Context,
}

impl Cuda {
    /// Opens card `ordinal` with workspace of these sizes.
    ///
    /// # Errors
    /// [`Error::NoCuda`] without a driver or card that can be used, [`Error::OutOfMemory`].
    pub fn new(ordinal: u32, sizes: RegionSizes) -> Result<Self> {
        let caps = Self::caps_of(ordinal)?;
        let card = one(ordinal)?;
        let cx = Context::open(ordinal)?;
        let (free, total) = cx.memory()?;
        let kernels = Kernels::load(&cx, card.capability)?;
        let code = free.saturating_sub(cx.memory()?.0);
        let arena = sizes.step + sizes.carry;
        let seen = CardMemory { total, free, context: total - free, code, arena, graphs: 0 };
        let region = |bytes: u64| Ok::<_, Error>(Some(Held::Own { ptr: cx.alloc(bytes)?, bytes, paid: None }));
        let allocs = vec![region(sizes.step)?, region(sizes.carry)?];
        let graphs = HashMap::new();
        let (tier, stages) = (Tier::Device(ordinal as u8), Vec::new());
        let arena = Arena::new(sizes);
        let codes = cx.alloc(Self::CODES * (few::ROOMS as u64 + 1))?;
        Ok(Cuda {
            caps,
            arena,
            allocs,
            kernels,
            tier,
            stages,
            next_stage: 0,
            seen,
            codes,
            quantised: [None; few::ROOMS],
            next_codes: 0,
            pending: Vec::new(),
            norm: None,
            row: None,
            held: Vec::new(),
            marks: Vec::new(),
            class: None,
            graphs,
            recording: None,
            cx,
        })
    }
    /// What a card is: a meter with the same caps and [`Cuda::scratch`] counts what it will take.
    ///
    /// # Errors
    /// [`Error::NoCuda`].
    pub fn caps_of(ordinal: u32) -> Result<Caps> {
        let card = one(ordinal)?;
        let isa = format!("{} (compute {}.{})", card.name, card.capability / 10, card.capability % 10);
        Ok(Caps { name: "cuda", isa, threads: card.processors, borrows_host: false })
    }
    /// Bytes of scratch for an op.
    pub fn scratch(op: &Op, caps: &Caps) -> u64 {
        scratch::bytes(op, caps)
    }
    /// Bytes that the driver may take beside what is reserved: code of kernels and recorded steps.
    pub const OVERHEAD: u64 = 256 << 20;
    /// Host bytes, page-locked, that weights go through.
    pub const PINNED: u64 = (STAGES * STAGE) as u64;
    /// Host bytes that the driver takes: its library and a context.
    pub const DRIVER: u64 = 512 << 20;

    /// The arrangement that a format has on a card.
    pub fn layout(f: &Format) -> Layout {
        if split::row_parts(f, 256).is_some() { Layout::Split } else { Layout::File }
    }
    /// Bytes of a card that are free for a program that has a context on it.
    ///
    /// # Errors
    /// [`Error::NoCuda`], [`Error::Cuda`].
    pub fn free(ordinal: u32) -> Result<u64> {
        Ok(Context::open(ordinal)?.memory()?.0)
    }
    /// How fast a card copies within itself, bytes read and written together, in 10^9 a second: the best of several.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] where 2 GiB are not free, [`Error::Cuda`].
    pub fn copy_gbps(ordinal: u32) -> Result<f64> {
        const BYTES: u64 = 1 << 30;
        let cx = Context::open(ordinal)?;
        let from = cx.alloc(BYTES)?;
        let rate = (|| {
            let to = cx.alloc(BYTES)?;
            let best = (0..8).try_fold(f32::INFINITY, |best: f32, _| {
                let begun = cx.mark()?;
                cx.copy(to, from, BYTES)?;
                let ended = cx.mark()?;
                ended.wait()?;
                Ok(best.min(ended.since(&begun)?))
            });
            cx.free(to)?;
            best
        })();
        cx.free(from)?;
        Ok(2.0 * BYTES as f64 / f64::from(rate?) / 1e6)
    }
    /// Page-locked room with `src` in it, once its last use is over.
    fn staged(&mut self, src: &[u8]) -> Result<usize> {
        if self.stages.is_empty() {
            for _ in 0..STAGES {
                let (pinned, raw) = (self.cx.pinned(STAGE)?, self.cx.alloc(STAGE as u64)?);
                self.stages.push(Stage { pinned, raw, last: None });
            }
        }
        let i = self.next_stage;
        self.next_stage = (i + 1) % STAGES;
        let stage = self.stages.get_mut(i).ok_or(Error::BadBuf)?;
        if let Some(e) = stage.last.take() {
            e.wait()?;
        }
        stage.pinned.bytes_mut().get_mut(..src.len()).ok_or(Error::BadBuf)?.copy_from_slice(src);
        Ok(i)
    }
    /// Enqueues the copy of what was staged, and whatever `then` does with it, and marks the end of its use.
    fn unstage(&mut self, i: usize, bytes: usize, to: Ptr, then: impl FnOnce(&Self) -> Result<()>) -> Result<()> {
        let room = self.stages[i].pinned.bytes_mut().get_mut(..bytes).ok_or(Error::BadBuf)?;
        self.cx.upload(to, room)?;
        then(self)?;
        self.stages[i].last = Some(self.cx.mark()?);
        Ok(())
    }
    /// Enqueues what waits, and keeps no codes beyond here.
    fn settle(&mut self) -> Result<()> {
        self.flush()?;
        self.quantised = [None; few::ROOMS];
        self.next_codes = 0;
        Ok(())
    }
    fn drop_stages(&mut self) -> Result<()> {
        if self.stages.is_empty() {
            return Ok(());
        }
        self.cx.wait()?;
        self.stages.drain(..).try_for_each(|s| self.cx.free(s.raw))
    }
    /// The architecture that its kernels were compiled for.
    pub fn arch(&self) -> &str {
        &self.kernels.arch
    }
    /// Address of a buffer, checked against its allocation.
    fn at(&self, b: &Buf) -> Result<Ptr> {
        let held = self.allocs.get(b.alloc.0 as usize).and_then(Option::as_ref).ok_or(Error::BadBuf)?;
        let (ptr, bytes) = held.place();
        let inside = b.off.checked_add(b.len).is_some_and(|e| e <= bytes);
        if inside { Ok(ptr + b.off) } else { Err(Error::BadBuf) }
    }
    fn insert(&mut self, held: Held) -> AllocId {
        let at = self.allocs.iter().position(Option::is_none).unwrap_or(self.allocs.len());
        if at == self.allocs.len() {
            self.allocs.push(None);
        }
        self.allocs[at] = Some(held);
        AllocId(at as u32)
    }
    fn range(&mut self, b: &Buf) -> Result<(&mut Range, &Context)> {
        match self.allocs.get_mut(b.alloc.0 as usize) {
            Some(Some(Held::Range(r))) => Ok((r, &self.cx)),
            _ => Err(Error::BadBuf),
        }
    }
    /// Repacks whole rows that are on the card already.
    fn repack(&self, dst: &Mat, first: u64, rows: u64, src: Ptr) -> Result<()> {
        let parts = split::row_parts(&dst.fmt, dst.k).ok_or(Error::BadBuf)?;
        let mut to = [0; 3];
        for ((to, plane), each) in to.iter_mut().zip(&dst.planes).zip(parts) {
            if let Some(b) = plane {
                *to = self.at(&b.slice(first * each, rows * each).ok_or(Error::BadBuf)?)?;
            }
        }
        let fmt = kernels::number(&dst.fmt).ok_or(Error::BadBuf)? as i32;
        let groups = dst.k as i32 / 32;
        let a = args::Repack { src, q: to[0], h: to[1], s: to[2], fmt, groups, rows: rows as i64 };
        self.each("repack", rows * groups as u64, &a)
    }
}

impl Device for Cuda {
    fn caps(&self) -> &Caps {
        &self.caps
    }
    fn scratch_fn(&self) -> ScratchFn {
        scratch::bytes
    }
    fn arena(&mut self) -> &mut Arena {
        &mut self.arena
    }
    fn layout_of(&self, f: &Format) -> Layout {
        Self::layout(f)
    }
    fn memory(&self) -> Option<CardMemory> {
        Some(CardMemory { free: self.cx.memory().ok()?.0, ..self.seen })
    }
    fn tier(&self) -> Tier {
        self.tier
    }
    fn alloc(&mut self, r: Reservation) -> Result<Buf> {
        outside_graph(self, "alloc")?;
        let bytes = r.bytes();
        let held = Held::Own { ptr: self.cx.alloc(bytes)?, bytes, paid: Some(r) };
        Ok(Buf::whole(self.insert(held), bytes))
    }
    fn free(&mut self, b: Buf) -> Result<Reservation> {
        outside_graph(self, "free")?;
        self.settle()?;
        let slot = self.allocs.get_mut(b.alloc.0 as usize).ok_or(Error::BadBuf)?;
        match slot.take() {
            Some(Held::Own { ptr, paid: Some(r), .. }) => {
                self.cx.free(ptr)?;
                // Recorded steps may hold its address.
                self.graphs.clear();
                Ok(r)
            }
            other => {
                *slot = other;
                Err(Error::BadBuf)
            }
        }
    }
    fn reserve_range(&mut self, bytes: u64) -> Result<Buf> {
        outside_graph(self, "reserve_range")?;
        let range = Range::new(&self.cx, bytes)?;
        Ok(Buf::whole(self.insert(Held::Range(range)), bytes))
    }
    fn commit_range(&mut self, part: Buf, r: Reservation) -> Result<()> {
        outside_graph(self, "commit_range")?;
        let (range, cx) = self.range(&part)?;
        range.commit(cx, part.off, part.len, r)
    }
    fn release_range(&mut self, part: Buf) -> Result<Reservation> {
        outside_graph(self, "release_range")?;
        self.settle()?;
        let (range, cx) = self.range(&part)?;
        range.release(cx, part.off, part.len)
    }
    fn free_range(&mut self, b: Buf) -> Result<()> {
        outside_graph(self, "free_range")?;
        self.settle()?;
        self.range(&b)?;
        if let Some(Held::Range(r)) = self.allocs[b.alloc.0 as usize].take() {
            // Recorded steps may hold its addresses.
            self.graphs.clear();
            r.close(&self.cx)?;
        }
        Ok(())
    }
    fn borrow(&mut self, _: &'static [u8]) -> Option<Buf> {
        None
    }
    fn host_mut(&mut self, _: Buf) -> Option<&mut [u8]> {
        None
    }
    fn write(&mut self, dst: Buf, src: &[u8]) -> Result<Fence> {
        outside_graph(self, "write")?;
        self.settle()?;
        let to = self.at(&dst.slice(0, src.len() as u64).ok_or(Error::BadBuf)?)?;
        // Small ones the driver takes along with the call; large ones go through page-locked memory.
        if src.len() < STAGE / 8 {
            self.cx.upload(to, src)?;
            return Ok(Fence(0));
        }
        for (i, piece) in src.chunks(STAGE).enumerate() {
            let stage = self.staged(piece)?;
            self.unstage(stage, piece.len(), to + (i * STAGE) as u64, |_| Ok(()))?;
        }
        Ok(Fence(0))
    }
    fn load_rows(&mut self, dst: &Mat, first: u64, rows: u64, src: &[u8]) -> Result<Fence> {
        outside_graph(self, "load")?;
        if dst.layout == Layout::File {
            return crate::device::load_file_rows(self, dst, first, rows, src);
        }
        let row = crate::op::row_bytes(dst).ok_or(Error::BadBuf)?;
        if src.len() as u64 != rows * row {
            return Err(Error::BadBuf);
        }
        let at_once = (STAGE as u64 / row).max(1);
        let mut done = 0;
        while done < rows {
            let n = at_once.min(rows - done);
            let piece = &src[(done * row) as usize..((done + n) * row) as usize];
            let stage = self.staged(piece)?;
            let raw = self.stages[stage].raw;
            self.unstage(stage, piece.len(), raw, |d| d.repack(dst, first + done, n, raw))?;
            done += n;
        }
        Ok(Fence(0))
    }
    fn read(&mut self, src: Buf, dst: &mut [u8]) -> Result<()> {
        outside_graph(self, "read")?;
        self.flush()?;
        let from = self.at(&src.slice(0, dst.len() as u64).ok_or(Error::BadBuf)?)?;
        self.cx.download(from, dst)
    }
    fn enqueue(&mut self, op: &Op, scratch: Buf) -> Result<()> {
        ops::run(self, op, scratch)
    }
    fn mark(&mut self) -> Option<Mark> {
        if self.recording.is_some() {
            return None;
        }
        self.flush().ok()?;
        self.marks.push(self.cx.mark().ok()?);
        Some(Mark(self.marks.len() as u64 - 1))
    }
    fn between(&mut self, from: Mark, to: Mark) -> Option<Duration> {
        let ms = self.marks.get(to.0 as usize)?.since(self.marks.get(from.0 as usize)?).ok()?;
        Some(Duration::from_secs_f64(f64::from(ms.max(0.0)) / 1e3))
    }
    fn forget_marks(&mut self) {
        self.marks.clear();
    }
    fn graph_begin(&mut self, k: GraphKey) -> Result<GraphMode> {
        outside_graph(self, "graph")?;
        // A recorded step finds nothing of what was before it.
        self.settle()?;
        if let Some(g) = self.graphs.get(&k) {
            self.cx.replay(g)?;
            return Ok(GraphMode::Replayed);
        }
        self.cx.capture()?;
        self.recording = Some(k);
        Ok(GraphMode::Run)
    }
    fn graph_end(&mut self) -> Result<()> {
        let k = self.recording.ok_or(Error::NoScope)?;
        self.settle()?;
        self.recording = None;
        let before = self.cx.memory()?.0;
        let g = self.cx.captured()?;
        self.cx.replay(&g)?;
        self.graphs.insert(k, g);
        self.seen.graphs += before.saturating_sub(self.cx.memory()?.0);
        Ok(())
    }
    fn graph_abandon(&mut self) -> Result<()> {
        self.recording = None;
        self.pending.clear();
        self.norm = None;
        self.row = None;
        self.held.clear();
        self.quantised = [None; few::ROOMS];
        self.next_codes = 0;
        self.cx.uncaptured()
    }
    fn step_begins(&mut self, class: RowClass) {
        self.class = Some(class);
        // What fails here fails again at the next call that can say so.
        let _ = self.drop_stages();
    }
    fn step_ends(&mut self) {
        self.class = None;
    }
    fn in_graph(&self) -> bool {
        self.recording.is_some()
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        self.graphs.clear();
        let _ = self.drop_stages();
        let _ = self.cx.free(self.codes);
        for held in self.allocs.drain(..).flatten() {
            let _ = match held {
                Held::Own { ptr, .. } => self.cx.free(ptr),
                Held::Range(r) => r.close(&self.cx),
            };
        }
    }
}
