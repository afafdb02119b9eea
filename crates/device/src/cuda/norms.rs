//! Norms, and what goes with them into one kernel: a norm of heads waits until the next op is known.

use super::args;
use super::{Cuda, Result};
use crate::op::{ActFn, Op, Pairing, Rope};
use crate::view::{Buf, View};

/// A norm that was asked for.
pub struct Norm {
    pub(super) args: args::Norm,
    pub(super) threads: u32,
}

impl Norm {
    fn grid(&self) -> [u32; 3] {
        [(self.args.x.rows * self.args.x.heads) as u32, 1, 1]
    }
    pub(super) fn launch(&self, d: &Cuda) -> Result<()> {
        d.launch(d.kernels.get("rms_norm")?, self.grid(), self.threads, 0, &self.args)
    }
}

/// A norm of these operands, with codes to `to`.
pub(super) fn norm(d: &Cuda, out: &View, x: &View, w: Option<Buf>, eps: f32, to: args::Fifteen) -> Result<Norm> {
    // By the number of columns alone, so that a row has its bits in any company: four of them a thread, eight where there are many.
    let fours = x.cols.div_ceil(4);
    let each = if fours > 1024 { fours.div_ceil(2) } else { fours };
    let threads = each.next_multiple_of(32).clamp(32, 1024);
    let (out, x, w) = (d.view(out)?, d.view(x)?, d.vector(w.as_ref())?);
    Ok(Norm { args: args::Norm { out, x, w, to, eps, threads: threads as i32 }, threads })
}

/// The argument of a rotation.
pub(super) fn turned(d: &Cuda, x: &View, pos: &View, rope: &Rope) -> Result<args::Rope> {
    Ok(args::Rope {
        x: d.view(x)?,
        pos: d.view(pos)?,
        inv_freq: d.vector(Some(&rope.inv_freq))?,
        dims: rope.dims as i32,
        adjacent: (rope.pairing == Pairing::Adjacent) as i32,
        factor: rope.factor,
    })
}

/// The argument of a gate, with codes to `to`.
pub(super) fn gated(d: &Cuda, x: &View, g: &View, act: ActFn, to: args::Fifteen) -> Result<args::Gate> {
    let act = match act {
        ActFn::Sigmoid => 0,
        ActFn::Silu => 1,
    };
    Ok(args::Gate { x: d.view(x)?, g: d.view(g)?, to, act, pad: 0 })
}

/// Enqueues an op together with the norm in front of it, where it turns or gates the very rows that the norm made: the same numbers
/// from one kernel. `false` where it does not; the norm still waits then.
pub(super) fn fused(d: &mut Cuda, op: &Op) -> Result<bool> {
    let Some(n) = &d.norm else { return Ok(false) };
    let (grid, threads, norm) = (n.grid(), n.threads, n.args);
    let mut kept = None;
    match op {
        Op::Rope { x, pos, rope } if d.view(x)? == norm.out => {
            let a = args::NormRope { norm, rope: turned(d, x, pos, rope)? };
            d.launch(d.kernels.get("norm_rope")?, grid, threads, 0, &a)?;
        }
        Op::Gate { x, g, act } if d.view(x)? == norm.out && (g.heads, g.cols) == (x.heads, x.cols) => {
            kept = d.keeps(x);
            let a = args::NormGate { norm, gate: gated(d, x, g, *act, d.codes_for(kept.as_ref()))? };
            d.launch(d.kernels.get("norm_gate")?, grid, threads, 0, &a)?;
        }
        _ => return Ok(false),
    }
    d.norm = None;
    d.wrote(op)?;
    kept.into_iter().for_each(|k| d.hold(k));
    Ok(true)
}
