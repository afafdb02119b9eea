//! The CUDA backend on the CPU backend's grid: same cases, one table of tolerances. Needs a card: without one each test
//! says so and passes, and `SNUG_TEST_CUDA=1` turns that into a failure.

mod common;
mod kit;

use checkpoint::{Block, DType, Format};
use common::backends::SIZES;
use common::{Case, cases, grid, grid_within, history, recurrent};
use device::cuda::Cuda;
use device::{
    Acc, Device, ExpertBias, ExpertMats, Glu, GraphKey, MatSet, Op, Part, Pick, Routing, RowClass, View, split,
    tolerance,
};
use kit::{Rig, Rng, Weights, met_by, product};

/// A device, or `None` where this machine has none.
fn cuda() -> Option<Box<dyn Device>> {
    match Cuda::new(0, SIZES) {
        Ok(d) => Some(Box::new(d)),
        Err(e) if std::env::var_os("SNUG_TEST_CUDA").is_some() => panic!("{e}"),
        Err(e) => {
            eprintln!("not run: {e}");
            None
        }
    }
}

fn run(cases: &[Case]) {
    if let Some(d) = cuda() {
        grid(cases, std::iter::once(("cuda".into(), d)));
    }
}

#[test]
fn rows_without_weights() {
    run(&cases::rms_norm());
    run(&cases::rope());
    run(&cases::gate());
    run(&cases::glu());
    run(&cases::glu_of_halves());
    run(&cases::add());
    run(&cases::zero());
    run(&cases::scale());
    run(&cases::softcap());
    run(&cases::gather_rows());
    run(&cases::route());
    run(&cases::combine());
}

/// Cases over history that is not packed.
fn plain(cases: Vec<Case>) -> Vec<Case> {
    let is = |name: &str| !["fmt: Q8", "fmt: Tq4", "own: Some", "sink: Some"].iter().any(|x| name.contains(x));
    cases.into_iter().filter(|c| is(&c.name)).collect()
}

#[test]
fn history_of_rows() {
    run(&plain(history::append()));
    run(&plain(history::attention_few()));
    let Some(d) = cuda() else { return };
    // Queries, keys and weights of many rows are rounded to bf16 where tensor cores take them.
    let on_tensor_cores = |name: &str| {
        let wide = ["d: 64,", "d: 128,", "d: 256,"].iter().any(|d| name.contains(d));
        (wide && name.contains("class: Many") && name.contains("fmt: Bf16")).then_some(tolerance::ATTENTION_BF16)
    };
    grid_within(&plain(history::attention_many()), std::iter::once(("cuda".into(), d)), on_tensor_cores);
}

#[test]
fn recurrent_rows() {
    run(&recurrent::conv_silu());
    run(&recurrent::shift());
    run(&recurrent::gated_delta());
}

/// Formats that this backend multiplies.
fn dtypes() -> Vec<DType> {
    let known = |b: &Block| split::row_parts(&Format::Plain(DType::Block(*b)), 256).is_some();
    let blocks = Block::ALL.into_iter().filter(known).map(DType::Block);
    [DType::F32, DType::F16, DType::BF16].into_iter().chain(blocks).collect()
}

fn tolerance_of(dtype: DType, class: RowClass) -> f32 {
    match (dtype, class) {
        (DType::F32, _) => tolerance::LINEAR_FLOAT,
        (_, RowClass::Many) => tolerance::LINEAR_BF16,
        (DType::Block(_), _) => tolerance::LINEAR_BLOCK,
        _ => tolerance::LINEAR_FLOAT,
    }
}

fn linear(rig: &mut Rig, x: &[f32], w: &Weights, class: RowClass) -> Vec<f32> {
    let (m, x) = (rig.load(w), rig.floats(x, w.k));
    let out = rig.floats(&vec![f32::NAN; x.rows as usize * w.n], w.n);
    rig.dev.run(Op::Linear { out, x, w: m, bias: None, add: false, class }).unwrap();
    rig.read(out)
}

fn bits(v: &[f32]) -> Vec<u32> {
    v.iter().map(|x| x.to_bits()).collect()
}

#[track_caller]
fn close(got: &[f32], want: &[(f32, f32)], tol: f32, what: &str) {
    assert_eq!(got.len(), want.len());
    for (i, (y, (exact, size))) in got.iter().zip(want).enumerate() {
        assert!((y - exact).abs() <= tol * size, "{what}: element {i} is {y}, exactly {exact}, |x||w| {size}");
    }
}

