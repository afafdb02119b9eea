//! The CPU backend: x86-64 kernels and the threads that run them.
//!
//! What differs between instruction sets are tile decoders and a few inner loops, one file per set; an op is written
//! once over them. The set is chosen when the device is made. No file names both a format and an op.

mod arrange;
mod chain;
mod embed;
mod experts;
mod history;
mod isa;
mod lanes;
mod linear;
mod mat;
pub mod pool;
mod product;
mod ptr;
mod recurrent;
mod rows;
mod share;
mod span;
mod topology;

use crate::device::Caps;
use crate::error::{Error, Result};
use crate::host::HostMemory;
use crate::host_device::{HostDevice, Kernels};
use crate::op::{Op, RowClass};
use crate::view::{Buf, Layout, Mat, View};
use memory::RegionSizes;
use pool::Pool;
use ptr::Ptr;

pub use isa::Isa;

/// The CPU backend.
pub type Cpu = HostDevice<CpuKernels>;

/// How a [`Cpu`] is made.
#[derive(Clone, Debug, Default)]
pub struct CpuOptions {
    /// Threads that run an op. Where absent, one for each core that the process may use; where cores are of two kinds,
    /// rows of class Few stay on the fast ones.
    pub threads: Option<usize>,
    /// Instruction set; the best one of this machine where absent.
    pub isa: Option<Isa>,
}

/// Its kernels.
pub struct CpuKernels {
    pool: Pool,
    isa: Isa,
    /// Threads that ops of class Few run on, and all of them.
    width: [usize; 2],
}

/// What an op is run with.
struct Cx<'a> {
    mem: &'a HostMemory,
    pool: &'a Pool,
    isa: Isa,
    scratch: Buf,
}

impl Cx<'_> {
    /// Address of a checked `f32` view.
    fn f32(&self, v: &View) -> Result<Ptr<f32>> {
        aligned(self.mem.ptr_mut(&v.buf)?.cast())
    }
    /// Address of a checked `i32` view.
    fn i32(&self, v: &View) -> Result<Ptr<i32>> {
        aligned(self.mem.ptr_mut(&v.buf)?.cast())
    }
    /// Address of floats that are only read, at any alignment.
    fn floats(&self, b: &Buf) -> Result<Ptr<f32>> {
        Ok(Ptr::of(self.mem.ptr(b)?.cast()))
    }
}

fn aligned<T>(p: *mut T) -> Result<Ptr<T>> {
    if p.is_aligned() { Ok(Ptr::new(p)) } else { Err(Error::BadBuf) }
}

impl Cpu {
    /// A device with workspace of these sizes.
    ///
    /// # Errors
    /// [`crate::Error::NoIsa`], [`crate::Error::Threads`], [`crate::Error::OutOfMemory`].
    pub fn new(options: CpuOptions, sizes: RegionSizes) -> Result<Self> {
        let caps = Self::caps_of(&options)?;
        let (threads, choice) = (caps.threads as usize, topology::here());
        let (few, on) = match options.threads {
            Some(_) => (threads, None),
            None => (choice.few, choice.processors_to_keep_to()),
        };
        let width = [few.clamp(1, threads), threads];
        let kernels = CpuKernels { pool: Pool::new(threads, on)?, isa: Isa::choose(options.isa)?, width };
        HostDevice::with_kernels(kernels, caps, sizes)
    }
    /// What a device with these options is: a meter with the same caps and [`CpuKernels::scratch`](Kernels::scratch)
    /// counts what it will take.
    ///
    /// # Errors
    /// [`crate::Error::NoIsa`].
    pub fn caps_of(options: &CpuOptions) -> Result<Caps> {
        let isa = Isa::choose(options.isa)?;
        let bf16 = if isa >= Isa::Avx512 && isa::has_bf16() { "+bf16" } else { "" };
        let threads = options.threads.unwrap_or_else(|| topology::here().processors.len()).clamp(1, 1024) as u32;
        Ok(Caps { name: "cpu", isa: format!("{}{bf16}", isa.name()), threads, borrows_host: true })
    }
}

