//! What the codecs of history lose: relative root mean squared error of vectors, of normal elements and with a few that
//! are thirty times as large, as keys of real models have; for `q8` also other ways to spend about eight bits.
//! `cargo run --release -p device --example kv_error`.

use device::kv::{Signs, decode, encode};
use half::f16;
use memory::KvFormat;

const VECTORS: usize = 2000;

fn main() {
    println!("{:<34} {:>6} {:>10} {:>10}", "format", "bytes", "normal", "outliers");
    for d in [64, 128, 256] {
        for fmt in [KvFormat::Bf16, KvFormat::Q8, KvFormat::Tq4] {
            let name = format!("{} (d = {d})", fmt.name());
            show(&name, fmt.vector_bytes(d as u32), d, &|x, y| {
                let signs = Signs::new(3, 0, 1);
                let mut codes = vec![0; fmt.code_bytes(d as u32) as usize];
                let scale = encode(fmt, &signs, x, &mut codes);
                decode(fmt, &signs, &codes, scale.unwrap_or(f16::ONE), y);
            });
        }
        for (group, rotated) in [(d, false), (32, false), (32, true)] {
            let how = if rotated { "rotated" } else { "as it is" };
            let name = format!("8 bits {how}, scale per {group}");
            show(&name, d as u64 + 2 * (d / group) as u64, d, &|x, y| even_steps(x, y, group, rotated));
        }
    }
    println!("\nhow far apart what is kept of two vectors is that differ by as much (d = 256)");
    println!("{:<10} {:>9} {:>9} {:>9}", "they differ by", "bf16", "q8", "tq4");
    for noise in [2f32.powi(-10), 2f32.powi(-9), 2f32.powi(-8), 2f32.powi(-7), 2f32.powi(-6)] {
        let [a, b, c] = [KvFormat::Bf16, KvFormat::Q8, KvFormat::Tq4].map(|fmt| 100.0 * apart(fmt, noise));
        println!("{:>13.3}% {a:>8.3}% {b:>8.3}% {c:>8.3}%", 100.0 * noise);
    }
}

/// Root mean squared difference of what a format keeps of normal vectors and of what it keeps of them with noise of this size.
fn apart(fmt: KvFormat, noise: f32) -> f64 {
    const D: usize = 256;
    let (mut draw, signs, mut sum) = (Draw(2), Signs::new(3, 0, 1), 0.0);
    let kept = |x: &[f32]| {
        let (mut codes, mut y) = (vec![0; fmt.code_bytes(D as u32) as usize], vec![0.0; D]);
        let scale = encode(fmt, &signs, x, &mut codes);
        decode(fmt, &signs, &codes, scale.unwrap_or(f16::ONE), &mut y);
        y
    };
    for _ in 0..VECTORS {
        let x: Vec<f32> = (0..D).map(|_| draw.normal()).collect();
        let near: Vec<f32> = x.iter().map(|x| x + noise * draw.normal()).collect();
        let off: f32 = kept(&x).iter().zip(kept(&near)).map(|(a, b)| (a - b).powi(2)).sum();
        sum += (off / x.iter().map(|x| x * x).sum::<f32>()) as f64;
    }
    (sum / VECTORS as f64).sqrt()
}

fn even_steps(x: &[f32], y: &mut [f32], group: usize, rotated: bool) {
    let signs = Signs::new(3, 0, 1);
    y.copy_from_slice(x);
    if rotated {
        signs.rotate(y);
    }
    for part in y.chunks_exact_mut(group) {
        let most = f16::from_f32(part.iter().fold(0.0, |m: f32, x| m.max(x.abs()))).to_f32();
        part.iter_mut().for_each(|x| *x = (*x * 127.0 / most).round().clamp(-127.0, 127.0) * most / 127.0);
    }
    if rotated {
        signs.unrotate(y);
    }
}

fn show(name: &str, bytes: u64, d: usize, code: &dyn Fn(&[f32], &mut [f32])) {
    let error = |outliers: bool| {
        let mut draw = Draw(1);
        let mut sum = 0.0;
        for _ in 0..VECTORS {
            let mut x: Vec<f32> = (0..d).map(|_| draw.normal()).collect();
            if outliers {
                x.iter_mut().skip(5).step_by(d / 3).for_each(|x| *x *= 30.0);
            }
            let mut y = vec![0.0; d];
            code(&x, &mut y);
            let off: f32 = x.iter().zip(&y).map(|(x, y)| (x - y).powi(2)).sum();
            sum += (off / x.iter().map(|x| x * x).sum::<f32>()) as f64;
        }
        (sum / VECTORS as f64).sqrt()
    };
    println!("{name:<34} {bytes:>6} {:>9.3}% {:>9.3}%", 100.0 * error(false), 100.0 * error(true));
}

struct Draw(u64);

impl Draw {
    fn even(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }
    fn normal(&mut self) -> f32 {
        ((-2.0 * (1.0 - self.even()).ln()).sqrt() * (std::f64::consts::TAU * self.even()).cos()) as f32
    }
}
