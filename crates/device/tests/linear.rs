//! Linear layers of the CPU backend: against exact products, on every instruction set, and bit for bit against
//! themselves under any other tiling.

mod kit;

use checkpoint::{Block, DType};
use device::{Isa, Layout, Mat, Op, RowClass, View, tolerance};
use kit::{Rig, Rng, Weights, dtypes, isas, met_by, product};
use memory::RegionSizes;
use proptest::prelude::*;

fn tolerance_of(dtype: DType) -> f32 {
    if matches!(dtype, DType::Block(_)) { tolerance::LINEAR_BLOCK } else { tolerance::LINEAR_FLOAT }
}

/// `out` of one linear layer into poisoned memory.
fn linear(rig: &mut Rig, x: &[f32], w: &Weights, offset: usize, class: RowClass) -> Vec<f32> {
    let (m, x) = (rig.mat(w, offset), rig.floats(x, w.k));
    let out = rig.floats(&vec![f32::NAN; x.rows as usize * w.n], w.n);
    rig.dev.run(Op::Linear { out, x, w: m, bias: None, add: false, class }).unwrap();
    rig.read(out)
}

#[track_caller]
fn close(got: &[f32], want: &[(f32, f32)], tol: f32, what: &str) {
    assert_eq!(got.len(), want.len());
    for (i, (y, (exact, size))) in got.iter().zip(want).enumerate() {
        assert!((y - exact).abs() <= tol * size, "{what}: element {i} is {y}, exactly {exact}, |x||w| {size}");
    }
}

fn bits(v: &[f32]) -> Vec<u32> {
    v.iter().map(|x| x.to_bits()).collect()
}

fn ks(dtype: DType) -> impl Iterator<Item = usize> {
    let odd = [1, 7, 40, 100].into_iter();
    odd.chain([32, 64, 96, 256, 288, 512, 576]).filter(move |k| k % dtype.elems() == 0)
}

#[test]
fn every_format_on_every_instruction_set_is_exact_to_rounding() {
    let mut rng = Rng(1);
    for dtype in dtypes() {
        for k in ks(dtype) {
            for (n, rows) in [(1, 1), (3, 2), (17, 5), (64, 3), (33, 130)] {
                let (w, x) = (Weights::random(&mut rng, dtype, n, k), rng.values(rows * k));
                let want = product(&met_by(dtype, &x), &w);
                for isa in isas() {
                    let got = linear(&mut Rig::cpu(isa, 2), &x, &w, 0, RowClass::Few);
                    close(&got, &want, tolerance_of(dtype), &format!("{dtype} {isa:?} [{n}, {k}] x {rows}"));
                }
            }
        }
    }
}

#[test]
fn a_row_has_the_same_bits_in_any_company_on_any_threads() {
    let mut rng = Rng(2);
    for dtype in dtypes() {
        let k = 2 * 288.max(dtype.elems());
        let (n, rows) = (77, 131);
        let k = k / dtype.elems() * dtype.elems();
        let (w, x) = (Weights::random(&mut rng, dtype, n, k), rng.values(rows * k));
        for isa in isas() {
            let all = linear(&mut Rig::cpu(isa, 1), &x, &w, 3, RowClass::Many);
            for threads in [2, 3] {
                assert_eq!(bits(&all), bits(&linear(&mut Rig::cpu(isa, threads), &x, &w, 0, RowClass::Few)));
            }
            let mut rig = Rig::cpu(isa, 2);
            for (first, some) in [(0, 1), (130, 1), (7, 2), (20, 3), (50, 4), (60, 9)] {
                let part = linear(&mut rig, &x[first * k..(first + some) * k], &w, 0, RowClass::Few);
                assert_eq!(bits(&all[first * n..(first + some) * n]), bits(&part), "{dtype} {isa:?} {first} {some}");
            }
        }
    }
}

#[test]
fn instruction_sets_agree_to_the_bit() {
    let mut rng = Rng(3);
    for dtype in dtypes() {
        let (n, k, rows) = (35, 512, 6);
        let (w, x) = (Weights::random(&mut rng, dtype, n, k), rng.values(rows * k));
        let of = |isa| bits(&linear(&mut Rig::cpu(isa, 2), &x, &w, 0, RowClass::Few));
        // Plain Rust rounds products of floats before it adds them; integers leave no such freedom.
        let first = if matches!(dtype, DType::Block(_)) { Isa::Scalar } else { Isa::Avx2 };
        let all: Vec<_> = isas().filter(|&i| i >= first).map(of).collect();
        assert!(all.windows(2).all(|p| p[0] == p[1]), "{dtype}");
    }
}

