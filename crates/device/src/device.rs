//! The door every backend stands behind, and what is written once for all of them.

use crate::arena::{Arena, Region};
use crate::check;
use crate::error::{Error, Result};
use crate::host::SharedBytes;
use crate::op::{self, Op, RowClass};
use crate::view::{Act, Buf, Layout, Mat, View};
use checkpoint::Format;
use memory::{Reservation, Tier};
use std::time::Duration;

/// What a backend is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caps {
    /// Short name, e.g. `"cpu"`.
    pub name: &'static str,
    /// Instruction sets or compute capability in use.
    pub isa: String,
    /// Threads that run an op.
    pub threads: u32,
    /// Whether rows of weights may be borrowed from host memory in place.
    pub borrows_host: bool,
}

/// Bytes of scratch an op needs. One per backend; it may look at shapes, class, format and caps only.
pub type ScratchFn = fn(&Op, &Caps) -> u64;

/// A point in a device's queue.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fence(pub u64);

/// A point in a device's queue that time is taken at.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Mark(pub u64);

/// What a captured step is known by.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct GraphKey {
    /// Rows of the step.
    pub rows: u32,
    /// Sequences of the step.
    pub seqs: u32,
    /// Which of several steps with these rows it is: addresses or ops differ.
    pub which: u32,
}

/// What to do with the body of a graph.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum GraphMode {
    /// Run it (and capture it, where the backend can).
    Run,
    /// It was replayed: skip it.
    Replayed,
}

