//! A source whose experts arrive in an order a test chooses: what proves that arrival order changes no bit.

use crate::draw::Draw;
use crate::error::Result;
use crate::experts::{ExpertSource, Group, ResidentExperts, Routed, Wave};
use device::{Device, Part, Pick, RowClass};

/// Resident experts handed out piecemeal, in an order drawn from a seed: single experts or small groups, halves apart
/// or together. Few rows get any order, Many rows ascending ids, as the contract of [`ExpertSource`] says.
#[derive(Clone, Debug)]
pub struct ScriptedArrivals {
    inner: ResidentExperts,
    draw: Draw,
}

impl ScriptedArrivals {
    /// Arrivals of `inner`'s experts in the order of `seed`.
    pub fn new(inner: ResidentExperts, seed: u64) -> Self {
        ScriptedArrivals { inner, draw: Draw(seed) }
    }
    fn shuffle(&mut self, v: &mut [u32]) {
        for i in (1..v.len()).rev() {
            let j = self.draw.below(i + 1);
            v.swap(i, j);
        }
    }
    fn cut(&mut self, mut rest: &[u32]) -> Vec<Vec<u32>> {
        let mut out = Vec::new();
        while !rest.is_empty() {
            let n = 1 + self.draw.below(3.min(rest.len()));
            let (head, tail) = rest.split_at(n);
            let mut head = head.to_vec();
            head.sort_unstable();
            out.push(head);
            rest = tail;
        }
        out
    }
}

impl ExpertSource for ScriptedArrivals {
    fn begin(&mut self, d: &mut dyn Device, r: &Routed) -> Result<Wave> {
        let e = self.inner.mats(r.layer, r.glu)?;
        let mut ids: Vec<u32> = d.read_i32(r.routing.ids)?.into_iter().filter_map(|i| u32::try_from(i).ok()).collect();
        ids.sort_unstable();
        ids.dedup();
        if r.class == RowClass::Few {
            self.shuffle(&mut ids);
        }
        let mut groups = Vec::new();
        for list in self.cut(&ids) {
            let group = |part| Group { e, pick: Pick::Experts(list.clone()), part };
            match self.draw.below(2) {
                0 => groups.push(group(Part::Both)),
                _ => groups.extend([group(Part::GateUp), group(Part::Down)]),
            }
        }
        groups.reverse();
        Ok(Wave { groups })
    }
    fn next(&mut self, _: &mut dyn Device, w: &mut Wave) -> Result<Option<Group>> {
        Ok(w.groups.pop())
    }
}
