//! The short causal convolution, channels in lanes.

use super::runs::{Run, Runs};
use crate::cpu::Cx;
use crate::cpu::lanes::{Lanes, Work, dispatch};
use crate::cpu::ptr::Ptr;
use crate::cpu::span::{Span, vector, vector_mut};
use crate::error::Result;
use crate::op::{RecView, Rows};
use crate::view::{Buf, View};
use std::ops::Range;

/// Channels of one item.
const BLOCK: usize = 64;

/// Bytes of scratch: taps by channel instead of channels by tap, and the inputs before the rows.
pub fn scratch(x: &View, kernel: u32) -> u64 {
    (2 * kernel as u64 - 1) * x.cols as u64 * 4
}

#[derive(Copy, Clone)]
struct Conv<'a> {
    out: Span<f32>,
    x: Span<f32>,
    /// `[channels, taps]`.
    w: Ptr<f32>,
    taps: usize,
    /// Windows, slot by slot.
    states: Ptr<f32>,
    runs: &'a Runs,
    /// `[taps, channels]`.
    turned: Ptr<f32>,
    /// `[taps - 1, channels]`.
    past: Ptr<f32>,
}

struct Channels<'a> {
    conv: Conv<'a>,
    range: Range<usize>,
}

impl Work for Channels<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Channels { conv, range } = self;
        let (all, taps) = (conv.x.cols, conv.taps);
        for c in range.clone() {
            for i in 0..taps {
                // SAFETY: channel c belongs to this task, in scratch as in the weights.
                unsafe { *conv.turned.raw().add(i * all + c) = *conv.w.raw().add(c * taps + i) };
            }
        }
        for run in &conv.runs.runs {
            // SAFETY: the channels of `range`, which no other task touches in any array.
            unsafe {
                conv.recall(run, &range);
                for i in 0..run.rows.len() {
                    conv.row::<L>(run, i, &range);
                    if let Some(slot) = conv.runs.to[run.rows.start + i] {
                        conv.keep(run, i, slot, &range);
                    }
                }
            }
        }
    }
}

impl Conv<'_> {
    fn window(&self, slot: usize, i: usize) -> *mut f32 {
        self.states.raw().wrapping_add((slot * (self.taps - 1) + i) * self.x.cols)
    }
    /// The input `back` rows before row `i` of the run.
    fn input(&self, run: &Run, i: usize, back: usize) -> *const f32 {
        if back <= i {
            return self.x.at(run.rows.start + i - back, 0);
        }
        self.past.raw().wrapping_add((self.taps - 1 + i - back) * self.x.cols)
    }
    /// Copies the window aside: the slot may be overwritten before the last row that needs it.
    #[inline(always)]
    unsafe fn recall(&self, run: &Run, range: &Range<usize>) {
        for i in 0..self.taps - 1 {
            let to = self.past.raw().wrapping_add(i * self.x.cols + range.start);
            // SAFETY: the range's channels of a window.
            unsafe {
                match run.from {
                    Some(slot) => {
                        let from = self.window(slot, i).cast_const().add(range.start);
                        std::ptr::copy_nonoverlapping(from, to, range.len());
                    }
                    None => to.write_bytes(0, range.len()),
                }
            }
        }
    }
    #[inline(always)]
    unsafe fn row<L: Lanes>(&self, run: &Run, i: usize, range: &Range<usize>) {
        let out = self.out.at(run.rows.start + i, 0);
        let mut c = range.start;
        while c < range.end {
            let n = range.end - c;
            let mut sum = L::zero();
            for tap in 0..self.taps {
                let x = self.input(run, i, self.taps - 1 - tap);
                // SAFETY: channels c .. c + n of a row of inputs and of the taps.
                sum = unsafe { L::get(x.add(c), n).fma(L::get(self.turned.raw().add(tap * self.x.cols + c), n), sum) };
            }
            // SAFETY: the same channels of the output.
            unsafe { sum.silu().put(out.add(c), n) };
            c += L::N;
        }
    }
    /// The window after row `i`.
    #[inline(always)]
    unsafe fn keep(&self, run: &Run, i: usize, slot: usize, range: &Range<usize>) {
        for t in 0..self.taps - 1 {
            let from = self.input(run, i, self.taps - 2 - t).wrapping_add(range.start);
            // SAFETY: the range's channels; inputs and the copy aside are no slots.
            unsafe { std::ptr::copy_nonoverlapping(from, self.window(slot, t).add(range.start), range.len()) };
        }
    }
}

pub fn conv_silu(cx: &Cx, out: &View, x: &View, w: &Buf, kernel: u32, st: &RecView, rows: &Rows) -> Result<()> {
    let (taps, channels) = (kernel as usize, x.cols as usize);
    let room = vector_mut(cx.mem, &cx.scratch, (2 * taps - 1) * channels)?;
    let runs = Runs::new(cx.mem, rows, st.slots)?;
    let conv = Conv {
        out: Span::floats(cx.mem, out)?,
        x: Span::floats(cx.mem, x)?,
        w: vector(cx.mem, w, channels * taps)?,
        taps,
        states: vector_mut(cx.mem, &st.conv, st.slots as usize * st.conv_elems as usize)?,
        runs: &runs,
        turned: room,
        past: Ptr::new(room.raw().wrapping_add(taps * channels)),
    };
    // Turning the taps is what takes long: they come from memory.
    let ns = BLOCK * taps * 3 / 2 + rows.n as usize * (BLOCK / 8 + 10);
    cx.share(channels.div_ceil(BLOCK), ns, |blocks| {
        let range = blocks.start * BLOCK..channels.min(blocks.end * BLOCK);
        dispatch(cx.isa, Channels { conv, range });
    })
}