#[test]
fn weights_may_start_at_any_byte() {
    let mut rng = Rng(4);
    for dtype in dtypes() {
        let (w, x) = (Weights::random(&mut rng, dtype, 19, 256), rng.values(5 * 256));
        for isa in isas() {
            let mut rig = Rig::cpu(isa, 1);
            let aligned = linear(&mut rig, &x, &w, 0, RowClass::Few);
            for offset in 1..64 {
                assert_eq!(bits(&aligned), bits(&linear(&mut rig, &x, &w, offset, RowClass::Few)), "{dtype} {offset}");
            }
        }
    }
}

#[test]
fn weights_are_not_read_beyond_their_end() {
    // The last byte of the matrix is the last byte of its allocation, and bytes in front and behind are all ones, which
    // as scales would be NaN.
    let mut rng = Rng(5);
    // A whole tile and less than one.
    for (dtype, n) in dtypes().flat_map(|d| [(d, 5), (d, 16)]) {
        let (w, x) = (Weights::random(&mut rng, dtype, n, 256), rng.values(256));
        let fenced: Vec<u8> = [&[0xFF; 64], &w.bytes[..], &[0xFF; 4096]].concat();
        for isa in isas() {
            let mut rig = Rig::cpu(isa, 1);
            let whole = rig.bytes(&fenced);
            let mut m = rig.mat(&w, 0);
            m.planes[0] = whole.slice(64, w.bytes.len() as u64);
            let (x, out) = (rig.floats(&x, 256), rig.floats(&vec![f32::NAN; n], n));
            rig.dev.run(Op::Linear { out, x, w: m, bias: None, add: false, class: RowClass::Few }).unwrap();
            assert!(rig.read(out).iter().all(|y| y.is_finite()), "{dtype} {isa:?}");
        }
    }
}

#[test]
fn bias_addition_and_strides() {
    let mut rng = Rng(6);
    for dtype in [DType::F32, DType::Block(Block::Q4_1), DType::Block(Block::Q6K)] {
        let (n, k, rows) = (21, 256, 3);
        let w = Weights::random(&mut rng, dtype, n, k);
        let (wide, old, bias) = (rng.values(rows * (k + 5)), rng.values(rows * (n + 3)), rng.values(n));
        let x: Vec<f32> = wide.chunks(k + 5).flat_map(|r| r[2..2 + k].to_vec()).collect();
        let plain = product(&met_by(dtype, &x), &w);
        for isa in isas() {
            let mut rig = Rig::cpu(isa, 2);
            let (m, xv) = (rig.mat(&w, 1), rig.floats(&wide, k + 5).cols(2, k as u32));
            let bias_at_odd: Vec<u8> = bias.iter().flat_map(|b| b.to_le_bytes()).collect();
            let b = rig.bytes_at(3, &bias_at_odd);
            for (add, with_bias) in [(false, true), (true, false), (true, true)] {
                let outer = rig.floats(&old, n + 3);
                let out: View = outer.cols(1, n as u32);
                let class = RowClass::Many;
                rig.dev.run(Op::Linear { out, x: xv, w: m, bias: with_bias.then_some(b), add, class }).unwrap();
                for (r, (got, before)) in rig.read(outer).chunks(n + 3).zip(old.chunks(n + 3)).enumerate() {
                    let kept = [got[0], got[n + 1], got[n + 2]];
                    assert_eq!(kept, [before[0], before[n + 1], before[n + 2]], "columns beside out are untouched");
                    let want = (0..n).map(|i| {
                        let (y, size) = plain[r * n + i];
                        let bias = if with_bias { bias[i] } else { 0.0 };
                        (y + bias + if add { before[1 + i] } else { 0.0 }, size)
                    });
                    close(&got[1..=n], &want.collect::<Vec<_>>(), tolerance_of(dtype), "with bias or sum");
                }
            }
        }
    }
}

#[test]
fn what_is_not_finite_says_so_and_zeros_are_zeros() {
    let mut rng = Rng(7);
    for dtype in dtypes() {
        let w = Weights::random(&mut rng, dtype, 16, 256);
        for isa in isas() {
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut x = rng.values(2 * 256);
                x[77] = bad;
                let y = linear(&mut Rig::cpu(isa, 1), &x, &w, 0, RowClass::Few);
                // A weight of zero times infinity is NaN as well, so no element of the row can be finite.
                assert!(y[..16].iter().all(|y| !y.is_finite()), "{dtype} {isa:?}: {:?}", &y[..16]);
                assert!(y[16..].iter().all(|y| y.is_finite()), "{dtype} {isa:?}: another row is not concerned");
            }
            for tiny in [0.0, 1e-40] {
                let y = linear(&mut Rig::cpu(isa, 1), &[tiny; 256], &w, 0, RowClass::Few);
                assert!(y.iter().all(|y| y.abs() < 1e-36), "{dtype} {isa:?}");
            }
        }
    }
}