#[test]
fn products_of_every_format() {
    let Some(dev) = cuda() else { return };
    let (mut rig, mut rng) = (Rig::new(dev), Rng(1));
    for dtype in dtypes() {
        for k in [40, 64, 256, 512, 576, 768].into_iter().filter(|k| k % dtype.elems() == 0) {
            for (n, rows) in [(1, 1), (3, 2), (17, 5), (64, 3), (200, 9), (133, 70), (128, 200)] {
                let (w, x) = (Weights::random(&mut rng, dtype, n, k), rng.values(rows * k));
                for class in [RowClass::Few, RowClass::Many] {
                    let met = if class == RowClass::Few { met_by(dtype, &x) } else { x.clone() };
                    let got = linear(&mut rig, &x, &w, class);
                    let what = format!("{dtype} [{n}, {k}] x {rows} {class:?}");
                    close(&got, &product(&met, &w), tolerance_of(dtype, class), &what);
                }
            }
        }
    }
}

#[test]
fn a_row_has_the_same_bits_in_any_company() {
    let Some(dev) = cuda() else { return };
    let (mut rig, mut rng) = (Rig::new(dev), Rng(2));
    for dtype in dtypes() {
        let (n, k, rows) = (77, 512, 131);
        let (w, x) = (Weights::random(&mut rng, dtype, n, k), rng.values(rows * k));
        for class in [RowClass::Few, RowClass::Many] {
            let all = linear(&mut rig, &x, &w, class);
            for (first, some) in [(0, 1), (130, 1), (7, 2), (20, 3), (50, 4), (60, 9), (64, 64)] {
                let part = linear(&mut rig, &x[first * k..(first + some) * k], &w, class);
                assert_eq!(bits(&all[first * n..(first + some) * n]), bits(&part), "{dtype} {class:?} {first} {some}");
            }
        }
    }
}

#[test]
fn embeddings() {
    let Some(dev) = cuda() else { return };
    let (mut rig, mut rng) = (Rig::new(dev), Rng(3));
    for dtype in dtypes() {
        let w = Weights::random(&mut rng, dtype, 50, 512);
        let (table, ids) = (rig.load(&w), rig.ints(&[3, 49, -1, 0, 50], 1));
        let out = rig.floats(&[f32::NAN; 5 * 512], 512);
        rig.dev.run(Op::Embed { out, table, ids, scale: 1.5 }).unwrap();
        let got = rig.read(out);
        for (row, id) in [3usize, 49, 99, 0, 99].into_iter().enumerate() {
            for c in 0..512 {
                let want = if id < 50 { 1.5 * w.values[id * 512 + c] } else { 0.0 };
                let y = got[row * 512 + c];
                // Scales are applied in one fused step, those of the reference in two.
                assert!((y - want).abs() <= 2e-6 * want.abs().max(0.1), "{dtype} {row} {c}: {y}, not {want}");
            }
        }
    }
}

#[test]
fn bias_and_addition() {
    let Some(dev) = cuda() else { return };
    let (mut rig, mut rng) = (Rig::new(dev), Rng(6));
    for dtype in [DType::F32, DType::BF16, DType::Block(Block::Q4_1), DType::Block(Block::Q6K)] {
        for (class, rows) in [(RowClass::Few, 3), (RowClass::Many, 67)] {
            let (n, k) = (21, 256);
            let w = Weights::random(&mut rng, dtype, n, k);
            let (x, old, bias) = (rng.values(rows * k), rng.values(rows * n), rng.values(n));
            let met = if class == RowClass::Few { met_by(dtype, &x) } else { x.clone() };
            let plain = product(&met, &w);
            let (m, xv) = (rig.load(&w), rig.floats(&x, k));
            let b = rig.floats(&bias, n).buf;
            for (add, with) in [(false, true), (true, false), (true, true)] {
                let out = rig.floats(&old, n);
                rig.dev.run(Op::Linear { out, x: xv, w: m, bias: with.then_some(b), add, class }).unwrap();
                let want = plain.iter().enumerate().map(|(i, (y, size))| {
                    let bias = if with { bias[i % n] } else { 0.0 };
                    (y + bias + if add { old[i] } else { 0.0 }, *size)
                });
                let want: Vec<(f32, f32)> = want.collect();
                close(&rig.read(out), &want, tolerance_of(dtype, class), &format!("{dtype} {class:?}"));
            }
        }
    }
}

