//! Block formats: decoders against committed vectors, encoders by the error they leave.

use checkpoint::{Block, DType, Error, Unwritable};
use proptest::prelude::*;
use serde_json::Value;

fn vectors() -> Value {
    serde_json::from_str(include_str!("fixtures/quant_vectors.json")).unwrap()
}

fn hex(s: &str) -> Vec<u8> {
    (0..s.len()).step_by(2).map(|i| u8::from_str_radix(&s[i..i + 2], 16).unwrap()).collect()
}

fn floats(v: &Value) -> Vec<f32> {
    v.as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect()
}

/// A deterministic sample that looks like a weight row: a sum of uniforms, with a few outliers.
fn row(n: usize, seed: u64) -> Vec<f32> {
    let mut s = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut unit = || {
        s ^= s << 13;
        s ^= s >> 7;
        s ^= s << 17;
        (s >> 40) as f32 / (1 << 24) as f32 - 0.5
    };
    (0..n).map(|i| (0..6).map(|_| unit()).sum::<f32>() * if i % 97 == 13 { 0.06 } else { 0.03 }).collect()
}

fn round_trip(b: Block, x: &[f32]) -> Vec<f32> {
    let mut bytes = vec![0; x.len() / b.elems() * b.bytes()];
    b.encode(x, &mut bytes).unwrap();
    let mut y = vec![0.0; x.len()];
    b.decode(&bytes, &mut y);
    y
}

/// Root mean square error relative to the values' own root mean square.
fn rel_rms(x: &[f32], y: &[f32]) -> f64 {
    let err: f64 = x.iter().zip(y).map(|(x, y)| f64::from(x - y).powi(2)).sum();
    let all: f64 = x.iter().map(|x| f64::from(*x).powi(2)).sum();
    (err / all).sqrt()
}

const WRITABLE: [Block; 9] =
    [Block::Q4_0, Block::Q4_1, Block::Q5_0, Block::Q5_1, Block::Q8_0, Block::Q4K, Block::Q5K, Block::Q6K, Block::Mxfp4];

#[test]
fn decoders_match_the_committed_vectors() {
    let v = vectors();
    for b in Block::ALL {
        let case = &v[b.name()];
        assert_eq!(case["block"].as_u64().unwrap() as usize, b.elems(), "{b}");
        assert_eq!(case["bytes"].as_u64().unwrap() as usize, b.bytes(), "{b}");
        for (h, want) in case["hex"].as_array().unwrap().iter().zip(case["values"].as_array().unwrap()) {
            let (src, want) = (hex(h.as_str().unwrap()), floats(want));
            let mut got = vec![f32::NAN; b.elems()];
            b.decode(&src, &mut got);
            // The vectors carry seven digits, and Q4_K-like products may be summed in another order.
            let scale = want.iter().fold(0f32, |m, x| m.max(x.abs()));
            for (i, (g, w)) in got.iter().zip(&want).enumerate() {
                assert!((g - w).abs() <= 6e-7 * scale, "{b} element {i}: {g} instead of {w}");
            }
        }
    }
}

#[test]
fn decoding_does_not_need_alignment() {
    for b in Block::ALL {
        let v = vectors();
        let block = hex(v[b.name()]["hex"][0].as_str().unwrap());
        let (mut want, mut got) = (vec![0.0; b.elems()], vec![0.0; b.elems()]);
        b.decode(&block, &mut want);
        for shift in 1..8 {
            let mut room = vec![0u8; shift];
            room.extend(&block);
            b.decode(&room[shift..], &mut got);
            assert_eq!(got, want, "{b} at offset {shift}");
        }
    }
}

#[test]
fn e4m3_and_e8m0_match_their_tables() {
    let v = vectors();
    let codes: Vec<u8> = (0..=255).collect();
    let mut got = vec![0.0; 256];
    DType::F8E4M3.decode(&codes, &mut got).unwrap();
    for (i, want) in v["FP8_E4M3FN_table"].as_array().unwrap().iter().enumerate() {
        match want.as_f64() {
            Some(w) => assert_eq!(got[i], w as f32, "code {i:#x}"),
            None => assert!(got[i].is_nan(), "code {i:#x}"),
        }
    }
    DType::E8M0.decode(&codes, &mut got).unwrap();
    assert_eq!((got[0], got[127], got[254]), (2f32.powi(-127), 1.0, 2f32.powi(127)));
    assert!(got[255].is_nan());
}

#[test]
fn encoders_leave_little_error() {
    // (format, largest relative rms error over a row of weights with outliers). Measured by this test, with a margin of about a tenth.
    let bounds = [
        (Block::Q4_0, 0.090),
        (Block::Q4_1, 0.076),
        (Block::Q5_0, 0.045),
        (Block::Q5_1, 0.037),
        (Block::Q8_0, 0.006),
        (Block::Q4K, 0.078),
        (Block::Q5K, 0.039),
        (Block::Q6K, 0.020),
        (Block::Mxfp4, 0.122),
    ];
    for (b, bound) in bounds {
        let x = row(256 * 64, 7);
        let e = rel_rms(&x, &round_trip(b, &x));
        println!("{b}: {e:.5}");
        assert!(e < bound, "{b}: relative rms error {e:.4}, bound {bound}");
    }
}

