//! What a row's bits may depend on. Few rows: nothing but their own inputs and history. Many rows: the same wherever calls
//! are cut on the grid of 64 rows, and within tolerance elsewhere.

mod common;

use common::backends::{cpu, isas};
use common::history::{Attention, attention_of};
use common::recurrent::{Keep, Recurrent, conv_case, delta_case, heads};
use common::steps::part;
use common::world::{Outcome, World};
use common::{Case, cases};
use device::RowClass::{Few, Many};
use device::cpu::Isa;
use device::{GdnShape, KeyHeadRule, Op, RecView, Routing};
use memory::KvFormat::{Bf16, F32};

/// The op on rows `first .. first + n` alone.
fn cut(w: &mut World, op: &Op, first: u32, n: u32) -> Op {
    let at = |v: &device::View| v.rows(first, n);
    match op.clone() {
        Op::RmsNorm { out, x, w, eps } => Op::RmsNorm { out: at(&out), x: at(&x), w, eps },
        Op::Rope { x, pos, rope } => Op::Rope { x: at(&x), pos: at(&pos), rope },
        Op::Gate { x, g, act } => Op::Gate { x: at(&x), g: at(&g), act },
        Op::Glu { out, gate, up, glu } => Op::Glu { out: at(&out), gate: at(&gate), up: at(&up), glu },
        Op::Scale { x, by } => Op::Scale { x: at(&x), by },
        Op::Softcap { x, cap } => Op::Softcap { x: at(&x), cap },
        Op::Route { out, logits, router } => {
            Op::Route { out: Routing { ids: at(&out.ids), w: at(&out.w) }, logits: at(&logits), router }
        }
        Op::Combine { out, base, parts, w } => {
            Op::Combine { out: at(&out), base: at(&base), parts: at(&parts), w: at(&w) }
        }
        Op::Attention { out, q, st, rows, scale, window, since, sinks } => {
            let rows = part(w, &rows, first, n);
            Op::Attention { out: at(&out), q: at(&q), st, rows, scale, window, since, sinks }
        }
        Op::ConvSilu { out, x, w: taps, kernel, st, rows } => {
            let rows = part(w, &rows, first, n);
            Op::ConvSilu { out: at(&out), x: at(&x), w: taps, kernel, st, rows }
        }
        Op::GatedDelta { out, qkv, a, b, decay, dt, g, st, rows } => {
            let rows = part(w, &rows, first, n);
            Op::GatedDelta { out: at(&out), qkv: at(&qkv), a: at(&a), b: at(&b), decay, dt, g, st, rows }
        }
        op => panic!("{} has no rows to cut here", op.name()),
    }
}

fn row_count(op: &Op) -> u32 {
    match op {
        Op::RmsNorm { x, .. } | Op::Rope { x, .. } | Op::Gate { x, .. } => x.rows,
        Op::Scale { x, .. } | Op::Softcap { x, .. } => x.rows,
        Op::Glu { out, .. } | Op::Combine { out, .. } => out.rows,
        Op::Route { logits, .. } => logits.rows,
        Op::Attention { q, .. } => q.rows,
        Op::ConvSilu { x, .. } => x.rows,
        Op::GatedDelta { qkv, .. } => qkv.rows,
        op => panic!("{} has no rows to cut here", op.name()),
    }
}

/// The case run as calls of these many rows, the last as long as it takes.
fn in_calls(case: &Case, isa: Isa, threads: usize, calls: &[u32]) -> Outcome {
    case.outcome_of(&mut cpu(isa, threads), |w, op| {
        let (mut first, all) = (0, row_count(&op));
        for i in 0.. {
            if first >= all {
                break;
            }
            let n = calls[i % calls.len()].min(all - first);
            let op = cut(w, &op, first, n);
            w.run(op).unwrap_or_else(|e| panic!("{}: {e}", case.name));
            first += n;
        }
    })
}

const WHOLE: [u32; 1] = [u32::MAX];

/// Whether calls of these sizes, on any threads, leave the same bytes everywhere.
fn same_bits(cases: &[Case], cuts: &[&[u32]]) {
    for isa in isas() {
        for case in cases {
            let whole = in_calls(case, isa, 1, &WHOLE);
            for threads in [2, 3] {
                let again = in_calls(case, isa, threads, &WHOLE);
                whole.same(&again).unwrap_or_else(|e| panic!("{} {} x {threads}: {e}", case.name, isa.name()));
            }
            for cut in cuts {
                let cut_up = in_calls(case, isa, 2, cut);
                whole.same(&cut_up).unwrap_or_else(|e| panic!("{} {} in {cut:?}: {e}", case.name, isa.name()));
            }
        }
    }
}

#[test]
fn rows_without_history_are_alone() {
    for cases in [cases::rms_norm(), cases::rope(), cases::gate(), cases::glu(), cases::route(), cases::combine()] {
        same_bits(&cases, &[&[1], &[2, 5]]);
    }
    for cases in [cases::scale(), cases::softcap(), cases::route_by_scores()] {
        same_bits(&cases, &[&[1], &[2, 5]]);
    }
}