/// Routed experts against exact products of the chosen rows.
struct Mixture {
    e: ExpertMats,
    gate: Vec<Weights>,
    up: Vec<Weights>,
    down: Vec<Weights>,
}

fn mixture(
    rig: &mut Rig,
    rng: &mut Rng,
    dtypes: (DType, DType),
    experts: usize,
    hidden: usize,
    inner: usize,
) -> Mixture {
    let both: Vec<Weights> = (0..experts).map(|_| Weights::random(rng, dtypes.0, 2 * inner, hidden)).collect();
    let down: Vec<Weights> = (0..experts).map(|_| Weights::random(rng, dtypes.1, hidden, inner)).collect();
    // Gate and up lie one behind the other in each expert.
    let fused = rig.load_set(&both);
    let half = |first: u32| {
        let mut s: MatSet = fused;
        s.first = rig_rows(&fused.first, first, inner as u32);
        s
    };
    let e = ExpertMats {
        gate: half(0),
        up: half(inner as u32),
        down: rig.load_set(&down),
        slot_of: None,
        begins: None,
        bias: ExpertBias::default(),
        glu: Glu::Swiglu,
    };
    let part = |first: usize| both.iter().map(|w| w.rows(first, inner)).collect();
    Mixture { e, gate: part(0), up: part(inner), down }
}

/// Rows `first .. first + n` of a matrix on the device.
fn rig_rows(m: &device::Mat, first: u32, n: u32) -> device::Mat {
    m.rows(first, n).expect("rows inside the matrix")
}

#[test]
fn experts() {
    let Some(dev) = cuda() else { return };
    let (mut rig, mut rng) = (Rig::new(dev), Rng(11));
    const Q4K: DType = DType::Block(Block::Q4K);
    const Q6K: DType = DType::Block(Block::Q6K);
    const MXFP4: DType = DType::Block(Block::Mxfp4);
    for dtypes in [(DType::F32, DType::F32), (DType::BF16, DType::BF16), (Q4K, Q6K), (MXFP4, MXFP4)] {
        let (experts, hidden, inner, k) = (7, 256, 512, 3);
        let m = mixture(&mut rig, &mut rng, dtypes, experts, hidden, inner);
        for (class, n) in [(RowClass::Few, 5), (RowClass::Many, 1), (RowClass::Many, 150)] {
            let h: Vec<f32> = rng.values(n * hidden).into_iter().map(|x| x * 0.3).collect();
            let ids: Vec<i32> = (0..n)
                .flat_map(|_| {
                    let mut all: Vec<i32> = (0..experts as i32).collect();
                    (0..k).for_each(|i| all.swap(i, i + rng.below(experts - i)));
                    all[..k].to_vec()
                })
                .collect();
            let weights: Vec<f32> = (0..n * k).map(|_| rng.unit().abs()).collect();
            let mut want = vec![0f32; n * k * hidden];
            for (at, &id) in ids.iter().enumerate() {
                let (id, row) = (id as usize, &h[at / k * hidden..][..hidden]);
                let met = |d: DType, x: &[f32]| if class == RowClass::Few { met_by(d, x) } else { x.to_vec() };
                let (g, u) = (product(&met(dtypes.0, row), &m.gate[id]), product(&met(dtypes.0, row), &m.up[id]));
                let mid: Vec<f32> = g.iter().zip(&u).map(|((g, _), (u, _))| g / (1.0 + (-g).exp()) * u).collect();
                let y = product(&met(dtypes.1, &mid), &m.down[id]);
                y.iter().enumerate().for_each(|(j, (y, _))| want[at * hidden + j] = *y);
            }
            let routed = Routing { ids: rig.ints(&ids, k), w: rig.floats(&weights, k) };
            let (hv, mid) = (rig.floats(&h, hidden), rig.floats(&vec![f32::NAN; n * k * inner], inner));
            let (dst, want): (View, Vec<f32>) = match class {
                RowClass::Few => (rig.floats(&vec![f32::NAN; n * k * hidden], k * hidden).heads(k as u32), want),
                RowClass::Many => {
                    let sum = (0..n * hidden).map(|i| {
                        let (row, j) = (i / hidden, i % hidden);
                        0.25 + (0..k).map(|r| weights[row * k + r] * want[(row * k + r) * hidden + j]).sum::<f32>()
                    });
                    (rig.floats(&vec![0.25; n * hidden], hidden), sum.collect())
                }
            };
            let acc = if class == RowClass::Few { Acc::Parts(dst) } else { Acc::Sum(dst) };
            let op = |pick, part| Op::ExpertGroup { dst: acc, mid, h: hv, routed, e: m.e, pick, part, class };
            // In two halves and by named experts: the same places.
            let even = Pick::Experts((0..experts as u32).filter(|e| e % 2 == 0).collect());
            let odd = Pick::Experts((0..experts as u32).filter(|e| e % 2 == 1).collect());
            match class {
                RowClass::Few => {
                    rig.dev.run(op(odd.clone(), Part::GateUp)).unwrap();
                    rig.dev.run(op(even, Part::Both)).unwrap();
                    rig.dev.run(op(odd, Part::Down)).unwrap();
                }
                RowClass::Many => rig.dev.run(op(Pick::All, Part::Both)).unwrap(),
            }
            let got = rig.read(dst);
            let rms = (want.iter().map(|x| x * x).sum::<f32>() / want.len() as f32).sqrt();
            // Many rows round to bf16 twice, with a gate between that multiplies the two errors.
            let tol = if class == RowClass::Few || dtypes.0 == DType::F32 { 2e-4 } else { 0.06 };
            for (i, (g, w)) in got.iter().zip(&want).enumerate() {
                assert!(
                    (g - w).abs() <= tol * (w.abs() + rms),
                    "{dtypes:?} {class:?} x {n}: {i}: {g}, not {w} (rms {rms})"
                );
            }
        }
    }
}

