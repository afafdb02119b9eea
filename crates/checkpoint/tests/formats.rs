//! Formats of several planes: decoders against committed vectors, encoders by the error they leave, shapes that cannot be.

use checkpoint::{Block, DType, Format, Global, PLANES};
use serde_json::Value;

fn vectors() -> Value {
    serde_json::from_str(include_str!("fixtures/quant_vectors.json")).unwrap()
}

fn hex(v: &Value) -> Vec<u8> {
    let s = v.as_str().unwrap();
    (0..s.len()).step_by(2).map(|i| u8::from_str_radix(&s[i..i + 2], 16).unwrap()).collect()
}

fn numbers(v: &Value) -> Vec<f64> {
    v.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
}

fn words(v: &Value) -> Vec<u8> {
    numbers(v).into_iter().flat_map(|x| (x as u32).to_le_bytes()).collect()
}

fn singles(v: &Value) -> Vec<u8> {
    numbers(v).into_iter().flat_map(|x| (x as f32).to_le_bytes()).collect()
}

fn decode(f: Format, planes: [&[u8]; PLANES], row: u64, k: usize) -> Vec<f32> {
    let mut y = vec![f32::NAN; k];
    f.decode_row(planes, row, &mut y).unwrap();
    y
}

fn formats() -> Vec<Format> {
    let scales = [DType::F32, DType::F16, DType::BF16];
    let mut all = vec![Format::Mxfp4Hf];
    for (i, bits) in [2, 3, 4, 5, 6, 8].into_iter().enumerate() {
        all.extend([32, 64, 128].map(|group| Format::Affine {
            bits,
            group,
            scale: scales[(i + group as usize / 32) % 3],
        }));
    }
    all.extend([Global::None, Global::Multiplies, Global::Divides].map(|global| Format::Nvfp4 { global }));
    for (tile, scale) in [
        ([128, 128], DType::F32),
        ([128, 128], DType::BF16),
        ([0, 0], DType::F32),
        ([1, 0], DType::BF16),
        ([1, 32], DType::E8M0),
    ] {
        all.push(Format::Fp8 { tile, scale });
    }
    for (group, zero) in [(32, false), (128, false), (64, true), (128, true)] {
        all.extend(scales.map(|scale| Format::Int4 { group, zero, scale }));
    }
    all
}

/// A deterministic sample that looks like weights.
fn sample(n: usize) -> Vec<f32> {
    let mut s = 0x9E37_79B9_7F4A_7C15u64;
    let mut unit = || {
        s = s.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (s >> 40) as f32 / (1 << 24) as f32 - 0.5
    };
    (0..n).map(|_| (0..4).map(|_| unit()).sum::<f32>() * 0.05).collect()
}

#[test]
fn gpt_oss_nibbles_are_adjacent_and_those_of_gguf_are_not() {
    let v = &vectors()["HF_MXFP4"];
    let (codes, e) = (hex(&v["hex"]), v["scale_byte"].as_u64().unwrap() as u8);
    let want: Vec<f32> = numbers(&v["values"]).into_iter().map(|x| x as f32).collect();
    assert_eq!(decode(Format::Mxfp4Hf, [&codes, &[e], &[], &[]], 0, 32), want);
    // The same bytes as a GGUF block: element i is the low nibble of byte i, i + 16 the high one.
    let mut block = vec![0.0; 32];
    Block::Mxfp4.decode(&[&[e], &codes[..]].concat(), &mut block);
    for (i, y) in block.iter().enumerate() {
        assert_eq!(*y, want[if i < 16 { 2 * i } else { 2 * (i - 16) + 1 }], "element {i}");
    }
}

