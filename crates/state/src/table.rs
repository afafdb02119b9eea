//! What a step's ops read about its rows: small integer arrays that stay at the same device addresses for the life of
//! the plan, so that a captured step can be replayed with other values.

use crate::decl::Limits;
use crate::error::Result;
use device::{Act, Buf, Device, RowClass, Rows, View};
use std::ops::Range;

/// Arrays start on multiples of this many elements (64 bytes).
const ALIGN: u64 = 16;
const INT: u64 = 4;
/// Per-sequence arrays that are written together: slot, state before, state between parts, last row.
const PER_SEQ: usize = 4;
const SEQ_SLOT: usize = 0;
const REC_FROM: usize = 1;
const REC_MID: usize = 2;
const LAST_ROW: usize = 3;
/// Per-row arrays.
const PER_ROW: usize = 4;
const IDS: usize = 0;
const POS: usize = 1;
const SEQ_OF: usize = 2;
const REC_TO: usize = 3;
/// No page, no slot.
pub(crate) const NONE: i32 = -1;

/// How long the arrays of a kind of append are.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Lengths {
    seqs: u32,
    pages_per_seq: u32,
    rows: u32,
}

impl Lengths {
    /// Those of steps, and those of segments where there are any.
    pub fn of(l: &Limits) -> (Self, Option<Self>) {
        let pages_per_seq = l.pages_per_seq();
        let steps = Lengths { seqs: l.parallel, pages_per_seq, rows: l.most_rows() };
        let segments = Lengths { seqs: 1, pages_per_seq, rows: l.segment };
        (steps, (l.segment > 0).then_some(segments))
    }
    /// Elements of the arrays, each rounded up to [`ALIGN`]: one per-sequence array, the page table, one per-row array.
    fn elems(&self) -> [u64; 3] {
        let up = |n: u64| n.next_multiple_of(ALIGN);
        [up(self.seqs as u64), up(self.seqs as u64 * self.pages_per_seq as u64), up(self.rows as u64)]
    }
    /// Bytes of all arrays.
    pub fn bytes(&self) -> u64 {
        let [seq, table, row] = self.elems();
        (PER_SEQ as u64 * seq + table + PER_ROW as u64 * row) * INT
    }
}

/// Bytes of the arrays of steps and of segments.
pub(crate) fn bytes(l: &Limits) -> u64 {
    let (steps, segments) = Lengths::of(l);
    steps.bytes() + segments.map_or(0, |s| s.bytes())
}

/// One span's values.
#[derive(Debug)]
pub(crate) struct SpanValues {
    /// Which of each layer's rings it writes.
    pub seq_slot: i32,
    /// Recurrent slot before the first row.
    pub rec_from: i32,
    /// Recurrent slot between the parts of a single span.
    pub rec_mid: i32,
    /// Page ids.
    pub pages: Vec<i32>,
}

/// The values of an append's arrays.
#[derive(Debug, Default)]
pub(crate) struct Values {
    pub spans: Vec<SpanValues>,
    /// Index of each span's last row.
    pub last: Vec<i32>,
    pub ids: Vec<i32>,
    pub pos: Vec<i32>,
    pub seq_of: Vec<i32>,
    pub rec_to: Vec<i32>,
}

/// The arrays.
pub(crate) struct Tables {
    all: Buf,
    per_seq: [Buf; PER_SEQ],
    page_table: Buf,
    per_row: [Buf; PER_ROW],
    pages_per_seq: u32,
    /// What the page table holds on the device, row by row; empty where that is unknown.
    shown: Vec<Vec<i32>>,
}

impl Tables {
    /// Arrays in `all`, which has as many bytes as these need.
    pub fn new(all: Buf, l: &Lengths) -> Result<Self> {
        let [seq, table, row] = l.elems();
        let mut at = 0;
        let mut cut = |n: u64| {
            let b = all.slice(at * INT, n * INT).ok_or(device::Error::BadBuf);
            at += n;
            b
        };
        let per_seq = [cut(seq)?, cut(seq)?, cut(seq)?, cut(seq)?];
        let page_table = cut(table)?;
        let per_row = [cut(row)?, cut(row)?, cut(row)?, cut(row)?];
        let shown = vec![Vec::new(); l.seqs as usize];
        Ok(Tables { all, per_seq, page_table, per_row, pages_per_seq: l.pages_per_seq, shown })
    }
    /// Writes the arrays of an append. Page-table rows that the device already shows are left alone.
    pub fn upload(&mut self, dev: &mut dyn Device, v: &Values) -> Result<()> {
        dev.write(self.all, &le(&self.seq_block(v)))?;
        for (i, span) in v.spans.iter().enumerate() {
            self.show(dev, i, &span.pages)?;
        }
        for (to, values) in [(IDS, &v.ids), (POS, &v.pos), (SEQ_OF, &v.seq_of), (REC_TO, &v.rec_to)] {
            dev.write(self.per_row[to], &le(values))?;
        }
        Ok(())
    }
    /// All per-sequence arrays, which lie side by side.
    fn seq_block(&self, v: &Values) -> Vec<i32> {
        let each = (self.per_seq[0].bytes() / INT) as usize;
        let mut block = vec![NONE; PER_SEQ * each];
        for (i, (span, last)) in v.spans.iter().zip(&v.last).enumerate() {
            block[SEQ_SLOT * each + i] = span.seq_slot;
            block[REC_FROM * each + i] = span.rec_from;
            block[REC_MID * each + i] = span.rec_mid;
            block[LAST_ROW * each + i] = *last;
        }
        block
    }
    fn show(&mut self, dev: &mut dyn Device, i: usize, pages: &[i32]) -> Result<()> {
        let cols = self.pages_per_seq as usize;
        let mut row = pages.to_vec();
        row.resize(cols, NONE);
        if self.shown[i] != row {
            self.shown[i].clear();
            let bytes = cols as u64 * INT;
            let at = self.page_table.slice(i as u64 * bytes, bytes).ok_or(device::Error::BadBuf)?;
            dev.write(at, &le(&row))?;
            self.shown[i] = row;
        }
        Ok(())
    }
    /// The rows `part` of an append over `seqs` sequences; `mid`: they continue a span whose first rows are done.
    pub fn rows(&self, class: RowClass, seqs: u32, part: &Range<u32>, mid: bool) -> Rows {
        let n = part.end - part.start;
        let row = |i: usize| ints(self.per_row[i], part.end).rows(part.start, n);
        Rows {
            class,
            n,
            seqs,
            ids: row(IDS),
            pos: row(POS),
            seq_of: row(SEQ_OF),
            page_table: View::dense(self.page_table, Act::I32, seqs, self.pages_per_seq),
            seq_slot: ints(self.per_seq[SEQ_SLOT], seqs),
            rec_from: ints(self.per_seq[if mid { REC_MID } else { REC_FROM }], seqs),
            rec_to: row(REC_TO),
        }
    }
    /// `i32[seqs, 1]`: index of each span's last row.
    pub fn last_rows(&self, seqs: u32) -> View {
        ints(self.per_seq[LAST_ROW], seqs)
    }
}

fn ints(b: Buf, n: u32) -> View {
    View::dense(b, Act::I32, n, 1)
}

fn le(values: &[i32]) -> Vec<u8> {
    values.iter().flat_map(|x| x.to_le_bytes()).collect()
}
