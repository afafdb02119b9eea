//! One NVIDIA GPU. Kernels are CUDA C++ under `kernels/`, compiled ahead of time (`cargo xtask cuda`) and kept in the program;
//! the user needs nothing but a driver.
//!
//! Block formats lie in the split layout ([`crate::split`]). Few rows meet the same fifteen-bit activations as on the CPU, with
//! exact integer products of groups; Many rows meet bf16 on tensor cores. A decode step is captured once per shape and replayed.

mod args;
mod driver;
mod image;
mod kernels;
mod launch;
mod ops;
mod range;
mod scratch;

use crate::arena::Arena;
use crate::device::{Caps, Device, Fence, GraphKey, GraphMode, ScratchFn, outside_graph};
use crate::error::{Error, Result};
use crate::op::Op;
use crate::split;
use crate::view::{AllocId, Buf, Layout, Mat};
use checkpoint::Format;
use driver::{Context, Graph, Pinned, Ptr};
use kernels::Kernels;
use memory::{RegionSizes, Reservation};
use range::Range;
use std::collections::HashMap;

pub use driver::{Card, cards};

/// Bytes that go to the card at a time while weights are loaded.
const STAGE: usize = 16 << 20;

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
    /// Raw blocks on their way into the split layout, made when the first matrix is loaded.
    stage: Option<(Pinned, Ptr)>,
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
        let card = &cards()?[ordinal as usize];
        let cx = Context::open(ordinal)?;
        let kernels = Kernels::load(&cx, card.capability)?;
        let region = |bytes: u64| Ok::<_, Error>(Some(Held::Own { ptr: cx.alloc(bytes)?, bytes, paid: None }));
        let allocs = vec![region(sizes.step)?, region(sizes.carry)?];
        let graphs = HashMap::new();
        Ok(Cuda { caps, arena: Arena::new(sizes), allocs, kernels, stage: None, graphs, recording: None, cx })
    }
    /// What a card is: a meter with the same caps and [`Cuda::scratch`] counts what it will take.
    ///
    /// # Errors
    /// [`Error::NoCuda`].
    pub fn caps_of(ordinal: u32) -> Result<Caps> {
        let all = cards()?;
        let none = || Error::NoCuda(format!("there is no cuda:{ordinal}; this machine has {} card(s)", all.len()));
        let card = all.get(ordinal as usize).ok_or_else(none)?;
        let isa = format!("{} (compute {}.{})", card.name, card.capability / 10, card.capability % 10);
        Ok(Caps { name: "cuda", isa, threads: card.processors, borrows_host: false })
    }
    /// Bytes of scratch for an op.
    pub fn scratch(op: &Op, caps: &Caps) -> u64 {
        scratch::bytes(op, caps)
    }
    /// Free and total bytes of the card, as the driver sees them.
    ///
    /// # Errors
    /// [`Error::Cuda`].
    pub fn memory(&self) -> Result<(u64, u64)> {
        self.cx.memory()
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
    fn repack(&mut self, dst: &Mat, first: u64, rows: u64, src: Ptr) -> Result<()> {
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
        if split::row_parts(f, 256).is_some() { Layout::Split } else { Layout::File }
    }
    fn alloc(&mut self, r: Reservation) -> Result<Buf> {
        outside_graph(self, "alloc")?;
        let bytes = r.bytes();
        let held = Held::Own { ptr: self.cx.alloc(bytes)?, bytes, paid: Some(r) };
        Ok(Buf::whole(self.insert(held), bytes))
    }
    fn free(&mut self, b: Buf) -> Result<Reservation> {
        outside_graph(self, "free")?;
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
        let (range, cx) = self.range(&part)?;
        range.release(cx, part.off, part.len)
    }
    fn free_range(&mut self, b: Buf) -> Result<()> {
        outside_graph(self, "free_range")?;
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
        let to = self.at(&dst.slice(0, src.len() as u64).ok_or(Error::BadBuf)?)?;
        self.cx.upload(to, src)?;
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
        let (mut pinned, raw) = match self.stage.take() {
            Some(s) => s,
            None => (self.cx.pinned(STAGE)?, self.cx.alloc(STAGE as u64)?),
        };
        let at_once = (STAGE as u64 / row).max(1);
        let mut done = 0;
        while done < rows {
            let n = at_once.min(rows - done);
            let piece = &src[(done * row) as usize..((done + n) * row) as usize];
            // The copy before may still be under way.
            self.cx.wait()?;
            let room = pinned.bytes_mut().get_mut(..piece.len()).ok_or(Error::BadBuf)?;
            room.copy_from_slice(piece);
            self.cx.upload(raw, room)?;
            self.repack(dst, first + done, n, raw)?;
            done += n;
        }
        self.stage = Some((pinned, raw));
        Ok(Fence(0))
    }
    fn read(&mut self, src: Buf, dst: &mut [u8]) -> Result<()> {
        outside_graph(self, "read")?;
        let from = self.at(&src.slice(0, dst.len() as u64).ok_or(Error::BadBuf)?)?;
        self.cx.download(from, dst)
    }
    fn enqueue(&mut self, op: &Op, scratch: Buf) -> Result<()> {
        ops::run(self, op, scratch)
    }
    fn graph_begin(&mut self, k: GraphKey) -> Result<GraphMode> {
        outside_graph(self, "graph")?;
        if let Some(g) = self.graphs.get(&k) {
            self.cx.replay(g)?;
            return Ok(GraphMode::Replayed);
        }
        self.cx.capture()?;
        self.recording = Some(k);
        Ok(GraphMode::Run)
    }
    fn graph_end(&mut self) -> Result<()> {
        let k = self.recording.take().ok_or(Error::NoScope)?;
        let g = self.cx.captured()?;
        self.cx.replay(&g)?;
        self.graphs.insert(k, g);
        Ok(())
    }
    fn in_graph(&self) -> bool {
        self.recording.is_some()
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        self.graphs.clear();
        if let Some((_, raw)) = self.stage.take() {
            let _ = self.cx.free(raw);
        }
        for held in self.allocs.drain(..).flatten() {
            let _ = match held {
                Held::Own { ptr, .. } => self.cx.free(ptr),
                Held::Range(r) => r.close(&self.cx),
            };
        }
    }
}
