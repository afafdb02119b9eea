//! Routed experts of the CPU backend: against exact products, and bit for bit against themselves in any other cut into
//! groups, order of arrival, company and number of threads.

mod kit;

use checkpoint::{Block, DType};
use device::{Acc, ExpertBias, ExpertMats, Glu, Isa, MatSet, Op, Part, Pick, Routing, RowClass, View, tolerance};
use kit::{Rig, Rng, Weights, isas, met_by, product};
use memory::RegionSizes;
use proptest::prelude::*;

/// A layer of experts and rows that chose among them.
struct Case {
    experts: usize,
    n: usize,
    k: usize,
    hidden: usize,
    inner: usize,
    gate_up: Weights,
    down: Weights,
    h: Vec<f32>,
    ids: Vec<i32>,
    weights: Vec<f32>,
}

impl Case {
    fn new(rng: &mut Rng, dtypes: (DType, DType), experts: usize, n: usize, k: usize) -> Self {
        let (hidden, inner) = (256, 512);
        // Gate and up lie side by side in one tensor: expert after expert, `inner` rows of each.
        let gate_up = Weights::random(rng, dtypes.0, experts * 2 * inner, hidden);
        let down = Weights::random(rng, dtypes.1, experts * hidden, inner);
        let mut ids = Vec::new();
        for _ in 0..n {
            let mut all: Vec<i32> = (0..experts as i32).collect();
            (0..k).for_each(|i| all.swap(i, i + rng.below(experts - i)));
            ids.extend(&all[..k]);
        }
        let weights = (0..n * k).map(|_| rng.unit().abs()).collect();
        // Small, so that the gates are neither all open nor all shut.
        let h = rng.values(n * hidden).into_iter().map(|x| x * 0.3).collect();
        Case { experts, n, k, hidden, inner, gate_up, down, h, ids, weights }
    }
    fn rows(&self, first: usize, n: usize) -> Case {
        let cut = |v: &[f32], w: usize| v[first * w..(first + n) * w].to_vec();
        let clone = |w: &Weights| Weights { bytes: w.bytes.clone(), values: w.values.clone(), ..*w };
        Case {
            n,
            gate_up: clone(&self.gate_up),
            down: clone(&self.down),
            h: cut(&self.h, self.hidden),
            ids: self.ids[first * self.k..(first + n) * self.k].to_vec(),
            weights: cut(&self.weights, self.k),
            ..*self
        }
    }
    /// The weights of one matrix of one expert.
    fn part(&self, of: &Weights, first: usize, n: usize) -> Weights {
        let row = of.bytes.len() / of.n;
        Weights {
            n,
            bytes: of.bytes[first * row..(first + n) * row].to_vec(),
            values: of.values[first * of.k..(first + n) * of.k].to_vec(),
            ..*of
        }
    }
}

/// A case on a device.
struct Loaded {
    e: ExpertMats,
    h: View,
    routed: Routing,
    mid: View,
    dst: View,
    class: RowClass,
}

impl Loaded {
    fn new(rig: &mut Rig, c: &Case, class: RowClass) -> Self {
        let (mut gate, down) = (rig.mat(&c.gate_up, 5), rig.mat(&c.down, 1));
        let row = c.gate_up.bytes.len() / c.gate_up.n;
        gate.n = c.inner as u32;
        let mut up = gate;
        up.planes[0] =
            gate.planes[0].unwrap().slice((c.inner * row) as u64, (c.gate_up.bytes.len() - c.inner * row) as u64);
        let mut down = down;
        down.n = c.hidden as u32;
        let (fused, down_step) = (2 * c.inner * row, c.down.bytes.len() / c.experts);
        let set = |first, step: usize| MatSet { first, step: [step as u64, 0, 0, 0], slots: c.experts as u32 };
        let e = ExpertMats {
            gate: set(gate, fused),
            up: set(up, fused),
            down: set(down, down_step),
            slot_of: None,
            begins: None,
            bias: device::ExpertBias::default(),
            glu: Glu::Swiglu,
        };
        let places = c.n * c.k;
        let dst = match class {
            // Poison: what no expert writes stays what it was.
            RowClass::Few => {
                let flat = rig.floats(&vec![-7e7; places * c.hidden], c.k * c.hidden);
                flat.heads(c.k as u32)
            }
            RowClass::Many => rig.floats(&vec![0.25; c.n * c.hidden], c.hidden),
        };
        Loaded {
            e,
            h: rig.floats(&c.h, c.hidden),
            routed: Routing { ids: rig.ints(&c.ids, c.k), w: rig.floats(&c.weights, c.k) },
            mid: rig.floats(&vec![f32::NAN; places * c.inner], c.inner),
            dst,
            class,
        }
    }
    fn run(&self, rig: &mut Rig, pick: Pick, part: Part) -> device::Result<()> {
        let dst = match self.class {
            RowClass::Few => Acc::Parts(self.dst),
            RowClass::Many => Acc::Sum(self.dst),
        };
        let Loaded { e, h, routed, mid, class, .. } = *self;
        rig.dev.run(Op::ExpertGroup { dst, mid, h, routed, e, pick, part, class })
    }
    fn result(&self, rig: &mut Rig) -> Vec<u32> {
        rig.read(self.dst).into_iter().map(f32::to_bits).collect()
    }
}

