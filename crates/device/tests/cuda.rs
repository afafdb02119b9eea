//! The CUDA backend on the CPU backend's grid: same cases, one table of tolerances. Needs a card: without one each test
//! says so and passes, and `SNUG_TEST_CUDA=1` turns that into a failure. `SNUG_TEST_EVERY=N` runs every so-manieth case of each list,
//! for tools that look at every access.

mod common;
#[path = "cuda/joined.rs"]
mod joined;
mod kit;

use checkpoint::{Block, DType, Format};
use common::backends::SIZES;
use common::{Case, cases, grid, grid_within, history, recurrent};
use device::cuda::Cuda;
use device::{
    Acc, ActFn, Device, ExpertBias, ExpertMats, Glu, GraphKey, Layout, MatSet, Op, Pairing, Part, Pick, Rope, Routing,
    RowClass, View, split, tolerance,
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

/// All cases, or as many as were asked for: the first of a list in any case.
fn some<T>(all: impl IntoIterator<Item = T>) -> Vec<T> {
    let every =
        std::env::var("SNUG_TEST_EVERY").map_or(1, |n| n.parse().expect("SNUG_TEST_EVERY is a number from 1 on"));
    all.into_iter().step_by(every).collect()
}

fn run(cases: Vec<Case>) {
    if let Some(d) = cuda() {
        grid(&some(cases), std::iter::once(("cuda".into(), d)));
    }
}

#[test]
fn rows_without_weights() {
    run(cases::rms_norm());
    run(cases::rope());
    run(cases::gate());
    run(cases::glu());
    run(cases::glu_of_halves());
    run(cases::add());
    run(cases::zero());
    run(cases::scale());
    run(cases::softcap());
    run(cases::gather_rows());
    run(cases::likeliest());
    run(cases::route());
    run(cases::combine());
}

/// Cases without pages beside the history, which this backend does not read.
fn alone(cases: Vec<Case>) -> Vec<Case> {
    let is = |name: &str| !["own: Some", "sink: Some"].iter().any(|x| name.contains(x));
    cases.into_iter().filter(|c| is(&c.name)).collect()
}

/// Cases that tensor cores take: queries, keys, values and weights are rounded to bf16 there.
fn on_tensor_cores(name: &str) -> bool {
    !name.contains("fmt: F32") && ["64", "128", "256", "512"].iter().any(|d| name.contains(&format!("d: {d},")))
}

fn run_attention(cases: Vec<Case>, tolerance: f32) {
    let Some(d) = cuda() else { return };
    let of = |name: &str| on_tensor_cores(name).then_some(tolerance);
    grid_within(&some(alone(cases)), std::iter::once(("cuda".into(), d)), of);
}

#[test]
fn history_of_rows() {
    run(alone(history::append()));
    run_attention(history::attention_few(), tolerance::ATTENTION_BF16);
    run_attention(history::attention_many(), tolerance::ATTENTION_BF16);
}

#[test]
fn packed_history_of_rows() {
    for class in [RowClass::Few, RowClass::Many] {
        run_attention(history::attention_rotated(class), tolerance::ATTENTION_BF16 * history::VALUES);
    }
}

#[test]
fn recurrent_rows() {
    run(recurrent::conv_silu());
    run(recurrent::shift());
    run(recurrent::gated_delta());
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
        for k in some([40, 64, 256, 512, 576, 768].into_iter().filter(|k| k % dtype.elems() == 0)) {
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

/// Formats whose planes are used as they are in the file.
#[test]
fn products_of_formats_with_planes() {
    let Some(dev) = cuda() else { return };
    let (mut rig, mut rng) = (Rig::new(dev), Rng(4));
    let affine = |bits, group, scale| Format::Affine { bits, group, scale };
    let formats = [
        Format::Mxfp4Hf,
        affine(4, 64, DType::BF16),
        affine(4, 32, DType::F16),
        affine(4, 128, DType::F32),
        affine(8, 64, DType::F16),
    ];
    for fmt in formats {
        assert_eq!(rig.dev.layout_of(&fmt), Layout::File);
        for (n, k, rows) in [(17, 512, 3), (130, 1536, 1), (96, 256, 200)] {
            let cuts = fmt.planes(k as u64).unwrap();
            let planes: [Vec<u8>; 4] = std::array::from_fn(|i| {
                let Some(cut) = cuts[i] else { return Vec::new() };
                let bytes = cut.total(n as u64) as usize;
                match (i, cut.dtype) {
                    (_, DType::E8M0) => (0..bytes).map(|_| 119 + rng.below(5) as u8).collect(),
                    (1 | 2, d) => {
                        let size = if i == 1 { 0.02 } else { 0.3 };
                        let values: Vec<f32> = (0..bytes / d.bytes()).map(|_| size * (1.2 + rng.unit())).collect();
                        let mut out = vec![0; bytes];
                        d.encode(&values, &mut out).unwrap();
                        out
                    }
                    _ => (0..bytes).map(|_| rng.bits() as u8).collect(),
                }
            });
            let mut values = vec![0.0; n * k];
            for (row, y) in values.chunks_mut(k).enumerate() {
                fmt.decode_row([&planes[0], &planes[1], &planes[2], &planes[3]], row as u64, y).unwrap();
            }
            let bufs = planes.each_ref().map(|p| (!p.is_empty()).then(|| rig.bytes(p)));
            let (layout, row_step) = (Layout::File, 1);
            let m = device::Mat { n: n as u32, k: k as u32, fmt, layout, row_step, planes: bufs };
            let w = Weights { dtype: DType::F32, n, k, bytes: Vec::new(), values };
            let x = rng.values(rows * k);
            for class in [RowClass::Few, RowClass::Many] {
                let few = class == RowClass::Few;
                let met = if few { kit::fifteen_bits(&x) } else { x.clone() };
                let xv = rig.floats(&x, k);
                let out = rig.floats(&vec![f32::NAN; rows * n], n);
                rig.dev.run(Op::Linear { out, x: xv, w: m, bias: None, add: false, class }).unwrap();
                let tol = if few { tolerance::LINEAR_BLOCK } else { tolerance::LINEAR_BF16 };
                close(&rig.read(out), &product(&met, &w), tol, &format!("{fmt} [{n}, {k}] x {rows} {class:?}"));
            }
            let (ids, out) = (rig.ints(&[1, n as i32 - 1], 1), rig.floats(&vec![f32::NAN; 2 * k], k));
            rig.dev.run(Op::Embed { out, table: m, ids, scale: 1.0 }).unwrap();
            let got = rig.read(out);
            for (i, &row) in [1, n - 1].iter().enumerate() {
                for c in 0..k {
                    let (y, want) = (got[i * k + c], w.values[row * k + c]);
                    assert!((y - want).abs() <= 4e-6 * want.abs().max(1.0), "{fmt}: {y}, not {want}");
                }
            }
        }
    }
}

/// Several matrices that meet the same rows go as one; what one of them writes, the next may read.
#[test]
fn products_that_wait_for_each_other_keep_their_order() {
    let Some(dev) = cuda() else { return };
    let (mut rig, mut rng) = (Rig::new(dev), Rng(9));
    let dtype = DType::Block(Block::Q8_0);
    let all: Vec<Weights> = (0..6).map(|_| Weights::random(&mut rng, dtype, 64, 64)).collect();
    let mats: Vec<_> = all.iter().map(|w| rig.load(w)).collect();
    let class = RowClass::Few;
    let mut run = |together: bool| {
        let x = rig.floats(&(0..128).map(|i| (i as f32 * 0.37).sin()).collect::<Vec<_>>(), 64);
        let outs: Vec<View> = (0..6).map(|_| rig.floats(&[0.25; 128], 64)).collect();
        let mut read = Vec::new();
        for (i, &w) in mats.iter().enumerate() {
            // Four meet x, one of them adds; the others meet what was written before them.
            let (x, out) = (if i < 4 { x } else { outs[i - 4] }, outs[i]);
            rig.dev.run(Op::Linear { out, x, w, bias: None, add: i == 2, class }).unwrap();
            if !together {
                read.push(rig.read(out));
            }
        }
        read.clear();
        outs.iter().flat_map(|&v| rig.read(v)).collect::<Vec<f32>>()
    };
    let (one_by_one, together) = (run(false), run(true));
    assert_eq!(bits(&one_by_one), bits(&together));
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

/// Matrices that stream through shared memory: stages and tiles that do not divide evenly among warps and blocks, rows in any company.
#[test]
fn products_that_stream_their_weights() {
    let Some(dev) = cuda() else { return };
    let (mut rig, mut rng) = (Rig::new(dev), Rng(11));
    for dtype in [Block::Q4_0, Block::Mxfp4].map(DType::Block) {
        for (n, k) in some([(16, 1024), (48, 1280), (80, 2048), (112, 2304), (32, 5120), (33008, 1024)]) {
            let (w, x) = (Weights::random(&mut rng, dtype, n, k), rng.values(9 * k));
            let all = linear(&mut rig, &x, &w, RowClass::Few);
            close(&all, &product(&met_by(dtype, &x), &w), tolerance::LINEAR_BLOCK, &format!("{dtype} [{n}, {k}]"));
            for (first, some) in [(0, 1), (8, 1), (3, 2), (5, 3), (1, 4), (2, 5)] {
                let part = linear(&mut rig, &x[first * k..(first + some) * k], &w, RowClass::Few);
                assert_eq!(bits(&all[first * n..(first + some) * n]), bits(&part), "{dtype} [{n}, {k}] {first} {some}");
            }
        }
    }
}

/// A norm of heads goes with what turns or gates its rows next, to the same bits.
#[test]
fn norms_that_wait_for_what_comes_next() {
    let Some(dev) = cuda() else { return };
    let (mut rig, mut rng) = (Rig::new(dev), Rng(12));
    for (d, heads, class) in
        [(64, 3, RowClass::Few), (128, 6, RowClass::Few), (256, 2, RowClass::Many), (20, 3, RowClass::Few)]
    {
        let (cols, rows) = (d * heads, 5);
        let (x, g, w) = (rng.values(rows * cols), rng.values(rows * cols), rng.values(d));
        let pos = rig.ints(&[0, 7, 8, 900, 3], 1);
        let inv_freq = rig.floats(&(0..d / 4).map(|i| 0.5f32.powi(i as i32)).collect::<Vec<_>>(), d / 4).buf;
        let rope = Rope { pairing: Pairing::Half, dims: d as u32 / 2, inv_freq, factor: 1.0 };
        let down = rig.load(&Weights::random(&mut rng, DType::Block(Block::Q4_0), 16, cols.next_multiple_of(32)));
        let w = Some(rig.floats(&w, d).buf);
        for gated in [false, true] {
            let mut run = |together: bool| {
                let flat = rig.floats(&x, cols);
                let (x, g) = (flat.heads(heads as u32), rig.floats(&g, cols).heads(heads as u32));
                let out = rig.floats(&[0.0; 5 * 16], 16);
                rig.dev.step_begins(class);
                rig.dev.run(Op::RmsNorm { out: x, x, w, eps: 1e-6 }).unwrap();
                if !together {
                    rig.read(flat);
                }
                let next = if gated { Op::Gate { x, g, act: ActFn::Silu } } else { Op::Rope { x, pos, rope } };
                rig.dev.run(next).unwrap();
                // Its codes, where it leaves any.
                if cols % 32 == 0 {
                    rig.dev
                        .run(Op::Linear { out, x: flat, w: down, bias: None, add: false, class: RowClass::Few })
                        .unwrap();
                }
                rig.dev.step_ends();
                [rig.read(flat), rig.read(out)].concat()
            };
            let (apart, together) = (run(false), run(true));
            assert_eq!(bits(&apart), bits(&together), "{heads} heads of {d}, {class:?}, gated: {gated}");
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
            .graph::<device::Error>(GraphKey { rows: 1, seqs: 1, which: 0 }, |d| {
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
fn a_step_that_failed_is_not_replayed() {
    let Some(dev) = cuda() else { return };
    let mut rig = Rig::new(dev);
    let (x, y) = (rig.floats(&[1.0; 32], 32), rig.floats(&[2.0; 32], 32));
    let key = GraphKey { rows: 1, seqs: 1, which: 0 };
    let failed = rig.dev.graph::<device::Error>(key, |d| {
        d.run(Op::Add { x, y })?;
        Err(device::Error::Cancelled)
    });
    assert!(matches!(failed, Err(device::Error::Cancelled)));
    assert_eq!(rig.read(x), [1.0; 32], "what was recorded of it did not run");
    for n in 1..3 {
        rig.dev.graph::<device::Error>(key, |d| d.run(Op::Add { x, y })).unwrap();
        assert_eq!(rig.read(x), [1.0 + 2.0 * n as f32; 32]);
    }
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
