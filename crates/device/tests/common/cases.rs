//! Cases of ops without history.

use super::Case;
use super::random::Random;
use super::world::{Grade, Shape, World, dense};
use checkpoint::{DType, Format};
use device::{ActFn, Glu, Groups, Layout, Mat, Op, Pairing, Rope, Router, RouterScore, Routing, View, tolerance};

fn shapes() -> Vec<Shape> {
    let sizes = [(1, 1, 1), (1, 1, 64), (3, 1, 576), (2, 5, 80), (7, 3, 13), (65, 2, 33), (1, 1, 4099), (40, 8, 128)];
    let with = |gaps| sizes.into_iter().map(move |(r, h, c)| dense(r, h, c).gaps(gaps));
    with(false).chain(with(true)).collect()
}

fn numbers(w: &mut World, name: &'static str, s: Shape, r: &mut Random, by: f32) -> View {
    w.input(name, s, &r.floats(s.len(), by))
}

pub fn rms_norm() -> Vec<Case> {
    let each = |(i, s): (usize, Shape)| {
        Case::new(format!("rms_norm {s:?}"), move |w| {
            let mut r = Random::new(i as u64);
            let grade = Grade::Close(tolerance::RMS_NORM);
            let values = r.floats(s.len(), 3.0);
            let weight = (i % 3 > 0).then(|| w.vector("w", &r.floats(s.cols as usize, 2.0)));
            // Every fourth in place.
            let (out, x) = if i % 4 == 0 {
                let x = w.inout("x", grade, s, &values);
                (x, x)
            } else {
                (w.output("out", grade, s.gaps(i % 2 == 0)), w.input("x", s, &values))
            };
            Op::RmsNorm { out, x, w: weight, eps: 1e-5 }
        })
    };
    shapes().into_iter().enumerate().map(each).collect()
}

pub fn rope() -> Vec<Case> {
    let mut all = Vec::new();
    for (i, (rows, heads, cols, dims)) in
        [(1, 9, 64, 64), (5, 3, 256, 64), (33, 2, 80, 80), (2, 4, 128, 34), (3, 1, 300, 290)].into_iter().enumerate()
    {
        for pairing in [Pairing::Half, Pairing::Adjacent] {
            let s = dense(rows, heads, cols).gaps(i % 2 == 0);
            all.push(Case::new(format!("rope {s:?} {dims} {pairing:?}"), move |w| {
                let mut r = Random::new(i as u64);
                let x = w.inout("x", Grade::Close(tolerance::ROPE), s, &r.floats(s.len(), 2.0));
                let places: Vec<i32> = (0..rows).map(|p| [p as usize, r.below(262_144)][i % 2] as i32).collect();
                let pos = w.ints("pos", dense(rows, 1, 1).gaps(i == 1), &places);
                let freqs: Vec<f32> = (0..dims / 2).map(|j| 1e4f32.powf(-2.0 * j as f32 / dims as f32)).collect();
                let inv_freq = w.vector("inv_freq", &freqs);
                Op::Rope { x, pos, rope: Rope { pairing, dims, inv_freq, factor: [1.0, 1.25][i % 2] } }
            }));
        }
    }
    all
}

pub fn gate() -> Vec<Case> {
    let each = |(i, s): (usize, Shape)| {
        Case::new(format!("gate {s:?}"), move |w| {
            let mut r = Random::new(i as u64);
            let x = w.inout("x", Grade::Close(tolerance::ACTIVATION), s, &r.floats(s.len(), 2.0));
            let cols = if i % 3 == 0 { 1 } else { s.cols };
            let mut g = r.floats((s.rows * s.heads * cols) as usize, 20.0);
            g[0] = -200.0;
            *g.last_mut().unwrap() = 200.0;
            let g = w.input("g", Shape { cols, ..s.gaps(i % 2 == 1) }, &g);
            Op::Gate { x, g, act: [ActFn::Sigmoid, ActFn::Silu][i % 2] }
        })
    };
    shapes().into_iter().enumerate().map(each).collect()
}