#[test]
fn mlx_values_are_those_of_mlx() {
    let all = vectors();
    for bits in [2u8, 3, 4, 5, 6, 8] {
        let v = &all[&format!("MLX_affine{bits}_g64")];
        let f = Format::Affine { bits, group: 64, scale: DType::F32 };
        for row in 0..2 {
            let planes = [&words(&v["packed"][row])[..], &singles(&v["scales"][row]), &singles(&v["biases"][row]), &[]];
            for (y, want) in decode(f, planes, 0, 64).iter().zip(numbers(&v["values"][row])) {
                // mlx may fuse the product and the sum.
                assert!((f64::from(*y) - want).abs() <= 6e-7, "{bits} bits: {y}, not {want}");
            }
        }
    }
    for (name, f) in [("MLX_mxfp4", Format::Mxfp4Hf), ("MLX_nvfp4", Format::Nvfp4 { global: Global::None })] {
        let v = &all[name];
        for row in 0..2 {
            let scales: Vec<u8> = numbers(&v["scales"][row]).into_iter().map(|x| x as u8).collect();
            let want: Vec<f32> = numbers(&v["values"][row]).into_iter().map(|x| x as f32).collect();
            assert_eq!(decode(f, [&words(&v["packed"][row]), &scales, &[], &[]], 0, 64), want, "{name}");
        }
    }
}

#[test]
fn a_global_scale_multiplies_or_divides() {
    // Codes 1 and 2 (0.5, 1) under a scale of 1.5 (0x3C) and a global of 4.
    let (codes, scales, four) = ([0x21; 16], [0x3C; 2], 4f32.to_le_bytes());
    for (global, first) in [(Global::None, 0.75), (Global::Multiplies, 3.0), (Global::Divides, 0.1875)] {
        let y = decode(Format::Nvfp4 { global }, [&codes, &scales, &[], &four], 0, 32);
        assert_eq!((y[0], y[1], y[31]), (first, 2.0 * first, 2.0 * first), "{global:?}");
    }
    let block = [&[0x3C; 4][..], &[0x11; 32]].concat();
    assert_eq!(decode(Format::Scaled(Block::Nvfp4), [&block, &[], &[], &four], 0, 64), [3.0; 64]);
}

#[test]
fn tiles_of_eight_bit_floats_end_with_the_matrix() {
    // [3, 5] in tiles of 2 x 4, all codes 1.0 (0x38): scales [2, 2].
    let f = Format::Fp8 { tile: [2, 4], scale: DType::F32 };
    let scales: Vec<u8> = [1f32, 2.0, 3.0, 4.0].iter().flat_map(|x| x.to_le_bytes()).collect();
    let codes = [0x38; 15];
    let planes = [&codes[..], &scales, &[], &[]];
    assert_eq!(decode(f, planes, 1, 5), [1.0, 1.0, 1.0, 1.0, 2.0]);
    assert_eq!(decode(f, planes, 2, 5), [3.0, 3.0, 3.0, 3.0, 4.0]);
}

#[test]
fn zeros_are_packed_along_rows() {
    // Nine rows of 32 fives; the zero of row r is r % 8, and 3 in the ninth.
    let f = Format::Int4 { group: 32, zero: true, scale: DType::F32 };
    let (codes, scales) = (vec![0x55; 16 * 9], 2f32.to_le_bytes().repeat(9));
    let zeros = [0x7654_3210u32.to_le_bytes(), 3u32.to_le_bytes()].concat();
    for row in 0..9 {
        let zero = if row == 8 { 3.0 } else { row as f32 };
        assert_eq!(decode(f, [&codes, &scales, &zeros, &[]], row, 32), [(5.0 - zero) * 2.0; 32], "row {row}");
    }
    let y = decode(Format::Int4 { group: 32, zero: false, scale: DType::F32 }, [&codes, &scales, &[], &[]], 4, 32);
    assert_eq!(y, [-6.0; 32]);
}