#[test]
fn few_rows_of_attention_are_alone() {
    let mut all = Vec::new();
    for fmt in [F32, Bf16] {
        for (shape, rows) in [
            ((9, 3, 64), vec![(0, 1), (300, 2), (64, 1), (1023, 3)]),
            ((4, 4, 80), vec![(255, 2), (70, 1)]),
            ((2, 1, 16), vec![(8190, 4), (20, 1), (12_000, 1)]),
        ] {
            let base = attention_of(Few, fmt, shape, &rows);
            all.push(Attention { sinks: true, ..base.clone() }.case());
            all.push(Attention { window: Some(130), ring: 2, ..base }.case());
        }
    }
    same_bits(&all, &[&[1], &[2, 3]]);
}

#[test]
fn few_rows_of_recurrences_are_alone() {
    let rec = || Recurrent::new(Few, &[(0, 1), (5, 3), (9, 1), (0, 4)], Keep::Every);
    let mut all = vec![conv_case(rec(), 200, 4), conv_case(rec(), 37, 3)];
    for (shape, rule) in [((2, 4, 32, 24), KeyHeadRule::Div), ((1, 3, 64, 70), KeyHeadRule::Mod)] {
        all.push(delta_case(rec(), heads(shape, rule, 1.0)));
    }
    same_bits(&all, &[&[1], &[2, 3]]);
}

/// One sequence of many rows, so that calls of whole chunks are on the grid.
fn prompts() -> Vec<Case> {
    let mut all = Vec::new();
    for (fmt, window) in [(F32, None), (Bf16, Some(90))] {
        for (start, n) in [(0, 300), (64, 130), (13, 100)] {
            let base = attention_of(Many, fmt, (6, 2, 48), &[(start, n)]);
            all.push(Attention { window, sinks: start == 0, ..base }.case());
        }
    }
    all
}

fn recurrent_prompts(keep: Keep) -> Vec<Case> {
    let mut all = Vec::new();
    for rows in [(0, 300), (64, 129), (17, 64)] {
        let rec = || Recurrent::new(Many, &[rows], keep);
        all.push(conv_case(rec(), 72, 4));
        all.push(delta_case(rec(), heads((2, 4, 32, 24), KeyHeadRule::Div, 0.1)));
        all.push(delta_case(rec(), heads((1, 2, 16, 37), KeyHeadRule::Mod, 20.0)));
    }
    all
}

#[test]
fn many_rows_agree_to_the_bit_for_every_cut_on_the_grid() {
    same_bits(&prompts(), &[&[64], &[128], &[64, 192]]);
    same_bits(&recurrent_prompts(Keep::Grid), &[&[64], &[128], &[64, 192]]);
}

#[test]
fn a_state_that_is_asked_for_inside_a_chunk_is_the_one_a_call_ending_there_leaves() {
    for isa in isas() {
        let of =
            |keep| delta_case(Recurrent::new(Many, &[(5, 100)], keep), heads((1, 2, 32, 24), KeyHeadRule::Div, 0.3));
        // The same slots in both: all rows keep theirs, and calls end at row 0, 1, 40, 64 and 100 rows.
        let case = of(Keep::Every);
        let whole = in_calls(&case, isa, 2, &WHOLE);
        for n in [1, 2, 40, 64] {
            let short = case.outcome_of(&mut cpu(isa, 1), |w, op| {
                let op = cut(w, &op, 0, n);
                w.run(op).unwrap();
            });
            let (a, b) = (whole.floats("states"), short.floats("states"));
            let kept = a.iter().zip(&b).filter(|(a, b)| a.to_bits() == b.to_bits() && !a.is_nan()).count();
            let all = (n + 1) as usize * 2 * 32 * 24;
            assert!(kept >= all, "{} {n} rows: {kept} of {all} elements", isa.name());
        }
    }
}

#[test]
fn many_rows_agree_within_tolerance_for_every_cut() {
    let mut all = prompts();
    all.extend(recurrent_prompts(Keep::Every));
    for isa in isas() {
        for case in &all {
            let whole = in_calls(case, isa, 2, &WHOLE);
            for cut in [&[1, 7, 30][..], &[63, 1, 65], &[100]] {
                let cut_up = in_calls(case, isa, 2, cut);
                whole.compare(&cut_up).unwrap_or_else(|e| panic!("{} {} in {cut:?}: {e}", case.name, isa.name()));
            }
        }
    }
}