pub fn glu() -> Vec<Case> {
    let kinds = [Glu::Swiglu, Glu::GegluTanh, Glu::SwigluClamped { limit: 7.0, alpha: 1.702 }];
    let each = |(i, (s, glu)): (usize, (Shape, Glu))| {
        Case::new(format!("{glu:?} {s:?}"), move |w| {
            let mut r = Random::new(i as u64);
            let grade = Grade::Close(tolerance::ACTIVATION);
            let (mut g, u) = (r.floats(s.len(), 10.0), r.floats(s.len(), 9.0));
            g[0] = -200.0;
            *g.last_mut().unwrap() = 200.0;
            // In place of the gate, of the other half, or apart.
            let gate = if i % 3 == 0 { w.inout("gate", grade, s, &g) } else { w.input("gate", s, &g) };
            let up = if i % 3 == 1 { w.inout("up", grade, s, &u) } else { w.input("up", s, &u) };
            let out = match i % 3 {
                0 => gate,
                1 => up,
                _ => w.output("out", grade, s.gaps(i % 2 == 0)),
            };
            Op::Glu { out, gate, up, glu }
        })
    };
    let all = kinds.into_iter().flat_map(|glu| shapes().into_iter().map(move |s| (s, glu)));
    all.enumerate().map(each).collect()
}

/// Halves of one buffer, as a fused projection leaves them.
pub fn glu_of_halves() -> Vec<Case> {
    vec![Case::new("glu of two halves, in place", |w| {
        let mut r = Random::new(5);
        let (grade, s) = (Grade::Close(tolerance::ACTIVATION), dense(6, 1, 2 * 37));
        let both = w.inout("both", grade, s, &r.floats(s.len(), 4.0));
        let (gate, up) = both.split(37);
        Op::Glu { out: gate, gate, up, glu: Glu::Swiglu }
    })]
}

pub fn add() -> Vec<Case> {
    let each = |(i, s): (usize, Shape)| {
        Case::new(format!("add {s:?}"), move |w| {
            let mut r = Random::new(i as u64);
            let x = w.inout("x", Grade::Exact, s, &r.floats(s.len(), 2.0));
            Op::Add { x, y: numbers(w, "y", s.gaps(i % 2 == 0), &mut r, 2.0) }
        })
    };
    shapes().into_iter().enumerate().map(each).collect()
}

pub fn zero() -> Vec<Case> {
    let each = |s: Shape| Case::new(format!("zero {s:?}"), move |w| Op::Zero { x: w.output("x", Grade::Exact, s) });
    shapes().into_iter().map(each).collect()
}

pub fn scale() -> Vec<Case> {
    let each = |(i, s): (usize, Shape)| {
        Case::new(format!("scale {s:?}"), move |w| {
            let mut r = Random::new(i as u64);
            let x = w.inout("x", Grade::Exact, s, &r.floats(s.len(), 2.0));
            let n = if i % 3 == 0 { 1 } else { s.cols as usize };
            Op::Scale { x, by: w.vector("by", &r.floats(n, 2.0)) }
        })
    };
    shapes().into_iter().enumerate().map(each).collect()
}

pub fn softcap() -> Vec<Case> {
    let each = |(i, s): (usize, Shape)| {
        Case::new(format!("softcap {s:?}"), move |w| {
            let mut r = Random::new(i as u64);
            // From where tanh is a straight line to far beyond its limit.
            let mut x = r.floats(s.len(), [0.5, 30.0, 200.0][i % 3]);
            x[0] = 1e-6;
            *x.last_mut().unwrap() = -1e9;
            let x = w.inout("x", Grade::Close(tolerance::ACTIVATION), s, &x);
            Op::Softcap { x, cap: [30.0, 50.0][i % 2] }
        })
    };
    shapes().into_iter().enumerate().map(each).collect()
}

