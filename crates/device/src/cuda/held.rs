//! Ops that wait for what comes behind them: a few kernels do what a whole sequence of ops asks for, to the same numbers or, where
//! products go another way, to the same few last bits in every step. What does not follow is enqueued op by op, in order.
//!
//! Memory of a sequence is not written by anybody else meanwhile, because nothing is enqueued before it.

use super::{Cuda, Result, args, heads, mixture, ops};
use crate::op::{Op, RowClass};
use crate::view::{Buf, View};

/// What the next op is to those that wait.
pub enum Fit {
    /// It waits with them.
    More,
    /// With it the sequence is whole.
    Whole,
    /// It is none of the sequence.
    No,
}

/// Whether ops are held back at all: few rows, on a card that has the kernels.
fn applies(d: &Cuda) -> bool {
    d.class == Some(RowClass::Few) && d.kernels.joins()
}

/// What `op` is to the ops that wait; with none of them, whether a sequence may begin with it.
pub fn fit(d: &Cuda, held: &[(Op, Buf)], op: &Op) -> Fit {
    if !applies(d) {
        return Fit::No;
    }
    let first = held.first().map_or(op, |(first, _)| first);
    let (follows, whole) = match first {
        Op::RmsNorm { out, x, .. } if out == x => (heads::follows(held, op), heads::LENGTH),
        Op::RmsNorm { .. } => (mixture::follows(d, held, op), mixture::LENGTH),
        Op::Attention { .. } => (heads::gates(held, op), 2),
        Op::GatedDelta { .. } => (gates(d, held, op), 3),
        _ => (false, 0),
    };
    match follows {
        true if held.len() + 1 == whole => Fit::Whole,
        true => Fit::More,
        false => Fit::No,
    }
}

/// Enqueues a whole sequence.
pub fn whole(d: &mut Cuda, held: &[(Op, Buf)]) -> Result<()> {
    d.flush()?;
    match held {
        [(Op::GatedDelta { .. }, _), ..] => gated(d, held),
        [(Op::Attention { .. }, _), ..] => heads::gated(d, held),
        [(Op::RmsNorm { out, x, .. }, _), ..] if out == x => heads::enqueue(d, held),
        _ => mixture::enqueue(d, held),
    }
}

/// One row of each sequence through the gated delta rule, a norm of each head, a gate.
fn gates(d: &Cuda, held: &[(Op, Buf)], op: &Op) -> bool {
    let made = |v: &View| matches!(held.first(), Some((Op::GatedDelta { out, .. }, _)) if out == v);
    match (held.len(), op) {
        (0, Op::GatedDelta { qkv, g, st, rows, out, .. }) => {
            let aligned = |v: &View| d.view(v).is_ok_and(|v| v.p.is_multiple_of(16) && v.s0 % 4 == 0 && v.s1 % 4 == 0);
            let state = d.at(&st.state).is_ok_and(|p| p.is_multiple_of(8)) && st.state_elems.is_multiple_of(2);
            let wide = g.d_v == 128 && g.d_k <= 128 && g.d_k.is_multiple_of(4);
            wide && rows.n == rows.seqs && state && aligned(qkv) && aligned(out)
        }
        (1, Op::RmsNorm { out, x, .. }) => out == x && made(x) && x.heads > 1,
        (2, Op::Gate { x, g, .. }) => made(x) && (g.heads, g.cols) == (x.heads, x.cols),
        _ => false,
    }
}

fn gated(d: &mut Cuda, held: &[(Op, Buf)]) -> Result<()> {
    let [
        (delta @ Op::GatedDelta { out, qkv, a, b, decay, dt, g: shape, st, rows }, _),
        (Op::RmsNorm { w, eps, .. }, _),
        (Op::Gate { x, g, act }, _),
    ] = held
    else {
        return Ok(());
    };
    let vectors = [d.vector(Some(decay))?, d.vector(Some(dt))?];
    let kept = d.keeps(x);
    let a = args::DeltaGate {
        d: ops::delta_args(d, [out, qkv, a, b], vectors, shape, st, rows)?,
        g: d.view(g)?,
        to: d.codes_for(kept.as_ref()),
        w: d.vector(w.as_ref())?,
        eps: *eps,
        act: ops::act(*act),
    };
    d.launch(d.kernels.get("delta_gate")?, [shape.n_v, 4, rows.seqs], 128, 0, &a)?;
    d.wrote(delta)?;
    kept.into_iter().for_each(|k| d.hold(k));
    Ok(())
}
