//! What becomes of a product's outputs at once, by the block that makes the last of a group: codes behind the norm that is asked for
//! next, or a gated unit of two products and its codes. So neither is a kernel of its own.

use super::along::{self, RowNorm};
use super::driver::Ptr;
use super::few::{ROOMS, Span, Waiting};
use super::{Cuda, Result, args, ops};
use crate::op::Op;
use crate::view::{Buf, View};

/// Codes of x * w that lie in a room without the scale of the norm that they are of, and squares of groups.
#[derive(Copy, Clone)]
pub struct Unscaled {
    pub from: Span,
    w: Option<Buf>,
    pub room: usize,
}

impl Unscaled {
    pub fn is_of(&self, n: &RowNorm) -> bool {
        self.from == n.from && self.w == n.w
    }
}

const A_NORM: i32 = 1;
const A_UNIT: i32 = 2;

impl Cuda {
    /// Counters of groups that tiles are missing of: they are all zero between kernels.
    pub(super) const COUNTERS: u64 = 16 << 10;

    fn counters(&self) -> Ptr {
        self.codes + Self::CODES * (ROOMS as u64 + 1)
    }
    /// Whether there are counters for groups of `cols` columns of that many rows.
    fn counts(rows: i32, cols: i32) -> bool {
        i64::from(rows + 1) * i64::from(cols / 32) <= Self::COUNTERS as i64
    }
    /// Looks at the next op before anything else does: what wait for nothing but to know it go now.
    pub(super) fn foresee(&mut self, op: &Op) -> Result<()> {
        let norm = if self.held.is_empty() { along::norm_of(self, op)? } else { None };
        let Some(norm) = norm.filter(|n| Self::counts(n.source().rows, n.source().cols)) else {
            return self.flush_last(args::Follow::default());
        };
        if self.last.as_ref().is_some_and(|l| l.x == norm.from) {
            let then = self.then_norm(&norm);
            self.flush_last(then)?;
        } else {
            self.flush_last(args::Follow::default())?;
            let makes = matches!(&self.pending[..], [p] if p.streams && p.out == norm.from && p.one.w.n % 32 == 0);
            if !makes {
                return Ok(());
            }
            let then = self.then_norm(&norm);
            self.flush_products(None, then)?;
        }
        let room = self.take_room();
        self.unscaled = Some(Unscaled { from: norm.from, w: norm.w, room });
        Ok(())
    }
    /// A norm behind what makes its rows. Its codes go to the room that is taken next.
    fn then_norm(&self, n: &RowNorm) -> args::Follow {
        let [hi, lo, _, meta, squares] = self.unscaled_at(self.next_codes, &n.x);
        let to = args::Fifteen { hi, lo, meta };
        let w = n.weights();
        args::Follow {
            a: n.source(),
            to,
            squares,
            w,
            count: self.counters(),
            kind: A_NORM,
            needs: 2,
            ..args::Follow::default()
        }
    }
    /// A gated unit of two products that wait. `false` where it must wait for them.
    pub(super) fn unit(&mut self, op: &Op) -> Result<bool> {
        let Op::Glu { out, gate, up, glu } = op else { return Ok(false) };
        let made = |v: &View| self.pending.iter().any(|w| w.streams && w.out == Span::of(self, v));
        let two = self.pending.iter().filter(|w| w.streams).count() == 2 && gate != up && made(gate) && made(up);
        let (Some(kept), true) = (self.keeps(out), two && out.heads == 1 && gate.cols == up.cols) else {
            return Ok(false);
        };
        let (a, b, to) = (self.view(gate)?, self.view(up)?, self.view(out)?);
        let own = Span::of(self, out);
        // It may be where the gates are, group by group, but nowhere else that the grid uses.
        let apart = |w: &Waiting| !w.x.span.meets(&own) && (w.out == Span::of(self, gate) || !w.out.meets(&own));
        let fits =
            [a, b, to].iter().all(along::pieces) && Self::counts(a.rows, a.cols) && self.pending.iter().all(apart);
        if !fits || (out != gate && own.meets(&Span::of(self, gate))) {
            return Ok(false);
        }
        let then = args::Follow {
            a,
            b,
            out: to,
            to: self.codes_for(Some(&kept)),
            count: self.counters(),
            glu: ops::kind(*glu),
            kind: A_UNIT,
            needs: 4,
            ..args::Follow::default()
        };
        self.flush_products(None, then)?;
        self.wrote(op)?;
        self.hold(kept);
        Ok(true)
    }
    /// Enqueues the end of a mixture that waited for what follows it.
    pub(super) fn flush_last(&mut self, then: args::Follow) -> Result<()> {
        self.last.take().map_or(Ok(()), |last| last.launch(self, then))
    }
}
