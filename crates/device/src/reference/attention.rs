//! History: encoding keys and values into pages, and plain softmax attention over them.

use super::values::{floats, floats_at, ints};
use crate::error::{Error, Result};
use crate::host::HostMemory;
use crate::op::{Rows, StreamView};
use crate::view::{Buf, View};
use half::bf16;
use memory::KvFormat;

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

fn vector(st: &StreamView, page: u64, plane: u32, head: u32, at: u32) -> Result<Buf> {
    let off = page * st.page_bytes + st.vector_at(plane, head, at);
    st.buf.slice(off, st.fmt.vector_bytes(st.d)).ok_or(Error::BadBuf)
}

fn load(mem: &HostMemory, st: &StreamView, b: &Buf) -> Result<Vec<f32>> {
    match st.fmt {
        KvFormat::F32 => floats_at(mem, b, 0, st.d as u64),
        KvFormat::Bf16 => {
            Ok(mem.bytes(b)?.chunks_exact(2).map(|c| bf16::from_le_bytes([c[0], c[1]]).to_f32()).collect())
        }
    }
}

fn store(mem: &HostMemory, st: &StreamView, b: &Buf, v: &[f32]) -> Result<()> {
    let bytes: Vec<u8> = match st.fmt {
        KvFormat::F32 => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
        KvFormat::Bf16 => v.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes()).collect(),
    };
    // SAFETY: `b` was cut from the stream's buffer with the length of one vector, and `append` is the only writer.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), mem.ptr_mut(b)?, bytes.len()) };
    Ok(())
}

pub fn append(mem: &HostMemory, st: &StreamView, rows: &Rows, k: &View, v: &View) -> Result<()> {
    let (pos, seq) = (ints(mem, &rows.pos)?, ints(mem, &rows.seq_of)?);
    let (table, slots) = (ints(mem, &rows.page_table)?, ints(mem, &rows.seq_slot)?);
    for (plane, x) in [floats(mem, k)?, floats(mem, v)?].into_iter().enumerate() {
        for (i, head) in x.chunks_exact(st.d as usize).enumerate() {
            let (row, h) = (i / st.heads as usize, i as u32 % st.heads);
            let (page, at) = place(st, rows, &table, &slots, seq[row] as usize, pos[row] as u32)?;
            store(mem, st, &vector(st, page, plane as u32, h, at)?, head)?;
        }
    }
    Ok(())
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
    let mut y = Vec::new();
    for (i, query) in floats(mem, q)?.chunks_exact(d).enumerate() {
        let (row, h) = (i / heads as usize, i as u32 % heads);
        let kv_head = h / (heads / st.heads);
        let p = pos[row] as u32;
        let first = window.map_or(0, |w| (p + 1).saturating_sub(w)).max(since.min(p));
        let mut scores = Vec::new();
        let mut values = Vec::new();
        for j in first..=p {
            let (page, at) = place(st, rows, &table, &slots, seq[row] as usize, j)?;
            let key = load(mem, st, &vector(st, page, 0, kv_head, at)?)?;
            scores.push(super::basic::dot(query, &key) * scale);
            values.push(load(mem, st, &vector(st, page, 1, kv_head, at)?)?);
        }
        let sink = sinks.as_ref().map(|s| s[h as usize]);
        y.extend(softmax_sum(&scores, &values, sink, d));
    }
    super::values::put(mem, out, &y)
}

fn softmax_sum(scores: &[f32], values: &[Vec<f32>], sink: Option<f32>, d: usize) -> Vec<f32> {
    let max = scores.iter().copied().chain(sink).fold(f32::NEG_INFINITY, f32::max);
    let weights: Vec<f64> = scores.iter().map(|s| ((s - max) as f64).exp()).collect();
    let total = weights.iter().sum::<f64>() + sink.map_or(0.0, |s| ((s - max) as f64).exp());
    let mut y = vec![0.0f64; d];
    for (w, v) in weights.iter().zip(values) {
        y.iter_mut().zip(v).for_each(|(y, &v)| *y += w * v as f64);
    }
    y.into_iter().map(|y| (y / total) as f32).collect()
}