#[test]
fn encoding_leaves_the_error_of_the_width_and_encoding_again_none() {
    let (n, k) = (20, 512);
    let x = sample(n * k);
    let rms = |v: &mut dyn Iterator<Item = f32>| v.map(|x| f64::from(x).powi(2)).sum::<f64>().sqrt();
    for f in formats() {
        let again = |x: &[f32]| {
            let planes = f.encode(n as u64, x).unwrap();
            let cuts = f.planes(k as u64).unwrap();
            for (i, (plane, cut)) in planes.iter().zip(cuts).enumerate() {
                assert_eq!(plane.len() as u64, cut.map_or(0, |c| c.total(n as u64)), "{f}: plane {i}");
            }
            let parts: [&[u8]; PLANES] = std::array::from_fn(|i| &planes[i][..]);
            (0..n as u64).flat_map(|row| decode(f, parts, row, k)).collect::<Vec<_>>()
        };
        let y = again(&x);
        let error = rms(&mut x.iter().zip(&y).map(|(x, y)| x - y)) / rms(&mut x.iter().copied());
        let bound = match f {
            Format::Affine { bits, .. } => 0.9 / f64::from((1u32 << bits) - 1) + 0.004,
            Format::Fp8 { .. } => 0.04,
            Format::Int4 { .. } => 0.15,
            _ => 0.16,
        };
        assert!(error < bound, "{f}: {error}");
        let z = again(&y);
        let error = rms(&mut y.iter().zip(&z).map(|(y, z)| y - z)) / rms(&mut y.iter().copied());
        assert!(error < 0.03, "{f}: encoded again, it differs by {error}");
    }
}

#[test]
fn rows_that_cannot_be_say_why() {
    let of = |f: Format, k: u64| f.planes(k).unwrap_err();
    let affine = |bits, group| Format::Affine { bits, group, scale: DType::F16 };
    assert!(of(affine(4, 64), 96).contains("groups of 64"));
    assert!(of(affine(7, 64), 128).contains("7 bits"));
    assert!(of(affine(4, 0), 128).contains("groups of 0"));
    assert!(of(affine(4, 48), 96).contains("multiples of 32"));
    assert!(of(Format::Mxfp4Hf, 48).contains("of 32"));
    assert!(of(Format::Nvfp4 { global: Global::None }, 48).contains("of 32"));
    assert!(of(Format::Int4 { group: 128, zero: true, scale: DType::F16 }, 192).contains("groups of 128"));
    assert!(of(Format::Plain(Block::Q4K.into()), 128).contains("256"));
    for f in formats() {
        assert!(
            f.decode_row([&[]; PLANES], 0, &mut vec![0.0; 512]).unwrap_err().to_string().contains("plane 0"),
            "{f}"
        );
        let planes = f.encode(2, &sample(1024)).unwrap();
        let last = planes.iter().rposition(|p| !p.is_empty()).unwrap();
        let parts = std::array::from_fn(|i| if i == last { &planes[i][..planes[i].len() - 1] } else { &planes[i][..] });
        assert!(f.decode_row(parts, 1, &mut vec![0.0; 512]).is_err(), "{f}: the last byte of plane {last}");
        assert!(f.encode(1, &[f32::NAN; 512]).is_err(), "{f}");
        // No size overflows.
        let _ = (f.planes(u64::MAX), f.bytes(u64::MAX, u64::MAX / 2 / 512 * 512));
    }
}

#[test]
fn bits_and_names_are_the_usual_ones() {
    let affine = |bits, group| Format::Affine { bits, group, scale: DType::BF16 };
    for (f, bits, name) in [
        (affine(4, 64), 4.5, "affine 4-bit g64"),
        (affine(8, 64), 8.5, "affine 8-bit g64"),
        (affine(4, 32), 5.0, "affine 4-bit g32"),
        (Format::Mxfp4Hf, 4.25, "MXFP4 planes"),
        (Format::Nvfp4 { global: Global::None }, 4.5, "NVFP4 planes"),
        (Format::Fp8 { tile: [128, 128], scale: DType::F32 }, 8.0, "FP8 E4M3 128x128"),
        (Format::Int4 { group: 128, zero: false, scale: DType::BF16 }, 4.125, "int4 g128"),
        (Format::Int4 { group: 128, zero: true, scale: DType::BF16 }, 4.156, "int4 g128 with zeros"),
    ] {
        assert!((f.bits() - bits).abs() < 0.003, "{f}: {}", f.bits());
        assert_eq!(f.to_string(), name);
    }
}
