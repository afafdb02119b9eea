//! The oracle: each op in plain f32 loops, one file a kind, written to be compared with its formula, not to be fast.
//!
//! It has no row classes, no scratch and no threads: every row is computed by itself, in order, so its results are the
//! same for any chunking. Weights are decoded to f32 exactly; activations stay f32.

mod attention;
mod basic;
mod moe;
mod recurrent;
mod values;

use crate::device::Caps;
use crate::error::Result;
use crate::host::HostMemory;
use crate::host_device::{HostDevice, Kernels};
use crate::op::Op;
use crate::view::Buf;
use memory::RegionSizes;

/// The reference backend.
pub type Reference = HostDevice<ReferenceKernels>;

/// Its kernels.
pub struct ReferenceKernels;

impl Reference {
    /// A reference device with workspace of these sizes.
    ///
    /// # Errors
    /// [`crate::Error::OutOfMemory`].
    pub fn new(sizes: RegionSizes) -> Result<Self> {
        HostDevice::with_kernels(ReferenceKernels, Self::caps_of(), sizes)
    }
    /// What it is.
    pub fn caps_of() -> Caps {
        Caps { name: "reference", isa: "scalar f32".into(), threads: 1, borrows_host: true }
    }
}

impl Kernels for ReferenceKernels {
    fn scratch(_: &Op, _: &Caps) -> u64 {
        0
    }
    fn execute(&mut self, mem: &HostMemory, op: &Op, _: Buf) -> Result<()> {
        match op {
            Op::Embed { out, table, ids, scale } => basic::embed(mem, out, table, ids, *scale),
            Op::RmsNorm { out, x, w, eps } => basic::rms_norm(mem, out, x, w.as_ref(), *eps),
            Op::Linear { out, x, w, bias, add, .. } => basic::linear(mem, out, x, w, bias.as_ref(), *add),
            Op::Rope { x, pos, rope } => basic::rope(mem, x, pos, rope),
            Op::Gate { x, g, act } => basic::gate(mem, x, g, *act),
            Op::Glu { out, gate, up, glu } => basic::glu(mem, out, gate, up, *glu),
            Op::Add { x, y } => basic::add(mem, x, y),
            Op::Zero { x } => values::put(mem, x, &vec![0.0; (x.rows * x.width()) as usize]),
            Op::Scale { x, by } => basic::scale(mem, x, by),
            Op::Softcap { x, cap } => basic::softcap(mem, x, *cap),
            Op::GatherRows { out, x, rows } => basic::gather_rows(mem, out, x, rows),
            Op::Likeliest { out, x } => basic::likeliest(mem, out, x),
            Op::Append { st, rows, k, v } => attention::append(mem, st, rows, k, v),
            Op::Attention { out, q, st, rows, scale, window, since, sinks } => {
                attention::attention(mem, out, q, st, rows, *scale, (*window, *since), sinks.as_ref())
            }
            Op::ConvSilu { out, x, w, kernel, st, rows } => recurrent::conv_silu(mem, out, x, w, *kernel, st, rows),
            Op::GatedDelta { out, qkv, a, b, decay, dt, g, st, rows } => {
                let input = recurrent::Inputs { qkv, a, b, decay, dt };
                recurrent::gated_delta(mem, out, &input, g, st, rows)
            }
            Op::Shift { out, x, st, rows } => recurrent::shift(mem, out, x, st, rows),
            Op::Route { out, logits, router } => moe::route(mem, out, logits, router),
            Op::ExpertGroup { dst, mid, h, routed, e, pick, part, .. } => {
                moe::expert_group(mem, dst, mid, h, routed, e, pick, *part)
            }
            Op::Combine { out, base, parts, w } => moe::combine(mem, out, base, parts, w),
        }
    }
}
