//! Routed experts: each chosen expert's weights meet all rows that chose it, so they are read once.
//!
//! A row's products depend on that row and the expert alone. Few rows keep them apart by (row, rank), Many rows add
//! them expert by expert in ascending order, so who else is in a group, or how a step is cut into groups, changes no
//! bit.

use super::Cx;
use super::lanes::{Lanes, Work, dispatch};
use super::mat::TILE;
use super::product::{Acts, Matrix, SMALL, Scratch, acts_bytes, tiles_per_task};
use super::ptr::Ptr;
use super::share::share_out;
use super::span::vector;
use crate::error::{Error, Result};
use crate::op::{Acc, Part, Pick, Routing};
use crate::view::{BEGINS_ROW, Buf, ExpertMats, Glu, MatSet, Place, View, places};
use checkpoint::PLANES;
use std::ops::Range;

/// The op's operands.
pub struct Group<'a> {
    pub dst: &'a Acc,
    pub mid: &'a View,
    pub h: &'a View,
    pub routed: &'a Routing,
    pub e: &'a ExpertMats,
    pub pick: &'a Pick,
    pub part: Part,
}

/// Scratch bytes: fifteen-bit rows of `h` and of `mid`, where the formats want them.
pub fn scratch(mid: &View, h: &View, e: &ExpertMats, part: Part) -> u64 {
    let first = if part == Part::Down { &[][..] } else { &[&e.gate.first, &e.up.first] };
    let second = if part == Part::GateUp { &[][..] } else { &[&e.down.first] };
    acts_bytes(h.rows as u64, h.cols, first) + acts_bytes(mid.rows as u64, mid.cols, second)
}

/// A chosen expert and where its (row, rank) pairs are in [`Plan::places`].
struct Expert {
    gate: Matrix,
    up: Matrix,
    down: Matrix,
    gate_bias: Option<Ptr<f32>>,
    up_bias: Option<Ptr<f32>>,
    down_bias: Option<Ptr<f32>>,
    places: Range<usize>,
}

/// Who computes what.
struct Plan {
    /// Ascending by id; those without rows are left out.
    experts: Vec<Expert>,
    /// `row * k + rank`, ascending inside an expert.
    places: Vec<usize>,
}

/// The experts of the group, ascending, each once.
fn chosen(pick: &Pick, ids: &[(u32, usize)]) -> Vec<u32> {
    let mut all = match pick {
        Pick::All => ids.iter().map(|&(id, _)| id).collect(),
        Pick::Experts(list) => list.clone(),
    };
    all.sort_unstable();
    all.dedup();
    all
}

fn slot(cx: &Cx, e: &ExpertMats, expert: u32) -> Result<u32> {
    let Some(map) = e.slot_of else { return Ok(expert) };
    let at = map.slice(expert as u64 * 4, 4).ok_or(Error::BadBuf)?;
    // SAFETY: four readable bytes; nobody writes the map while an op reads it.
    let slot = unsafe { cx.mem.ptr(&at)?.cast::<i32>().read_unaligned() };
    // -1: routed to, or picked, without being here.
    u32::try_from(slot).map_err(|_| Error::BadBuf)
}

/// Where the planes of an expert's gate, up and down matrix begin in its slot, and whether they are interleaved.
fn begins(cx: &Cx, e: &ExpertMats, expert: u32) -> Result<[Place; 3]> {
    let Some(table) = e.begins else { return Ok([([0; PLANES], false); 3]) };
    let at = table.slice(expert as u64 * BEGINS_ROW, BEGINS_ROW).ok_or(Error::BadBuf)?;
    // SAFETY: the bytes of a row; nobody writes the table while an op reads it.
    let row = unsafe { std::slice::from_raw_parts(cx.mem.ptr(&at)?, BEGINS_ROW as usize) };
    places(row.as_chunks::<4>().0).ok_or(Error::BadBuf)
}

/// The `n` numbers of an expert's bias.
fn bias(cx: &Cx, b: Option<Buf>, expert: u32, n: usize) -> Result<Option<Ptr<f32>>> {
    let Some(b) = b else { return Ok(None) };
    let at = b.slice(expert as u64 * n as u64 * 4, n as u64 * 4).ok_or(Error::BadBuf)?;
    vector(cx.mem, &at, n).map(Some)
}

/// Adds columns `column ..` of a bias.
#[inline(always)]
fn add_bias(y: &mut [f32], bias: Option<Ptr<f32>>, column: usize) {
    if let Some(b) = bias {
        // SAFETY: a bias has an element per column, and nobody writes it.
        let b = unsafe { b.slice(column, y.len()) };
        y.iter_mut().zip(b).for_each(|(y, b)| *y += b);
    }
}