/// Tables of plain numbers, some of whose ids are no rows, some with another table's rows between theirs.
pub fn embed() -> Vec<Case> {
    let each = |(i, (n, vocab, cols)): (usize, (u32, u32, u32))| {
        Case::new(format!("embed {n} of [{vocab}, {cols}]"), move |w| {
            let mut r = Random::new(i as u64);
            let row_step = 1 + i as u32 % 2;
            let table = w.vector("table", &r.floats((vocab * row_step * cols) as usize, 1.0));
            let mut ids: Vec<i32> = (0..n).map(|_| r.below(vocab as usize) as i32).collect();
            if n > 2 {
                (ids[0], ids[1]) = (-1, vocab as i32);
            }
            let ids = w.ints("ids", dense(n, 1, 1).gaps(i == 1), &ids);
            let (fmt, layout) = (Format::Plain(DType::F32), Layout::File);
            // The odd rows: what is behind the last of them is nothing.
            let first = (row_step - 1) as u64 * cols as u64 * 4;
            let plane = table.slice(first, table.bytes() - first);
            let table = Mat { n: vocab, k: cols, fmt, layout, row_step, planes: [plane, None, None, None] };
            let out = w.output("out", Grade::Exact, dense(n, 1, cols).gaps(i % 2 == 0));
            Op::Embed { out, table, ids, scale: [1.0, 73.5][i % 2] }
        })
    };
    [(1, 3, 64), (5, 9, 37), (70, 12, 576), (3, 4, 1)].into_iter().enumerate().map(each).collect()
}

pub fn gather_rows() -> Vec<Case> {
    let each = |(i, (n, m, cols)): (usize, (u32, u32, u32))| {
        Case::new(format!("gather_rows {m} of {n} x {cols}"), move |w| {
            let mut r = Random::new(i as u64);
            let x = numbers(w, "x", dense(n, 1, cols).gaps(i % 2 == 0), &mut r, 1.0);
            let mut from: Vec<i32> = (0..m).map(|_| r.below(n as usize) as i32).collect();
            if m > 2 {
                (from[0], from[1]) = (-1, n as i32);
            }
            let rows = w.ints("rows", dense(m, 1, 1).gaps(i == 1), &from);
            Op::GatherRows { out: w.output("out", Grade::Exact, dense(m, 1, cols).gaps(i % 3 == 0)), x, rows }
        })
    };
    [(1, 1, 64), (9, 5, 37), (70, 90, 576), (3, 4, 1)].into_iter().enumerate().map(each).collect()
}

pub fn likeliest() -> Vec<Case> {
    let each = |(i, (n, vocab, k)): (usize, (u32, u32, u32))| {
        Case::new(format!("likeliest {k} of {n} x {vocab}"), move |w| {
            let mut r = Random::new(i as u64);
            let s = dense(n, 1, vocab).gaps(i % 2 == 0);
            let mut x = r.floats(s.len(), 4.0);
            // Ties, what is no number, and rows with fewer numbers than are asked for.
            let few = x.len().min(3 * vocab as usize);
            for (j, x) in x.iter_mut().take(few).enumerate() {
                match j % 7 {
                    0 => *x = 2.0,
                    3 => *x = f32::NEG_INFINITY,
                    5 if i % 2 == 1 => *x = f32::NAN,
                    _ if i == 3 => *x = f32::NEG_INFINITY,
                    _ => {}
                }
            }
            let x = w.input("x", s, &x);
            Op::Likeliest { out: w.output_ints("out", dense(n, 1, 2 * k).gaps(i % 3 == 0)), x }
        })
    };
    let shapes = [(1, 100, 1), (3, 9000, 40), (2, 300_000, 64), (4, 50, 16), (1, 4096, 64), (5, 4097, 7)];
    shapes.into_iter().enumerate().map(each).collect()
}

pub fn route() -> Vec<Case> {
    let mut all = Vec::new();
    for (i, (n, experts, k)) in
        [(1, 8, 2), (5, 128, 8), (70, 60, 4), (3, 512, 10), (4, 7, 7), (2, 1, 1)].into_iter().enumerate()
    {
        for renormalise in [false, true] {
            all.push(Case::new(format!("route {n} x {k} of {experts}, {renormalise}"), move |w| {
                let mut r = Random::new(i as u64);
                // A permutation of well-spaced values, so that rounding cannot decide; then exact ties.
                let mut logits = Vec::new();
                for row in 0..n {
                    let spread = 12.0 / experts as f32;
                    let mut x: Vec<f32> = r.order(experts as usize).iter().map(|&v| v as f32 * spread - 6.0).collect();
                    if row % 2 == 1 {
                        x.iter_mut().step_by(3).for_each(|x| *x = 5.0);
                    }
                    logits.extend(x);
                }
                let gaps = i % 2 == 0;
                let ids = w.output_ints("expert ids", dense(n, 1, k).gaps(gaps));
                let weights = w.output("weights", Grade::Close(tolerance::ROUTE), dense(n, 1, k).gaps(!gaps));
                let logits = w.input("logits", dense(n, 1, experts).gaps(gaps), &logits);
                let router = Router { renormalise, ..Router::softmax(k) };
                Op::Route { out: Routing { ids, w: weights }, logits, router }
            }));
        }
    }
    all
}

