//! Ops that the backend joins say what they say one by one: to the bit, but for a mixture's experts, whose sums have another order.

use super::kit::{Rig, Rng, Weights};
use super::{bits, cuda, some};
use checkpoint::{Block, DType};
use device::{
    Acc, Act, ActFn, Buf, ExpertBias, ExpertMats, GdnShape, Glu, KeyHeadRule, Mat, Op, Pairing, Part, Pick, RecView,
    Region, Rope, Router, Routing, RowClass, Rows, StreamView, View,
};
use memory::KvFormat;

const FEW: RowClass = RowClass::Few;

/// Runs ops; apart, each is waited for before the next is asked for.
fn run(rig: &mut Rig, ops: Vec<Op>, together: bool, seen: View) {
    rig.dev.step_begins(FEW);
    for op in ops {
        rig.dev.run(op).unwrap();
        if !together {
            rig.read(seen);
        }
    }
    rig.read(seen);
    rig.dev.step_ends();
}

/// Equal but for the order of sums; what is no number in one is none in the other.
fn alike(a: &[f32], b: &[f32]) -> bool {
    let most = a.iter().filter(|x| x.is_finite()).fold(0f32, |m, x| m.max(x.abs()));
    a.iter().zip(b).all(|(a, b)| (a.is_nan() && b.is_nan()) || (a - b).abs() <= 1e-5 * most)
}

fn nans(rig: &mut Rig, rows: usize, cols: usize) -> View {
    rig.floats(&vec![f32::NAN; rows * cols], cols)
}

fn vector(rig: &mut Rig, v: &[f32]) -> Buf {
    rig.floats(v, v.len()).buf
}

/// One row of each of `n` sequences: the first begins, the others have a past.
fn rows(rig: &mut Rig, n: usize) -> Rows {
    let list = |f: &dyn Fn(i32) -> i32| (0..n as i32).map(f).collect::<Vec<_>>();
    let mut ints = |f: &dyn Fn(i32) -> i32| rig.ints(&list(f), 1);
    let (ids, pos, seq_of) = (ints(&|i| i), ints(&|i| 7 * i), ints(&|i| i));
    let (page_table, seq_slot) = (ints(&|_| -1), ints(&|i| i));
    let (rec_from, rec_to) = (ints(&|i| if i == 0 { -1 } else { 2 * i }), ints(&|i| 2 * i + i % 2));
    let (class, n) = (FEW, n as u32);
    Rows { class, n, seqs: n, ids, pos, seq_of, page_table, seq_slot, rec_from, rec_to }
}

#[test]
fn norms_floats_and_convolutions_go_along_with_products() {
    let Some(dev) = cuda() else { return };
    let (mut rig, mut rng) = (Rig::new(dev), Rng(21));
    for dtype in [Block::Q4_0, Block::Mxfp4].map(DType::Block) {
        for (k, n, few) in
            some([(1024, 1, 1), (2048, 2, 257), (2304, 3, 64), (5120, 1, 96), (5120, 9, 5), (8192, 4, 3)])
        {
            let mut mat = |t: DType, n: usize| rig.load(&Weights::random(&mut rng, t, n, k));
            let mats = [mat(dtype, 1024), mat(dtype, 48), mat(DType::F32, few), mat(DType::F32, 1)];
            let after = mat(DType::Block(Block::Q8_0), 8);
            let (x, w) = (rng.values(n * k), rng.values(k));
            let (taps, past) = (rng.values(1024 * 4), rng.values(2 * n * 3 * 1024));
            let mut once = |together: bool, normed: bool, folded: bool| {
                let (x, w) = (rig.floats(&x, k), Some(vector(&mut rig, &w)));
                let (h, r) = (if normed { nans(&mut rig, n, k) } else { x }, rows(&mut rig, n));
                let outs = mats.map(|m| nans(&mut rig, n, m.n as usize));
                let (turned, last) = (nans(&mut rig, n, 1024), nans(&mut rig, n, 8));
                let conv = rig.floats(&past, 3 * 1024);
                let slots = 2 * n as u32;
                let st = RecView { state: conv.buf, state_elems: 0, conv: conv.buf, conv_elems: 3 * 1024, slots };
                let mut ops = Vec::new();
                if normed {
                    ops.push(Op::RmsNorm { out: h, x, w, eps: 1e-6 });
                }
                let linear = |x, w, out| Op::Linear { out, x, w, bias: None, add: false, class: FEW };
                ops.extend(mats.iter().zip(outs).map(|(&m, out)| linear(h, m, out)));
                let taps = vector(&mut rig, &taps);
                if folded {
                    ops.push(Op::ConvSilu { out: turned, x: outs[0], w: taps, kernel: 4, st, rows: r });
                }
                ops.push(linear(h, after, last));
                run(&mut rig, ops, together, last);
                let all = outs.into_iter().chain([h, turned, last, conv]);
                all.map(|v| rig.read(v)).collect::<Vec<_>>()
            };
            for (normed, folded) in [(false, false), (false, true), (true, false), (true, true)] {
                let (apart, together) = (once(false, normed, folded), once(true, normed, folded));
                for (i, (a, b)) in apart.iter().zip(&together).enumerate() {
                    // Products that stream may have other warps, whose sums are added in another order.
                    let same = if matches!(i, 2..=4 | 6) { bits(a) == bits(b) } else { alike(a, b) };
                    assert!(same, "{dtype} {k} columns, {n} rows, norm: {normed}, folded: {folded}: result {i}");
                }
            }
        }
    }
}

