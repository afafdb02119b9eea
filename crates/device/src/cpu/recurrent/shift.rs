//! Rows moved on by one: what a row was is what the next one sees.

use super::runs::Runs;
use crate::cpu::Cx;
use crate::cpu::span::{Span, vector_mut};
use crate::error::Result;
use crate::op::{RecView, Rows};
use crate::view::View;

pub fn shift(cx: &Cx, out: &View, x: &View, st: &RecView, rows: &Rows) -> Result<()> {
    let n = x.cols as usize;
    let runs = Runs::new(cx.mem, rows, st.slots)?;
    let (out, x) = (Span::floats(cx.mem, out)?, Span::floats(cx.mem, x)?);
    let states = vector_mut(cx.mem, &st.state, st.slots as usize * n)?;
    let slot = |s: usize| states.raw().wrapping_add(s * n);
    for run in &runs.runs {
        // SAFETY: n columns of checked views and of slots that `Runs` has checked; none of them overlap. A slot is read
        // before the run that it belongs to may write it.
        unsafe {
            match run.from {
                Some(from) => std::ptr::copy_nonoverlapping(slot(from), out.at(run.rows.start, 0), n),
                None => out.at(run.rows.start, 0).write_bytes(0, n),
            }
            for row in run.rows.clone() {
                if row > run.rows.start {
                    std::ptr::copy_nonoverlapping(x.at(row - 1, 0), out.at(row, 0), n);
                }
                if let Some(to) = runs.to[row] {
                    std::ptr::copy_nonoverlapping(x.at(row, 0), slot(to), n);
                }
            }
        }
    }
    Ok(())
}