fn whole(rig: &mut Rig, c: &Case, class: RowClass) -> Vec<u32> {
    let l = Loaded::new(rig, c, class);
    l.run(rig, Pick::All, Part::Both).unwrap();
    l.result(rig)
}

const Q4K: DType = DType::Block(Block::Q4K);
const Q6K: DType = DType::Block(Block::Q6K);
const Q4_1: DType = DType::Block(Block::Q4_1);
const MXFP4: DType = DType::Block(Block::Mxfp4);
const PAIRS: [(DType, DType); 5] =
    [(DType::F32, DType::F32), (DType::BF16, DType::BF16), (Q4K, Q6K), (Q4_1, DType::F16), (DType::F32, MXFP4)];

fn tolerance_of(d: DType) -> f32 {
    if matches!(d, DType::Block(_)) { tolerance::LINEAR_BLOCK } else { tolerance::LINEAR_FLOAT }
}

#[test]
fn experts_are_exact_to_rounding() {
    let mut rng = Rng(11);
    for dtypes in PAIRS {
        let c = Case::new(&mut rng, dtypes, 7, 5, 3);
        for isa in isas() {
            let mut rig = Rig::cpu(isa, 2);
            let few = Loaded::new(&mut rig, &c, RowClass::Few);
            few.run(&mut rig, Pick::All, Part::Both).unwrap();
            let (mid, parts) = (rig.read(few.mid), rig.read(few.dst));
            let many = Loaded::new(&mut rig, &c, RowClass::Many);
            many.run(&mut rig, Pick::All, Part::Both).unwrap();
            let sums = rig.read(many.dst);
            let mut exact: Vec<(f64, f64)> = vec![(0.25, 0.25); c.n * c.hidden];
            for (at, &id) in c.ids.iter().enumerate() {
                let (row, id) = (at / c.k, id as usize);
                let x = met_by(dtypes.0, &c.h[row * c.hidden..][..c.hidden]);
                let gate = product(&x, &c.part(&c.gate_up, 2 * id * c.inner, c.inner));
                let up = product(&x, &c.part(&c.gate_up, (2 * id + 1) * c.inner, c.inner));
                let mid = &mid[at * c.inner..][..c.inner];
                let tol = tolerance_of(dtypes.0);
                for ((m, (g, g_size)), (u, u_size)) in mid.iter().zip(gate).zip(up) {
                    let silu = g / (1.0 + (-g).exp());
                    // The slope of silu is at most 1.1.
                    let room = tol * (1.1 * g_size * u.abs() + silu.abs() * u_size + (silu * u).abs());
                    assert!((m - silu * u).abs() <= room, "{dtypes:?} {isa:?}: {m} is not {}", silu * u);
                }
                // The second half is judged on the intermediates that the device itself arrived at.
                let out = product(&met_by(dtypes.1, mid), &c.part(&c.down, id * c.hidden, c.hidden));
                let part = &parts[at * c.hidden..][..c.hidden];
                for (j, (y, (want, size))) in part.iter().zip(out).enumerate() {
                    assert!((y - want).abs() <= tolerance_of(dtypes.1) * size, "{dtypes:?} {isa:?}: {y} is not {want}");
                    let sum = &mut exact[row * c.hidden + j];
                    *sum = (sum.0 + (c.weights[at] * want) as f64, sum.1 + (c.weights[at] * size) as f64);
                }
            }
            for (y, (want, size)) in sums.iter().zip(exact) {
                assert!((*y as f64 - want).abs() <= tolerance_of(dtypes.1) as f64 * size, "{y} is not {want}");
            }
        }
    }
}