#[test]
fn a_recorded_step_does_what_it_did() {
    let Some(dev) = cuda() else { return };
    let (mut rig, mut rng) = (Rig::new(dev), Rng(5));
    let w = Weights::random(&mut rng, DType::Block(Block::Q4_0), 64, 256);
    let (m, x) = (rig.load(&w), rig.floats(&rng.values(256), 256));
    let out = rig.floats(&[0.0; 64], 64);
    let mut ran = 0;
    let mut step = |rig: &mut Rig| {
        rig.dev
            .graph::<device::Error>(GraphKey { rows: 1, seqs: 1 }, |d| {
                ran += 1;
                d.run(Op::Linear { out, x, w: m, bias: None, add: true, class: RowClass::Few })
            })
            .unwrap();
        rig.read(out)
    };
    let once = step(&mut rig);
    let twice = step(&mut rig);
    for (a, b) in once.iter().zip(&twice) {
        assert_eq!(2.0 * a, *b);
    }
    assert_eq!(ran, 1, "the second time it was replayed");
}

#[test]
fn a_range_is_memory_where_it_is_committed() {
    use memory::{Class, Ledger, Tier};
    let Some(mut dev) = cuda() else { return };
    let l = Ledger::new(&[(Tier::Host, 1 << 30)]);
    let pay = |bytes| l.reserve(Tier::Host, Class::Kv, "test", bytes).unwrap();
    // More than the card has.
    let range = dev.reserve_range(1 << 40).unwrap();
    let part = |off: u64, len: u64| range.slice(off, len).unwrap();
    for (off, len) in [(0u64, 4096u64), (4096, 1 << 20), (3 << 20, 5 << 20), (1 << 39, 8192)] {
        dev.commit_range(part(off, len), pay(len)).unwrap();
        let mut bytes = vec![1u8; len as usize];
        dev.read(part(off, len), &mut bytes).unwrap();
        assert!(bytes.iter().all(|&b| b == 0));
        dev.write(part(off, len), &vec![7; len as usize]).unwrap();
    }
    assert!(dev.commit_range(part(8192, 4096), pay(4096)).is_err(), "it is committed already");
    assert!(dev.release_range(part(3 << 20, 4096)).is_err(), "only what was committed as one");
    assert_eq!(dev.release_range(part(4096, 1 << 20)).unwrap().bytes(), 1 << 20);
    let mut bytes = [0u8; 4096];
    dev.read(part(0, 4096), &mut bytes).unwrap();
    assert!(bytes.iter().all(|&b| b == 7), "neighbours in the same granule stay");
    dev.commit_range(part(4096, 1 << 20), pay(1 << 20)).unwrap();
    dev.read(part(4096, 4096), &mut bytes).unwrap();
    assert!(bytes.iter().all(|&b| b == 0), "it comes again as zeros");
    dev.free_range(range).unwrap();
    assert_eq!(l.usage()[&Tier::Host].reserved(), 0);
}
