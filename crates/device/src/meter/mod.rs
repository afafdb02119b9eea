//! The dry device: it runs a forward pass on shapes alone and counts workspace with another backend's scratch
//! function. What it measures before a weight is read is what the real step takes, to the byte.

use crate::arena::Arena;
use crate::device::{Caps, Device, Fence, GraphKey, GraphMode, ScratchFn, outside_graph};
use crate::error::{Error, Result};
use crate::op::Op;
use crate::view::{AllocId, Buf};
use memory::Reservation;
use std::collections::HashMap;

/// See the module.
pub struct Meter {
    scratch: ScratchFn,
    caps: Caps,
    arena: Arena,
    held: HashMap<AllocId, Reservation>,
    /// What pays for the parts of ranges, by (allocation, offset).
    parts: HashMap<(AllocId, u64), Reservation>,
    next: u32,
    graph: bool,
}

impl Meter {
    /// Counts for a backend with this scratch function and these caps.
    pub fn new(scratch: ScratchFn, caps: Caps) -> Self {
        let next = Arena::FIRST_FREE_ID;
        Meter {
            scratch,
            caps,
            arena: Arena::unbounded(),
            held: HashMap::new(),
            parts: HashMap::new(),
            next,
            graph: false,
        }
    }
    /// A handle to bytes that nobody holds: what weights look like before they are read.
    pub fn imagine(&mut self, bytes: u64) -> Buf {
        self.next += 1;
        Buf::whole(AllocId(self.next), bytes)
    }
}

impl Device for Meter {
    fn caps(&self) -> &Caps {
        &self.caps
    }
    fn scratch_fn(&self) -> ScratchFn {
        self.scratch
    }
    fn arena(&mut self) -> &mut Arena {
        &mut self.arena
    }
    fn alloc(&mut self, r: Reservation) -> Result<Buf> {
        outside_graph(self, "alloc")?;
        let b = self.imagine(r.bytes());
        self.held.insert(b.alloc, r);
        Ok(b)
    }
    fn free(&mut self, b: Buf) -> Result<Reservation> {
        outside_graph(self, "free")?;
        self.held.remove(&b.alloc).ok_or(Error::BadBuf)
    }
    fn reserve_range(&mut self, bytes: u64) -> Result<Buf> {
        outside_graph(self, "reserve_range")?;
        Ok(self.imagine(bytes))
    }
    fn commit_range(&mut self, part: Buf, r: Reservation) -> Result<()> {
        outside_graph(self, "commit_range")?;
        let fresh = !self.parts.contains_key(&(part.alloc, part.off));
        if r.bytes() != part.len || !fresh {
            return Err(Error::BadBuf);
        }
        self.parts.insert((part.alloc, part.off), r);
        Ok(())
    }
    fn release_range(&mut self, part: Buf) -> Result<Reservation> {
        outside_graph(self, "release_range")?;
        self.parts.remove(&(part.alloc, part.off)).ok_or(Error::BadBuf)
    }
    fn free_range(&mut self, b: Buf) -> Result<()> {
        outside_graph(self, "free_range")?;
        self.parts.retain(|(alloc, _), _| *alloc != b.alloc);
        Ok(())
    }
    fn borrow(&mut self, bytes: &'static [u8]) -> Option<Buf> {
        Some(self.imagine(bytes.len() as u64))
    }
    fn host_mut(&mut self, _: Buf) -> Option<&mut [u8]> {
        None
    }
    fn write(&mut self, dst: Buf, src: &[u8]) -> Result<Fence> {
        outside_graph(self, "write")?;
        if src.len() as u64 <= dst.len { Ok(Fence(0)) } else { Err(Error::BadBuf) }
    }
    fn read(&mut self, _: Buf, _: &mut [u8]) -> Result<()> {
        outside_graph(self, "read")?;
        Err(Error::Dry)
    }
    fn enqueue(&mut self, _: &Op, _: Buf) -> Result<()> {
        Ok(())
    }
    fn graph_begin(&mut self, _: GraphKey) -> Result<GraphMode> {
        outside_graph(self, "graph")?;
        self.graph = true;
        Ok(GraphMode::Run)
    }
    fn graph_end(&mut self) -> Result<()> {
        self.graph = false;
        Ok(())
    }
    fn in_graph(&self) -> bool {
        self.graph
    }
}
