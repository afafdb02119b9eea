//! Matrices of several planes on the CPU backend: linear layers, experts and embeddings, against exact products, on
//! every instruction set, and bit for bit against themselves.

mod kit;

use checkpoint::{Block, DType, Format, Global, PLANES};
use device::{Acc, Buf, ExpertMats, Glu, Isa, Layout, Mat, MatSet, Op, Part, Pick, Routing, RowClass, View, tolerance};
use kit::{Rig, Rng, Weights, fifteen_bits, isas, product};

fn formats() -> Vec<Format> {
    let (f32, f16, bf16) = (DType::F32, DType::F16, DType::BF16);
    let affine = |bits, group, scale| Format::Affine { bits, group, scale };
    let fp8 = |rows, cols, scale| Format::Fp8 { tile: [rows, cols], scale };
    let int4 = |group, zero, scale| Format::Int4 { group, zero, scale };
    let mut all = Format::KINDS.map(|(_, f)| f).to_vec();
    all.extend([
        affine(4, 32, f16),
        affine(4, 128, f32),
        affine(4, 96, bf16),
        affine(4, 256, f16),
        affine(8, 32, f32),
        affine(3, 32, bf16),
        affine(6, 128, f16),
        Format::Scaled(Block::Nvfp4),
        fp8(128, 128, bf16),
        fp8(16, 64, DType::E8M0),
        fp8(1, 0, f16),
        fp8(0, 0, f32),
        int4(128, false, f16),
        int4(64, true, bf16),
        int4(32, true, f32),
        int4(256, true, f16),
    ]);
    all
}

/// Some of each kind, for tests that take long with every one.
fn some() -> Vec<Format> {
    formats().into_iter().step_by(4).chain([Format::Mxfp4Hf, Format::Nvfp4 { global: Global::Divides }]).collect()
}

/// The least width that a format divides and that is no multiple of 256 where it may be.
fn width(f: Format) -> usize {
    (1..40).map(|i| 32 * i).filter(|k| *k > 300 && k % 256 != 0).find(|k| f.planes(*k as u64).is_ok()).unwrap_or(512)
}

/// A stack of matrices as planes, and the values they stand for.
struct Stored {
    fmt: Format,
    n: usize,
    k: usize,
    count: usize,
    /// Of all matrices, one behind the other.
    planes: [Vec<u8>; PLANES],
    values: Vec<f32>,
}