#[test]
fn float_experts_agree_with_the_reference_device() {
    let c = Case::new(&mut Rng(12), (DType::F32, DType::BF16), 6, 4, 2);
    let sizes = RegionSizes { step: 1 << 20, carry: 0 };
    for class in [RowClass::Few, RowClass::Many] {
        let mut oracle = Rig::new(Box::new(device::Reference::new(sizes).unwrap()));
        let mut cpu = Rig::cpu(Isa::best(), 2);
        let values = |bits: Vec<u32>| bits.into_iter().map(f32::from_bits).collect::<Vec<_>>();
        let (want, got) = (values(whole(&mut oracle, &c, class)), values(whole(&mut cpu, &c, class)));
        let size = want.iter().map(|y| y * y).sum::<f32>().sqrt();
        for (y, want) in got.iter().zip(&want) {
            assert!((y - want).abs() <= tolerance::LINEAR_FLOAT * size, "{class:?}: {y} is not {want}");
        }
    }
}

#[test]
fn few_rows_do_not_feel_company_threads_order_or_halves() {
    let mut rng = Rng(13);
    for dtypes in PAIRS {
        let c = Case::new(&mut rng, dtypes, 9, 6, 4);
        for isa in isas() {
            let want = whole(&mut Rig::cpu(isa, 1), &c, RowClass::Few);
            for threads in [2, 3] {
                assert_eq!(want, whole(&mut Rig::cpu(isa, threads), &c, RowClass::Few));
            }
            let mut rig = Rig::cpu(isa, 2);
            for row in 0..c.n {
                let alone = whole(&mut rig, &c.rows(row, 1), RowClass::Few);
                assert_eq!(alone, want[row * c.k * c.hidden..][..c.k * c.hidden], "{dtypes:?} {isa:?} row {row}");
            }
            let halves = Loaded::new(&mut rig, &c, RowClass::Few);
            halves.run(&mut rig, Pick::Experts((0..9).collect()), Part::GateUp).unwrap();
            halves.run(&mut rig, Pick::All, Part::Down).unwrap();
            assert_eq!(want, halves.result(&mut rig));
        }
    }
}

#[test]
fn many_rows_do_not_feel_threads() {
    let mut rng = Rng(14);
    for dtypes in PAIRS {
        let c = Case::new(&mut rng, dtypes, 5, 150, 2);
        for isa in isas().filter(|&i| i != Isa::Scalar) {
            let want = whole(&mut Rig::cpu(isa, 1), &c, RowClass::Many);
            for threads in [2, 3] {
                assert_eq!(want, whole(&mut Rig::cpu(isa, threads), &c, RowClass::Many), "{dtypes:?} {isa:?}");
            }
        }
    }
}

#[test]
fn slots_are_looked_up_and_absent_experts_are_errors() {
    let c = Case::new(&mut Rng(15), (Q4_1, Q4_1), 5, 3, 2);
    let mut rig = Rig::cpu(Isa::best(), 1);
    let want = whole(&mut rig, &c, RowClass::Few);
    // The same experts in other slots.
    let slots = [3, 0, 4, 1, 2];
    let mut moved = c.rows(0, c.n);
    for (of, w) in [(&c.gate_up, &mut moved.gate_up), (&c.down, &mut moved.down)] {
        let each = of.bytes.len() / 5;
        for (expert, slot) in slots.into_iter().enumerate() {
            w.bytes[slot * each..][..each].copy_from_slice(&of.bytes[expert * each..][..each]);
        }
    }
    let mut l = Loaded::new(&mut rig, &moved, RowClass::Few);
    l.e.slot_of = Some(rig.ints(&slots.map(|s| s as i32), 5).buf);
    l.run(&mut rig, Pick::All, Part::Both).unwrap();
    assert_eq!(want, l.result(&mut rig));
    let absent = c.ids[0] as usize;
    let mut map = slots.map(|s| s as i32);
    map[absent] = -1;
    l.e.slot_of = Some(rig.ints(&map, 5).buf);
    assert!(l.run(&mut rig, Pick::All, Part::Both).is_err());
    l.run(&mut rig, Pick::Experts((0..5).filter(|&e| e != absent as u32).collect()), Part::Both).unwrap();
    assert!(l.run(&mut rig, Pick::Experts(vec![9]), Part::Both).is_err(), "an expert that does not exist");
}

