//! Where positions lie.

use crate::cpu::ptr::Ptr;
use crate::cpu::span::Span;
use crate::error::{Error, Result};
use crate::host::HostMemory;
use crate::op::{Rows, StreamView};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Positions of a page.
pub const PAGE: usize = 256;

/// The pages of a layer, with whose they are in this step.
#[derive(Copy, Clone)]
pub struct Pages {
    base: Ptr<u8>,
    /// Page ids that lie inside the buffer.
    count: usize,
    page_bytes: usize,
    /// Bytes of a vector's elements, where in the vectors of one head in a page the scales begin, and the bytes of all of
    /// these.
    pub vector: usize,
    pub scales: usize,
    head: usize,
    pub heads: usize,
    ring: usize,
    pos: Span<i32>,
    seq_of: Span<i32>,
    table: Span<i32>,
    slots: Span<i32>,
}

impl Pages {
    pub fn new(mem: &HostMemory, st: &StreamView, rows: &Rows) -> Result<Self> {
        let (vector, head) = (st.fmt.code_bytes(st.d) as usize, PAGE * st.fmt.vector_bytes(st.d) as usize);
        let (heads, page_bytes) = (st.heads as usize, st.page_bytes.max(1));
        let used = (2 * heads * head) as u64;
        let count = st.buf.bytes().checked_sub(used).map_or(0, |rest| rest / page_bytes + 1);
        Ok(Pages {
            base: Ptr::new(mem.ptr_mut(&st.buf)?),
            count: count as usize,
            page_bytes: page_bytes as usize,
            vector,
            scales: PAGE * vector,
            head,
            heads,
            ring: st.ring as usize,
            pos: Span::ints(mem, &rows.pos)?,
            seq_of: Span::ints(mem, &rows.seq_of)?,
            table: Span::ints(mem, &rows.page_table)?,
            slots: Span::ints(mem, &rows.seq_slot)?,
        })
    }
    /// Sequence and position of a row.
    pub fn row(&self, row: usize) -> Option<(usize, usize)> {
        let seq = usize::try_from(self.seq_of.get(row, 0)?).ok()?;
        Some((seq, usize::try_from(self.pos.get(row, 0)?).ok()?))
    }
    /// Address of the keys and the values of `head` in the page that holds position `p` of `seq`: of both the elements by
    /// place in the page, then the scales. `None` where the step's values name a page that is not there.
    pub fn at(&self, seq: usize, p: usize, head: usize) -> Option<(*mut u8, *mut u8)> {
        let page = if self.ring > 0 {
            let slot = usize::try_from(self.slots.get(seq, 0)?).ok()?;
            slot.checked_mul(self.ring)? + p / PAGE % self.ring
        } else {
            usize::try_from(self.table.get(seq, p / PAGE)?).ok()?
        };
        let keys =
            (page < self.count).then(|| self.base.raw().wrapping_add(page * self.page_bytes + head * self.head))?;
        Some((keys, keys.wrapping_add(self.heads * self.head)))
    }
}

/// Set by any thread that met values that do not fit the op.
#[derive(Default)]
pub struct Trouble(AtomicBool);

impl Trouble {
    pub fn note(&self) {
        self.0.store(true, Relaxed);
    }
    /// Notes it where there is nothing.
    pub fn unless<T>(&self, x: Option<T>) -> Option<T> {
        if x.is_none() {
            self.note();
        }
        x
    }
    pub fn end(&self) -> Result<()> {
        if self.0.load(Relaxed) { Err(Error::BadBuf) } else { Ok(()) }
    }
}
