//! The rows of a step, with page tables and slots in disorder.

use super::random::Random;
use super::world::{World, dense};
use device::{RowClass, Rows};

/// `n` rows of one sequence, the first at position `start`.
#[derive(Copy, Clone, Debug)]
pub struct Span {
    pub start: u32,
    pub n: u32,
}

/// Spans from `(start, n)`.
pub fn spans(all: &[(u32, u32)]) -> Vec<Span> {
    all.iter().map(|&(start, n)| Span { start, n }).collect()
}

/// Where recurrent states come from and go to.
#[derive(Clone, Debug, Default)]
pub struct Slots {
    pub from: Vec<i32>,
    pub to: Vec<i32>,
}

/// What the values of a step are.
pub struct Step {
    pub class: RowClass,
    pub spans: Vec<Span>,
    /// Columns of the page table.
    pub max_pages: u32,
    /// Pages of each sequence.
    pub pages: Vec<Vec<i32>>,
    /// Pages there are, more than are used.
    pub page_count: u32,
    pub seq_slots: Vec<i32>,
    pub slots: Slots,
}

impl Step {
    pub fn new(class: RowClass, spans: &[Span], max_pages: u32, r: &mut Random) -> Self {
        let need = |s: &Span| ((s.start + s.n).div_ceil(256)) as usize;
        let page_count = spans.iter().map(need).sum::<usize>() + 2;
        let mut free = r.order(page_count);
        let pages = spans.iter().map(|s| free.split_off(free.len() - need(s))).collect();
        let seq_slots = r.order(spans.len() + 1)[..spans.len()].to_vec();
        let rows: u32 = spans.iter().map(|s| s.n).sum();
        let slots = Slots { from: vec![-1; spans.len()], to: vec![-1; rows as usize] };
        Step { class, spans: spans.to_vec(), max_pages, pages, page_count: page_count as u32, seq_slots, slots }
    }
    pub fn n(&self) -> u32 {
        self.spans.iter().map(|s| s.n).sum()
    }
    /// (sequence, position) of each row.
    pub fn places(&self) -> Vec<(usize, u32)> {
        let each = |(i, s): (usize, &Span)| (s.start..s.start + s.n).map(move |p| (i, p)).collect::<Vec<_>>();
        self.spans.iter().enumerate().flat_map(each).collect()
    }
    pub fn rows(&self, w: &mut World) -> Rows {
        let (n, seqs) = (self.n(), self.spans.len() as u32);
        let places = self.places();
        let each = |f: fn(&(usize, u32)) -> i32| places.iter().map(f).collect::<Vec<i32>>();
        let mut table = vec![-1; (seqs * self.max_pages) as usize];
        for (s, pages) in self.pages.iter().enumerate() {
            let held = pages.len().min(self.max_pages as usize);
            table[s * self.max_pages as usize..][..held].copy_from_slice(&pages[..held]);
        }
        Rows {
            class: self.class,
            n,
            seqs,
            ids: w.ints("ids", dense(n, 1, 1), &vec![0; n as usize]),
            pos: w.ints("pos", dense(n, 1, 1), &each(|p| p.1 as i32)),
            seq_of: w.ints("seq_of", dense(n, 1, 1), &each(|p| p.0 as i32)),
            page_table: w.ints("page_table", dense(seqs, 1, self.max_pages), &table),
            seq_slot: w.ints("seq_slot", dense(seqs, 1, 1), &self.seq_slots),
            rec_from: w.ints("rec_from", dense(seqs, 1, 1), &self.slots.from),
            rec_to: w.ints("rec_to", dense(n, 1, 1), &self.slots.to),
        }
    }
}

/// Rows `first .. first + n` of a step whose sequences go on from what earlier rows left behind.
pub fn part(w: &mut World, rows: &Rows, first: u32, n: u32) -> Rows {
    let (seq_of, to) = (w.dev.read_i32(rows.seq_of).unwrap(), w.dev.read_i32(rows.rec_to).unwrap());
    let mut from = w.dev.read_i32(rows.rec_from).unwrap();
    for row in 0..first as usize {
        from[seq_of[row] as usize] = to[row];
    }
    let cut = |v: device::View| v.rows(first, n);
    Rows {
        n,
        ids: cut(rows.ids),
        pos: cut(rows.pos),
        seq_of: cut(rows.seq_of),
        rec_to: cut(rows.rec_to),
        rec_from: w.ints("rec_from of a part", dense(rows.seqs, 1, 1), &from),
        ..*rows
    }
}
