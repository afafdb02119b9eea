//! Recurrent mixers: the short convolution and the gated delta rule, one row after the other.

use super::basic::{sigmoid, silu};
use super::values::{floats, floats_at, ints, put, put_at};
use crate::error::{Error, Result};
use crate::host::HostMemory;
use crate::op::{GdnShape, KeyHeadRule, RecView, Rows};
use crate::view::{Buf, View};

/// Walks the rows; `step(row, state)` advances the state, which starts from each sequence's `rec_from` slot (zeros for
/// -1) and is kept in `rec_to` where that asks for it.
fn walk(
    mem: &HostMemory,
    rows: &Rows,
    slots: u32,
    states: &Buf,
    elems: u32,
    mut step: impl FnMut(usize, &mut Vec<f32>),
) -> Result<()> {
    let (seq, from, to) = (ints(mem, &rows.seq_of)?, ints(mem, &rows.rec_from)?, ints(mem, &rows.rec_to)?);
    let at = |slot: i32| match u32::try_from(slot) {
        Ok(s) if s < slots => Ok(s as u64 * elems as u64),
        _ => Err(Error::BadBuf),
    };
    let mut state = Vec::new();
    for row in 0..rows.n as usize {
        if row == 0 || seq[row] != seq[row - 1] {
            state = match from[seq[row] as usize] {
                -1 => vec![0.0; elems as usize],
                slot => floats_at(mem, states, at(slot)?, elems as u64)?,
            };
        }
        step(row, &mut state);
        if to[row] >= 0 {
            put_at(mem, states, at(to[row])?, &state)?;
        }
    }
    Ok(())
}

pub fn conv_silu(
    mem: &HostMemory,
    out: &View,
    x: &View,
    w: &Buf,
    kernel: u32,
    st: &RecView,
    rows: &Rows,
) -> Result<()> {
    let (c, k) = (x.cols as usize, kernel as usize);
    let (xs, w) = (floats(mem, x)?, floats_at(mem, w, 0, c as u64 * kernel as u64)?);
    let mut y = vec![0.0; xs.len()];
    walk(mem, rows, st.slots, &st.conv, st.conv_elems, |row, past| {
        past.extend_from_slice(&xs[row * c..(row + 1) * c]);
        for ch in 0..c {
            let sum: f32 = (0..k).map(|i| w[ch * k + i] * past[i * c + ch]).sum();
            y[row * c + ch] = silu(sum);
        }
        past.drain(..c);
    })?;
    put(mem, out, &y)
}

pub fn shift(mem: &HostMemory, out: &View, x: &View, st: &RecView, rows: &Rows) -> Result<()> {
    let c = x.cols as usize;
    let xs = floats(mem, x)?;
    let mut y = Vec::with_capacity(xs.len());
    walk(mem, rows, st.slots, &st.state, st.state_elems, |row, before| {
        y.extend_from_slice(before);
        before.copy_from_slice(&xs[row * c..(row + 1) * c]);
    })?;
    put(mem, out, &y)
}

/// What the gated delta rule reads besides states.
pub struct Inputs<'a> {
    pub qkv: &'a View,
    pub a: &'a View,
    pub b: &'a View,
    pub decay: &'a Buf,
    pub dt: &'a Buf,
}

pub fn gated_delta(
    mem: &HostMemory,
    out: &View,
    input: &Inputs,
    g: &GdnShape,
    st: &RecView,
    rows: &Rows,
) -> Result<()> {
    let n_v = g.n_v as usize;
    let (qkv, a, b) = (floats(mem, input.qkv)?, floats(mem, input.a)?, floats(mem, input.b)?);
    let decay = floats_at(mem, input.decay, 0, n_v as u64)?;
    let dt = floats_at(mem, input.dt, 0, n_v as u64)?;
    let (d_k, d_v, width) = (g.d_k as usize, g.d_v as usize, g.channels() as usize);
    let mut y = vec![0.0; rows.n as usize * n_v * d_v];
    walk(mem, rows, st.slots, &st.state, st.state_elems, |row, state| {
        let x = &qkv[row * width..(row + 1) * width];
        let (q, rest) = x.split_at(g.n_k as usize * d_k);
        let (k, v) = rest.split_at(g.n_k as usize * d_k);
        for h in 0..n_v {
            let kh = match g.rule {
                KeyHeadRule::Div => h / (n_v / g.n_k as usize),
                KeyHeadRule::Mod => h % g.n_k as usize,
            };
            let q = unit(&q[kh * d_k..][..d_k], 1.0 / (d_k as f32).sqrt());
            let k = unit(&k[kh * d_k..][..d_k], 1.0);
            let beta = sigmoid(b[row * n_v + h]);
            let keep = (decay[h] * softplus(a[row * n_v + h] + dt[h])).exp();
            let s = &mut state[h * d_k * d_v..][..d_k * d_v];
            delta_step(s, &q, &k, &v[h * d_v..][..d_v], beta, keep, &mut y[(row * n_v + h) * d_v..][..d_v]);
        }
    })?;
    put(mem, out, &y)
}

fn unit(x: &[f32], scale: f32) -> Vec<f32> {
    let norm = x.iter().map(|x| x * x).sum::<f32>();
    let by = scale / (norm + 1e-6).sqrt();
    x.iter().map(|x| x * by).collect()
}

/// `ln(1 + e^x)`, which is x to the last bit of an f32 from 20 on.
fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

/// One position of one head; `s` is `[d_k, d_v]`.
fn delta_step(s: &mut [f32], q: &[f32], k: &[f32], v: &[f32], beta: f32, keep: f32, out: &mut [f32]) {
    let d_v = v.len();
    s.iter_mut().for_each(|x| *x *= keep);
    let mut seen = vec![0.0; d_v];
    for (row, k) in s.chunks_exact(d_v).zip(k) {
        seen.iter_mut().zip(row).for_each(|(y, s)| *y += s * k);
    }
    let delta: Vec<f32> = v.iter().zip(&seen).map(|(v, s)| beta * (v - s)).collect();
    out.fill(0.0);
    for ((row, k), q) in s.chunks_exact_mut(d_v).zip(k).zip(q) {
        for ((s, d), y) in row.iter_mut().zip(&delta).zip(out.iter_mut()) {
            *s += k * d;
            *y += *s * q;
        }
    }
}