impl Stored {
    /// Random codes under scales that leave values of about one.
    fn random(rng: &mut Rng, fmt: Format, [count, n, k]: [usize; 3]) -> Self {
        let cuts = fmt.planes(k as u64).unwrap();
        let mut planes: [Vec<u8>; PLANES] = Default::default();
        for (i, cut) in cuts.iter().enumerate() {
            let Some(cut) = cut else { continue };
            let bytes = cut.total(n as u64) as usize * count;
            planes[i] = match (i, cut.dtype) {
                (1 | 2, DType::E8M0) => (0..bytes).map(|_| 119 + rng.below(5) as u8).collect(),
                (1, DType::F8E4M3) => (0..bytes).map(|_| 24 + rng.below(16) as u8).collect(),
                (1 | 2, d @ (DType::F32 | DType::F16 | DType::BF16)) => {
                    let size = if let Format::Affine { bits, .. } = fmt { 1.0 / (1 << bits) as f32 } else { 0.1 };
                    let value = |r: &mut Rng| if i == 1 { size * (1.2 + r.unit()) } else { r.unit() };
                    let values: Vec<f32> = (0..bytes / d.bytes()).map(|_| value(rng)).collect();
                    let mut out = vec![0; bytes];
                    d.encode(&values, &mut out).unwrap();
                    out
                }
                (3, _) => (0..count).flat_map(|_| (0.7 + 0.5 * rng.unit()).to_le_bytes()).collect(),
                // No NaN of E4M3 among the codes.
                (_, DType::F8E4M3) => (0..bytes)
                    .map(|_| rng.bits() as u8)
                    .map(|b| if b & 0x7F == 0x7F { 9 } else { (b % 0x40) | (b & 0x80) })
                    .collect(),
                (_, DType::Block(Block::Nvfp4)) => {
                    (0..bytes).map(|i| if i % 36 < 4 { 24 + rng.below(16) as u8 } else { rng.bits() as u8 }).collect()
                }
                _ => (0..bytes).map(|_| rng.bits() as u8).collect(),
            };
        }
        let mut s = Stored { fmt, n, k, count, planes, values: Vec::new() };
        s.values = (0..count).flat_map(|e| s.decoded(e)).collect();
        s
    }
    /// Bytes of a plane of one matrix.
    fn step(&self, plane: usize) -> usize {
        self.planes[plane].len() / self.count
    }
    fn decoded(&self, e: usize) -> Vec<f32> {
        let part = |i: usize| &self.planes[i][e * self.step(i)..(e + 1) * self.step(i)];
        let mut all = vec![0.0; self.n * self.k];
        for (row, y) in all.chunks_mut(self.k).enumerate() {
            self.fmt.decode_row([part(0), part(1), part(2), part(3)], row as u64, y).unwrap();
        }
        all
    }
    /// In memory, each plane `offset` (and a little more for each) behind a page boundary.
    fn load(&self, rig: &mut Rig, offset: usize) -> MatSet {
        let mut planes: [Option<Buf>; PLANES] = [None; PLANES];
        for (i, bytes) in self.planes.iter().enumerate().filter(|(_, b)| !b.is_empty()) {
            planes[i] = Some(rig.bytes_at((offset * (i + 1)) % 64, bytes));
        }
        let first = self.mat(planes);
        MatSet { first, step: [0, 1, 2, 3].map(|i| self.step(i) as u64), slots: self.count as u32 }
    }
    fn mat(&self, planes: [Option<Buf>; PLANES]) -> Mat {
        Mat { n: self.n as u32, k: self.k as u32, fmt: self.fmt, layout: Layout::File, row_step: 1, planes }
    }
    /// Matrix `e` as values, for [`product`].
    fn weights(&self, e: usize) -> Weights {
        let values = self.values[e * self.n * self.k..(e + 1) * self.n * self.k].to_vec();
        Weights { dtype: DType::F32, n: self.n, k: self.k, bytes: Vec::new(), values }
    }
    fn floats(&self) -> bool {
        matches!(self.fmt, Format::Fp8 { .. })
    }
    fn met(&self, x: &[f32]) -> Vec<f32> {
        if self.floats() { x.to_vec() } else { fifteen_bits(x) }
    }
    fn tolerance(&self) -> f32 {
        if self.floats() { tolerance::LINEAR_FLOAT } else { tolerance::LINEAR_BLOCK }
    }
}

fn linear(rig: &mut Rig, x: &[f32], w: &Stored, offset: usize, class: RowClass) -> Vec<f32> {
    let (m, x) = (w.load(rig, offset).first, rig.floats(x, w.k));
    let out = rig.floats(&vec![f32::NAN; x.rows as usize * w.n], w.n);
    rig.dev.run(Op::Linear { out, x, w: m, bias: None, add: false, class }).unwrap();
    rig.read(out)
}