/// Slots as a disk fills them: gate, up and down of an expert together, at an offset of the expert's own.
#[test]
fn experts_that_begin_anywhere_in_their_slots_give_the_same_bits() {
    let c = Case::new(&mut Rng(17), (Q4_1, Q4_1), 5, 3, 2);
    let slots = [3, 0, 4, 1, 2];
    let (gate_up, down) = (c.gate_up.bytes.len() / 5, c.down.bytes.len() / 5);
    let slot_bytes = gate_up + down + 64;
    let mut pool = vec![0xAAu8; 5 * slot_bytes];
    let mut begins = Vec::new();
    for (expert, slot) in slots.into_iter().enumerate() {
        let down_at = 7 * expert;
        let gate_at = down_at + down + expert;
        let to = &mut pool[slot * slot_bytes..][..slot_bytes];
        to[down_at..][..down].copy_from_slice(&c.down.bytes[expert * down..][..down]);
        to[gate_at..][..gate_up].copy_from_slice(&c.gate_up.bytes[expert * gate_up..][..gate_up]);
        begins.extend(
            [gate_at, gate_at + gate_up / 2, down_at].into_iter().flat_map(|at| [at as i32, 0, 0, 0]).chain([0]),
        );
    }
    for mut rig in [
        Rig::cpu(Isa::best(), 2),
        Rig::new(Box::new(device::Reference::new(RegionSizes { step: 1 << 20, carry: 0 }).unwrap())),
    ] {
        let want = whole(&mut rig, &c, RowClass::Few);
        let mut l = Loaded::new(&mut rig, &c, RowClass::Few);
        let ints: Vec<i32> = pool.chunks(4).map(|b| i32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        let bytes = rig.ints(&ints, ints.len()).buf;
        for set in [&mut l.e.gate, &mut l.e.up, &mut l.e.down] {
            (set.first.planes[0], set.step[0]) = (Some(bytes), slot_bytes as u64);
        }
        l.e.slot_of = Some(rig.ints(&slots.map(|s| s as i32), 5).buf);
        l.e.begins = Some(rig.ints(&begins, begins.len()).buf);
        l.run(&mut rig, Pick::All, Part::Both).unwrap();
        assert_eq!(want, l.result(&mut rig));
        // Some of them interleaved where they lie, and of one only a matrix.
        for (expert, mats) in [(0, 0..3), (2, 1..2), (4, 0..3)] {
            let row = &mut begins[13 * expert..][..13];
            let mut layouts = [device::Layout::File; 3];
            for i in mats {
                let set = [l.e.gate, l.e.up, l.e.down][i];
                let m = set.slot(slots[expert] as u32).unwrap().moved([row[4 * i] as u64, 0, 0, 0]).unwrap();
                layouts[i] = rig.dev.arrange(&m).unwrap();
            }
            row[12] = device::arranged(layouts);
        }
        l.e.begins = Some(rig.ints(&begins, begins.len()).buf);
        l.run(&mut rig, Pick::All, Part::Both).unwrap();
        assert_eq!(want, l.result(&mut rig), "interleaved");
        (0..5).for_each(|expert| begins[13 * expert + 12] = 0);
        begins[0] = i32::MAX;
        l.e.begins = Some(rig.ints(&begins, begins.len()).buf);
        assert!(l.run(&mut rig, Pick::Experts(vec![0]), Part::Both).is_err(), "behind the end");
        begins[0] = down as i32;
    }
}

#[test]
fn nobody_else_is_written() {
    let c = Case::new(&mut Rng(16), (Q4_1, Q4_1), 5, 4, 2);
    let mut rig = Rig::cpu(Isa::best(), 2);
    for class in [RowClass::Few, RowClass::Many] {
        let l = Loaded::new(&mut rig, &c, class);
        let before = rig.read(l.dst);
        l.run(&mut rig, Pick::Experts(vec![2]), Part::Both).unwrap();
        let after = rig.read(l.dst);
        // A place of Few rows has one expert, a row's sum has all k of its own.
        let each = if class == RowClass::Few { 1 } else { c.k };
        let chunks = before.chunks(c.hidden).zip(after.chunks(c.hidden)).zip(c.ids.chunks(each));
        for (i, ((a, b), ids)) in chunks.enumerate() {
            assert_eq!(ids.contains(&2), a != b, "{class:?} {i}");
        }
        let mid = rig.read(l.mid);
        for (at, m) in mid.chunks(c.inner).enumerate() {
            assert!(m.iter().all(|m| m.is_nan() != (c.ids[at] == 2)), "intermediate {at}");
        }
        l.run(&mut rig, Pick::Experts(vec![]), Part::Both).unwrap();
        assert_eq!(after, rig.read(l.dst));
    }
}

/// Gate and up rows in turn, biases by expert, experts in other slots, every gated unit: as the reference device says.
#[test]
fn interleaved_rows_biases_and_gated_units_are_those_of_the_reference() {
    let sizes = RegionSizes { step: 1 << 20, carry: 0 };
    let units = [Glu::Swiglu, Glu::GegluTanh, Glu::SwigluClamped { limit: 0.6, alpha: 1.702 }];
    for (dtypes, glu) in
        [(DType::F32, DType::BF16), (DType::BF16, DType::F32), (DType::F32, DType::F32)].into_iter().zip(units)
    {
        let mut rng = Rng(31);
        let c = Case::new(&mut rng, dtypes, 6, 5, 3);
        let biases = [rng.values(6 * c.inner), rng.values(6 * c.inner), rng.values(6 * c.hidden)];
        let slots = [3, 0, 4, 1, 2, 5];
        let load = |rig: &mut Rig, class| {
            let mut l = Loaded::new(rig, &c, class);
            let row = (c.gate_up.bytes.len() / c.gate_up.n) as u64;
            let plane = l.e.gate.first.planes[0].unwrap();
            (l.e.gate.first.row_step, l.e.up.first.row_step) = (2, 2);
            l.e.up.first.planes[0] = plane.slice(row, plane.bytes() - row);
            let [gate, up, down] = [0, 1, 2].map(|i| Some(rig.floats(&biases[i], biases[i].len()).buf));
            l.e.bias = ExpertBias { gate, up, down };
            l.e.slot_of = Some(rig.ints(&slots, 6).buf);
            l.e.glu = glu;
            l
        };
        for class in [RowClass::Few, RowClass::Many] {
            let mut oracle = Rig::new(Box::new(device::Reference::new(sizes).unwrap()));
            let l = load(&mut oracle, class);
            l.run(&mut oracle, Pick::All, Part::Both).unwrap();
            let want = oracle.read(l.dst);
            let size = want.iter().map(|y| y * y).sum::<f32>().sqrt();
            for isa in isas() {
                let mut rig = Rig::cpu(isa, 2);
                let l = load(&mut rig, class);
                l.run(&mut rig, Pick::All, Part::Both).unwrap();
                let got = rig.read(l.dst);
                for (y, want) in got.iter().zip(&want) {
                    assert!((y - want).abs() <= tolerance::LINEAR_FLOAT * size, "{glu:?} {class:?}: {y} is not {want}");
                }
                // In halves and apart, the bits are the same.
                if class == RowClass::Few {
                    let parts = load(&mut rig, class);
                    for e in [4, 0, 2, 5, 1, 3] {
                        parts.run(&mut rig, Pick::Experts(vec![e]), Part::GateUp).unwrap();
                    }
                    parts.run(&mut rig, Pick::All, Part::Down).unwrap();
                    assert_eq!(l.result(&mut rig), parts.result(&mut rig), "{glu:?} {isa:?}");
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn any_cut_into_groups_gives_the_same_bits(
        seed: u64, pair in 0usize..5, experts in 2usize..9, n in 1usize..9, cuts in prop::collection::vec(0usize..9, 0..4)
    ) {
        let mut rng = Rng(seed);
        let k = 1 + rng.below(experts.min(4));
        let c = Case::new(&mut rng, PAIRS[pair], experts, n, k);
        let mut rig = Rig::cpu(Isa::best(), 2);
        // Many: ascending runs of experts.
        let want = whole(&mut rig, &c, RowClass::Many);
        let l = Loaded::new(&mut rig, &c, RowClass::Many);
        let mut edges: Vec<usize> = cuts.iter().map(|c| c % experts).chain([0, experts]).collect();
        edges.sort_unstable();
        for pair in edges.windows(2) {
            l.run(&mut rig, Pick::Experts((pair[0] as u32..pair[1] as u32).collect()), Part::Both).unwrap();
        }
        prop_assert_eq!(want, l.result(&mut rig));
        // Few: any sets in any order.
        let want = whole(&mut rig, &c, RowClass::Few);
        let l = Loaded::new(&mut rig, &c, RowClass::Few);
        let groups = 1 + cuts.len() as u32;
        let of: Vec<u32> = (0..experts).map(|_| rng.below(groups as usize) as u32).collect();
        for group in (0..groups).rev() {
            let some = (0..experts as u32).filter(|&e| of[e as usize] == group).collect();
            l.run(&mut rig, Pick::Experts(some), Part::Both).unwrap();
        }
        prop_assert_eq!(want, l.result(&mut rig));
    }
}
