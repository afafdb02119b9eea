//! Tile decoders against the decoders of `checkpoint`, on random bytes and on the ends of their ranges.

use super::planes::{self, Planes, Row};
use super::side::{Plane, Side};
use super::tile::{CHUNK_GROUPS, Half, Tile, chunk_bytes, locate};
use super::{tile32, tile256};
use checkpoint::{Block, DType, Format, Global};

struct Exact;
impl Half for Exact {
    unsafe fn f32(bits: [u8; 2]) -> f32 {
        half::f16::from_le_bytes(bits).to_f32()
    }
}

/// Codes and steps of a format of several planes against its decoder, over all values of every byte.
fn planes_agree<T: Planes>(format: Format) {
    let (n, k) = (8, 512u64);
    let cuts = format.planes(k).unwrap();
    let mut state = 7u64;
    let mut planes: [Vec<u8>; 4] = cuts.map(|cut| {
        let bytes = cut.map_or(0, |c| c.total(n)) as usize;
        let mut random = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as u8
        };
        (0..bytes).map(|_| random()).collect()
    });
    if let Format::Int4 { scale, .. } = format {
        // Sizes whose multiples stay finite.
        let values: Vec<f32> = (0..planes[1].len() / scale.bytes()).map(|i| (i % 29) as f32 / 7.0 - 1.3).collect();
        scale.encode(&values, &mut planes[1]).unwrap();
    }
    let at = |i: usize| planes[i].as_ptr();
    let scale = match format {
        Format::Affine { scale, .. } | Format::Int4 { scale, .. } => super::side::Scale::of(scale).unwrap(),
        _ => super::side::Scale::F32,
    };
    let per = match format {
        Format::Affine { group, .. } | Format::Int4 { group, .. } => group as usize / 32,
        _ => 1,
    };
    let global = planes[3].first_chunk().map_or(1.0, |b| f32::from_le_bytes(*b));
    let side = Side { scale, per, global, scales: Plane::NONE, mins: Plane::NONE };
    for r in 0..n {
        let mut want = vec![0.0; k as usize];
        format.decode_row(std::array::from_fn(|i| &planes[i][..]), r, &mut want).unwrap();
        let part = |i: usize| at(i).wrapping_add(cuts[i].map_or(0, |c| c.at(r)) as usize);
        let row = Row { codes: part(0), scales: part(1), mins: part(2), nth: (r % 8) as u32 };
        for g in 0..k as usize / 32 {
            // SAFETY: whole planes of n rows.
            let (codes, steps) = unsafe { (T::codes(row.codes, g), T::steps(&side, &row, g)) };
            for (i, code) in codes.into_iter().enumerate() {
                assert!(T::WIDE || code < 64, "{format}: {code}");
                let h = if T::HALVES { i / 16 } else { 0 };
                let plain = steps.scale[h] * (code as i32 - T::OFFSET) as f32;
                let w = if T::MIN { plain + steps.min[h] } else { plain };
                let want = want[32 * g + i];
                // A global scale is part of the step, so the product is rounded in another place.
                let close = if side.global == 1.0 { w == want } else { (w - want).abs() <= 1e-6 * want.abs() };
                let damaged = !w.is_finite() && !want.is_finite();
                assert!(
                    close || damaged || zeros(format, w, want),
                    "{format} row {r} group {g} element {i}: {w}, not {want}"
                );
            }
        }
    }
}

/// `scale * q - scale * zero` may round where `scale * (q - zero)` does not: in f32 scales alone.
fn zeros(format: Format, w: f32, want: f32) -> bool {
    let f32s = matches!(format, Format::Int4 { zero: true, scale: DType::F32, .. });
    f32s && (w - want).abs() <= 1e-5
}

