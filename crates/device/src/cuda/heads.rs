//! What attention of few rows takes besides: norms and rotations of keys and queries with keys and values on their way to where
//! history has them, in one kernel; a gate on what attention came to, in the kernel where its partitions meet.

use super::norms::{norm, turned};
use super::{Cuda, Result, args, ops};
use crate::op::Op;
use crate::view::{Buf, View};
use memory::KvFormat;

/// Ops from the keys' norm to the queries' rotation.
pub const LENGTH: usize = 5;

/// Whether `op` is the next of: the keys' norm, their rotation, keys and values to history, the queries' norm, their rotation.
pub fn follows(held: &[(Op, Buf)], op: &Op) -> bool {
    let normed = |i: usize, v: &View| matches!(held.get(i), Some((Op::RmsNorm { out, .. }, _)) if out == v);
    match (held.len(), op) {
        (0, Op::RmsNorm { out, x, .. }) => out == x && x.cols <= 512,
        (1, Op::Rope { x, .. }) => normed(0, x),
        (2, Op::Append { k, st, .. }) => normed(0, k) && st.own.is_none() && st.sink.is_none(),
        (3, Op::RmsNorm { out, x, .. }) => {
            out == x && matches!(held[0].0, Op::RmsNorm { x: k, .. } if k.cols == x.cols)
        }
        (4, Op::Rope { x, .. }) => normed(3, x),
        _ => false,
    }
}

/// Enqueues the whole sequence.
pub fn enqueue(d: &mut Cuda, held: &[(Op, Buf)]) -> Result<()> {
    let [
        (Op::RmsNorm { w: kw, eps: k_eps, .. }, _),
        (turn_k @ Op::Rope { x: k, pos: k_pos, rope: k_rope }, _),
        (append @ Op::Append { st, rows, v, .. }, scratch),
        (Op::RmsNorm { w: qw, eps: q_eps, .. }, _),
        (turn_q @ Op::Rope { x: q, pos: q_pos, rope: q_rope }, _),
    ] = held
    else {
        return Ok(());
    };
    let none = args::Fifteen::default();
    let (norm_k, norm_q) = (norm(d, k, k, *kw, *k_eps, none)?, norm(d, q, q, *qw, *q_eps, none)?);
    let plain = matches!(st.fmt, KvFormat::F32 | KvFormat::Bf16);
    let a = args::Heads {
        k: args::NormRope { norm: norm_k.args, rope: turned(d, k, k_pos, k_rope)? },
        q: args::NormRope { norm: norm_q.args, rope: turned(d, q, q_pos, q_rope)? },
        st: d.stream(st)?,
        rows: d.rows(rows)?,
        v: d.view(v)?,
        append: plain as i32,
        pad: 0,
    };
    let blocks = rows.n * (q.heads + k.heads * if plain { 2 } else { 1 });
    d.launch(d.kernels.get("heads")?, [blocks, 1, 1], norm_k.threads, 0, &a)?;
    d.wrote(turn_k)?;
    d.wrote(turn_q)?;
    if plain { Ok(()) } else { ops::one(d, append, *scratch) }
}

/// Whether a gate works on what attention came to.
pub fn gates(held: &[(Op, Buf)], op: &Op) -> bool {
    match (held, op) {
        ([], Op::Attention { out, st, .. }) => st.d.is_multiple_of(32) && out.cols == st.d,
        ([(Op::Attention { out, .. }, _)], Op::Gate { x, g, .. }) => x == out && (g.heads, g.cols) == (x.heads, x.cols),
        _ => false,
    }
}

/// Enqueues both.
pub fn gated(d: &mut Cuda, held: &[(Op, Buf)]) -> Result<()> {
    let [(attention @ Op::Attention { .. }, scratch), (Op::Gate { x, g, act }, _)] = held else { return Ok(()) };
    let kept = d.keeps(x);
    let gate = ops::AfterMeeting { g: d.view(g)?, to: d.codes_for(kept.as_ref()), act: ops::act(*act), gated: 1 };
    ops::attend(d, attention, *scratch, gate)?;
    d.wrote(attention)?;
    kept.into_iter().for_each(|k| d.hold(k));
    Ok(())
}