/// Each row class as the other's oracle: a prompt stepped through row by row is the prompt in one call.
#[test]
fn few_and_many_agree_within_tolerance() {
    for isa in isas() {
        for fmt in [F32, Bf16] {
            let of = |class| Attention { sinks: true, ..attention_of(class, fmt, (6, 2, 64), &[(30, 200)]) }.case();
            let (few, many) = (in_calls(&of(Few), isa, 2, &WHOLE), in_calls(&of(Many), isa, 2, &WHOLE));
            few.compare(&many).unwrap_or_else(|e| panic!("{}: {e}", isa.name()));
        }
        let of = |class| {
            let rec = Recurrent::new(class, &[(30, 200)], Keep::Every);
            [delta_case(rec.clone(), heads((2, 4, 32, 32), KeyHeadRule::Mod, 0.1)), conv_case(rec, 72, 4)]
        };
        for (few, many) in of(Few).iter().zip(&of(Many)) {
            let (few, many) = (in_calls(few, isa, 2, &WHOLE), in_calls(many, isa, 2, &WHOLE));
            few.compare(&many).unwrap_or_else(|e| panic!("{}: {e}", isa.name()));
        }
    }
}

#[test]
fn nothing_that_a_step_says_panics() {
    use common::steps::{Step, spans};
    use common::world::{Grade, dense};
    use device::StreamView;
    for isa in isas() {
        for class in [Few, Many] {
            for broken in 0..7 {
                let mut dev = cpu(isa, 2);
                let mut w = World::new(&mut dev);
                let mut r = common::random::Random::new(broken);
                let mut step = Step::new(class, &spans(&[(250, 3), (5, 2)]), 3, &mut r);
                match broken {
                    0 => step.pages[0][0] = -1,
                    1 => step.pages[1][0] = 1 << 30,
                    2 => step.spans[1].start = 1 << 20,
                    3 => step.slots.from[1] = 99,
                    4 => step.slots.to[3] = 99,
                    _ => {}
                }
                let rows = step.rows(&mut w);
                if broken == 5 {
                    w.dev.write_i32(rows.seq_of, &[0, 0, 7, -3, 1]).unwrap();
                }
                if broken == 6 {
                    w.dev.write_i32(rows.pos, &[5, -1, i32::MAX, 0, 0]).unwrap();
                }
                let buf = w.bytes("pages", Grade::Exact, &vec![0; 8 << 12]);
                let st = StreamView { buf, page_bytes: 4096, fmt: F32, heads: 1, d: 2, ring: 0 };
                let x = w.input("x", dense(5, 1, 2), &[1.0; 10]);
                let out = w.output("out", Grade::Exact, dense(5, 1, 2));
                let attention = Op::Attention { out, q: x, st, rows, scale: 1.0, window: None, since: 0, sinks: None };
                let at_history = ![3, 4].contains(&broken);
                assert_eq!(w.dev.run(attention).is_err(), at_history, "attention {broken}");
                let append = w.dev.run(Op::Append { st, rows, k: x, v: x });
                assert_eq!(append.is_err(), at_history, "append {broken}");
                let conv = w.bytes("windows", Grade::Exact, &[0; 6 * 2 * 4]);
                let st = RecView { state: conv, state_elems: 1, conv, conv_elems: 2, slots: 6 };
                let taps = w.vector("w", &[1.0; 4]);
                let conv_silu = w.dev.run(Op::ConvSilu { out, x, w: taps, kernel: 2, st, rows });
                assert_eq!(conv_silu.is_err(), [3, 4, 5].contains(&broken), "conv_silu {broken}");
                let (g, one) = (GdnShape { n_k: 1, n_v: 1, d_k: 1, d_v: 1, rule: KeyHeadRule::Div }, dense(5, 1, 1));
                let qkv = w.input("qkv", dense(5, 1, 3), &[1.0; 15]);
                let (a, out) = (w.input("a", one, &[1.0; 5]), w.output("delta", Grade::Exact, one));
                let (decay, dt) = (w.vector("decay", &[-1.0]), w.vector("dt", &[1.0]));
                let delta = w.dev.run(Op::GatedDelta { out, qkv, a, b: a, decay, dt, g, st, rows });
                // Few rows all want a slot for their state, and these have none.
                assert_eq!(delta.is_err(), class == Few || [3, 4, 5].contains(&broken), "gated_delta {broken}");
            }
        }
    }
}

#[test]
fn logits_that_are_no_numbers_are_routed_somewhere() {
    use common::world::{Grade, dense};
    for isa in isas() {
        let mut dev = cpu(isa, 1);
        for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for at in [0..1, 3..7, 0..8] {
                for renormalise in [false, true] {
                    let mut w = World::new(&mut dev);
                    let mut x: Vec<f32> = (0..8).map(|i| i as f32).collect();
                    x[at.clone()].fill(bad);
                    let ids = w.output_ints("expert ids", dense(1, 1, 3));
                    let weights = w.output("weights", Grade::Exact, dense(1, 1, 3));
                    let logits = w.input("logits", dense(1, 1, 8), &x);
                    let router = device::Router { renormalise, ..device::Router::softmax(3) };
                    w.dev.run(Op::Route { out: Routing { ids, w: weights }, logits, router }).unwrap();
                    let mut ids = w.dev.read_i32(ids).unwrap();
                    ids.sort_unstable();
                    ids.dedup();
                    assert!(ids.len() == 3 && ids.iter().all(|i| (0..8).contains(i)), "{bad} {at:?}: {ids:?}");
                }
            }
        }
    }
}
