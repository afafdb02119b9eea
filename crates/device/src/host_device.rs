//! A device whose memory is the host's: everything but the kernels, once for all of them.

use crate::arena::{Arena, Region};
use crate::device::{Caps, Device, Fence, GraphKey, GraphMode, ScratchFn, load_file_rows, outside_graph};
use crate::error::{Error, Result};
use crate::host::{HostMemory, SharedBytes};
use crate::op::{Op, RowClass};
use crate::view::{Buf, Layout, Mat};
use memory::{RegionSizes, Reservation};

/// The kernels of a host backend.
pub trait Kernels: Send {
    /// Bytes of scratch for an op: see [`ScratchFn`].
    fn scratch(op: &Op, caps: &Caps) -> u64;
    /// Tells which role the rows of the coming ops have.
    fn step_begins(&mut self, _class: RowClass) {}
    /// See [`Device::arrange`].
    fn arrange(&mut self, _: &HostMemory, m: &Mat) -> Result<Layout> {
        Ok(m.layout)
    }
    /// Runs a checked op. `scratch` has the bytes that [`scratch`](Self::scratch) asked for.
    fn execute(&mut self, mem: &HostMemory, op: &Op, scratch: Buf) -> Result<()>;
}

/// A host backend with kernels `K`.
pub struct HostDevice<K> {
    mem: HostMemory,
    caps: Caps,
    graph: bool,
    kernels: K,
}

impl<K: Kernels> HostDevice<K> {
    /// A device with these kernels and workspace.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn with_kernels(kernels: K, caps: Caps, sizes: RegionSizes) -> Result<Self> {
        Ok(HostDevice { mem: HostMemory::new(sizes)?, caps, graph: false, kernels })
    }
    /// Its kernels.
    pub fn kernels(&mut self) -> &mut K {
        &mut self.kernels
    }
}

impl<K: Kernels> Device for HostDevice<K> {
    fn caps(&self) -> &Caps {
        &self.caps
    }
    fn scratch_fn(&self) -> ScratchFn {
        K::scratch
    }
    fn arena(&mut self) -> &mut Arena {
        &mut self.mem.arena
    }
    fn alloc(&mut self, r: Reservation) -> Result<Buf> {
        outside_graph(self, "alloc")?;
        self.mem.alloc(r)
    }
    fn free(&mut self, b: Buf) -> Result<Reservation> {
        outside_graph(self, "free")?;
        self.mem.free(b)
    }
    fn reserve_range(&mut self, bytes: u64) -> Result<Buf> {
        outside_graph(self, "reserve_range")?;
        self.mem.reserve_range(bytes)
    }
    fn commit_range(&mut self, part: Buf, r: Reservation) -> Result<()> {
        outside_graph(self, "commit_range")?;
        self.mem.commit_range(&part, r)
    }
    fn release_range(&mut self, part: Buf) -> Result<Reservation> {
        outside_graph(self, "release_range")?;
        self.mem.release_range(&part)
    }
    fn free_range(&mut self, b: Buf) -> Result<()> {
        outside_graph(self, "free_range")?;
        self.mem.free_range(&b)
    }
    fn release_workspace(&mut self, r: Region, from: u64) -> Result<()> {
        outside_graph(self, "release_workspace")?;
        self.mem.release_workspace(r, from)
    }
    fn borrow(&mut self, bytes: &'static [u8]) -> Option<Buf> {
        self.caps.borrows_host.then(|| self.mem.borrow(bytes))
    }
    fn host_mut(&mut self, b: Buf) -> Option<&mut [u8]> {
        self.mem.bytes_mut(&b).ok()
    }
    fn share(&mut self, b: Buf) -> Option<SharedBytes> {
        self.mem.share(&b).ok()
    }
    fn write(&mut self, dst: Buf, src: &[u8]) -> Result<Fence> {
        outside_graph(self, "write")?;
        let to = self.mem.bytes_mut(&dst)?.get_mut(..src.len()).ok_or(Error::BadBuf)?;
        to.copy_from_slice(src);
        Ok(Fence(0))
    }
    fn load_rows(&mut self, dst: &Mat, first: u64, rows: u64, src: &[u8]) -> Result<Fence> {
        load_file_rows(self, dst, first, rows, src)
    }
    fn arrange(&mut self, m: &Mat) -> Result<Layout> {
        outside_graph(self, "arrange")?;
        self.kernels.arrange(&self.mem, m)
    }
    fn read(&mut self, src: Buf, dst: &mut [u8]) -> Result<()> {
        outside_graph(self, "read")?;
        dst.copy_from_slice(self.mem.bytes(&src)?.get(..dst.len()).ok_or(Error::BadBuf)?);
        Ok(())
    }
    fn step_begins(&mut self, class: RowClass) {
        self.kernels.step_begins(class);
    }
    fn enqueue(&mut self, op: &Op, scratch: Buf) -> Result<()> {
        self.kernels.execute(&self.mem, op, scratch)
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