fn plan(cx: &Cx, g: &Group) -> Result<Plan> {
    let (ids, stride) = (cx.i32(&g.routed.ids)?, g.routed.ids.stride[0] as usize);
    let (n, k) = (g.routed.ids.rows as usize, g.routed.ids.cols as usize);
    // SAFETY: a row of a checked view that nobody writes meanwhile.
    let row = |r: usize| unsafe { ids.slice(r * stride, k) };
    let each = (0..n).flat_map(|r| row(r).iter().enumerate().map(move |(rank, &id)| (id, r * k + rank)));
    let each = each.filter_map(|(id, at)| Some((u32::try_from(id).ok()?, at)));
    // A group of one expert out of many must not pay for sorting all rows.
    let mut pairs: Vec<(u32, usize)> = match g.pick {
        Pick::All => each.collect(),
        Pick::Experts(of) => each.filter(|(id, _)| of.contains(id)).collect(),
    };
    pairs.sort_unstable();
    let matrix = |set: &MatSet, slot: u32, place: Place| {
        let m = set.placed(slot, place).ok_or(Error::BadBuf)?;
        Matrix::new(cx, "expert_group", &m)
    };
    let mut out = Plan { experts: Vec::new(), places: Vec::with_capacity(pairs.len()) };
    for expert in chosen(g.pick, &pairs) {
        let slot = slot(cx, g.e, expert)?;
        let at = begins(cx, g.e, expert)?;
        let (gate, up) = (matrix(&g.e.gate, slot, at[0])?, matrix(&g.e.up, slot, at[1])?);
        let down = matrix(&g.e.down, slot, at[2])?;
        let bias = |b: Option<Buf>, n: usize| bias(cx, b, expert, n);
        let (gate_bias, up_bias) = (bias(g.e.bias.gate, gate.n)?, bias(g.e.bias.up, up.n)?);
        let down_bias = bias(g.e.bias.down, down.n)?;
        let first = out.places.len();
        let from = pairs.partition_point(|&(id, _)| id < expert);
        out.places.extend(pairs[from..].iter().take_while(|&&(id, _)| id == expert).map(|&(_, at)| at));
        if out.places.len() > first {
            let places = first..out.places.len();
            out.experts.push(Expert { gate, up, down, gate_bias, up_bias, down_bias, places });
        }
    }
    Ok(out)
}

/// See [`crate::op::Op::ExpertGroup`].
pub fn expert_group(cx: &Cx, g: &Group) -> Result<()> {
    let plan = plan(cx, g)?;
    let Some(first) = plan.experts.first() else { return Ok(()) };
    let mut scratch = Scratch::new(cx)?;
    if g.part != Part::Down {
        let rows = rows_of(&plan, g.routed.ids.cols as usize);
        let x = Acts::new(cx, g.h, &[&first.gate, &first.up], &mut scratch, rows.len(), |i| rows[i])?;
        gate_up(cx, g, &plan, &x)?;
    }
    if g.part != Part::GateUp {
        let x = Acts::new(cx, g.mid, &[&first.down], &mut scratch, plan.places.len(), |i| plan.places[i])?;
        match g.dst {
            Acc::Parts(to) => down_to_parts(cx, g, &plan, &x, to)?,
            Acc::Sum(to) => down_to_sum(cx, g, &plan, &x, to)?,
        }
    }
    debug_assert!(scratch.used_up());
    Ok(())
}

/// Rows that chose any of the experts, ascending, each once.
fn rows_of(plan: &Plan, k: usize) -> Vec<usize> {
    let mut rows: Vec<usize> = plan.places.iter().map(|at| at / k).collect();
    rows.sort_unstable();
    rows.dedup();
    rows
}

/// Runs `f(expert, tiles)` so that every expert meets every tile.
fn each_expert(cx: &Cx, plan: &Plan, of: &Matrix, f: &(dyn Fn(&Expert, Range<usize>) + Sync)) -> Result<()> {
    let (each, all) = (of.tiles(), of.tiles() * plan.experts.len());
    let per = tiles_per_task(all, cx.pool.width());
    let width = if plan.places.len() * of.n * of.k < SMALL { 1 } else { cx.pool.width() };
    share_out(cx.pool, width, all, per, &|mut run| {
        // A run of tiles may begin in one expert and end in the next.
        while !run.is_empty() {
            let (expert, first) = (run.start / each, run.start % each);
            let here = first..each.min(first + run.len());
            run.start += here.len();
            f(&plan.experts[expert], here);
        }
    })
}