#[test]
fn codes_and_steps_of_planes_are_the_weights() {
    let affine = |bits, scale| Format::Affine { bits, group: 64, scale };
    planes_agree::<planes::Affine<2>>(affine(2, DType::BF16));
    planes_agree::<planes::Affine<3>>(affine(3, DType::F16));
    planes_agree::<planes::Affine<4>>(affine(4, DType::BF16));
    planes_agree::<planes::Affine<5>>(affine(5, DType::F16));
    planes_agree::<planes::Affine<6>>(affine(6, DType::F32));
    planes_agree::<planes::Affine<8>>(affine(8, DType::F16));
    planes_agree::<planes::Mxfp4>(Format::Mxfp4Hf);
    planes_agree::<planes::Nvfp4>(Format::Nvfp4 { global: Global::None });
    for scale in [DType::F16, DType::BF16, DType::F32] {
        planes_agree::<planes::Int4>(Format::Int4 { group: 128, zero: false, scale });
        planes_agree::<planes::Int4Zero>(Format::Int4 { group: 32, zero: true, scale });
    }
    planes_agree::<planes::Nvfp4Blocks>(Block::Nvfp4.into());
    planes_agree::<planes::Q2K>(Block::Q2K.into());
}

/// Random blocks, then blocks of one repeated byte: all zeros, all ones and in between.
fn blocks(bytes: usize) -> Vec<Vec<u8>> {
    let mut state = 1u64;
    let mut random = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as u8
    };
    let mut all: Vec<Vec<u8>> = (0..600).map(|_| (0..bytes).map(|_| random()).collect()).collect();
    all.extend((0..=255).map(|b| vec![b; bytes]));
    all
}

