//! Shape checks, written once: an op that passes may be run by any backend without looking again.

use crate::arena::Arena;
use crate::error::{Error, Result};
use crate::op::{Acc, Op, Router, Routing, Rows, StreamView, extents};
use crate::view::{Act, BEGINS_ROW, Buf, ExpertMats, Mat, MatSet, View};
use checkpoint::PLANES;

struct Checker(&'static str);

impl Checker {
    fn that(&self, ok: bool, what: impl FnOnce() -> String) -> Result<()> {
        if ok { Ok(()) } else { Err(Error::Shape { op: self.0, what: what() }) }
    }
    fn view(&self, name: &str, v: &View, ty: Act, rows: u32, heads: u32, cols: u32) -> Result<()> {
        self.that(v.ty == ty && (v.rows, v.heads, v.cols) == (rows, heads, cols), || {
            let (r, h, c) = (v.rows, v.heads, v.cols);
            format!("{name} is {:?}[{r}, {h}, {c}], needed is {ty:?}[{rows}, {heads}, {cols}]", v.ty)
        })?;
        self.that(v.fits(), || format!("{name} reaches beyond its buffer"))
    }
    fn f32(&self, name: &str, v: &View, rows: u32, cols: u32) -> Result<()> {
        self.view(name, v, Act::F32, rows, 1, cols)
    }
    fn i32(&self, name: &str, v: &View, rows: u32, cols: u32) -> Result<()> {
        self.view(name, v, Act::I32, rows, 1, cols)
    }
    fn like(&self, name: &str, v: &View, x: &View) -> Result<()> {
        self.view(name, v, Act::F32, x.rows, x.heads, x.cols)
    }
    fn floats(&self, name: &str, b: &Buf, n: u64) -> Result<()> {
        self.that(b.len >= n * 4, || format!("{name} has {} bytes, needed are {}", b.len, n * 4))
    }
    fn mat(&self, name: &str, m: &Mat, n: u32, k: u32) -> Result<()> {
        self.that((m.n, m.k) == (n, k), || format!("{name} is [{}, {}], needed is [{n}, {k}]", m.n, m.k))?;
        self.that(m.row_step > 0, || format!("{name} has its rows on one another"))?;
        self.slots(name, m, [0; PLANES], 1)
    }
    /// That every plane of a matrix, and of those `step` bytes behind it and so on, is there.
    fn slots(&self, name: &str, m: &Mat, step: [u64; PLANES], slots: u32) -> Result<()> {
        let none = || Error::NoKernel { op: self.0, fmt: m.fmt.to_string() };
        for (i, bytes) in extents(m).ok_or_else(none)?.into_iter().enumerate() {
            let Some(bytes) = bytes else { continue };
            let Some(plane) = m.planes[i] else {
                return self.that(false, || format!("plane {i} of {name} is not loaded"));
            };
            let need = step[i].saturating_mul(slots.saturating_sub(1).into()).saturating_add(bytes);
            self.that(plane.len >= need, || {
                format!("plane {i} of {name} has {} bytes, needed are {need} for {slots} slots", plane.len)
            })?;
        }
        Ok(())
    }
    fn set(&self, name: &str, s: &MatSet, n: u32, k: u32) -> Result<()> {
        self.mat(name, &s.first, n, k)?;
        self.slots(name, &s.first, s.step, s.slots)
    }
    fn rows(&self, r: &Rows, n: u32) -> Result<()> {
        self.that(r.n == n, || format!("{} rows declared, {n} given", r.n))?;
        for (name, v) in [("pos", &r.pos), ("seq_of", &r.seq_of), ("rec_to", &r.rec_to), ("ids", &r.ids)] {
            self.i32(name, v, n, 1)?;
        }
        self.i32("seq_slot", &r.seq_slot, r.seqs, 1)?;
        self.i32("rec_from", &r.rec_from, r.seqs, 1)?;
        self.i32("page_table", &r.page_table, r.seqs, r.page_table.cols)
    }
    fn stream(&self, st: &StreamView, rows: &Rows) -> Result<()> {
        self.pages(st)?;
        for (name, side, pages) in [("own", st.own, StreamView::own_pages(rows.n)), ("sink", st.sink, 1)] {
            let Some(side) = side else { continue };
            self.that(!side.fmt.rotated(), || format!("{name} pages cannot be {}", side.fmt.name()))?;
            self.that(side.ring >= pages, || format!("{} {name} pages, needed are {pages}", side.ring))?;
            self.pages(&st.beside(&side))?;
        }
        let alike = st.own.zip(st.sink).is_none_or(|(a, b)| a.fmt == b.fmt);
        self.that(alike, || "own and sink pages in two formats".into())
    }
    fn pages(&self, st: &StreamView) -> Result<()> {
        let (need, fmt, d) = (st.block_at(2, 0), st.fmt, st.d);
        self.that(fmt.fits(d), || format!("vectors of {d} elements cannot be stored as {}", fmt.name()))?;
        self.that(st.page_bytes >= need, || format!("a layer-page has {} bytes, needed are {need}", st.page_bytes))
    }
    fn routing(&self, r: &Routing, n: u32, k: u32) -> Result<()> {
        self.i32("ids", &r.ids, n, k)?;
        self.f32("weights", &r.w, n, k)
    }
    fn apart(&self, out: &View, x: &View, name: &str) -> Result<()> {
        self.that(!overlap(out, x), || format!("out overlaps {name}"))
    }
    fn experts(&self, e: &ExpertMats, hidden: u32, inner: u32) -> Result<()> {
        self.set("gate", &e.gate, inner, hidden)?;
        self.set("up", &e.up, inner, hidden)?;
        self.set("down", &e.down, hidden, inner)?;
        let rows = |b: Buf| b.len > 0 && b.len.is_multiple_of(BEGINS_ROW);
        self.that(e.begins.is_none_or(rows), || "the table of where experts begin has broken rows".into())?;
        // Which experts there are is said by values: here only that a bias holds whole rows, at least one.
        let biases = [("gate", e.bias.gate, inner), ("up", e.bias.up, inner), ("down", e.bias.down, hidden)];
        biases.into_iter().try_for_each(|(name, b, n)| match b {
            Some(b) => self.that(b.len > 0 && b.len.is_multiple_of(n as u64 * 4), || {
                format!("the bias of {name} has {} bytes, which are no rows of {n}", b.len)
            }),
            None => Ok(()),
        })
    }
    fn router(&self, r: &Router, experts: u32) -> Result<()> {
        self.that(r.k >= 1 && r.k <= experts, || format!("top {} of {experts}", r.k))?;
        for (name, b) in [("bias", &r.bias), ("per_expert", &r.per_expert)] {
            b.as_ref().map_or(Ok(()), |b| self.floats(name, b, experts as u64))?;
        }
        let Some(g) = r.groups else { return Ok(()) };
        let whole = g.n > 0 && g.keep >= 1 && g.keep <= g.n && experts.is_multiple_of(g.n);
        self.that(whole && experts / g.n * g.keep >= r.k, || {
            format!("top {} of {experts} in the best {} of {} groups", r.k, g.keep, g.n)
        })
    }
}

/// Whether two views may share an element. Columns of one buffer cut from the same rows do not.
fn overlap(a: &View, b: &View) -> bool {
    if a.buf.alloc != b.buf.alloc {
        return false;
    }
    let end = |v: &View| v.buf.off + v.extent() * v.ty.bytes();
    let apart = end(a) <= b.buf.off || end(b) <= a.buf.off;
    if apart {
        return false;
    }
    let interleaved = a.stride == b.stride && a.rows == b.rows && a.heads == b.heads;
    let gap = a.buf.off.abs_diff(b.buf.off) / 4;
    let left = if a.buf.off <= b.buf.off { a } else { b };
    let period = if a.heads > 1 { a.stride[1] } else { a.stride[0] } as u64;
    let right = if a.buf.off <= b.buf.off { b } else { a };
    !(interleaved && gap >= left.cols as u64 && gap + right.cols as u64 <= period)
}

fn same(a: &View, b: &View) -> bool {
    a == b
}

/// Whether the op's operands fit each other.
///
/// # Errors
/// [`Error::Shape`] naming op and operand, [`Error::NoKernel`] for a format without rows of known size.
pub fn check(op: &Op) -> Result<()> {
    let c = Checker(op.name());
    match op {
        Op::Embed { out, table, ids, .. } => {
            c.f32("out", out, out.rows, table.k)?;
            c.mat("table", table, table.n, table.k)?;
            c.i32("ids", ids, out.rows, 1)
        }
        Op::RmsNorm { out, x, w, .. } => {
            c.like("x", x, x)?;
            c.like("out", out, x)?;
            c.that(same(out, x) || !overlap(out, x), || "out overlaps x without being it".into())?;
            w.as_ref().map_or(Ok(()), |w| c.floats("w", w, x.cols as u64))
        }
        Op::Linear { out, x, w, bias, .. } => {
            c.f32("x", x, x.rows, x.cols)?;
            c.f32("out", out, x.rows, w.n)?;
            c.mat("w", w, w.n, x.cols)?;
            c.apart(out, x, "x")?;
            bias.as_ref().map_or(Ok(()), |b| c.floats("bias", b, w.n as u64))
        }
        Op::Rope { x, pos, rope } => {
            c.like("x", x, x)?;
            c.i32("pos", pos, x.rows, 1)?;
            c.that(rope.dims.is_multiple_of(2) && rope.dims <= x.cols, || {
                format!("{} rotating columns of {}", rope.dims, x.cols)
            })?;
            c.floats("inv_freq", &rope.inv_freq, rope.dims as u64 / 2)
        }
        Op::Gate { x, g, .. } => {
            c.like("x", x, x)?;
            let cols = if g.cols == 1 { 1 } else { x.cols };
            c.view("g", g, Act::F32, x.rows, x.heads, cols)?;
            c.apart(x, g, "g")
        }
        Op::Glu { out, gate, up, .. } => {
            c.like("gate", gate, gate)?;
            c.like("up", up, gate)?;
            c.like("out", out, gate)?;
            let free = |v: &View| same(out, v) || !overlap(out, v);
            c.that(free(gate) && free(up), || "out overlaps an input without being it".into())
        }
        Op::Add { x, y } => {
            c.like("x", x, x)?;
            c.like("y", y, x)?;
            c.apart(x, y, "y")
        }
        Op::Zero { x } => c.like("x", x, x),
        Op::Scale { x, by } => {
            c.like("x", x, x)?;
            c.that(by.len == 4 || by.len == x.cols as u64 * 4, || {
                format!("{} bytes to multiply {} columns by", by.len, x.cols)
            })
        }
        Op::Softcap { x, cap } => {
            c.like("x", x, x)?;
            c.that(*cap > 0.0, || format!("a cap of {cap}"))
        }
        Op::Append { st, rows, k, v } => {
            c.stream(st, rows)?;
            c.rows(rows, k.rows)?;
            c.view("k", k, Act::F32, rows.n, st.heads, st.d)?;
            c.view("v", v, Act::F32, rows.n, st.heads, st.d)
        }
        Op::Attention { out, q, st, rows, sinks, window, .. } => {
            c.stream(st, rows)?;
            c.rows(rows, q.rows)?;
            c.view("q", q, Act::F32, rows.n, q.heads, st.d)?;
            c.like("out", out, q)?;
            c.apart(out, q, "q")?;
            c.that(st.heads > 0 && q.heads.is_multiple_of(st.heads), || {
                format!("{} query heads over {} key heads", q.heads, st.heads)
            })?;
            c.that(st.ring == 0 || ring_holds(st.ring, *window, rows.n), || {
                format!("a ring of {} pages is too short for window {window:?} and {} rows", st.ring, rows.n)
            })?;
            sinks.as_ref().map_or(Ok(()), |s| c.floats("sinks", s, q.heads as u64))
        }
        Op::ConvSilu { out, x, w, kernel, st, rows } => {
            c.rows(rows, x.rows)?;
            c.f32("x", x, rows.n, x.cols)?;
            c.f32("out", out, rows.n, x.cols)?;
            c.apart(out, x, "x")?;
            c.that(*kernel >= 1 && st.conv_elems == (kernel - 1) * x.cols, || {
                format!("a window of {} elements for {} channels and {kernel} taps", st.conv_elems, x.cols)
            })?;
            c.floats("conv states", &st.conv, st.slots as u64 * st.conv_elems as u64)?;
            c.floats("w", w, x.cols as u64 * *kernel as u64)
        }
        Op::GatedDelta { out, qkv, a, b, decay, dt, g, st, rows } => {
            c.rows(rows, qkv.rows)?;
            c.that(g.n_k > 0 && g.n_v.is_multiple_of(g.n_k), || format!("{} value over {} key heads", g.n_v, g.n_k))?;
            c.f32("qkv", qkv, rows.n, g.channels())?;
            c.view("out", out, Act::F32, rows.n, g.n_v, g.d_v)?;
            c.apart(out, qkv, "qkv")?;
            c.f32("a", a, rows.n, g.n_v)?;
            c.f32("b", b, rows.n, g.n_v)?;
            c.floats("decay", decay, g.n_v as u64)?;
            c.floats("dt", dt, g.n_v as u64)?;
            c.that(st.state_elems == g.n_v * g.d_k * g.d_v, || format!("a state of {} elements", st.state_elems))?;
            c.floats("states", &st.state, st.slots as u64 * st.state_elems as u64)
        }
        Op::Shift { out, x, st, rows } => {
            c.rows(rows, x.rows)?;
            c.f32("x", x, rows.n, x.cols)?;
            c.f32("out", out, rows.n, x.cols)?;
            c.apart(out, x, "x")?;
            c.that(st.state_elems == x.cols, || format!("a state of {} elements for {}", st.state_elems, x.cols))?;
            c.floats("states", &st.state, st.slots as u64 * st.state_elems as u64)
        }
        Op::Route { out, logits, router } => {
            c.f32("logits", logits, logits.rows, logits.cols)?;
            c.router(router, logits.cols)?;
            c.routing(out, logits.rows, router.k)
        }
        Op::ExpertGroup { dst, mid, h, routed, e, class, .. } => {
            let (n, k) = (h.rows, routed.ids.cols);
            c.f32("h", h, n, h.cols)?;
            c.routing(routed, n, k)?;
            c.f32("mid", mid, n * k, mid.cols)?;
            c.experts(e, h.cols, mid.cols)?;
            use crate::op::RowClass::{Few, Many};
            match (dst, class) {
                (Acc::Parts(p), Few) => c.view("parts", p, Act::F32, n, k, h.cols),
                (Acc::Sum(s), Many) => c.f32("sum", s, n, h.cols),
                _ => c.that(false, || "Few rows keep parts, Many rows a sum".into()),
            }
        }
        Op::Combine { out, base, parts, w } => {
            c.f32("base", base, out.rows, out.cols)?;
            c.f32("out", out, out.rows, out.cols)?;
            c.view("parts", parts, Act::F32, out.rows, w.cols, out.cols)?;
            c.f32("w", w, out.rows, w.cols)?;
            c.apart(out, parts, "parts")?;
            c.that(same(out, base) || !overlap(out, base), || "out overlaps base without being it".into())
        }
        Op::GatherRows { out, x, rows } => {
            c.f32("x", x, x.rows, x.cols)?;
            c.f32("out", out, out.rows, x.cols)?;
            c.i32("rows", rows, out.rows, 1)?;
            c.apart(out, x, "x")
        }
    }
}

/// Whether a ring keeps every position that `n` rows written together may still look at:
/// `ceil((W + n - 1) / 256) + 1` pages.
fn ring_holds(ring: u32, window: Option<u32>, n: u32) -> bool {
    window.is_some_and(|w| ring > (w as u64 + n.max(1) as u64 - 1).div_ceil(256) as u32)
}

/// Whether every operand's scope is still open.
pub fn lives(op: &Op, arena: &Arena) -> Result<()> {
    let dead = operands(op).into_iter().any(|b| !arena.lives(&b));
    if dead { Err(Error::Shape { op: op.name(), what: "an operand outlived its scope".into() }) } else { Ok(()) }
}

fn operands(op: &Op) -> Vec<Buf> {
    let mut of: Vec<Buf> = Vec::with_capacity(6);
    let mut views = |vs: &[&View]| of.extend(vs.iter().map(|v| v.buf));
    match op {
        Op::Embed { out, ids, .. } => views(&[out, ids]),
        Op::RmsNorm { out, x, .. } | Op::Linear { out, x, .. } => views(&[out, x]),
        Op::Rope { x, pos, .. } => views(&[x, pos]),
        Op::Gate { x, g, .. } => views(&[x, g]),
        Op::Glu { out, gate, up, .. } => views(&[out, gate, up]),
        Op::Add { x, y } => views(&[x, y]),
        Op::Zero { x } | Op::Scale { x, .. } | Op::Softcap { x, .. } => views(&[x]),
        Op::Append { k, v, .. } => views(&[k, v]),
        Op::Attention { out, q, .. } => views(&[out, q]),
        Op::ConvSilu { out, x, .. } | Op::Shift { out, x, .. } => views(&[out, x]),
        Op::GatedDelta { out, qkv, a, b, .. } => views(&[out, qkv, a, b]),
        Op::Route { out, logits, .. } => views(&[&out.ids, &out.w, logits]),
        Op::ExpertGroup { dst, mid, h, routed, .. } => {
            let (Acc::Parts(d) | Acc::Sum(d)) = dst;
            views(&[d, mid, h, &routed.ids, &routed.w]);
        }
        Op::Combine { out, base, parts, w } => views(&[out, base, parts, w]),
        Op::GatherRows { out, x, rows } => views(&[out, x, rows]),
    }
    of
}