#[test]
fn scratch_is_what_the_op_takes() {
    use device::{Cpu, CpuOptions, Region};
    use memory::RegionSizes;
    let mut rng = Rng(8);
    let (w, x) = (Weights::random(&mut rng, DType::Block(Block::Q4K), 5, 256), rng.values(3 * 256));
    // Two planes of 256 bytes and 8 groups of 16 bytes a row.
    let need = 3 * (2 * 256 + 8 * 16);
    for (step, fits) in [(need, true), (need - 64, false)] {
        let cpu = Cpu::new(CpuOptions::default(), RegionSizes { step, carry: 0 }).unwrap();
        let mut rig = Rig::new(Box::new(cpu));
        let (m, x, out) = (rig.mat(&w, 0), rig.floats(&x, 256), rig.floats(&[0.0; 15], 5));
        let op = Op::Linear { out, x, w: m, bias: None, add: false, class: RowClass::Few };
        assert_eq!(rig.dev.run(op).is_ok(), fits);
        assert_eq!(rig.dev.arena().high_water(Region::Step), if fits { need } else { 0 });
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn any_shape(seed: u64, format in 0usize..18, n in 1usize..70, blocks in 1usize..20, rows in 1usize..20) {
        let mut rng = Rng(seed);
        let dtype = dtypes().nth(format).unwrap();
        let k = (blocks * 32).next_multiple_of(dtype.elems());
        let (w, x) = (Weights::random(&mut rng, dtype, n, k), rng.values(rows * k));
        let want = product(&met_by(dtype, &x), &w);
        for isa in isas() {
            let got = linear(&mut Rig::cpu(isa, 1), &x, &w, blocks % 64, RowClass::Few);
            close(&got, &want, tolerance_of(dtype), "random shape");
        }
    }
}

#[test]
fn interleaved_rows_give_the_bits_of_rows_as_in_the_file() {
    let mut rng = Rng(8);
    let mut interleaved = 0;
    for dtype in dtypes() {
        for k in ks(dtype).filter(|k| k % 32 == 0) {
            for (n, rows) in [(1, 1), (16, 1), (33, 2), (64, 3), (47, 4), (32, 70)] {
                let (w, x) = (Weights::random(&mut rng, dtype, n, k), rng.values(rows * k));
                for isa in isas() {
                    let mut rig = Rig::cpu(isa, 2);
                    let want = linear(&mut rig, &x, &w, 0, RowClass::Few);
                    for offset in [0, 7] {
                        let m = rig.arranged(&w, offset);
                        interleaved += (m.layout == Layout::Interleaved) as usize;
                        let (x, out) = (rig.floats(&x, k), rig.floats(&vec![f32::NAN; rows * n], n));
                        rig.dev.run(Op::Linear { out, x, w: m, bias: None, add: false, class: RowClass::Few }).unwrap();
                        assert_eq!(bits(&rig.read(out)), bits(&want), "{dtype} {isa:?} [{n}, {k}] x {rows}");
                        let ids: Vec<i32> = (0..n as i32).rev().collect();
                        let (ids, out) = (rig.ints(&ids, 1), rig.floats(&vec![f32::NAN; n * k], k));
                        rig.dev.run(Op::Embed { out, table: m, ids, scale: 1.0 }).unwrap();
                        let want: Vec<f32> = w.values.rchunks(k).flatten().copied().collect();
                        assert_eq!(bits(&rig.read(out)), bits(&want), "{dtype} {isa:?} [{n}, {k}]");
                    }
                }
            }
        }
    }
    assert!(interleaved > 500, "{interleaved} matrices were interleaved");
}

#[test]
fn only_the_device_that_interleaved_a_matrix_reads_it() {
    let mut rng = Rng(9);
    let w = Weights::random(&mut rng, DType::Block(Block::Q4_0), 16, 64);
    let mut rig = Rig::new(Box::new(device::Reference::new(RegionSizes { step: 1 << 20, carry: 0 }).unwrap()));
    assert_eq!(rig.arranged(&w, 0).layout, Layout::File);
    let m = Mat { layout: Layout::Interleaved, ..rig.mat(&w, 0) };
    let (x, out) = (rig.floats(&rng.values(64), 64), rig.floats(&[0.0; 16], 16));
    let op = Op::Linear { out, x, w: m, bias: None, add: false, class: RowClass::Few };
    assert!(matches!(rig.dev.run(op), Err(device::Error::NoKernel { .. })));
}