/// A backend. Ops are enqueued; only [`Device::read`] waits.
pub trait Device: Send {
    /// What this backend is.
    fn caps(&self) -> &Caps;
    /// Its scratch function.
    fn scratch_fn(&self) -> ScratchFn;
    /// Its workspace.
    fn arena(&mut self) -> &mut Arena;
    /// The arrangement it wants a format in.
    fn layout_of(&self, _f: &Format) -> Layout {
        Layout::File
    }
    /// What the driver of a device with memory of its own says about that.
    fn memory(&self) -> Option<crate::cuda::CardMemory> {
        None
    }
    /// Whose memory its buffers take.
    fn tier(&self) -> Tier {
        Tier::Host
    }
    /// Memory for the life of the plan, paid by `r`. Not inside a graph.
    fn alloc(&mut self, r: Reservation) -> Result<Buf>;
    /// Returns memory, and what paid for it.
    fn free(&mut self, b: Buf) -> Result<Reservation>;
    /// Addresses for `bytes` that nothing pays for and nothing backs yet: room that grows and shrinks in place, so that
    /// ops see one buffer. Not inside a graph.
    fn reserve_range(&mut self, bytes: u64) -> Result<Buf>;
    /// Backs a part of a range with memory, paid by `r`, which holds exactly its bytes: whole pages of 4,096 bytes, none
    /// of them backed already. Not inside a graph.
    fn commit_range(&mut self, part: Buf, r: Reservation) -> Result<()>;
    /// Lets the memory of a part go that was committed as one; returns what paid for it. Not inside a graph.
    fn release_range(&mut self, part: Buf) -> Result<Reservation>;
    /// Gives a range back with everything committed in it. Not inside a graph.
    fn free_range(&mut self, b: Buf) -> Result<()>;
    /// Gives the memory behind a region of the arena back to the system from byte `from` on, as far as whole pages lie there;
    /// it is there again, without its contents, when it is taken next. For backends whose workspace is a promise of the
    /// system. Nobody may hold anything there. Not inside a graph.
    fn release_workspace(&mut self, _r: Region, _from: u64) -> Result<()> {
        Ok(())
    }
    /// Uses bytes that live as long as the program in place, where the backend can.
    fn borrow(&mut self, bytes: &'static [u8]) -> Option<Buf>;
    /// The bytes of a buffer for the host to fill, where the backend's memory is the host's.
    fn host_mut(&mut self, b: Buf) -> Option<&mut [u8]>;
    /// The memory of an allocation for a disk to fill beside the device, where the backend's memory is the host's.
    fn share(&mut self, _b: Buf) -> Option<SharedBytes> {
        None
    }
    /// Copies `src` to the start of `dst`. Not inside a graph.
    fn write(&mut self, dst: Buf, src: &[u8]) -> Result<Fence>;
    /// Copies rows `first .. first + rows` of a matrix, given as in the file, to where `dst` has them, in its layout. Not
    /// inside a graph.
    fn load_rows(&mut self, dst: &Mat, first: u64, rows: u64, src: &[u8]) -> Result<Fence>;
    /// Brings a matrix that lies as in a file into the order that kernels read fastest, in place, and tells which that is.
    /// Memory that may not be written stays as it is. Not inside a graph.
    fn arrange(&mut self, m: &Mat) -> Result<Layout> {
        Ok(m.layout)
    }
    /// Waits for everything enqueued, then copies the start of `src` out. The only wait. Not inside a graph.
    fn read(&mut self, src: Buf, dst: &mut [u8]) -> Result<()>;
    /// Tells which role the rows of the coming ops have. How many threads they get, or under which
    /// name they are counted, may follow from it, never a result.
    fn step_begins(&mut self, _class: RowClass) {}
    /// Tells that what follows belongs to no step.
    fn step_ends(&mut self) {}
    /// Runs a checked op with its scratch. Call [`run`](trait.Device.html#method.run) instead.
    fn enqueue(&mut self, op: &Op, scratch: Buf) -> Result<()>;
    /// A point in the queue that time can be taken at, on backends that queue. Not inside a graph.
    fn mark(&mut self) -> Option<Mark> {
        None
    }
    /// Time from one point to another, once something was read behind both.
    fn between(&mut self, _from: Mark, _to: Mark) -> Option<Duration> {
        None
    }
    /// Lets all points go.
    fn forget_marks(&mut self) {}
    /// Opens a graph.
    fn graph_begin(&mut self, k: GraphKey) -> Result<GraphMode>;
    /// Closes it.
    fn graph_end(&mut self) -> Result<()>;
    /// Closes a graph whose body failed: what was recorded of it is run by nobody.
    fn graph_abandon(&mut self) -> Result<()> {
        self.graph_end()
    }
    /// How deep in graphs we are: 0 outside.
    fn in_graph(&self) -> bool;
}

impl dyn Device + '_ {
    /// Runs `f`; what it took from region `r` is given back afterwards, whether it failed or not.
    pub fn scope<R, E>(&mut self, r: Region, f: impl FnOnce(&mut dyn Device) -> Result<R, E>) -> Result<R, E> {
        self.arena().open(r);
        let out = f(self);
        self.arena().close(r);
        out
    }
    /// Checks the op, takes its scratch, enqueues it, gives the scratch back.
    ///
    /// # Errors
    /// [`Error::Shape`] for operands that do not fit, [`Error::ArenaFull`], and the backend's own.
    pub fn run(&mut self, op: Op) -> Result<()> {
        check::check(&op)?;
        check::lives(&op, self.arena())?;
        let bytes = (self.scratch_fn())(&op, self.caps());
        self.scope(Region::Step, |d| {
            let scratch = d.arena().take(Region::Step, bytes)?;
            d.enqueue(&op, scratch)
        })
    }
    /// A `[rows, cols]` of the region's innermost scope. Its contents are undefined.
    pub fn take(&mut self, r: Region, ty: Act, rows: u32, cols: u32) -> Result<View> {
        let bytes = rows as u64 * cols as u64 * ty.bytes();
        Ok(View::dense(self.arena().take(r, bytes)?, ty, rows, cols))
    }
    /// Runs `f` as one step that could be captured: reads, writes and allocations inside are errors on every backend.
    pub fn graph<E: From<Error>>(
        &mut self,
        k: GraphKey,
        f: impl FnOnce(&mut dyn Device) -> Result<(), E>,
    ) -> Result<(), E> {
        match self.graph_begin(k)? {
            GraphMode::Replayed => Ok(()),
            GraphMode::Run => {
                let out = f(self);
                match &out {
                    Ok(()) => self.graph_end()?,
                    // The body's error is the one to tell.
                    Err(_) => drop(self.graph_abandon()),
                }
                out
            }
        }
    }
    /// The values of a dense `f32` view.
    pub fn read_f32(&mut self, v: View) -> Result<Vec<f32>> {
        // Read where they stay: logits of many rows are large, and twice as large twice.
        let mut values = vec![0f32; self.view_bytes(v)? / 4];
        self.read(v.buf, bytemuck::cast_slice_mut(&mut values))?;
        Ok(values)
    }
    /// The values of a dense `i32` view.
    pub fn read_i32(&mut self, v: View) -> Result<Vec<i32>> {
        let mut bytes = vec![0u8; self.view_bytes(v)?];
        self.read(v.buf, &mut bytes)?;
        Ok(bytes.chunks_exact(4).map(|c| i32::from_le_bytes([c[0], c[1], c[2], c[3]])).collect())
    }
    /// Writes a dense `f32` view.
    pub fn write_f32(&mut self, v: View, src: &[f32]) -> Result<Fence> {
        let bytes: Vec<u8> = src.iter().flat_map(|x| x.to_le_bytes()).collect();
        self.write(v.buf, &bytes)
    }
    /// Writes a dense `i32` view.
    pub fn write_i32(&mut self, v: View, src: &[i32]) -> Result<Fence> {
        let bytes: Vec<u8> = src.iter().flat_map(|x| x.to_le_bytes()).collect();
        self.write(v.buf, &bytes)
    }
    fn view_bytes(&self, v: View) -> Result<usize> {
        if !v.is_dense() || !v.fits() {
            return Err(Error::Shape { op: "read", what: "the view is not dense".into() });
        }
        Ok((v.extent() * v.ty.bytes()) as usize)
    }
}

/// Refuses host access inside a graph; every backend calls it first.
pub(crate) fn outside_graph(d: &dyn Device, what: &'static str) -> Result<()> {
    if d.in_graph() { Err(Error::InGraph(what)) } else { Ok(()) }
}

/// [`Device::load_rows`] for matrices in file layout: a plain copy.
pub(crate) fn load_file_rows(d: &mut dyn Device, dst: &Mat, first: u64, rows: u64, src: &[u8]) -> Result<Fence> {
    let (row, plane) = op::row_bytes(dst).zip(dst.planes[0]).ok_or(Error::BadBuf)?;
    let to = plane.slice(first * row, rows * row).filter(|b| b.bytes() == src.len() as u64).ok_or(Error::BadBuf)?;
    d.write(to, src)
}
