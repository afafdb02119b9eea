//! Ops without history: embedding, norm, linear, rope, gates, sums, gathers.

use super::values::{floats, floats_at, ints, mat_row, put};
use crate::error::Result;
use crate::host::HostMemory;
use crate::op::{ActFn, Pairing, Rope};
use crate::view::{Buf, Glu, Mat, View};

pub fn embed(mem: &HostMemory, out: &View, table: &Mat, ids: &View, scale: f32) -> Result<()> {
    let mut all = Vec::new();
    for id in ints(mem, ids)? {
        match u32::try_from(id) {
            Ok(id) if id < table.n => all.extend(mat_row(mem, table, id)?.into_iter().map(|x| x * scale)),
            _ => all.extend(std::iter::repeat_n(0.0, table.k as usize)),
        }
    }
    put(mem, out, &all)
}

pub fn rms_norm(mem: &HostMemory, out: &View, x: &View, w: Option<&Buf>, eps: f32) -> Result<()> {
    let d = x.cols as usize;
    let w = w.map(|b| floats_at(mem, b, 0, d as u64)).transpose()?.unwrap_or_else(|| vec![1.0; d]);
    let mut v = floats(mem, x)?;
    for run in v.chunks_exact_mut(d) {
        let mean = run.iter().map(|x| (x * x) as f64).sum::<f64>() / d as f64;
        let scale = 1.0 / (mean as f32 + eps).sqrt();
        run.iter_mut().zip(&w).for_each(|(x, w)| *x = *x * scale * w);
    }
    put(mem, out, &v)
}

/// `x . w` with f32 products and f64 sums: closer to exact than any kernel's order of f32 sums.
pub fn dot(x: &[f32], w: &[f32]) -> f32 {
    x.iter().zip(w).map(|(a, b)| (a * b) as f64).sum::<f64>() as f32
}

pub fn linear(mem: &HostMemory, out: &View, x: &View, w: &Mat, bias: Option<&Buf>, add: bool) -> Result<()> {
    let (n, k) = (w.n as usize, w.k as usize);
    let xs = floats(mem, x)?;
    let mut y = if add { floats(mem, out)? } else { vec![0.0; x.rows as usize * n] };
    let bias = bias.map(|b| floats_at(mem, b, 0, n as u64)).transpose()?;
    for j in 0..n {
        let row = mat_row(mem, w, j as u32)?;
        let b = bias.as_ref().map_or(0.0, |b| b[j]);
        for (i, x) in xs.chunks_exact(k).enumerate() {
            y[i * n + j] += dot(x, &row) + b;
        }
    }
    put(mem, out, &y)
}

pub fn rope(mem: &HostMemory, x: &View, pos: &View, rope: &Rope) -> Result<()> {
    let (d, dims) = (x.cols as usize, rope.dims as usize);
    let freqs = floats_at(mem, &rope.inv_freq, 0, dims as u64 / 2)?;
    let pos = ints(mem, pos)?;
    let mut v = floats(mem, x)?;
    for (i, head) in v.chunks_exact_mut(d).enumerate() {
        let p = pos[i / x.heads as usize] as f32;
        for (j, f) in freqs.iter().enumerate() {
            let (a, b) = match rope.pairing {
                Pairing::Half => (j, j + dims / 2),
                Pairing::Adjacent => (2 * j, 2 * j + 1),
            };
            let (sin, cos) = (p * f).sin_cos();
            let (sin, cos) = (sin * rope.factor, cos * rope.factor);
            (head[a], head[b]) = (head[a] * cos - head[b] * sin, head[b] * cos + head[a] * sin);
        }
    }
    put(mem, x, &v)
}

pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

pub fn silu(x: f32) -> f32 {
    x * sigmoid(x)
}

pub fn gate(mem: &HostMemory, x: &View, g: &View, act: ActFn) -> Result<()> {
    let f = match act {
        ActFn::Sigmoid => sigmoid,
        ActFn::Silu => silu,
    };
    let (mut v, gs) = (floats(mem, x)?, floats(mem, g)?);
    let each = x.cols as usize / g.cols.max(1) as usize;
    v.iter_mut().enumerate().for_each(|(i, x)| *x *= f(gs[i / each]));
    put(mem, x, &v)
}

/// One element of a gated linear unit.
pub fn glu_of(glu: Glu, gate: f32, up: f32) -> f32 {
    match glu {
        Glu::Swiglu => silu(gate) * up,
        Glu::GegluTanh => gelu_tanh(gate) * up,
        Glu::SwigluClamped { limit, alpha } => {
            // `f32::clamp` hands on NaN, `f32::min` does not.
            let (gate, up) = (gate.clamp(f32::NEG_INFINITY, limit), up.clamp(-limit, limit));
            (up + 1.0) * gate * sigmoid(alpha * gate)
        }
    }
}

/// In f64: `1 + tanh` of a large negative number would lose everything in f32.
fn gelu_tanh(x: f32) -> f32 {
    let x = x as f64;
    let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
    (x * (1.0 + inner.tanh()) / 2.0) as f32
}

pub fn glu(mem: &HostMemory, out: &View, gate: &View, up: &View, glu: Glu) -> Result<()> {
    let (g, u) = (floats(mem, gate)?, floats(mem, up)?);
    put(mem, out, &g.iter().zip(&u).map(|(&g, &u)| glu_of(glu, g, u)).collect::<Vec<_>>())
}

pub fn add(mem: &HostMemory, x: &View, y: &View) -> Result<()> {
    let (mut v, y) = (floats(mem, x)?, floats(mem, y)?);
    v.iter_mut().zip(y).for_each(|(x, y)| *x += y);
    put(mem, x, &v)
}

pub fn scale(mem: &HostMemory, x: &View, by: &Buf) -> Result<()> {
    let by = floats_at(mem, by, 0, by.bytes() / 4)?;
    let mut v = floats(mem, x)?;
    v.iter_mut().enumerate().for_each(|(i, x)| *x *= by[i % by.len()]);
    put(mem, x, &v)
}

pub fn softcap(mem: &HostMemory, x: &View, cap: f32) -> Result<()> {
    let v = floats(mem, x)?;
    put(mem, x, &v.iter().map(|x| cap * (x / cap).tanh()).collect::<Vec<_>>())
}

pub fn gather_rows(mem: &HostMemory, out: &View, x: &View, rows: &View) -> Result<()> {
    let (v, w) = (floats(mem, x)?, x.cols as usize);
    let mut all = Vec::new();
    for r in ints(mem, rows)? {
        match v.chunks_exact(w).nth(r.max(0) as usize) {
            Some(row) if r >= 0 => all.extend_from_slice(row),
            _ => all.extend(std::iter::repeat_n(0.0, w)),
        }
    }
    put(mem, out, &all)
}

pub fn likeliest(mem: &HostMemory, out: &View, x: &View) -> Result<()> {
    let (v, k) = (floats(mem, x)?, out.cols as usize / 2);
    let mut all = Vec::new();
    for row in v.chunks_exact(x.cols as usize) {
        let best = crate::op::likeliest(row, k);
        let id = |i: usize| best.get(i).map_or(-1, |b| b.0 as i32);
        let logit = |i: usize| best.get(i).map_or(0, |b| b.1.to_bits() as i32);
        all.extend((0..k).map(id).chain((0..k).map(logit)).map(|i| f32::from_bits(i as u32)));
    }
    put(mem, out, &all)
}