#[test]
fn searching_for_a_scale_beats_the_plain_rule() {
    let x = row(32 * 512, 3);
    let naive: Vec<f32> = x
        .chunks(32)
        .flat_map(|c| {
            let m = c.iter().copied().fold(0f32, |m, x| if x.abs() > m.abs() { x } else { m });
            let d = m / -8.0;
            c.iter().map(move |x| (x / d).round().clamp(-8.0, 7.0) * d)
        })
        .collect();
    let (ours, plain) = (rel_rms(&x, &round_trip(Block::Q4_0, &x)), rel_rms(&x, &naive));
    assert!(ours < 0.97 * plain, "searched {ours:.4}, plain {plain:.4}");
}

#[test]
fn values_on_the_grid_survive_encoding() {
    // Formats with one scale and no offset: what was decoded once is encoded without loss. The others are re-encoded with a tiny loss at most.
    for (b, bound) in [
        (Block::Q4_0, 0.0),
        (Block::Q5_0, 0.0),
        (Block::Q8_0, 0.0),
        (Block::Mxfp4, 0.0),
        (Block::Q4_1, 0.004),
        (Block::Q5_1, 0.004),
        (Block::Q4K, 0.02),
        (Block::Q5K, 0.02),
        (Block::Q6K, 0.01),
    ] {
        let once = round_trip(b, &row(256 * 16, 11));
        let e = rel_rms(&once, &round_trip(b, &once));
        println!("{b}: {e:.5}");
        assert!(e <= bound, "{b}: {e:.5} > {bound}");
    }
}

#[test]
fn special_rows_encode() {
    let tiny = vec![f32::from_bits(1); 256];
    let constant = vec![0.37; 256];
    let positive: Vec<f32> = (0..256).map(|i| 1.0 + i as f32 / 256.0).collect();
    let mut spike = vec![0.0; 256];
    spike[77] = -65504.0;
    for b in WRITABLE {
        assert!(round_trip(b, &vec![0.0; 512]).iter().all(|y| *y == 0.0), "{b}: zeros");
        assert!(round_trip(b, &tiny).iter().all(|y| y.abs() < 1e-6), "{b}: subnormals");
        // E2M1 has nothing between 6 and 8 times a power of two, so a constant may be off by a ninth.
        let loose = if b == Block::Mxfp4 { 0.12 } else { 0.01 };
        assert!(rel_rms(&constant, &round_trip(b, &constant)) < loose, "{b}: constant");
        assert!(rel_rms(&positive, &round_trip(b, &positive)) < 0.11, "{b}: positive");
        let y = round_trip(b, &spike);
        assert!((y[77] + 65504.0).abs() < 0.3 * 65504.0 && y[3].abs() < 1.0, "{b}: spike {} {}", y[77], y[3]);
    }
}

#[test]
fn unwritable_values_and_formats_are_named() {
    let mut x = vec![0.5; 256];
    x[40] = f32::NAN;
    for b in WRITABLE {
        let mut out = vec![0; 256 / b.elems() * b.bytes()];
        assert!(matches!(b.encode(&x, &mut out), Err(Unwritable::NotFinite { index: 40, .. })), "{b}");
        assert!(matches!(b.encode(&x[..31], &mut out), Err(Unwritable::Length { .. })), "{b}");
    }
    x[40] = 70000.0;
    assert!(matches!(Block::Q8_0.encode(&x, &mut [0; 34 * 8]), Err(Unwritable::TooLarge { index: 40, .. })));
    assert!(matches!(
        DType::F16.encode(&x, &mut [0; 512]),
        Err(Error::Unwritable(Unwritable::TooLarge { index: 40, .. }))
    ));
    let e = Block::Iq4Nl.encode(&[0.0; 32], &mut [0; 18]).unwrap_err();
    assert!(e.to_string().contains("IQ4_NL"), "{e}");
}

#[test]
fn rows_are_checked() {
    assert_eq!(DType::Block(Block::Q4K).row_bytes(512).unwrap(), 288);
    assert!(matches!(DType::Block(Block::Q4K).row_bytes(288), Err(Error::Row { k: 288, elems: 256, .. })));
    assert!(DType::F32.row_bytes(u64::MAX / 2).is_err());
    assert!(matches!(DType::F32.decode(&[0; 7], &mut [0.0; 2]), Err(Error::Length { want: 8, have: 7, .. })));
    let e = DType::I32.decode(&[0; 4], &mut [0.0]).unwrap_err().to_string();
    assert!(e.contains("I32") && e.contains("Q4_K"), "{e}");
    let mut y = [0.0; 2];
    DType::BF16.decode(&[0x80, 0x3f, 0x00, 0xc0], &mut y).unwrap();
    assert_eq!(y, [1.0, -2.0]);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_decode(b in 0usize..15, bytes in proptest::collection::vec(any::<u8>(), 3 * 256)) {
        let b = Block::ALL[b];
        let n = bytes.len() / b.bytes();
        let mut y = vec![0.0; n * b.elems()];
        DType::Block(b).decode(&bytes[..n * b.bytes()], &mut y).unwrap();
    }

    /// No code is ever further from its value than the plain rule would allow: half a step of a grid over the block's whole range, doubled for rounded scales.
    #[test]
    fn every_element_is_near(seed in any::<u64>(), scale in 1e-3f32..1e3) {
        let x: Vec<f32> = row(256, seed).iter().map(|x| x * scale).collect();
        let amax = x.iter().fold(0f32, |m, x| m.max(x.abs()));
        for (b, levels) in [(Block::Q8_0, 127.0), (Block::Q5_0, 16.0), (Block::Q4_0, 8.0), (Block::Q6K, 32.0), (Block::Q4K, 8.0)] {
            for (x, y) in x.iter().zip(round_trip(b, &x)) {
                prop_assert!((x - y).abs() <= 2.0 * amax / levels, "{b}: {x} became {y}");
            }
        }
    }
}
