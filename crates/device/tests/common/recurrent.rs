//! Cases of recurrent ops.

use super::Case;
use super::random::Random;
use super::steps::{Slots, Span, Step, spans};
use super::world::{Grade, World, dense};
use device::RowClass::{Few, Many};
use device::{Buf, GdnShape, KeyHeadRule, Op, RecView, RowClass, tolerance};

/// What states are kept.
#[derive(Copy, Clone, Debug, PartialEq)]
pub enum Keep {
    /// After every row, as Few rows have it.
    Every,
    /// After the last row of a sequence and after every 64th.
    Grid,
    /// After the last row, in the slot that the sequence came from.
    InPlace,
}

/// Rows that go through a recurrent op.
#[derive(Clone, Debug)]
pub struct Recurrent {
    pub class: RowClass,
    pub spans: Vec<Span>,
    pub keep: Keep,
    /// Whether sequences have a past: every one that does not start at 0.
    pub seed: u64,
}

impl Recurrent {
    pub fn new(class: RowClass, rows: &[(u32, u32)], keep: Keep) -> Self {
        let seed = rows.iter().map(|r| (r.0 + 3 * r.1) as u64).sum();
        Recurrent { class, spans: spans(rows), keep, seed }
    }
    /// The step, its slots in disorder, and how many slots there are, two of them unused.
    fn step(&self, r: &mut Random) -> (Step, u32) {
        let mut step = Step::new(self.class, &self.spans, 1, r);
        let kept = |n: u32| match self.keep {
            Keep::Every => n,
            Keep::Grid => n.div_ceil(64),
            Keep::InPlace => 0,
        };
        let count = self.spans.len() + self.spans.iter().map(|s| kept(s.n)).sum::<u32>() as usize + 2;
        let mut free = r.order(count);
        let mut slots = Slots::default();
        for span in &self.spans {
            let from = if span.start > 0 || self.keep == Keep::InPlace { free.pop().unwrap() } else { -1 };
            for i in 1..span.n + 1 {
                slots.to.push(match self.keep {
                    Keep::InPlace if i == span.n => from,
                    Keep::InPlace => -1,
                    Keep::Grid if !i.is_multiple_of(64) && i != span.n => -1,
                    _ => free.pop().unwrap(),
                });
            }
            slots.from.push(from);
        }
        step.slots = slots;
        (step, count as u32)
    }
    /// Poisoned states, those that are read from filled.
    fn states(&self, step: &Step, count: u32, elems: u32, r: &mut Random) -> Vec<u8> {
        let mut bytes = vec![0xff; (count * elems * 4) as usize];
        for &slot in step.slots.from.iter().filter(|&&s| s >= 0) {
            let values = r.floats(elems as usize, 0.5);
            let at = slot as usize * elems as usize * 4;
            let to = bytes[at..].chunks_exact_mut(4);
            to.zip(values).for_each(|(to, x)| to.copy_from_slice(&x.to_le_bytes()));
        }
        bytes
    }
}

fn nowhere(slots: u32) -> RecView {
    let none = Buf::whole(device::AllocId(0), 0);
    RecView { state: none, state_elems: 0, conv: none, conv_elems: 0, slots }
}

pub fn conv_case(rec: Recurrent, channels: u32, kernel: u32) -> Case {
    Case::new(format!("conv_silu {channels} x {kernel} {rec:?}"), move |w: &mut World| {
        let mut r = Random::new(rec.seed);
        let (step, slots) = rec.step(&mut r);
        let conv_elems = (kernel - 1) * channels;
        let windows = rec.states(&step, slots, conv_elems, &mut r);
        let conv = w.bytes("windows", Grade::Exact, &windows);
        let s = dense(step.n(), 1, channels).gaps(rec.seed.is_multiple_of(2));
        let x = w.input("x", s, &r.floats(s.len(), 2.0));
        let taps = w.vector("w", &r.floats((channels * kernel) as usize, 1.0));
        let out = w.output("out", Grade::Close(tolerance::CONV), s);
        let rows = step.rows(w);
        let st = RecView { conv, conv_elems, ..nowhere(slots) };
        Op::ConvSilu { out, x, w: taps, kernel, st, rows }
    })
}

pub fn conv_silu() -> Vec<Case> {
    let mut all = Vec::new();
    for (channels, kernel) in [(96, 4), (200, 4), (13, 3), (64, 1), (300, 2)] {
        all.push(conv_case(Recurrent::new(Few, &[(0, 1), (5, 1), (9, 4), (0, 3)], Keep::Every), channels, kernel));
        all.push(conv_case(Recurrent::new(Few, &[(5, 1), (9, 1)], Keep::InPlace), channels, kernel));
        for rows in [vec![(0, 1)], vec![(3, 2), (0, 70)], vec![(64, 200)]] {
            for keep in [Keep::Grid, Keep::InPlace, Keep::Every] {
                all.push(conv_case(Recurrent::new(Many, &rows, keep), channels, kernel));
            }
        }
    }
    all
}