/// Everything a router can be beside a plain softmax. Choices are well apart: logits are a permutation of spaced values,
/// and a bias moves them by other amounts than the space.
pub fn route_by_scores() -> Vec<Case> {
    let mut all = Vec::new();
    for (i, (n, experts, k, groups)) in [
        (1, 8, 2, None),
        (5, 128, 8, None),
        (70, 60, 4, None),
        (9, 64, 6, Some(Groups { n: 8, keep: 3 })),
        (4, 6, 2, Some(Groups { n: 6, keep: 4 })),
        (3, 256, 8, Some(Groups { n: 4, keep: 4 })),
    ]
    .into_iter()
    .enumerate()
    {
        for (j, score) in [RouterScore::Sigmoid, RouterScore::Softmax].into_iter().enumerate() {
            for (biased, renormalise) in [(false, true), (true, false), (true, true)] {
                let name =
                    format!("route {n} x {k} of {experts} by {score:?}, bias {biased}, {groups:?}, {renormalise}");
                all.push(Case::new(name, move |w| {
                    let mut r = Random::new((2 * i + j) as u64);
                    let spread = 6.0 / experts as f32;
                    let row = |r: &mut Random| -> Vec<f32> {
                        r.order(experts as usize).iter().map(|&v| v as f32 * spread - 3.0).collect()
                    };
                    let mut logits: Vec<f32> = (0..n).flat_map(|_| row(&mut r)).collect();
                    // Ties, of experts and of groups.
                    let last = logits.len() - experts as usize;
                    logits[last..].fill(1.0);
                    let bias = biased.then(|| w.vector("bias", &r.floats(experts as usize, 1.0)));
                    let per_expert = (i % 2 == 0).then(|| w.vector("per_expert", &r.floats(experts as usize, 2.0)));
                    let ids = w.output_ints("expert ids", dense(n, 1, k).gaps(i % 2 == 0));
                    let weights = w.output("weights", Grade::Close(tolerance::ROUTE), dense(n, 1, k));
                    let logits = w.input("logits", dense(n, 1, experts).gaps(i % 2 == 1), &logits);
                    let scale = [1.0, 2.5][j];
                    let router = Router { k, score, bias, groups, renormalise, scale, per_expert };
                    Op::Route { out: Routing { ids, w: weights }, logits, router }
                }));
            }
        }
    }
    all
}

pub fn combine() -> Vec<Case> {
    let each = |(i, (n, k, cols)): (usize, (u32, u32, u32))| {
        Case::new(format!("combine {n} x {k} x {cols}"), move |w| {
            let mut r = Random::new(i as u64);
            let (grade, s) = (Grade::Close(tolerance::COMBINE), dense(n, 1, cols).gaps(i % 2 == 0));
            let parts = numbers(w, "parts", dense(n, k, cols).gaps(i % 2 == 1), &mut r, 2.0);
            let weights = numbers(w, "w", dense(n, 1, k), &mut r, 1.0);
            let base = r.floats(s.len(), 1.0);
            let (out, base) = if i % 2 == 0 {
                let both = w.inout("out", grade, s, &base);
                (both, both)
            } else {
                (w.output("out", grade, s), w.input("base", s, &base))
            };
            Op::Combine { out, base, parts, w: weights }
        })
    };
    [(1, 8, 2048), (5, 2, 37), (33, 10, 129), (2, 1, 8)].into_iter().enumerate().map(each).collect()
}
