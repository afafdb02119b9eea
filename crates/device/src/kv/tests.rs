//! The codecs against what the design says of them: theory, golden bytes, the transform's algebra.

use super::*;
use rotation::hadamard;
use tables::Table;

const WIDTHS: [usize; 4] = [64, 128, 256, 512];

/// SplitMix64, and from it normal numbers (sums of twelve even ones would not do: their tails are too short).
struct Random(u64);

impl Random {
    fn even(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
    fn normal(&mut self) -> f32 {
        let (r, angle) = ((-2.0 * (1.0 - self.even()).ln()).sqrt(), std::f64::consts::TAU * self.even());
        (r * angle.cos()) as f32
    }
    fn vector(&mut self, d: usize) -> Vec<f32> {
        (0..d).map(|_| self.normal()).collect()
    }
}

/// Simpson's rule in 200 steps.
fn integral(from: f64, to: f64, f: impl Fn(f64) -> f64) -> f64 {
    let n = 200;
    let h = (to - from) / n as f64;
    let inner = (1..n).map(|i| f(from + i as f64 * h) * if i % 2 == 1 { 4.0 } else { 2.0 }).sum::<f64>();
    (f(from) + inner + f(to)) * h / 3.0
}

/// Lloyd's iteration for one coordinate of a unit vector of R^d from poor beginnings, and the error it ends with. The
/// unit is `1 / sqrt(d)`.
fn lloyd_max(d: usize) -> ([f64; 8], f64) {
    let root = (d as f64).sqrt();
    let density = |t: f64| (1.0 - (t / root).powi(2)).max(0.0).powf((d as f64 - 3.0) / 2.0);
    // Beyond eight deviations there is nothing, and at d = 64 no more room.
    let (far, whole) = (8.0f64.min(root), 2.0 * integral(0.0, 8.0f64.min(root), density));
    let mut c: [f64; 8] = std::array::from_fn(|i| 0.2 + 0.35 * i as f64);
    let mut error = 0.0;
    for _ in 0..600 {
        let edge = |i: usize| {
            if i == 0 {
                0.0
            } else if i == 8 {
                far
            } else {
                (c[i - 1] + c[i]) / 2.0
            }
        };
        let cells: [(f64, f64); 8] = std::array::from_fn(|i| {
            let mass = integral(edge(i), edge(i + 1), density);
            (mass / whole, integral(edge(i), edge(i + 1), |t| t * density(t)) / mass)
        });
        // A centroid is the mean of its cell, so what it misses is the cell's square less its own.
        error = 1.0 - 2.0 * cells.iter().map(|(mass, mean)| mass * mean * mean).sum::<f64>();
        c = cells.map(|(_, mean)| mean);
    }
    (c, error)
}

#[test]
fn tables_are_where_lloyds_iteration_ends() {
    for d in WIDTHS {
        let (want, error) = lloyd_max(d);
        let Table { centroids, error: stated, .. } = tables::of(d);
        for (i, want) in want.into_iter().enumerate() {
            assert!((centroids[8 + i] as f64 - want).abs() < 2e-6, "{d}: {} is not {want}", centroids[8 + i]);
            assert_eq!(centroids[8 + i], -centroids[7 - i]);
        }
        assert!((error - stated).abs() < 1e-6, "{d}: {error} is not {stated}");
    }
}

/// What became of many random vectors in four bits: mean squared errors, relative, with the norm that is stored and with
/// the plain one; mean products with the vector itself, likewise; mean of <u, v>.
struct Seen {
    error: [f64; 2],
    product: [f64; 2],
    along: f64,
}

fn seen(d: usize, n: usize) -> Seen {
    let (mut r, signs) = (Random(d as u64), Signs::new(5, 1, 3));
    let mut s = Seen { error: [0.0; 2], product: [0.0; 2], along: 0.0 };
    for _ in 0..n {
        let x = r.vector(d);
        let mut codes = vec![0; d / 2];
        let norm = tq4::encode(&signs, &x, &mut codes);
        let mut y = vec![0.0; d];
        decode(KvFormat::Tq4, &signs, &codes, norm, &mut y);
        let square: f64 = x.iter().map(|&x| x as f64 * x as f64).sum();
        let along = square.sqrt() / norm.to_f64();
        for (i, by) in [1.0, along].into_iter().enumerate() {
            let off = x.iter().zip(&y).map(|(&x, &y)| (x as f64 - by * y as f64).powi(2)).sum::<f64>();
            let product = x.iter().zip(&y).map(|(&x, &y)| x as f64 * by * y as f64).sum::<f64>();
            s.error[i] += off / square / n as f64;
            s.product[i] += product / square / n as f64;
        }
        s.along += along / n as f64;
    }
    s
}

#[test]
fn four_bits_err_as_theory_says() {
    for (d, unbiased) in WIDTHS.into_iter().zip([0.977, 0.993, 1.001, 1.005]) {
        // Errors of short vectors vary the most.
        let (s, theory) = (seen(d, (40_000 * 64 / d).max(10_000)), tables::of(d).error);
        let [stored, plain] = s.error.map(|e| e / theory);
        assert!((plain - 1.0).abs() < 0.01, "{d}: the plain norm errs by {plain} of theory");
        assert!((stored - unbiased).abs() < 0.01, "{d}: the stored norm errs by {stored} of theory");
        assert!((s.along - (1.0 - theory)).abs() < 5e-4, "{d}: {}", s.along);
    }
}

#[test]
fn the_stored_norm_takes_away_the_shrinking_of_scores() {
    for d in WIDTHS {
        let [stored, plain] = seen(d, 500).product;
        assert!((plain - 0.9906).abs() < 1e-3, "{d}: scores with the plain norm are {plain} of what they should be");
        assert!((stored - 1.0).abs() < 1e-4, "{d}: scores with the stored norm are {stored} of what they should be");
    }
}

#[test]
fn eight_bits_err_by_less_than_a_hundredth() {
    for d in WIDTHS {
        let (mut r, signs, mut error) = (Random(7), Signs::new(0, 0, 0), 0.0);
        for _ in 0..200 {
            let (x, mut codes, mut y) = (r.vector(d), vec![0; d], vec![0.0; d]);
            let most = q8::encode(&signs, &x, &mut codes);
            decode(KvFormat::Q8, &signs, &codes, most, &mut y);
            let square: f64 = x.iter().map(|&x| x as f64 * x as f64).sum();
            error += x.iter().zip(&y).map(|(&x, &y)| (x as f64 - y as f64).powi(2)).sum::<f64>() / square / 200.0;
        }
        assert!(error.sqrt() < 0.01, "{d}: {}", error.sqrt());
    }
}

/// Made by an implementation in another language, with the transform as a matrix.
#[test]
fn golden_bytes_fix_the_packing() {
    let x: Vec<f32> = (0..64).map(|i| (i * 37 % 101 - 50) as f32 / 16.0).collect();
    let signs = Signs::new(3, 1, 2);
    let mut codes = [0; 32];
    let norm = tq4::encode(&signs, &x, &mut codes);
    let want = [
        0x77, 0x97, 0x68, 0x23, 0xb3, 0xa3, 0xf8, 0xe6, 0x77, 0xd8, 0x4a, 0x77, 0x9a, 0xda, 0x4e, 0x81, 0x87, 0x45,
        0x76, 0x8b, 0xcc, 0x69, 0x5a, 0x89, 0xd7, 0x66, 0xaa, 0x9d, 0x1b, 0xe7, 0xde, 0x77,
    ];
    assert_eq!((codes, norm.to_bits()), (want, 0x4b55));
    let mut codes = [0; 64];
    let most = q8::encode(&signs, &x, &mut codes);
    let want: [i8; 64] = [
        -12, -6, -2, 15, 5, -24, -56, -74, -62, 42, -69, 35, 8, 127, -25, 94, -4, -9, 9, 80, 32, -50, -3, -11, 39, 15,
        36, 75, 104, -48, -90, 8, -11, 7, -26, -43, -16, -11, 41, 11, 56, 53, 24, -25, 32, -32, 24, 6, -7, 87, -15,
        -19, 35, 28, 75, 16, 46, -98, -2, 104, 92, 76, -10, -9,
    ];
    assert_eq!((codes.map(|c| c as i8), most.to_bits()), (want, 0x44c6));
}

#[test]
fn the_transform_is_its_matrix_and_the_rotation_has_an_inverse() {
    let (mut r, d) = (Random(1), 64);
    let x = r.vector(d);
    let mut y = x.clone();
    hadamard(&mut y);
    for (i, y) in y.iter().enumerate() {
        let sign = |j: usize| if (i & j).count_ones().is_multiple_of(2) { 1.0 } else { -1.0 };
        let want: f32 = x.iter().enumerate().map(|(j, x)| sign(j) * x).sum();
        assert!((y - want).abs() < 1e-4);
    }
    for d in WIDTHS {
        let (signs, x, q) = (Signs::new(9, 0, 1), r.vector(d), r.vector(d));
        let (mut y, mut p) = (x.clone(), q.clone());
        signs.rotate(&mut y);
        signs.rotate(&mut p);
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
        assert!((dot(&y, &p) - dot(&x, &q)).abs() < 1e-3 * d as f32);
        signs.unrotate(&mut y);
        assert!(x.iter().zip(&y).all(|(x, y)| (x - y).abs() < 1e-5));
    }
}

#[test]
fn every_stream_has_signs_of_its_own() {
    let all: Vec<Signs> = (0..3)
        .flat_map(|layer| (0..2).flat_map(move |plane| (0..3).map(move |head| Signs::new(layer, plane, head))))
        .collect();
    for (i, a) in all.iter().enumerate() {
        assert!(all[i + 1..].iter().all(|b| a != b));
    }
    assert!(fingerprint(KvFormat::Tq4).contains("splitmix64, 0x736e75675f6b7631"));
    assert_ne!(fingerprint(KvFormat::Tq4), fingerprint(KvFormat::Q8));
}

#[test]
fn what_cannot_be_stored_is_clamped_and_counted_or_no_number() {
    let signs = Signs::new(0, 0, 0);
    for fmt in [KvFormat::Q8, KvFormat::Tq4] {
        let mut codes = vec![0; fmt.code_bytes(64) as usize];
        let mut y = [0.0; 64];
        let before = clamped();
        let scale = encode(fmt, &signs, &[1e6; 64], &mut codes).unwrap();
        assert_eq!((scale, clamped() - before), (f16::MAX, 1));
        let scale = encode(fmt, &signs, &[0.0; 64], &mut codes).unwrap();
        decode(fmt, &signs, &codes, scale, &mut y);
        assert!(y.iter().all(|y| *y == 0.0));
        for bad in [f32::NAN, f32::INFINITY] {
            let mut x = [1.0; 64];
            x[17] = bad;
            let scale = encode(fmt, &signs, &x, &mut codes).unwrap();
            decode(fmt, &signs, &codes, scale, &mut y);
            assert!(y.iter().all(|y| y.is_nan()), "{fmt:?}");
        }
    }
}

#[test]
fn a_page_holds_every_vector_in_a_place_of_its_own() {
    for (fmt, d) in KvFormat::ALL.into_iter().flat_map(|f| WIDTHS.map(|d| (f, d))) {
        for plane in 0..2 {
            let bytes = fmt.code_bytes(d as u32) as usize;
            let mut owner = vec![0; 256 * bytes];
            for at in 0..256 {
                let p = Pieces::of(fmt, plane, d as u32, at);
                assert_eq!(p.count * p.len, bytes);
                p.offsets().for_each(|o| owner[o..o + p.len].iter_mut().for_each(|o| *o += 1));
            }
            assert!(owner.iter().all(|&n| n == 1), "{fmt:?} {d}");
        }
    }
    // Four bytes of each of sixteen keys in turn; values one behind the other.
    let of = |plane, at| Pieces::of(KvFormat::Tq4, plane, 256, at);
    assert_eq!(of(0, 17), Pieces { first: 16 * 128 + 4, step: 64, len: 4, count: 32 });
    assert_eq!(of(1, 17), Pieces { first: 17 * 128, step: 128, len: 128, count: 1 });
}