fn bits(v: &[f32]) -> Vec<u32> {
    v.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn every_format_on_every_instruction_set_is_exact_to_rounding() {
    let mut rng = Rng(1);
    for fmt in formats() {
        for (k, n, rows) in
            [(width(fmt), 1, 1), (width(fmt), 19, 3), (width(fmt), 33, 7), (1536, 130, 2), (256, 5, 130)]
        {
            if fmt.planes(k as u64).is_err() {
                continue;
            }
            let (w, x) = (Stored::random(&mut rng, fmt, [1, n, k]), rng.values(rows * k));
            let want = product(&w.met(&x), &w.weights(0));
            for isa in isas() {
                let got = linear(&mut Rig::cpu(isa, 2), &x, &w, 0, RowClass::Few);
                for (i, (y, (exact, size))) in got.iter().zip(&want).enumerate() {
                    let near = (y - exact).abs() <= w.tolerance() * size;
                    assert!(
                        near,
                        "{fmt} {isa:?} [{n}, {k}] x {rows}: element {i} is {y}, exactly {exact}, |x||w| {size}"
                    );
                }
            }
        }
    }
}

#[test]
fn a_row_has_the_same_bits_in_any_company_on_any_threads() {
    let mut rng = Rng(2);
    for fmt in formats() {
        let (k, n, rows) = (width(fmt), 37, 70);
        let (w, x) = (Stored::random(&mut rng, fmt, [1, n, k]), rng.values(rows * k));
        for isa in isas() {
            let all = linear(&mut Rig::cpu(isa, 1), &x, &w, 3, RowClass::Many);
            assert_eq!(bits(&all), bits(&linear(&mut Rig::cpu(isa, 3), &x, &w, 0, RowClass::Few)), "{fmt} {isa:?}");
            let mut rig = Rig::cpu(isa, 2);
            for (first, some) in [(0, 1), (69, 1), (7, 2), (20, 3), (50, 4), (30, 5), (60, 9)] {
                let part = linear(&mut rig, &x[first * k..(first + some) * k], &w, 0, RowClass::Few);
                assert_eq!(bits(&all[first * n..(first + some) * n]), bits(&part), "{fmt} {isa:?} {first} {some}");
            }
        }
    }
}

#[test]
fn instruction_sets_agree_to_the_bit() {
    let mut rng = Rng(3);
    for fmt in formats() {
        let (k, n) = (width(fmt), 35);
        for rows in [1, 6] {
            let (w, x) = (Stored::random(&mut rng, fmt, [1, n, k]), rng.values(rows * k));
            // Plain Rust rounds products of floats before it adds them; integers leave no such freedom.
            let first = if w.floats() { Isa::Avx2 } else { Isa::Scalar };
            let of = |isa| bits(&linear(&mut Rig::cpu(isa, 2), &x, &w, 0, RowClass::Few));
            let all: Vec<_> = isas().filter(|&i| i >= first).map(of).collect();
            assert!(all.windows(2).all(|p| p[0] == p[1]), "{fmt}");
        }
    }
}

#[test]
fn eight_bit_floats_are_multiplied_as_their_values_are() {
    let mut rng = Rng(9);
    for fmt in formats().into_iter().filter(|f| matches!(f, Format::Fp8 { .. })) {
        for (n, k, rows) in [(35, 300, 1), (18, 2500, 6), (16, 96, 70)] {
            if fmt.planes(k as u64).is_err() {
                continue;
            }
            let (w, x) = (Stored::random(&mut rng, fmt, [1, n, k]), rng.values(rows * k));
            let plain = Weights { bytes: w.values.iter().flat_map(|v| v.to_le_bytes()).collect(), ..w.weights(0) };
            for isa in isas() {
                let mut rig = Rig::cpu(isa, 1);
                let (m, xv) = (rig.mat(&plain, 0), rig.floats(&x, k));
                let out = rig.floats(&vec![0.0; rows * n], n);
                rig.dev.run(Op::Linear { out, x: xv, w: m, bias: None, add: false, class: RowClass::Few }).unwrap();
                let got = linear(&mut rig, &x, &w, 5, RowClass::Few);
                assert_eq!(bits(&rig.read(out)), bits(&got), "{fmt} {isa:?} [{n}, {k}] x {rows}");
            }
        }
    }
}

#[test]
fn planes_may_start_at_any_byte() {
    let mut rng = Rng(4);
    for fmt in formats() {
        let k = width(fmt);
        let (w, x) = (Stored::random(&mut rng, fmt, [1, 19, k]), rng.values(2 * k));
        for isa in isas() {
            let mut rig = Rig::cpu(isa, 1);
            let aligned = linear(&mut rig, &x, &w, 0, RowClass::Few);
            for offset in 1..64 {
                assert_eq!(bits(&aligned), bits(&linear(&mut rig, &x, &w, offset, RowClass::Few)), "{fmt} {offset}");
            }
        }
    }
}

#[test]
fn no_plane_is_read_beyond_its_ends() {
    // In front and behind everything is ones, which as scales of any kind would be NaN.
    let mut rng = Rng(5);
    for fmt in formats() {
        let k = width(fmt);
        for n in [1, 5, 16] {
            let (w, x) = (Stored::random(&mut rng, fmt, [1, n, k]), rng.values(k));
            for isa in isas() {
                let mut rig = Rig::cpu(isa, 1);
                let mut planes = [None; PLANES];
                for (i, bytes) in w.planes.iter().enumerate().filter(|(_, b)| !b.is_empty()) {
                    let fenced = [&[0xFF; 64], &bytes[..], &[0xFF; 4096]].concat();
                    planes[i] = rig.bytes(&fenced).slice(64, bytes.len() as u64);
                }
                let (x, out) = (rig.floats(&x, k), rig.floats(&vec![f32::NAN; n], n));
                let op = Op::Linear { out, x, w: w.mat(planes), bias: None, add: false, class: RowClass::Few };
                rig.dev.run(op).unwrap();
                assert!(rig.read(out).iter().all(|y| y.is_finite()), "{fmt} {isa:?}");
            }
        }
    }
}

#[test]
fn what_is_not_finite_says_so() {
    let mut rng = Rng(7);
    for fmt in some() {
        let k = width(fmt);
        let w = Stored::random(&mut rng, fmt, [1, 16, k]);
        for isa in isas() {
            for bad in [f32::NAN, f32::INFINITY] {
                let mut x = rng.values(2 * k);
                x[77] = bad;
                let y = linear(&mut Rig::cpu(isa, 1), &x, &w, 0, RowClass::Few);
                assert!(
                    y[..16].iter().all(|y| !y.is_finite()) && y[16..].iter().all(|y| y.is_finite()),
                    "{fmt} {isa:?}"
                );
            }
            assert!(linear(&mut Rig::cpu(isa, 1), &vec![0.0; k], &w, 0, RowClass::Few).iter().all(|y| *y == 0.0));
        }
    }
    // A scale that is not a number, and codes that are none.
    for (fmt, plane, byte) in [
        (Format::Mxfp4Hf, 1, 0xFF),
        (Format::Nvfp4 { global: Global::None }, 1, 0x7F),
        (Format::Fp8 { tile: [0, 0], scale: DType::F32 }, 0, 0xFF),
    ] {
        let mut w = Stored::random(&mut rng, fmt, [1, 16, 288]);
        let row = w.planes[plane].len() / 16;
        w.planes[plane][3 * row + 2] = byte;
        for (isa, rows) in isas().flat_map(|i| [(i, 1), (i, 6)]) {
            let x = rng.values(rows * 288);
            let y = linear(&mut Rig::cpu(isa, 1), &x, &w, 0, RowClass::Few);
            assert!(
                y.chunks(16).all(|y| y.iter().enumerate().all(|(i, y)| y.is_nan() == (i == 3))),
                "{fmt} {isa:?}: {y:?}"
            );
        }
    }
}

#[test]
fn a_missing_or_short_plane_is_refused_by_number() {
    let mut rng = Rng(8);
    for fmt in formats() {
        let k = width(fmt);
        let w = Stored::random(&mut rng, fmt, [1, 5, k]);
        let mut rig = Rig::cpu(Isa::Scalar, 1);
        let m = w.load(&mut rig, 0).first;
        let (x, out) = (rig.floats(&vec![0.0; k], k), rig.floats(&[0.0; 5], 5));
        for i in (0..PLANES).filter(|i| m.planes[*i].is_some()) {
            let short = m.planes[i].and_then(|b| b.slice(0, b.bytes() - 1));
            for plane in [None, short] {
                let mut m = m;
                m.planes[i] = plane;
                let op = Op::Linear { out, x, w: m, bias: None, add: false, class: RowClass::Few };
                let e = rig.dev.run(op).unwrap_err().to_string();
                assert!(e.contains(&format!("plane {i} of w")), "{fmt}: {e}");
            }
        }
    }
}

#[test]
fn embeddings_are_the_decoded_rows() {
    let mut rng = Rng(10);
    for fmt in formats() {
        let k = width(fmt);
        let w = Stored::random(&mut rng, fmt, [1, 21, k]);
        let ids = [20, 0, 7, -1, 21, 8];
        {
            let mut rig = Rig::cpu(Isa::Scalar, 1);
            let (table, ids_view) = (w.load(&mut rig, 7).first, rig.ints(&ids, 1));
            let out = rig.floats(&vec![f32::NAN; ids.len() * k], k);
            rig.dev.run(Op::Embed { out, table, ids: ids_view, scale: 1.0 }).unwrap();
            for (id, y) in ids.iter().zip(rig.read(out).chunks(k)) {
                match usize::try_from(*id).ok().filter(|i| *i < 21) {
                    Some(i) => assert_eq!(y, &w.values[i * k..(i + 1) * k], "{fmt}"),
                    None => assert!(y.iter().all(|y| *y == 0.0)),
                }
            }
        }
    }
}

/// What one expert makes of a row: fifteen bits where the format wants them, exact sums else.
fn expert(gate: &Stored, up: &Stored, down: &Stored, e: usize, h: &[f32]) -> Vec<f32> {
    let dot = |w: &Stored, x: &[f32]| product(&w.met(x), &w.weights(e)).into_iter().map(|p| p.0).collect::<Vec<_>>();
    let mid: Vec<f32> = dot(gate, h).iter().zip(dot(up, h)).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
    dot(down, &mid)
}

#[test]
fn experts_of_every_format_are_the_right_ones() {
    let mut rng = Rng(11);
    let (count, rows, k) = (3, 5, 2);
    for fmt in formats() {
        let (hidden, inner) = (width(fmt), width(fmt));
        let gate = Stored::random(&mut rng, fmt, [count, inner, hidden]);
        let up = Stored::random(&mut rng, fmt, [count, inner, hidden]);
        let down = Stored::random(&mut rng, fmt, [count, hidden, inner]);
        let h: Vec<f32> = rng.values(rows * hidden).iter().map(|x| x / (hidden as f32).sqrt()).collect();
        let ids: Vec<i32> = (0..rows as i32).flat_map(|r| [r % 3, (r + 1) % 3]).collect();
        for isa in isas() {
            let mut rig = Rig::cpu(isa, 2);
            let e = ExpertMats {
                gate: gate.load(&mut rig, 1),
                up: up.load(&mut rig, 2),
                down: down.load(&mut rig, 3),
                slot_of: None,
                begins: None,
                bias: Default::default(),
                glu: Glu::Swiglu,
            };
            let routed = Routing { ids: rig.ints(&ids, k), w: rig.floats(&vec![0.5; rows * k], k) };
            let (hv, mid) = (rig.floats(&h, hidden), rig.floats(&vec![f32::NAN; rows * k * inner], inner));
            let parts: View = rig.floats(&vec![f32::NAN; rows * k * hidden], k * hidden).heads(k as u32);
            let run = |rig: &mut Rig, part| {
                let (dst, pick, class, e) = (Acc::Parts(parts), Pick::All, RowClass::Few, e);
                rig.dev.run(Op::ExpertGroup { dst, mid, h: hv, routed, e, pick, part, class }).unwrap();
                rig.read(parts)
            };
            let got = run(&mut rig, Part::Both);
            for (at, y) in got.chunks(hidden).enumerate() {
                let want = expert(&gate, &up, &down, ids[at] as usize, &h[at / k * hidden..][..hidden]);
                let size = want.iter().map(|w| w * w).sum::<f32>().sqrt();
                for (y, w) in y.iter().zip(&want) {
                    // Fifteen bits of an intermediate that differs in its last bits may differ by a code.
                    assert!((y - w).abs() <= 2e-4 * size, "{fmt} {isa:?}: {y} is not {w}");
                }
            }
            run(&mut rig, Part::GateUp);
            assert_eq!(bits(&got), bits(&run(&mut rig, Part::Down)), "{fmt} {isa:?}: in halves");
        }
    }
}

#[test]
fn interleaved_planes_give_the_bits_of_planes_as_in_the_file() {
    let mut rng = Rng(12);
    let mut interleaved = 0;
    for fmt in formats() {
        for (n, rows, k) in [(16, 1, width(fmt)), (35, 2, 3 * width(fmt)), (64, 4, width(fmt)), (17, 9, width(fmt))] {
            let (w, x) = (Stored::random(&mut rng, fmt, [1, n, k]), rng.values(rows * k));
            for isa in isas() {
                let mut rig = Rig::cpu(isa, 2);
                let want = linear(&mut rig, &x, &w, 0, RowClass::Few);
                let m = w.load(&mut rig, 5).first;
                let m = Mat { layout: rig.dev.arrange(&m).unwrap(), ..m };
                interleaved += (m.layout == Layout::Interleaved) as usize;
                let (x, out) = (rig.floats(&x, k), rig.floats(&vec![f32::NAN; rows * n], n));
                rig.dev.run(Op::Linear { out, x, w: m, bias: None, add: false, class: RowClass::Few }).unwrap();
                assert_eq!(bits(&rig.read(out)), bits(&want), "{fmt} {isa:?} [{n}, {k}] x {rows}");
                let ids: Vec<i32> = (0..n as i32).collect();
                let (ids, out) = (rig.ints(&ids, 1), rig.floats(&vec![f32::NAN; n * k], k));
                rig.dev.run(Op::Embed { out, table: m, ids, scale: 1.0 }).unwrap();
                assert_eq!(bits(&rig.read(out)), bits(&w.values), "{fmt} {isa:?} [{n}, {k}]");
            }
        }
    }
    assert!(interleaved >= 4 * 2, "{interleaved} matrices were interleaved");
}

#[test]
fn interleaved_experts_give_the_bits_of_experts_as_in_the_file() {
    let mut rng = Rng(13);
    let (count, rows, k) = (3, 5, 2);
    for fmt in formats() {
        let size = 2 * width(fmt);
        let all = [0; 3].map(|_| Stored::random(&mut rng, fmt, [count, size, size]));
        let h = rng.values(rows * size);
        let ids: Vec<i32> = (0..rows as i32).flat_map(|r| [r % 3, (r + 1) % 3]).collect();
        for isa in isas() {
            let mut rig = Rig::cpu(isa, 2);
            let mut run = |arrange: bool| {
                let [gate, up, down] = all.each_ref().map(|w| {
                    let mut set = w.load(&mut rig, 1);
                    if arrange {
                        let layouts = (0..count as u32).map(|s| rig.dev.arrange(&set.slot(s).unwrap()).unwrap());
                        set.first.layout = layouts.last().unwrap();
                    }
                    set
                });
                let bias = Default::default();
                let e = ExpertMats { gate, up, down, slot_of: None, begins: None, bias, glu: Glu::Swiglu };
                let routed = Routing { ids: rig.ints(&ids, k), w: rig.floats(&vec![0.5; rows * k], k) };
                let (h, mid) = (rig.floats(&h, size), rig.floats(&vec![f32::NAN; rows * k * size], k * size));
                let mid = View::dense(mid.buf, mid.ty, (rows * k) as u32, size as u32);
                let parts = rig.floats(&vec![f32::NAN; rows * k * size], k * size).heads(k as u32);
                let (dst, pick, part, class) = (Acc::Parts(parts), Pick::All, Part::Both, RowClass::Few);
                rig.dev.run(Op::ExpertGroup { dst, mid, h, routed, e, pick, part, class }).unwrap();
                bits(&rig.read(parts))
            };
            assert_eq!(run(false), run(true), "{fmt} {isa:?}");
        }
    }
}
