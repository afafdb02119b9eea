//! Routing and routed experts.

use super::basic::{dot, glu_of, sigmoid};
use super::values::{floats, floats_at, ints, mat, put, put_ints};
use crate::error::{Error, Result};
use crate::host::HostMemory;
use crate::op::{Acc, Groups, Part, Pick, Router, RouterScore, Routing};
use crate::view::{BEGINS_ROW, Buf, ExpertMats, Mat, MatSet, Place, View, places};
use checkpoint::PLANES;

pub fn route(mem: &HostMemory, out: &Routing, logits: &View, router: &Router) -> Result<()> {
    let (k, experts) = (router.k as usize, logits.cols as usize);
    let bias = each_expert(mem, router.bias.as_ref(), experts, 0.0)?;
    let factor = each_expert(mem, router.per_expert.as_ref(), experts, 1.0)?;
    let (mut ids, mut ws) = (Vec::new(), Vec::new());
    for row in floats(mem, logits)?.chunks_exact(experts) {
        let p = match router.score {
            RouterScore::Softmax => softmax(row),
            RouterScore::Sigmoid => row.iter().map(|&x| sigmoid(x)).collect(),
        };
        let choice: Vec<f32> = p.iter().zip(&bias).map(|(p, b)| p + b).collect();
        let open = router.groups.map_or_else(|| (0..experts).collect(), |g| in_best_groups(&choice, g));
        let top = &greatest(&choice, open)[..k];
        let least = if router.score == RouterScore::Sigmoid { 1e-20 } else { 0.0 };
        let sum: f32 = if router.renormalise { top.iter().map(|&i| p[i]).sum::<f32>() + least } else { 1.0 };
        ids.extend(top.iter().map(|&i| i as i32));
        ws.extend(top.iter().map(|&i| p[i] / sum * router.scale * factor[i]));
    }
    put_ints(mem, &out.ids, &ids)?;
    put(mem, &out.w, &ws)
}

fn each_expert(mem: &HostMemory, b: Option<&Buf>, experts: usize, absent: f32) -> Result<Vec<f32>> {
    b.map_or_else(|| Ok(vec![absent; experts]), |b| floats_at(mem, b, 0, experts as u64))
}

/// `among` by falling value, ties to the lower.
fn greatest(x: &[f32], mut among: Vec<usize>) -> Vec<usize> {
    among.sort_by(|&i, &j| x[j].total_cmp(&x[i]).then(i.cmp(&j)));
    among
}

/// Experts of the groups whose two greatest choices make the greatest sums.
fn in_best_groups(choice: &[f32], g: Groups) -> Vec<usize> {
    let size = choice.len() / g.n as usize;
    let of = |group: &[f32]| greatest(group, (0..size).collect()).iter().take(2).map(|&i| group[i]).sum::<f32>();
    let sums: Vec<f32> = choice.chunks(size).map(of).collect();
    let best = greatest(&sums, (0..g.n as usize).collect());
    best[..g.keep as usize].iter().flat_map(|&group| group * size..(group + 1) * size).collect()
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

/// Where the planes of an expert's gate, up and down matrix begin in its slot, and whether they are interleaved.
fn begins(mem: &HostMemory, e: &ExpertMats, expert: u32) -> Result<[Place; 3]> {
    let Some(table) = e.begins else { return Ok([([0; PLANES], false); 3]) };
    let row = mem.bytes(&table.slice(expert as u64 * BEGINS_ROW, BEGINS_ROW).ok_or(Error::BadBuf)?)?;
    places(row.as_chunks::<4>().0).ok_or(Error::BadBuf)
}

fn product(mem: &HostMemory, set: &MatSet, slot: u32, place: Place) -> Result<(Mat, Vec<Vec<f32>>)> {
    let m = set.placed(slot, place).ok_or(Error::BadBuf)?;
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
        let at = begins(mem, e, expert)?;
        let (gate, up) = (product(mem, &e.gate, s, at[0])?.1, product(mem, &e.up, s, at[1])?.1);
        let down = product(mem, &e.down, s, at[2])?.1;
        let bias = |b: Option<Buf>, n: usize| match b {
            Some(b) => floats_at(mem, &b, expert as u64 * n as u64, n as u64),
            None => Ok(vec![0.0; n]),
        };
        let (gate_bias, up_bias) = (bias(e.bias.gate, inner)?, bias(e.bias.up, inner)?);
        let down_bias = bias(e.bias.down, width)?;
        for at in (0..ids.len()).filter(|&i| ids[i] == expert as i32) {
            let row = &hs[at / k * width..][..width];
            let m = &mut mids[at * inner..][..inner];
            if part != Part::Down {
                m.iter_mut().enumerate().for_each(|(i, m)| {
                    *m = glu_of(e.glu, dot(row, &gate[i]) + gate_bias[i], dot(row, &up[i]) + up_bias[i]);
                });
            }
            if part != Part::GateUp {
                for (j, w) in down.iter().enumerate() {
                    let out = dot(m, w) + down_bias[j];
                    match dst {
                        Acc::Parts(_) => y[at * width + j] = out,
                        Acc::Sum(_) => y[at / k * width + j] += ws[at] * out,
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
