//! Encoding keys and values at their positions.

use super::pages::{PAGE, Pages, Trouble};
use crate::cpu::Cx;
use crate::cpu::lanes::{Lanes, Work, dispatch};
use crate::cpu::span::Span;
use crate::error::Result;
use crate::kv::{self, Pieces, Signs};
use crate::op::{Rows, StreamView};
use crate::view::View;
use memory::KvFormat;
use std::ops::Range;

/// Some rows into one kind of pages.
#[derive(Copy, Clone)]
struct To<'a> {
    pages: Pages,
    fmt: KvFormat,
    /// Positions from here on are not kept.
    end: usize,
    /// Of the keys and the values of each head.
    signs: &'a [[Signs; 2]],
    k: Span<f32>,
    v: Span<f32>,
    trouble: &'a Trouble,
}

struct Part<'a> {
    to: &'a To<'a>,
    rows: Range<usize>,
}

impl Work for Part<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        for row in self.rows.clone() {
            for head in 0..self.to.pages.heads {
                self.to.vectors(row, head);
            }
        }
    }
}

impl To<'_> {
    /// The key and the value of a row and head. Codecs are plain code, compiled for the set of the caller.
    #[inline(always)]
    fn vectors(&self, row: usize, head: usize) {
        let pages = &self.pages;
        let at = pages.row(row).and_then(|(seq, p)| Some((p, pages.at(seq, p, head)?)));
        let Some((p, (keys, values))) = self.trouble.unless(at) else { return };
        if p >= self.end {
            return;
        }
        for (plane, (x, to)) in [(self.k, keys), (self.v, values)].into_iter().enumerate() {
            let place = p % PAGE;
            // SAFETY: `d` columns of a checked view, and a vector inside a page that only this row writes.
            unsafe {
                let x = std::slice::from_raw_parts(x.at(row, head).cast_const(), x.cols);
                if !self.fmt.rotated() {
                    let codes = std::slice::from_raw_parts_mut(to.add(place * pages.vector), pages.vector);
                    kv::encode(self.fmt, &self.signs[head][plane], x, codes);
                    continue;
                }
                let mut codes = [0; kv::rotation::MAX_WIDTH];
                let codes = &mut codes[..pages.vector];
                let scale = kv::encode(self.fmt, &self.signs[head][plane], x, codes);
                let pieces = Pieces::of(self.fmt, plane as u32, x.len() as u32, place as u32);
                for (at, piece) in pieces.offsets().zip(codes.chunks_exact(pieces.len)) {
                    std::ptr::copy_nonoverlapping(piece.as_ptr(), to.add(at), pieces.len);
                }
                let scale = scale.unwrap_or_default();
                to.add(pages.scales).cast::<[u8; 2]>().add(place).write(scale.to_le_bytes());
            }
        }
    }
}

pub fn append(cx: &Cx, st: &StreamView, rows: &Rows, k: &View, v: &View) -> Result<()> {
    let (k, v) = (Span::floats(cx.mem, k)?, Span::floats(cx.mem, v)?);
    let signs: Vec<_> = (0..st.heads).map(|h| [0, 1].map(|plane| Signs::new(st.layer, plane, h))).collect();
    let trouble = Trouble::default();
    let own = st.own.map(|s| (st.beside(&s), usize::MAX));
    let sink = st.sink.map(|s| (st.beside(&s), PAGE));
    for (st, end) in [Some((*st, usize::MAX)), own, sink].into_iter().flatten() {
        let pages = Pages::new(cx.mem, &st, rows)?;
        let to = To { pages, fmt: st.fmt, end, signs: &signs, k, v, trouble: &trouble };
        let ns = if st.fmt.rotated() { 8 * k.width() } else { k.width() / 2 };
        cx.share(k.rows, 20 + ns, |rows| dispatch(cx.isa, Part { to: &to, rows }))?;
    }
    trouble.end()
}