impl Kernels for CpuKernels {
    fn scratch(op: &Op, caps: &Caps) -> u64 {
        match op {
            Op::Embed { .. } => 0,
            Op::Linear { x, w, .. } => linear::scratch(x, w),
            Op::ExpertGroup { mid, h, e, part, .. } => experts::scratch(mid, h, e, *part),
            Op::RmsNorm { .. } => 0,
            Op::Rope { .. } => 0,
            Op::Gate { .. } => 0,
            Op::Glu { .. } => 0,
            Op::Add { .. } => 0,
            Op::Zero { .. } => 0,
            Op::Scale { .. } => 0,
            Op::Softcap { .. } => 0,
            Op::Append { .. } => 0,
            Op::Attention { q, st, rows, .. } => history::scratch(q, st, rows, caps),
            Op::ConvSilu { x, kernel, .. } => recurrent::conv_scratch(x, *kernel),
            Op::GatedDelta { g, rows, .. } => recurrent::delta_scratch(g, rows, caps),
            Op::Shift { .. } => 0,
            Op::Route { logits, router, .. } => rows::route_scratch(logits, router),
            Op::Combine { .. } => 0,
            Op::GatherRows { .. } => 0,
            Op::Likeliest { .. } => 0,
        }
    }
    fn step_begins(&mut self, class: RowClass) {
        self.pool.narrow(self.width[(class == RowClass::Many) as usize]);
    }
    fn arrange(&mut self, mem: &HostMemory, m: &Mat) -> Result<Layout> {
        self.pool.narrow(self.width[1]);
        arrange::arrange(&self.pool, mem, m)
    }
    fn execute(&mut self, mem: &HostMemory, op: &Op, scratch: Buf) -> Result<()> {
        let cx = &Cx { mem, pool: &self.pool, isa: self.isa, scratch };
        match op {
            Op::Embed { out, table, ids, scale } => embed::embed(cx, out, table, ids, *scale),
            Op::Linear { out, x, w, bias, add, .. } => linear::linear(cx, out, x, w, bias.as_ref(), *add),
            Op::ExpertGroup { dst, mid, h, routed, e, pick, part, .. } => {
                experts::expert_group(cx, &experts::Group { dst, mid, h, routed, e, pick, part: *part })
            }
            Op::RmsNorm { out, x, w, eps } => rows::rms_norm(cx, out, x, w.as_ref(), *eps),
            Op::Rope { x, pos, rope } => rows::rope(cx, x, pos, rope),
            Op::Gate { x, g, act } => rows::gate(cx, x, g, *act),
            Op::Glu { out, gate, up, glu } => rows::glu(cx, out, gate, up, *glu),
            Op::Add { x, y } => rows::add(cx, x, y),
            Op::Zero { x } => rows::zero(cx, x),
            Op::Scale { x, by } => rows::scale(cx, x, by),
            Op::Softcap { x, cap } => rows::softcap(cx, x, *cap),
            Op::Append { st, rows, k, v } => history::append(cx, st, rows, k, v),
            Op::Attention { out, q, st, rows, scale, window, since, sinks } => {
                history::attention(cx, out, q, st, rows, *scale, (*window, *since), sinks.as_ref())
            }
            Op::ConvSilu { out, x, w, kernel, st, rows } => recurrent::conv_silu(cx, out, x, w, *kernel, st, rows),
            Op::GatedDelta { out, qkv, a, b, decay, dt, g, st, rows } => {
                let o = recurrent::Operands { out, qkv, a, b, decay, dt };
                recurrent::gated_delta(cx, &o, g, st, rows)
            }
            Op::Shift { out, x, st, rows } => recurrent::shift(cx, out, x, st, rows),
            Op::Route { out, logits, router } => rows::route(cx, out, logits, router),
            Op::Combine { out, base, parts, w } => rows::combine(cx, out, base, parts, w),
            Op::GatherRows { out, x, rows } => rows::gather_rows(cx, out, x, rows),
            Op::Likeliest { out, x } => rows::likeliest(cx, out, x),
        }
    }
}