/// `mid = glu(gate h, up h)`.
fn gate_up(cx: &Cx, g: &Group, plan: &Plan, x: &Acts) -> Result<()> {
    let (mid, stride) = (cx.f32(g.mid)?, g.mid.stride[0] as usize);
    let k = g.routed.ids.cols as usize;
    let Some(first) = plan.experts.first() else { return Ok(()) };
    each_expert(cx, plan, &first.gate, &|e, tiles| {
        let places = &plan.places[e.places.clone()];
        // SAFETY: inside a checked view, and no other task has these columns of these places.
        let part = |i: usize, column: usize, n: usize| unsafe { mid.slice_mut(places[i] * stride + column, n) };
        let row = |i: usize| places[i] / k;
        // SAFETY: `x` holds the rows of all places, and `mid` is written by this op alone.
        unsafe {
            e.gate.product(x, places.len(), row, tiles.clone(), |i, column, y| {
                let gate = part(i, column, y.len());
                gate.copy_from_slice(y);
                add_bias(gate, e.gate_bias, column);
            });
            e.up.product(x, places.len(), row, tiles, |i, column, y| {
                let mut up = [0.0; TILE];
                let up = &mut up[..y.len()];
                up.copy_from_slice(y);
                add_bias(up, e.up_bias, column);
                dispatch(cx.isa, GluOf { glu: g.e.glu, gate: part(i, column, up.len()), up });
            });
        }
    })
}

/// `gate = act(gate) * up` of two slices of one length.
struct GluOf<'a> {
    glu: Glu,
    gate: &'a mut [f32],
    up: &'a [f32],
}

impl Work for GluOf<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let n = self.gate.len().min(self.up.len());
        for at in (0..n).step_by(L::N) {
            // SAFETY: at < n, and no more than n - at elements are touched.
            unsafe {
                let (gate, up) = (self.gate.as_mut_ptr().add(at), L::get(self.up.as_ptr().add(at), n - at));
                L::get(gate, n - at).glu(self.glu, up).put(gate, n - at);
            }
        }
    }
}

/// Few: every output in the place of its (row, rank).
fn down_to_parts(cx: &Cx, g: &Group, plan: &Plan, x: &Acts, to: &View) -> Result<()> {
    let (y, stride) = (cx.f32(to)?, to.stride.map(|s| s as usize));
    let k = g.routed.ids.cols as usize;
    let Some(first) = plan.experts.first() else { return Ok(()) };
    each_expert(cx, plan, &first.down, &|e, tiles| {
        let places = &plan.places[e.places.clone()];
        let put = |i: usize, column: usize, v: &[f32]| {
            let at = places[i] / k * stride[0] + places[i] % k * stride[1] + column;
            // SAFETY: inside a checked view, and no other task has these columns of this place.
            let y = unsafe { y.slice_mut(at, v.len()) };
            y.copy_from_slice(v);
            add_bias(y, e.down_bias, column);
        };
        // SAFETY: `x` holds all places, and nobody writes them now.
        unsafe { e.down.product(x, places.len(), |i| places[i], tiles, put) }
    })
}

/// Many: weighted sums, expert after expert in ascending order. Tasks divide the columns.
fn down_to_sum(cx: &Cx, g: &Group, plan: &Plan, x: &Acts, to: &View) -> Result<()> {
    let (y, stride) = (cx.f32(to)?, to.stride[0] as usize);
    let (w, w_stride): (Ptr<f32>, _) = (cx.f32(&g.routed.w)?, g.routed.w.stride[0] as usize);
    let k = g.routed.ids.cols as usize;
    let Some(first) = plan.experts.first() else { return Ok(()) };
    let tiles = first.down.tiles();
    let per = tiles_per_task(tiles, cx.pool.width());
    let width = if plan.places.len() * first.down.n * first.down.k < SMALL { 1 } else { cx.pool.width() };
    share_out(cx.pool, width, tiles, per, &|tiles| {
        for e in &plan.experts {
            let places = &plan.places[e.places.clone()];
            let put = |i: usize, column: usize, v: &[f32]| {
                let (row, rank) = (places[i] / k, places[i] % k);
                // SAFETY: inside checked views; no other task has these columns, and nobody writes the weights.
                let (y, w) =
                    unsafe { (y.slice_mut(row * stride + column, v.len()), w.slice(row * w_stride + rank, 1)[0]) };
                let mut out = [0.0; TILE];
                let out = &mut out[..v.len()];
                out.copy_from_slice(v);
                add_bias(out, e.down_bias, column);
                y.iter_mut().zip(out).for_each(|(y, v)| *y += w * *v);
            };
            // SAFETY: `x` holds all places, and nobody writes them now.
            unsafe { e.down.product(x, places.len(), |i| places[i], tiles.clone(), put) }
        }
    })
}
