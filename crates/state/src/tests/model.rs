//! What rows must come to, from their whole history and nothing else: plain loops in f64 that know of no page, ring or
//! slot.

use crate::{Decl, Stream};

/// Query heads of every attention layer.
pub const Q_HEADS: u32 = 2;
pub const SCALE: f32 = 0.7;
/// Key heads and taps of every recurrent layer.
pub const K_HEADS: u32 = 1;

/// A row: whose, where, and which token. Its inputs to every layer are a function of these.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Row {
    pub tag: u64,
    pub pos: u32,
    pub id: u32,
}

/// What an input is for.
#[derive(Copy, Clone)]
pub enum Use {
    Query,
    Key,
    Value,
    Mixed,
    Decay,
    Beta,
}

impl Row {
    /// An input: a multiple of 1/16 in [-1, 1], which f32 and bf16 hold exactly.
    pub fn input(self, layer: u32, of: Use, col: u32) -> f32 {
        let mut h = self.tag;
        for x in [self.pos as u64, self.id as u64, layer as u64, of as u64, col as u64] {
            h = mix(h ^ x.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        }
        (h % 33) as f32 / 16.0 - 1.0
    }
}

/// The finaliser of splitmix64.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A weight of a recurrent layer.
pub fn weight(layer: u32, kind: u64, i: u32) -> f32 {
    Row { tag: !kind, pos: 0, id: 0 }.input(layer, Use::Mixed, i)
}
/// Factors of the decay: negative.
pub fn decay(layer: u32, head: u32) -> f32 {
    -0.3 - 0.2 * weight(layer, 1, head).abs()
}

/// The outputs of row `at` of a history, all layers one behind the other.
pub fn outputs(decls: &[Decl], rows: &[Row], at: &[usize]) -> Vec<Vec<f64>> {
    let mut out = vec![Vec::new(); at.len()];
    for d in decls {
        let all = match d.stream {
            Stream::History { heads, d: width, .. } => attention(d.layer, rows, at, heads, width, u32::MAX),
            Stream::Ring { window, heads, d: width, .. } => attention(d.layer, rows, at, heads, width, window),
            Stream::Recurrent { state: [h, k, v], conv: [past, channels] } => {
                let mixed = conv(d.layer, rows, past as usize + 1, channels as usize);
                let delta = delta(d.layer, rows, &mixed, [h, k, v].map(|x| x as usize));
                at.iter().map(|&i| [&mixed[i][..], &delta[i]].concat()).collect()
            }
        };
        out.iter_mut().zip(all).for_each(|(o, more)| o.extend(more));
    }
    out
}

fn vector(row: Row, layer: u32, of: Use, head: u32, d: u32) -> Vec<f64> {
    (0..d).map(|c| row.input(layer, of, head * d + c) as f64).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn attention(layer: u32, rows: &[Row], at: &[usize], heads: u32, d: u32, window: u32) -> Vec<Vec<f64>> {
    let keys = |of| -> Vec<Vec<Vec<f64>>> {
        (0..heads).map(|h| rows.iter().map(|&r| vector(r, layer, of, h, d)).collect()).collect()
    };
    let (k, v) = (keys(Use::Key), keys(Use::Value));
    let one = |i: usize| {
        let head = |h| {
            let q = vector(rows[i], layer, Use::Query, h, d);
            let from = (i + 1).saturating_sub(window as usize);
            let kv = (h / (Q_HEADS / heads)) as usize;
            let w: Vec<f64> = k[kv][from..=i].iter().map(|k| (dot(&q, k) * SCALE as f64).exp()).collect();
            let total: f64 = w.iter().sum();
            let sum = |c| w.iter().zip(&v[kv][from..=i]).map(|(w, v): (_, &Vec<f64>)| w * v[c]).sum::<f64>() / total;
            (0..d as usize).map(sum).collect::<Vec<_>>()
        };
        (0..Q_HEADS).flat_map(head).collect()
    };
    at.iter().map(|&i| one(i)).collect()
}

fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

fn conv(layer: u32, rows: &[Row], taps: usize, channels: usize) -> Vec<Vec<f64>> {
    let x = |i: usize, c: usize| rows[i].input(layer, Use::Mixed, c as u32) as f64;
    let w = |c: usize, t: usize| weight(layer, 0, (c * taps + t) as u32) as f64;
    let at =
        |i: usize, c: usize| (0..taps).filter(|t| i + t + 1 >= taps).map(|t| w(c, t) * x(i + t + 1 - taps, c)).sum();
    (0..rows.len()).map(|i| (0..channels).map(|c| silu(at(i, c))).collect()).collect()
}

fn delta(layer: u32, rows: &[Row], mixed: &[Vec<f64>], [heads, d_k, d_v]: [usize; 3]) -> Vec<Vec<f64>> {
    let mut states = vec![vec![vec![0.0; d_v]; d_k]; heads];
    let unit = |x: &[f64]| -> Vec<f64> {
        let norm = (dot(x, x) + 1e-6).sqrt();
        x.iter().map(|x| x / norm).collect()
    };
    let mut out = Vec::new();
    for (row, x) in rows.iter().zip(mixed) {
        let (q, k) = (unit(&x[..d_k]), unit(&x[d_k..2 * d_k]));
        let mut y = Vec::new();
        for (h, s) in states.iter_mut().enumerate() {
            let v = &x[2 * d_k + h * d_v..][..d_v];
            let a = row.input(layer, Use::Decay, h as u32) as f64 + weight(layer, 2, h as u32) as f64;
            let keep = (decay(layer, h as u32) as f64 * a.exp().ln_1p()).exp();
            let beta = 1.0 / (1.0 + (-row.input(layer, Use::Beta, h as u32) as f64).exp());
            s.iter_mut().flatten().for_each(|x| *x *= keep);
            for j in 0..d_v {
                let seen: f64 = (0..d_k).map(|i| s[i][j] * k[i]).sum();
                (0..d_k).for_each(|i| s[i][j] += k[i] * beta * (v[j] - seen));
                y.push((0..d_k).map(|i| s[i][j] * q[i]).sum::<f64>() / (d_k as f64).sqrt());
            }
        }
        out.push(y);
    }
    out
}
