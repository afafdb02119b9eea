//! What a model amounts to: parameters by what they are for, and bytes that follow from its shape alone.

use checkpoint::Checkpoint;
use memory::{Component, KvFormat, KvSpec};
use model::Family;
use state::Stream;
use weights::{Bound, Data, Role};

/// Parameters, counted by what they are for. A tied embedding counts once.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Parameters {
    /// The language model, without what is counted below.
    pub text: u64,
    /// Of these, what one token uses: everything but the experts that are not chosen.
    pub active: u64,
    /// Of the language model's, those of routed experts.
    pub experts: u64,
    /// The multi-token predictor.
    pub predictor: u64,
    /// A vision tower in the same file, which nothing here uses.
    pub vision: u64,
    /// Whatever else is in the file.
    pub other: u64,
}

/// Bytes that one sequence makes necessary.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct PerSequence {
    /// Keys and values of one position in all layers that keep every position, in bf16.
    pub position: u64,
    /// Recurrent states, f32.
    pub state: u64,
    /// Windows of short convolutions, f32.
    pub conv: u64,
}

/// Bytes of routed experts in the file's own types.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct ExpertBytes {
    /// Those of the largest expert.
    pub one: u64,
    /// All that one token chooses, in all layers.
    pub per_token: u64,
}

/// Counts a checkpoint's parameters.
pub fn parameters(family: &dyn Family, bounds: &[Bound], ck: &Checkpoint) -> Parameters {
    let mut p = Parameters::default();
    for b in bounds.iter().filter(|b| !matches!(b.data, Data::Values(_))) {
        let one = b.n as u64 * b.k as u64;
        let (all, active) = match b.role {
            Role::Experts { count, .. } => {
                let chosen = family.spec().experts.map_or(count, |e| e.1.min(count));
                (one * count as u64, one * chosen as u64)
            }
            _ => (one, one),
        };
        match b.component {
            Component::Mtp => p.predictor += all,
            c => {
                p.text += all;
                p.active += active;
                p.experts += if matches!(c, Component::Experts(_)) { all } else { 0 };
            }
        }
    }
    let mut all = 0;
    for m in ck.matrices() {
        let elems = m.shape.iter().product::<u64>();
        all += elems;
        p.vision += if is_vision(&m.name) { elems } else { 0 };
    }
    p.other = all.saturating_sub(p.text + p.predictor + p.vision);
    p
}

/// Whether a tensor belongs to a vision tower, by the names that checkpoints have for them.
pub fn is_vision(name: &str) -> bool {
    ["model.visual.", "visual.", "vision_tower.", "model.vision_tower.", "vision_model.", "v.", "mm."]
        .iter()
        .any(|root| name.starts_with(root))
}

/// What a sequence of this model keeps.
pub fn per_sequence(family: &dyn Family) -> PerSequence {
    let kv = vec![KvSpec { main: KvFormat::Bf16 }; family.spec().n_layers as usize];
    let mut p = PerSequence::default();
    for d in family.state(&kv) {
        match d.stream {
            Stream::History { .. } => p.position += d.stream.read_bytes(1),
            Stream::Recurrent { state, conv } => {
                let bytes = |of: &[u32]| 4 * of.iter().map(|&n| n as u64).product::<u64>();
                p.state += bytes(&state);
                p.conv += bytes(&conv);
            }
            _ => {}
        }
    }
    p
}

/// What routed experts weigh, `None` where there are none.
pub fn expert_bytes(family: &dyn Family, bounds: &[Bound]) -> Option<ExpertBytes> {
    let (_, k) = family.spec().experts?;
    let layers = (0..family.spec().n_layers).map(|l| {
        let here = bounds.iter().filter(|b| b.component == Component::Experts(l));
        here.map(Bound::matrix_bytes).sum::<u64>()
    });
    let layers: Vec<u64> = layers.collect();
    let one = layers.iter().copied().max().unwrap_or(0);
    Some(ExpertBytes { one, per_token: layers.iter().sum::<u64>() * k as u64 })
}
