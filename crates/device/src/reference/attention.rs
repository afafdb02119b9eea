//! History: encoding keys and values into pages, and plain softmax attention over them.

use super::values::{floats, floats_at, ints};
use crate::error::{Error, Result};
use crate::host::HostMemory;
use crate::kv::{self, Pieces, Signs};
use crate::op::{Rows, StreamView};
use crate::view::{AllocId, Buf, View};
use half::f16;
use memory::PAGE_POSITIONS;
use std::collections::HashMap;
use std::rc::Rc;

/// Where position `p` of sequence `s` of the step lies: (page, place in it).
fn place(st: &StreamView, rows: &Rows, table: &[i32], slots: &[i32], s: usize, p: u32) -> Result<(u64, u32)> {
    let page = if st.ring > 0 {
        slots[s] as i64 * st.ring as i64 + (p / 256 % st.ring) as i64
    } else {
        let at = s * rows.page_table.cols as usize + (p / 256) as usize;
        *table.get(at).filter(|_| p / 256 < rows.page_table.cols).ok_or(Error::BadBuf)? as i64
    };
    Ok((u64::try_from(page).map_err(|_| Error::BadBuf)?, p % 256))
}

/// The vectors of a head in a page.
fn block(st: &StreamView, page: u64, plane: u32, head: u32) -> Result<Buf> {
    st.buf.slice(page * st.page_bytes + st.block_at(plane, head), st.block_bytes()).ok_or(Error::BadBuf)
}

/// Where the scale of vector `at` lies among a head's vectors, where there is one.
fn scale_at(st: &StreamView, at: u32) -> Option<usize> {
    st.fmt.rotated().then(|| st.scale_at(0, 0, at) as usize)
}

/// Vectors that some row has looked at: each is decoded once.
#[derive(Default)]
struct Vectors(HashMap<(AllocId, u64, u32), Rc<Vec<f32>>>);

impl Vectors {
    fn at(
        &mut self,
        mem: &HostMemory,
        st: &StreamView,
        page: u64,
        (plane, head, at): (u32, u32, u32),
    ) -> Result<Rc<Vec<f32>>> {
        let block = block(st, page, plane, head)?;
        if let Some(x) = self.0.get(&(block.alloc, block.off, at)) {
            return Ok(x.clone());
        }
        let x = Rc::new(load(mem, st, &Signs::new(st.layer, plane, head), block, (plane, at))?);
        self.0.insert((block.alloc, block.off, at), x.clone());
        Ok(x)
    }
}

fn load(mem: &HostMemory, st: &StreamView, signs: &Signs, block: Buf, (plane, at): (u32, u32)) -> Result<Vec<f32>> {
    let bytes = mem.bytes(&block)?;
    let scale = scale_at(st, at).map_or(f16::ONE, |s| f16::from_le_bytes([bytes[s], bytes[s + 1]]));
    let mut x = vec![0.0; st.d as usize];
    kv::decode(st.fmt, signs, &Pieces::of(st.fmt, plane, st.d, at).gather(bytes), scale, &mut x);
    Ok(x)
}

fn store(mem: &HostMemory, st: &StreamView, block: Buf, head: u32, (plane, at): (u32, u32), x: &[f32]) -> Result<()> {
    let mut codes = vec![0; st.fmt.code_bytes(st.d) as usize];
    let scale = kv::encode(st.fmt, &Signs::new(st.layer, plane, head), x, &mut codes);
    // SAFETY: `block` was cut from the stream's buffer, and `append` is the only one that touches it.
    let bytes = unsafe { std::slice::from_raw_parts_mut(mem.ptr_mut(&block)?, block.bytes() as usize) };
    Pieces::of(st.fmt, plane, st.d, at).scatter(&codes, bytes);
    if let (Some(to), Some(scale)) = (scale_at(st, at), scale) {
        bytes[to..to + 2].copy_from_slice(&scale.to_le_bytes());
    }
    Ok(())
}

/// Writes the rows to a stream and to the pages beside it.
pub fn append(mem: &HostMemory, st: &StreamView, rows: &Rows, k: &View, v: &View) -> Result<()> {
    write(mem, st, rows, k, v, |_| true)?;
    if let Some(own) = &st.own {
        write(mem, &st.beside(own), rows, k, v, |_| true)?;
    }
    st.sink.as_ref().map_or(Ok(()), |sink| write(mem, &st.beside(sink), rows, k, v, |p| p < PAGE_POSITIONS))
}

