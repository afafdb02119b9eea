//! A mixture's feed-forward of few rows in three kernels: the norm, the router and the shared expert's first products; the choice
//! and the experts' first half; their second half and all sums.

use super::few::STREAM;
use super::kernels::{STREAMED, tile_bytes};
use super::normed::{self, Grid};
use super::ops;
use super::scratch::{self, Cut};
use super::{Cuda, Result, args, few};
use crate::op::{Acc, ActFn, Op, Part, Pick, Routing, RowClass};
use crate::view::{Buf, ExpertMats, Mat, MatSet, View};

/// Ops of the sequence.
pub const LENGTH: usize = 12;
/// Threads of the experts' choice, one for each (routing.cuh).
const CHOOSERS: u32 = 256;

/// Whether `op` is the next of: norm, router, choice, the shared expert's gate and up, their unit, its down, its own gate and what
/// that does, the experts, their sum, the addition to the residual stream.
pub fn follows(d: &Cuda, held: &[(Op, Buf)], op: &Op) -> bool {
    let at = |i: usize| held.get(i).map(|(op, _)| op);
    let rows = |i: usize, v: &View| matches!(at(i), Some(Op::RmsNorm { out, .. }) if out == v);
    let made = |i: usize, v: &View| matches!(at(i), Some(Op::Linear { out, .. }) if out == v);
    match (held.len(), op) {
        (0, Op::RmsNorm { .. }) => normed::of(d, op).is_ok_and(|n| n.is_some()),
        (1 | 7, Op::Linear { x, w, bias: None, add: false, class: RowClass::Few, .. }) => {
            let most = if held.len() == 1 { CHOOSERS } else { 1 };
            rows(0, x) && w.n <= most && float(d, w)
        }
        (2, Op::Route { logits, router, .. }) => made(1, logits) && router.groups.is_none() && router.k < 16,
        (3 | 4, Op::Linear { x, w, bias: None, add: false, class: RowClass::Few, .. }) => {
            rows(0, x) && d.mat(w).is_ok_and(|at| few::streams(d, w, &at))
        }
        (5, Op::Glu { out, gate, up, .. }) => out == gate && made(3, gate) && made(4, up),
        (6, Op::Linear { x, w, bias: None, add: false, class: RowClass::Few, .. }) => {
            made(3, x) && whole(d, w) && made_like(at(3), w)
        }
        (8, Op::Gate { x, g, act: ActFn::Sigmoid }) => made(6, x) && made(7, g) && g.cols == 1,
        (9, Op::ExpertGroup { dst: Acc::Parts(_), h, routed, e, pick: Pick::All, part: Part::Both, class, .. }) => {
            let chosen = matches!(at(2), Some(Op::Route { out, .. }) if out == routed);
            let glu = matches!(at(5), Some(Op::Glu { glu, .. }) if *glu == e.glu);
            rows(0, h)
                && chosen
                && glu
                && *class == RowClass::Few
                && experts(d, e, held)
                && between(d, held, e).is_some()
        }
        (10, Op::Combine { out, base, parts, w }) => {
            let of = matches!(at(9), Some(Op::ExpertGroup { dst: Acc::Parts(p), routed: Routing { w: x, .. }, .. }) if p == parts && x == w);
            out == base && made(6, out) && of
        }
        (11, Op::Add { x, y }) => {
            matches!(at(0), Some(Op::RmsNorm { x: from, .. }) if from == x) && made(6, y) && dead(d, held)
        }
        _ => false,
    }
}

fn float(d: &Cuda, w: &Mat) -> bool {
    let one = |w: args::Mat| args::One { out: args::View::default(), w, bias: 0, add: 0, first: 0 };
    d.mat(w).is_ok_and(|at| normed::floats(&one(at), &w.fmt))
}

/// Whether a matrix is whole tiles, with scales where copies of sixteen bytes find them.
fn whole(d: &Cuda, w: &Mat) -> bool {
    let tiles = w.n.is_multiple_of(STREAM.0) && w.k.is_multiple_of(STREAM.1) && w.row_step == 1;
    tiles && d.kernels.stream(&w.fmt, 1).is_some() && d.mat(w).is_ok_and(|at| at.s.is_multiple_of(16))
}

fn made_like(op: Option<&Op>, w: &Mat) -> bool {
    matches!(op, Some(Op::Linear { w: o, .. }) if o.fmt == w.fmt)
}

/// Whether experts are of the sizes that the kernels have, and of the format of the shared one.
fn experts(d: &Cuda, e: &ExpertMats, held: &[(Op, Buf)]) -> bool {
    let steps = |s: &MatSet| whole(d, &s.first) && s.step.iter().all(|b| b.is_multiple_of(16));
    let op = |i: usize| held.get(i).map(|(op, _)| op);
    let (Some(Op::Linear { w: router, .. }), Some(Op::Route { router: choice, .. }), Some(Op::Linear { w: down, .. })) =
        (op(1), op(2), op(6))
    else {
        return false;
    };
    let sets = [&e.gate, &e.up, &e.down];
    let alike = sets.iter().all(|s| s.first.fmt == down.fmt && steps(s) && s.slots == router.n);
    let stages = e.down.first.k.max(down.k) / STREAM.1;
    let fits = (choice.k + 1) * stages * tile_bytes(&down.fmt) <= STREAMED && e.gate.first.n.is_multiple_of(32);
    let plain = e.slot_of.is_none() && e.begins.is_none() && e.bias == Default::default();
    alike && fits && plain
}

/// What kernels hand on to each other.
struct Between {
    logits: args::View,
    by: args::View,
    gate: args::View,
    up: args::View,
    mid: args::Fifteen,
    shared: args::Fifteen,
}