fn agree<T: Tile>(block: Block, vector: impl Fn(&T::Block, usize) -> Option<[u8; 32]>) {
    let blocks_in_chunk = CHUNK_GROUPS / T::GROUPS;
    for bytes in blocks(chunk_bytes::<T>()) {
        let mut want = vec![0f32; 256];
        assert_eq!(bytes.len(), block.bytes() * blocks_in_chunk);
        DType::Block(block).decode(&bytes, &mut want).unwrap();
        for g in 0..CHUNK_GROUPS {
            // SAFETY: the chunk is whole, and `Exact` needs nothing.
            let (b, at, steps) = unsafe {
                let (b, at) = locate::<T>(bytes.as_ptr(), g);
                (b, at, T::steps::<Exact>(b, at))
            };
            let codes = T::codes(b, at);
            assert!(vector(b, at).is_none_or(|v| v == codes), "{block}: vectors read other codes");
            assert!(T::OFFSET == 128 || codes.iter().all(|&c| i32::from(c) <= T::MOST));
            for (i, code) in codes.into_iter().enumerate() {
                let scale = if T::SUB { steps.scale * steps.sub[i / 16] as f32 } else { steps.scale };
                let plain = scale * (code as i32 - T::OFFSET) as f32;
                let w = if T::MIN { plain + steps.min } else { plain };
                let want = want[32 * g + i];
                assert!(w == want || (w.is_nan() && want.is_nan()), "{block} group {g} element {i}: {w}, not {want}");
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn vector<T: super::tile_x86::TileX86>(b: &T::Block, g: usize) -> Option<[u8; 32]> {
    // SAFETY: asked for only where AVX2 is available; both types are 32 plain bytes.
    is_x86_feature_detected!("avx2").then(|| unsafe { std::mem::transmute(T::vector(b, g)) })
}

#[cfg(not(target_arch = "x86_64"))]
fn vector<T: Tile>(_: &T::Block, _: usize) -> Option<[u8; 32]> {
    None
}

/// Steps of a large block by vectors against steps one by one.
#[cfg(target_arch = "x86_64")]
fn steps_agree<T: super::tile_x86::TileX86>() {
    if !crate::cpu::Isa::Avx2.available() {
        return;
    }
    for bytes in blocks(chunk_bytes::<T>()) {
        // SAFETY: the chunk is one block; AVX2 and F16C are there; both sides are four times 32 plain bytes.
        let (b, [scale, min, sub0, sub1]) = unsafe {
            let (b, _) = locate::<T>(bytes.as_ptr(), 0);
            (b, std::mem::transmute::<super::tile_x86::Eight, [[f32; 8]; 4]>(T::eight(b)))
        };
        let same = |a: f32, b: f32| a == b || a.is_nan() && b.is_nan();
        for g in 0..T::GROUPS {
            // SAFETY: `Exact` needs nothing.
            let steps = unsafe { T::steps::<Exact>(b, g) };
            assert!(same(scale[g], steps.scale), "{} is not {}", scale[g], steps.scale);
            assert!(!T::MIN || same(min[g], steps.min), "{} is not {}", min[g], steps.min);
            assert!(!T::SUB || [sub0[g], sub1[g]].map(|s| s.to_bits() as i32) == steps.sub);
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn steps_by_vectors_are_the_steps() {
    steps_agree::<tile256::Q3K>();
    steps_agree::<tile256::Iq3S>();
    steps_agree::<tile256::Q4K>();
    steps_agree::<tile256::Q5K>();
    steps_agree::<tile256::Q6K>();
    steps_agree::<tile256::Iq4Xs>();
}

#[test]
fn codes_and_steps_are_the_weights() {
    agree::<tile32::Q4_0>(Block::Q4_0, vector::<tile32::Q4_0>);
    agree::<tile32::Q4_1>(Block::Q4_1, vector::<tile32::Q4_1>);
    agree::<tile32::Q5_0>(Block::Q5_0, vector::<tile32::Q5_0>);
    agree::<tile32::Q5_1>(Block::Q5_1, vector::<tile32::Q5_1>);
    agree::<tile32::Q8_0>(Block::Q8_0, vector::<tile32::Q8_0>);
    agree::<tile32::Iq4Nl>(Block::Iq4Nl, vector::<tile32::Iq4Nl>);
    agree::<tile32::Mxfp4>(Block::Mxfp4, vector::<tile32::Mxfp4>);
    agree::<tile256::Q3K>(Block::Q3K, vector::<tile256::Q3K>);
    agree::<tile256::Iq3S>(Block::Iq3S, vector::<tile256::Iq3S>);
    agree::<tile256::Q4K>(Block::Q4K, vector::<tile256::Q4K>);
    agree::<tile256::Q5K>(Block::Q5K, vector::<tile256::Q5K>);
    agree::<tile256::Q6K>(Block::Q6K, vector::<tile256::Q6K>);
    agree::<tile256::Iq4Xs>(Block::Iq4Xs, vector::<tile256::Iq4Xs>);
}

#[test]
fn quantisers_agree_to_the_bit() {
    use super::{quant, quantiser};
    use crate::cpu::Isa;
    let mut x: Vec<f32> = (0..320).map(|i| ((i * 7919 % 641) as f32 - 320.0) / 37.0).collect();
    // Ties, a lone large value, zeros, subnormals, the largest finite, infinity, NaN.
    x[..32].iter_mut().enumerate().for_each(|(i, x)| *x = (i as f32 - 15.5) * 8.0);
    x[40] = 3e4;
    x[64..96].fill(0.0);
    x[96..128].fill(1e-41);
    x[130] = f32::MAX;
    x[165] = f32::NEG_INFINITY;
    x[195] = f32::NAN;
    let of = |isa| {
        let mut row = vec![0x55; quant::row_bytes(x.len())];
        // SAFETY: the instruction set is available and x is whole groups.
        unsafe { quantiser(isa)(&x, &mut row) }
        row
    };
    let plain = of(Isa::Scalar);
    for isa in Isa::ALL.into_iter().filter(|i| i.available()) {
        let (row, codes) = (of(isa), x.len());
        for g in (0..10).filter(|g| ![5, 6].contains(g)) {
            assert_eq!(row[g * 32..g * 32 + 32], plain[g * 32..g * 32 + 32], "{isa:?} group {g}");
        }
        for g in 0..10 {
            // SAFETY: the quantiser wrote ten groups.
            let (a, b) =
                unsafe { (quant::get_group(row.as_ptr(), codes, g), quant::get_group(plain.as_ptr(), codes, g)) };
            assert_eq!(a.d.is_nan(), [5, 6].contains(&g));
            assert!(a == b || a.d.is_nan() && b.d.is_nan(), "{isa:?} group {g}: {a:?}, not {b:?}");
        }
    }
}