fn write(
    mem: &HostMemory,
    st: &StreamView,
    rows: &Rows,
    k: &View,
    v: &View,
    keeps: impl Fn(u32) -> bool,
) -> Result<()> {
    let (pos, seq) = (ints(mem, &rows.pos)?, ints(mem, &rows.seq_of)?);
    let (table, slots) = (ints(mem, &rows.page_table)?, ints(mem, &rows.seq_slot)?);
    for (plane, x) in (0..).zip([floats(mem, k)?, floats(mem, v)?]) {
        for (i, head) in x.chunks_exact(st.d as usize).enumerate() {
            let (row, h) = (i / st.heads as usize, i as u32 % st.heads);
            let p = pos[row] as u32;
            if keeps(p) {
                let (page, at) = place(st, rows, &table, &slots, seq[row] as usize, p)?;
                store(mem, st, block(st, page, plane, h)?, h, (plane, at), head)?;
            }
        }
    }
    Ok(())
}

/// The pages from which a row at position `p` reads position `j`.
fn source(st: &StreamView, p: u32, j: u32) -> StreamView {
    let side = match (st.sink, st.own) {
        (Some(sink), _) if j < PAGE_POSITIONS => Some(sink),
        (_, Some(own)) if j / PAGE_POSITIONS == p / PAGE_POSITIONS => Some(own),
        _ => None,
    };
    side.map_or(*st, |s| st.beside(&s))
}

#[expect(clippy::too_many_arguments, reason = "the op's operands")]
pub fn attention(
    mem: &HostMemory,
    out: &View,
    q: &View,
    st: &StreamView,
    rows: &Rows,
    scale: f32,
    (window, since): (Option<u32>, u32),
    sinks: Option<&Buf>,
) -> Result<()> {
    let (pos, seq) = (ints(mem, &rows.pos)?, ints(mem, &rows.seq_of)?);
    let (table, slots) = (ints(mem, &rows.page_table)?, ints(mem, &rows.seq_slot)?);
    let (heads, d) = (q.heads, q.cols as usize);
    let sinks = sinks.map(|s| floats_at(mem, s, 0, heads as u64)).transpose()?;
    let (mut y, mut vectors) = (Vec::new(), Vectors::default());
    for (i, query) in floats(mem, q)?.chunks_exact(d).enumerate() {
        let (row, h) = (i / heads as usize, i as u32 % heads);
        let kv_head = h / (heads / st.heads);
        let p = pos[row] as u32;
        let first = window.map_or(0, |w| (p + 1).saturating_sub(w)).max(since.min(p));
        let mut scores = Vec::new();
        let mut values = Vec::new();
        for j in first..=p {
            let st = &source(st, p, j);
            let (page, at) = place(st, rows, &table, &slots, seq[row] as usize, j)?;
            let [key, value] = [0, 1].map(|plane| vectors.at(mem, st, page, (plane, kv_head, at)));
            scores.push(super::basic::dot(query, &key?) * scale);
            values.push(value?);
        }
        let sink = sinks.as_ref().map(|s| s[h as usize]);
        y.extend(softmax_sum(&scores, &values, sink, d));
    }
    super::values::put(mem, out, &y)
}

fn softmax_sum(scores: &[f32], values: &[Rc<Vec<f32>>], sink: Option<f32>, d: usize) -> Vec<f32> {
    let max = scores.iter().copied().chain(sink).fold(f32::NEG_INFINITY, f32::max);
    let weights: Vec<f64> = scores.iter().map(|s| ((s - max) as f64).exp()).collect();
    let total = weights.iter().sum::<f64>() + sink.map_or(0.0, |s| ((s - max) as f64).exp());
    let mut y = vec![0.0f64; d];
    for (w, v) in weights.iter().zip(values) {
        y.iter_mut().zip(v.iter()).for_each(|(y, &v)| *y += w * v as f64);
    }
    y.into_iter().map(|y| (y / total) as f32).collect()
}
