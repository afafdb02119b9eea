//! Encoding keys and values at their positions.

use super::pages::{PAGE, Pages, Trouble};
use super::stored::{Stored, WithFormat, pick};
use crate::cpu::Cx;
use crate::cpu::span::Span;
use crate::error::Result;
use crate::op::{Rows, StreamView};
use crate::view::View;

struct Append<'a, 'b> {
    cx: &'a Cx<'b>,
    pages: Pages,
    k: Span<f32>,
    v: Span<f32>,
}

impl WithFormat for Append<'_, '_> {
    type Out = Result<()>;
    fn with<S: Stored>(self) -> Result<()> {
        let Append { cx, pages, k, v } = self;
        let trouble = Trouble::default();
        cx.share(k.rows, 20 + k.width() / 2, |part| {
            for row in part {
                for head in 0..pages.heads {
                    let at = pages.row(row).and_then(|(seq, p)| Some((p % PAGE, pages.at(seq, p, head)?)));
                    let Some((place, (keys, values))) = trouble.unless(at) else { return };
                    for (x, to) in [(k, keys), (v, values)] {
                        // SAFETY: `d` columns of a checked view, and a vector inside a page that only this row writes.
                        unsafe {
                            let x = std::slice::from_raw_parts(x.at(row, head).cast_const(), x.cols);
                            S::encode(x, to.add(place * pages.vector));
                        }
                    }
                }
            }
        })?;
        trouble.end()
    }
}

pub fn append(cx: &Cx, st: &StreamView, rows: &Rows, k: &View, v: &View) -> Result<()> {
    let (k, v) = (Span::floats(cx.mem, k)?, Span::floats(cx.mem, v)?);
    pick(st.fmt, Append { cx, pages: Pages::new(cx.mem, st, rows)?, k, v })
}