/// Room for it, if it is enough: what the ops name for it may be somebody else's by the time it is used.
fn between(d: &Cuda, held: &[(Op, Buf)], e: &ExpertMats) -> Option<Between> {
    let (Op::Route { router, logits, .. }, Op::Glu { gate, .. }) = (&held.get(2)?.0, &held.get(5)?.0) else {
        return None;
    };
    let base = d.codes + Cuda::CODES * few::ROOMS as u64;
    let (n, mut cut) = (u64::from(logits.rows), Cut::default());
    let mut floats = |cols: u32| Cuda::dense(base + cut.take(n * u64::from(cols) * 4), n, 1, cols);
    let [logits, by, gate_at, up] = [logits.cols, 1, gate.cols, gate.cols].map(&mut floats);
    let mut codes = |rows: u64, cols: u32| {
        let [hi, lo, meta] = scratch::fifteen(&mut cut, rows, cols).map(|at| base + at);
        args::Fifteen { hi, lo, meta }
    };
    let (mid, shared) = (codes(n * u64::from(router.k), e.gate.first.n), codes(n, gate.cols));
    (cut.total() <= Cuda::CODES).then_some(Between { logits, by, gate: gate_at, up, mid, shared })
}

/// Whether nobody can read any more what the kernels leave out.
fn dead(d: &Cuda, held: &[(Op, Buf)]) -> bool {
    let gone = |v: &View| !d.arena.lives(&v.buf);
    held.iter().enumerate().all(|(i, (op, _))| match op {
        Op::Linear { out, .. } => i == 6 || gone(out),
        Op::ExpertGroup { dst: Acc::Parts(parts), mid, .. } => gone(parts) && gone(mid),
        _ => true,
    })
}

/// Enqueues the whole sequence.
pub fn enqueue(d: &mut Cuda, held: &[(Op, Buf)]) -> Result<()> {
    let ops: Vec<&Op> = held.iter().map(|(op, _)| op).collect();
    let [
        norm @ Op::RmsNorm { out: h, x, w, eps },
        Op::Linear { w: router_w, .. },
        chosen @ Op::Route { out, logits, router },
        Op::Linear { w: gate, .. },
        Op::Linear { w: up, .. },
        Op::Glu { glu, .. },
        sums @ Op::Linear { out: sum, w: down, .. },
        Op::Linear { w: by, .. },
        _,
        Op::ExpertGroup { e, .. },
        _,
        adds @ Op::Add { .. },
    ] = ops[..]
    else {
        return Ok(());
    };
    let (Some(kept), Some(room)) = (d.keeps(h), between(d, held, e)) else { return Ok(()) };
    let to = d.codes_for(Some(&kept));
    let one = |out, w: &Mat, first: u32| {
        Ok::<_, crate::error::Error>(args::One { out, w: d.mat(w)?, bias: 0, add: 0, first: first as i32 })
    };
    let tiles = gate.n / STREAM.0;
    let (first, second) = (one(room.gate, gate, 0)?, one(room.up, up, tiles)?);
    let (logits_of, by_of) = (one(room.logits, router_w, 0)?, one(room.by, by, router_w.n)?);
    let made = super::norms::norm(d, h, x, *w, *eps, to)?.args;
    let (m, blocks) = ([first, second, second, second], (tiles + up.n / STREAM.0) as i32);
    let (rows, q) = (h.rows as i32, args::Fifteen::default());
    let set = args::Set { x: made.out, q, m, rows, count: 2, blocks, pad: 0 };
    let floats = ([logits_of, by_of, by_of, by_of], 2, router_w.n + by.n);
    d.launch_grid(&Grid { set, fmt: gate.fmt, norm: Some(made), floats, conv: None })?;
    let route = args::Route { logits: room.logits, ..ops::route_args(d, out, logits, router)? };
    let (n, k, inner) = (h.rows, router.k, e.gate.first.n);
    // One row's choice is made by every block, sooner than a kernel of its own would be there.
    let chosen_before = i32::from(n > 1);
    if n > 1 {
        d.launch(d.kernels.get("route_ranks")?, [n, 1, 1], router_w.n.next_multiple_of(32), 0, &route)?;
    }
    let a = args::ChosenUp {
        route,
        q: to,
        to: room.mid,
        shared_to: room.shared,
        gate: d.set(&e.gate)?,
        up: d.set(&e.up)?,
        shared_gate: room.gate,
        shared_up: room.up,
        glu: ops::kind(*glu),
        chosen: chosen_before,
    };
    let tile = tile_bytes(&gate.fmt);
    let kernel = d.kernels.of("expert_group", "chosen_up_*", &gate.fmt)?;
    let grid = [k * (inner / 32) + gate.n.div_ceil(16 * 32), n, 1];
    d.launch(kernel, grid, 512, 16 * 2 * tile, &a)?;
    let a = args::ChosenDown {
        route,
        q: room.mid,
        shared_q: room.shared,
        down: d.set(&e.down)?,
        shared: d.mat(down)?,
        x: d.view(x)?,
        sum: d.view(sum)?,
        shared_by: room.by,
        chosen: chosen_before,
        pad: 0,
    };
    let kernel = d.kernels.of("expert_group", "chosen_down_*", &gate.fmt)?;
    let stages = e.down.first.k.max(down.k) / STREAM.1;
    d.launch(kernel, [down.n / STREAM.0, n, 1], (32 * (k + 1)).max(CHOOSERS), (k + 1) * stages * tile, &a)?;
    for op in [norm, chosen, sums, adds] {
        d.wrote(op)?;
    }
    d.hold(kept);
    Ok(())
}
