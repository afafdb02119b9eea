//! Routing and routed experts.

use super::basic::{dot, glu_of};
use super::values::{floats, ints, mat, put, put_ints};
use crate::error::{Error, Result};
use crate::host::HostMemory;
use crate::op::{Acc, Part, Pick, Router, RouterScore, Routing};
use crate::view::{ExpertMats, Mat, MatSet, View};

pub fn route(mem: &HostMemory, out: &Routing, logits: &View, router: &Router) -> Result<()> {
    let (k, experts) = (router.k as usize, logits.cols as usize);
    let (mut ids, mut ws) = (Vec::new(), Vec::new());
    for row in floats(mem, logits)?.chunks_exact(experts) {
        let p = match router.score {
            RouterScore::Softmax => softmax(row),
        };
        let mut order: Vec<usize> = (0..experts).collect();
        order.sort_by(|&i, &j| p[j].total_cmp(&p[i]).then(i.cmp(&j)));
        let top = &order[..k];
        let sum: f32 = if router.renormalise { top.iter().map(|&i| p[i]).sum() } else { 1.0 };
        ids.extend(top.iter().map(|&i| i as i32));
        ws.extend(top.iter().map(|&i| p[i] / sum));
    }
    put_ints(mem, &out.ids, &ids)?;
    put(mem, &out.w, &ws)
}

fn softmax(x: &[f32]) -> Vec<f32> {
    let max = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let e: Vec<f32> = x.iter().map(|x| (x - max).exp()).collect();
    let sum: f32 = e.iter().sum();
    e.into_iter().map(|e| e / sum).collect()
}

fn slot(mem: &HostMemory, e: &ExpertMats, expert: u32) -> Result<Option<u32>> {
    let Some(map) = e.slot_of else { return Ok(Some(expert)) };
    let at = map.slice(expert as u64 * 4, 4).ok_or(Error::BadBuf)?;
    let b = mem.bytes(&at)?;
    Ok(u32::try_from(i32::from_le_bytes([b[0], b[1], b[2], b[3]])).ok())
}

fn product(mem: &HostMemory, set: &MatSet, slot: u32) -> Result<(Mat, Vec<Vec<f32>>)> {
    let m = set.slot(slot).ok_or(Error::BadBuf)?;
    Ok((m, mat(mem, &m)?))
}

/// Experts that the group computes, ascending. One that is routed to but has no slot must have been picked in error.
fn chosen(ids: &[i32], pick: &Pick) -> Vec<u32> {
    let mut all: Vec<u32> = match pick {
        Pick::All => ids.iter().filter_map(|&i| u32::try_from(i).ok()).collect(),
        Pick::Experts(list) => list.clone(),
    };
    all.sort_unstable();
    all.dedup();
    all
}

#[expect(clippy::too_many_arguments, reason = "the op's operands")]
pub fn expert_group(
    mem: &HostMemory,
    dst: &Acc,
    mid: &View,
    h: &View,
    routed: &Routing,
    e: &ExpertMats,
    pick: &Pick,
    part: Part,
) -> Result<()> {
    let (k, width, inner) = (routed.ids.cols as usize, h.cols as usize, mid.cols as usize);
    let (ids, ws) = (ints(mem, &routed.ids)?, floats(mem, &routed.w)?);
    let (hs, mut mids) = (floats(mem, h)?, floats(mem, mid)?);
    let (Acc::Parts(to) | Acc::Sum(to)) = dst;
    let mut y = floats(mem, to)?;
    for expert in chosen(&ids, pick) {
        let s = slot(mem, e, expert)?.ok_or(Error::BadBuf)?;
        let (gate, up) = (product(mem, &e.gate, s)?.1, product(mem, &e.up, s)?.1);
        let down = product(mem, &e.down, s)?.1;
        for at in (0..ids.len()).filter(|&i| ids[i] == expert as i32) {
            let row = &hs[at / k * width..][..width];
            let m = &mut mids[at * inner..][..inner];
            if part != Part::Down {
                m.iter_mut().enumerate().for_each(|(i, m)| *m = glu_of(e.glu, dot(row, &gate[i]), dot(row, &up[i])));
            }
            if part != Part::GateUp {
                for (j, w) in down.iter().enumerate() {
                    match dst {
                        Acc::Parts(_) => y[at * width + j] = dot(m, w),
                        Acc::Sum(_) => y[at / k * width + j] += ws[at] * dot(m, w),
                    }
                }
            }
        }
    }
    put(mem, mid, &mids)?;
    put(mem, to, &y)
}

pub fn combine(mem: &HostMemory, out: &View, base: &View, parts: &View, w: &View) -> Result<()> {
    let (k, width) = (w.cols as usize, out.cols as usize);
    let (ps, ws) = (floats(mem, parts)?, floats(mem, w)?);
    let mut y = floats(mem, base)?;
    for (i, y) in y.iter_mut().enumerate() {
        let (row, col) = (i / width, i % width);
        let sum = (0..k).fold(0.0, |s, r| s + ws[row * k + r] * ps[(row * k + r) * width + col]);
        *y += sum;
    }
    put(mem, out, &y)
}