pub fn shift() -> Vec<Case> {
    let case = |rec: Recurrent, cols: u32| {
        Case::new(format!("shift {cols} {rec:?}"), move |w: &mut World| {
            let mut r = Random::new(rec.seed);
            let (step, slots) = rec.step(&mut r);
            let states = rec.states(&step, slots, cols, &mut r);
            let state = w.bytes("states", Grade::Exact, &states);
            let s = dense(step.n(), 1, cols).gaps(rec.seed.is_multiple_of(2));
            let x = w.input("x", s, &r.floats(s.len(), 2.0));
            let out = w.output("out", Grade::Exact, s);
            let rows = step.rows(w);
            let st = RecView { state, state_elems: cols, ..nowhere(slots) };
            Op::Shift { out, x, st, rows }
        })
    };
    let mut all = Vec::new();
    for cols in [1, 64, 200] {
        all.push(case(Recurrent::new(Few, &[(0, 1), (5, 1), (9, 4), (0, 3)], Keep::Every), cols));
        all.push(case(Recurrent::new(Few, &[(5, 1), (9, 1)], Keep::InPlace), cols));
        for keep in [Keep::Grid, Keep::InPlace, Keep::Every] {
            all.push(case(Recurrent::new(Many, &[(3, 2), (0, 70)], keep), cols));
        }
    }
    all
}

/// Heads and how strongly they forget.
#[derive(Copy, Clone, Debug)]
pub struct Heads {
    pub g: GdnShape,
    /// Log decays reach about minus this.
    pub decay: f32,
}

pub fn heads((n_k, n_v, d_k, d_v): (u32, u32, u32, u32), rule: KeyHeadRule, decay: f32) -> Heads {
    Heads { g: GdnShape { n_k, n_v, d_k, d_v, rule }, decay }
}

pub fn delta_case(rec: Recurrent, heads: Heads) -> Case {
    Case::new(format!("gated_delta {heads:?} {rec:?}"), move |w: &mut World| {
        let (mut r, g) = (Random::new(rec.seed), heads.g);
        let (step, slots) = rec.step(&mut r);
        let state_elems = g.n_v * g.d_k * g.d_v;
        let grade = Grade::Close(tolerance::GATED_DELTA);
        let states = rec.states(&step, slots, state_elems, &mut r);
        let state = w.bytes("states", grade, &states);
        let (n, gaps) = (step.n(), rec.seed.is_multiple_of(2));
        let s = dense(n, 1, g.channels());
        let qkv = w.input("qkv", s.gaps(gaps), &r.floats(s.len(), 1.0));
        let s = dense(n, 1, g.n_v);
        let a = w.input("a", s.gaps(!gaps), &r.floats(s.len(), 2.0));
        let b = w.input("b", s, &r.floats(s.len(), 3.0));
        // softplus(a + dt) is mostly 0.2 .. 3.
        let decay: Vec<f32> = r.floats(g.n_v as usize, 0.5).iter().map(|x| -heads.decay * (0.5 + x.abs())).collect();
        let decay = w.vector("decay", &decay);
        let dt = w.vector("dt", &r.floats(g.n_v as usize, 1.0));
        let out = w.output("out", grade, dense(n, g.n_v, g.d_v).gaps(gaps));
        let rows = step.rows(w);
        let st = RecView { state, state_elems, ..nowhere(slots) };
        Op::GatedDelta { out, qkv, a, b, decay, dt, g, st, rows }
    })
}

pub fn gated_delta() -> Vec<Case> {
    use KeyHeadRule::{Div, Mod};
    let mut all = Vec::new();
    for (shape, rule) in [((2, 4, 32, 24), Div), ((2, 6, 16, 40), Mod), ((1, 1, 128, 128), Div), ((1, 2, 20, 9), Mod)] {
        for decay in [0.02, 1.0, 20.0] {
            let h = heads(shape, rule, decay);
            all.push(delta_case(Recurrent::new(Few, &[(0, 1), (5, 1), (9, 4), (0, 3)], Keep::Every), h));
            all.push(delta_case(Recurrent::new(Few, &[(5, 1), (9, 1)], Keep::InPlace), h));
            for rows in [vec![(0, 1), (7, 1)], vec![(0, 63), (64, 65)], vec![(1, 64)], vec![(0, 200)]] {
                all.push(delta_case(Recurrent::new(Many, &rows, Keep::Grid), h));
            }
            all.push(delta_case(Recurrent::new(Many, &[(3, 257)], Keep::InPlace), h));
            all.push(delta_case(Recurrent::new(Many, &[(3, 20), (0, 70)], Keep::Every), h));
        }
    }
    all.push(delta_case(Recurrent::new(Many, &[(0, 600)], Keep::Grid), heads((2, 4, 32, 24), Div, 0.05)));
    all
}