/// x += a * z, a norm of x, products that meet it, twice over.
#[test]
fn rows_have_their_bits_behind_a_product_and_a_norm_in_any_company() {
    let Some(dev) = cuda() else { return };
    let (mut rig, mut rng) = (Rig::new(dev), Rng(27));
    for dtype in [Block::Q4_0, Block::Mxfp4].map(DType::Block) {
        for (k, most) in some([(1024, 9), (2304, 4), (5120, 5), (8192, 3)]) {
            let mut mat = |t: DType, n: usize, k: usize| rig.load(&Weights::random(&mut rng, t, n, k));
            let makes = mat(dtype, k, 1024);
            let meets = [mat(dtype, 1024, k), mat(DType::F32, 33, k), mat(DType::Block(Block::Q8_0), 8, k)];
            let (z, x, w) = (rng.values(most * 1024), rng.values(most * k), rng.values(k));
            let mut once = |together: bool, first: usize, n: usize, meets: &[Mat]| {
                let part = |v: &[f32], k: usize| v[first * k..(first + n) * k].to_vec();
                let (z, x) = (rig.floats(&part(&z, 1024), 1024), rig.floats(&part(&x, k), k));
                let (h, w) = (nans(&mut rig, n, k), Some(vector(&mut rig, &w)));
                let linear = |x, w, out, add| Op::Linear { out, x, w, bias: None, add, class: FEW };
                let (mut ops, mut outs) = (Vec::new(), Vec::new());
                for _ in 0..2 {
                    ops.extend([linear(z, makes, x, true), Op::RmsNorm { out: h, x, w, eps: 1e-6 }]);
                    for &m in meets {
                        outs.push(nans(&mut rig, n, m.n as usize));
                        ops.push(linear(h, m, outs[outs.len() - 1], false));
                    }
                }
                run(&mut rig, ops, together, x);
                outs.extend([x, h]);
                outs.into_iter().map(|v| rig.read(v)).collect::<Vec<_>>()
            };
            // Each alone, floats along, products that do not stream behind one that does, and in front of all.
            let ([a, f, o], a_fmt) = (meets, meets[0].fmt);
            for meets in some([&[a][..], &[a, f], &[a, f, o], &[o, a], &[f], &[]]) {
                let all = once(true, 0, most, meets);
                for (i, (a, b)) in once(false, 0, most, meets).iter().zip(&all).enumerate() {
                    let streams = i < 2 * meets.len() && meets[i % meets.len()].fmt == a_fmt;
                    let same = if streams { alike(a, b) } else { bits(a) == bits(b) };
                    assert!(a.iter().all(|x| x.is_finite()) && same, "{dtype} {k}, {} products: {i}", meets.len());
                }
                for (first, n) in some([(0, 1), (1, 2), (most - 1, 1), (0, most - 1)]) {
                    for (all, part) in all.iter().zip(once(true, first, n, meets)) {
                        let cols = all.len() / most;
                        assert_eq!(
                            bits(&all[first * cols..(first + n) * cols]),
                            bits(&part),
                            "{dtype} {k} {first} {n}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn the_gated_delta_rule_its_norm_and_its_gate_are_one() {
    let Some(dev) = cuda() else { return };
    let (mut rig, mut rng) = (Rig::new(dev), Rng(22));
    for (n_k, n_v, d_k, rule, n) in
        [(2, 4, 128, KeyHeadRule::Mod, 1), (2, 6, 128, KeyHeadRule::Div, 3), (1, 2, 32, KeyHeadRule::Div, 2)]
    {
        let g = GdnShape { n_k, n_v, d_k, d_v: 128, rule };
        let (width, elems) = ((n_v * 128) as usize, (n_v * d_k * 128) as usize);
        let slots = 2 * n + 1;
        let mut values = |n: usize| (0..n).map(|_| rng.unit()).collect::<Vec<f32>>();
        let (qkv, gate, past) = (values(n * g.channels() as usize), values(n * width), values(slots * elems));
        let (a, b, decay, dt, w) = (
            values(n * n_v as usize),
            values(n * n_v as usize),
            values(n_v as usize),
            values(n_v as usize),
            values(128),
        );
        let decay: Vec<f32> = decay.iter().map(|x| -x.abs()).collect();
        let down = rig.load(&Weights::random(&mut Rng(5), DType::Block(Block::Q4_0), 16, width));
        let mut once = |together: bool| {
            let r = rows(&mut rig, n);
            let (qkv, gate) = (rig.floats(&qkv, g.channels() as usize), rig.floats(&gate, width).heads(n_v));
            let (a, b) = (rig.floats(&a, n_v as usize), rig.floats(&b, n_v as usize));
            let state = rig.floats(&past, elems);
            let (flat, last) = (nans(&mut rig, n, width), nans(&mut rig, n, 16));
            let out = flat.heads(n_v);
            let st = RecView {
                state: state.buf,
                state_elems: elems as u32,
                conv: state.buf,
                conv_elems: 0,
                slots: slots as u32,
            };
            let (decay, dt) = (vector(&mut rig, &decay), vector(&mut rig, &dt));
            let ops = vec![
                Op::GatedDelta { out, qkv, a, b, decay, dt, g, st, rows: r },
                Op::RmsNorm { out, x: out, w: Some(vector(&mut rig, &w)), eps: 1e-6 },
                Op::Gate { x: out, g: gate, act: ActFn::Silu },
                Op::Linear { out: last, x: flat, w: down, bias: None, add: false, class: FEW },
            ];
            run(&mut rig, ops, together, last);
            [flat, last, state].map(|v| bits(&rig.read(v)))
        };
        assert!(once(false) == once(true), "{g:?}, {n} rows");
    }
}

#[test]
fn attention_goes_with_what_is_before_and_behind_it() {
    let Some(dev) = cuda() else { return };
    let (mut rig, mut rng) = (Rig::new(dev), Rng(24));
    let (queries, keys, d, n) = (6u32, 2u32, 128u32, 3usize);
    for fmt in [KvFormat::F32, KvFormat::Bf16, KvFormat::Q8, KvFormat::Tq4] {
        let mut values = |n: usize| (0..n).map(|_| rng.unit()).collect::<Vec<f32>>();
        let (wide, narrow) = ((queries * d) as usize, (keys * d) as usize);
        let (q, k, v, gate) = (values(n * wide), values(n * narrow), values(n * narrow), values(n * wide));
        let (qw, kw) = (values(d as usize), values(d as usize));
        let down = rig.load(&Weights::random(&mut Rng(6), DType::Block(Block::Q4_0), 16, wide));
        let page_bytes = (2 * 256 * u64::from(keys) * (4 * u64::from(d) + 2)).next_multiple_of(4096);
        let mut once = |together: bool| {
            let mut r = rows(&mut rig, n);
            // Three rows of one sequence, across the end of a page.
            (r.pos, r.seq_of, r.seqs) = (rig.ints(&[254, 255, 256], 1), rig.ints(&[0, 0, 0], 1), 1);
            (r.page_table, r.seq_slot, r.rec_from) = (rig.ints(&[1, 0], 2), rig.ints(&[0], 1), rig.ints(&[-1], 1));
            let history = rig.bytes(&vec![0; 2 * page_bytes as usize]);
            let st =
                StreamView { buf: history, page_bytes, fmt, heads: keys, d, ring: 0, layer: 3, own: None, sink: None };
            let (qf, kf, vf) = (rig.floats(&q, wide), rig.floats(&k, narrow), rig.floats(&v, narrow));
            let (q, k, v) = (qf.heads(queries), kf.heads(keys), vf.heads(keys));
            let (flat, last) = (nans(&mut rig, n, wide), nans(&mut rig, n, 16));
            let (out, g) = (flat.heads(queries), rig.floats(&gate, wide).heads(queries));
            let inv_freq = vector(&mut rig, &(0..d / 4).map(|i| 0.5f32.powi(i as i32)).collect::<Vec<_>>());
            let rope = Rope { pairing: Pairing::Half, dims: d / 2, inv_freq, factor: 1.0 };
            let (kw, qw) = (Some(vector(&mut rig, &kw)), Some(vector(&mut rig, &qw)));
            let ops = vec![
                Op::RmsNorm { out: k, x: k, w: kw, eps: 1e-6 },
                Op::Rope { x: k, pos: r.pos, rope },
                Op::Append { st, rows: r, k, v },
                Op::RmsNorm { out: q, x: q, w: qw, eps: 1e-6 },
                Op::Rope { x: q, pos: r.pos, rope },
                Op::Attention { out, q, st, rows: r, scale: 0.1, window: None, since: 0, sinks: None },
                Op::Gate { x: out, g, act: ActFn::Sigmoid },
                Op::Linear { out: last, x: flat, w: down, bias: None, add: false, class: FEW },
            ];
            run(&mut rig, ops, together, last);
            let read = [flat, last, qf, kf].map(|v| bits(&rig.read(v)));
            let mut bytes = vec![0; 2 * page_bytes as usize];
            rig.dev.read(history, &mut bytes).unwrap();
            (read, bytes)
        };
        assert!(once(false) == once(true), "{fmt:?}");
    }
}

/// A mixture's weights, on the device.
struct Mixture {
    norm: Buf,
    router: Mat,
    shared: [Mat; 3],
    by: Mat,
    e: ExpertMats,
    choice: Router,
    after: Mat,
}

impl Mixture {
    fn new(rig: &mut Rig, rng: &mut Rng, dtype: DType, hidden: usize, inner: [usize; 2], choice: Router) -> Self {
        const EXPERTS: usize = 40;
        let mut set = |count: usize, n: usize, k: usize| {
            let all: Vec<Weights> = (0..count).map(|_| Weights::random(rng, dtype, n, k)).collect();
            rig.load_set(&all)
        };
        let (gate, up, down) =
            (set(EXPERTS, inner[0], hidden), set(EXPERTS, inner[0], hidden), set(EXPERTS, hidden, inner[0]));
        let shared = [(inner[1], hidden), (inner[1], hidden), (hidden, inner[1])].map(|(n, k)| set(1, n, k).first);
        let (slot_of, begins, bias, glu) = (None, None, ExpertBias::default(), Glu::Swiglu);
        let e = ExpertMats { gate, up, down, slot_of, begins, bias, glu };
        let [router, by] = [EXPERTS, 1].map(|n| rig.load(&Weights::random(rng, DType::F32, n, hidden)));
        let norm = vector(rig, &rng.values(hidden));
        let after = rig.load(&Weights::random(rng, dtype, 64, hidden));
        Mixture { norm, router, shared, by, e, choice, after }
    }
    /// As `model::moe` asks for it, and a norm with a product behind it. Gives what must be there in the end.
    fn run(&self, rig: &mut Rig, x: &[f32], hidden: usize, together: bool) -> [Vec<f32>; 3] {
        let (n, k) = ((x.len() / hidden) as u32, self.choice.k);
        let x = rig.floats(x, hidden);
        let (behind, last) = (nans(rig, n as usize, hidden), nans(rig, n as usize, 64));
        let ids = std::cell::Cell::new(None);
        rig.dev.step_begins(FEW);
        let seen = |dev: &mut dyn device::Device| (!together).then(|| dev.read_f32(x).unwrap());
        let linear = |out, x, w| Op::Linear { out, x, w, bias: None, add: false, class: FEW };
        rig.dev
            .scope::<(), device::Error>(Region::Step, |dev| {
                let run = |dev: &mut dyn device::Device, op: Op| {
                    dev.run(op)?;
                    seen(dev);
                    Ok::<(), device::Error>(())
                };
                let take = |dev: &mut dyn device::Device, cols: u32| dev.take(Region::Step, Act::F32, n, cols);
                let (sum, h) = (take(dev, hidden as u32)?, take(dev, hidden as u32)?);
                let routed = Routing { ids: dev.take(Region::Step, Act::I32, n, k)?, w: take(dev, k)? };
                ids.set(Some(routed));
                run(dev, Op::RmsNorm { out: h, x, w: Some(self.norm), eps: 1e-6 })?;
                dev.scope::<(), device::Error>(Region::Step, |dev| {
                    let logits = take(dev, self.router.n)?;
                    run(dev, linear(logits, h, self.router))?;
                    run(dev, Op::Route { out: routed, logits, router: self.choice })
                })?;
                dev.scope::<(), device::Error>(Region::Step, |dev| {
                    dev.scope::<(), device::Error>(Region::Step, |dev| {
                        let (gate, up) = (take(dev, self.shared[0].n)?, take(dev, self.shared[0].n)?);
                        run(dev, linear(gate, h, self.shared[0]))?;
                        run(dev, linear(up, h, self.shared[1]))?;
                        run(dev, Op::Glu { out: gate, gate, up, glu: Glu::Swiglu })?;
                        run(dev, linear(sum, gate, self.shared[2]))
                    })?;
                    let by = take(dev, 1)?;
                    run(dev, linear(by, h, self.by))?;
                    run(dev, Op::Gate { x: sum, g: by, act: ActFn::Sigmoid })
                })?;
                dev.scope::<(), device::Error>(Region::Step, |dev| {
                    let inner = self.e.gate.first.n;
                    let mid = dev.take(Region::Step, Act::F32, n * k, inner)?;
                    let parts = take(dev, k * hidden as u32)?.heads(k);
                    let dst = Acc::Parts(parts);
                    let (e, pick, part) = (self.e, Pick::All, Part::Both);
                    run(dev, Op::ExpertGroup { dst, mid, h, routed, e, pick, part, class: FEW })?;
                    run(dev, Op::Combine { out: sum, base: sum, parts, w: routed.w })
                })?;
                run(dev, Op::Add { x, y: sum })?;
                run(dev, Op::RmsNorm { out: behind, x, w: Some(self.norm), eps: 1e-6 })?;
                run(dev, linear(last, behind, self.after))?;
                // Others may use the room as soon as it is given back.
                let other = take(dev, 1)?;
                run(dev, Op::Zero { x: other })
            })
            .unwrap();
        let out = rig.read(x);
        rig.dev.step_ends();
        let routed = ids.get().unwrap();
        let w = rig.read(routed.w);
        let mut raw = vec![0u8; w.len() * 4];
        rig.dev.read(routed.ids.buf, &mut raw).unwrap();
        let ids = raw.chunks_exact(4).map(|b| i32::from_le_bytes(b.try_into().unwrap()) as f32);
        [out, w.into_iter().chain(ids).collect(), rig.read(last)]
    }
}

#[test]
fn a_mixture_of_few_rows_is_three_kernels() {
    let Some(dev) = cuda() else { return };
    let (mut rig, mut rng) = (Rig::new(dev), Rng(23));
    let sigmoid = Router { renormalise: true, score: device::RouterScore::Sigmoid, scale: 2.5, ..Router::softmax(3) };
    let softmax = Router { renormalise: true, ..Router::softmax(8) };
    for dtype in [Block::Q4_0, Block::Mxfp4].map(DType::Block) {
        let sizes = [(2048, [512, 512], softmax), (1024, [256, 512], sigmoid), (2304, [512, 256], Router::softmax(4))];
        for (hidden, inner, choice) in some(sizes) {
            let m = Mixture::new(&mut rig, &mut rng, dtype, hidden, inner, choice);
            let rows = 9;
            let x = rng.values(rows * hidden);
            let [apart, chosen, behind] = m.run(&mut rig, &x, hidden, false);
            let [together, also, after] = m.run(&mut rig, &x, hidden, true);
            assert_eq!(bits(&chosen), bits(&also), "{dtype} {hidden}: the same experts with the same weights");
            let added = |y: &[f32]| y.iter().zip(&x).map(|(y, x)| y - x).collect::<Vec<f32>>();
            let (a, b) = (added(&apart), added(&together));
            let rms = (a.iter().map(|x| x * x).sum::<f32>() / a.len() as f32).sqrt();
            let worst = a
                .iter()
                .zip(&b)
                .map(|(a, b)| if b.is_finite() { (a - b).abs() } else { f32::INFINITY })
                .fold(0.0, f32::max);
            assert!(rms > 0.0 && worst <= 5e-4 * rms + 1e-5, "{dtype} {hidden}: off by {worst}, rms {rms}");
            let most = behind.iter().fold(0f32, |m, x| m.max(x.abs()));
            let close = behind.iter().zip(&after).all(|(a, b)| (a - b).abs() <= 1e-3 * most);
            assert!(most > 0.0 && close, "{dtype} {hidden}: what follows");
            // A row has its bits in any company.
            for (first, few) in some([(0, 1), (8, 1), (2, 2), (3, 5)]) {
                let [part, _, last] = m.run(&mut rig, &x[first * hidden..(first + few) * hidden], hidden, true);
                assert_eq!(bits(&after[first * 64..(first + few) * 64]), bits(&last), "{dtype} {hidden} {first} {few}");
                assert_eq!(
                    bits(&together[first * hidden..(first + few) * hidden]),
                    bits(&part),
                    "{dtype} {hidden} {first} {few}"
                );
            }
        }
    }
}
