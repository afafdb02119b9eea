//! Routed experts, as they become ready. A source decides *when*, never *what*: every result lands in a place that
//! (row, rank) or the expert's id fixes.

use crate::error::{Error, Result};
use device::{Buf, Device, ExpertBias, ExpertMats, Glu, MatSet, Part, Pick, Routing, RowClass};
use std::collections::BTreeMap;

/// Routed rows of one layer.
#[derive(Copy, Clone, Debug)]
pub struct Routed {
    /// Layer.
    pub layer: u32,
    /// Who chose what.
    pub routing: Routing,
    /// Role of the rows.
    pub class: RowClass,
    /// The experts' nonlinearity.
    pub glu: Glu,
}

/// Experts that are ready.
#[derive(Clone, Debug)]
pub struct Group {
    /// Where they lie.
    pub e: ExpertMats,
    /// Which of the routed ones.
    pub pick: Pick,
    /// Which half of them.
    pub part: Part,
}

/// One layer's visit to a source.
#[derive(Debug)]
pub struct Wave {
    pub(crate) groups: Vec<Group>,
}

/// Where routed experts come from.
///
/// Between [`begin`](Self::begin) and the end of [`next`](Self::next)'s groups every routed expert is handed out
/// exactly once per half. Few rows: in any order. Many rows: in ascending expert id.
pub trait ExpertSource {
    /// A layer is computed next: what is not in memory of the layer itself is brought.
    fn enter(&mut self, _d: &mut dyn Device, _layer: u32) -> Result<()> {
        Ok(())
    }
    /// Starts bringing what `r` needs. Reads ids on the host only if something can be missing.
    fn begin(&mut self, d: &mut dyn Device, r: &Routed) -> Result<Wave>;
    /// The next experts that are ready, `None` when all were handed out.
    fn next(&mut self, d: &mut dyn Device, w: &mut Wave) -> Result<Option<Group>>;
    /// Whether it is worth telling it what a layer's few rows will probably ask for.
    fn wants_hints(&self, _layer: u32) -> bool {
        false
    }
    /// Experts of a layer that will probably be asked for soon. What it reads for that comes after what the next visit
    /// needs; whatever was hinted before is given up.
    fn hint(&mut self, _layer: u32, _ids: Vec<u32>) {}
    /// Many rows go through a layer next, which will ask for most of its experts: the first of them may be read while its
    /// mixer is computed.
    fn ahead(&mut self, _d: &mut dyn Device, _layer: u32) -> Result<()> {
        Ok(())
    }
}

/// A source that only listens: [`begin`](ExpertSource::begin) takes the ids down and ends the forward pass of a layer
/// with [`Error::OnlyListening`], before anything but its router was computed. So a layer's router can be asked about any
/// hidden state, whatever the family.
#[derive(Debug, Default)]
pub struct Listener {
    /// What was asked for, each once, in the order of rows and ranks.
    pub heard: Vec<u32>,
}

impl ExpertSource for Listener {
    fn begin(&mut self, d: &mut dyn Device, r: &Routed) -> Result<Wave> {
        for id in d.read_i32(r.routing.ids)?.into_iter().filter_map(|id| u32::try_from(id).ok()) {
            if !self.heard.contains(&id) {
                self.heard.push(id);
            }
        }
        Err(Error::OnlyListening)
    }
    fn next(&mut self, _: &mut dyn Device, _: &mut Wave) -> Result<Option<Group>> {
        Ok(None)
    }
}

/// The matrices of one layer's experts.
#[derive(Copy, Clone, Debug)]
pub(crate) struct LayerExperts {
    pub gate: MatSet,
    pub up: MatSet,
    pub down: MatSet,
    pub slot_of: Option<Buf>,
}

impl LayerExperts {
    pub(crate) fn mats(&self, glu: Glu) -> ExpertMats {
        ExpertMats {
            gate: self.gate,
            up: self.up,
            down: self.down,
            slot_of: self.slot_of,
            begins: None,
            bias: ExpertBias::default(),
            glu,
        }
    }
}

/// Every expert is in memory: one group, chosen on the device.
#[derive(Clone, Debug, Default)]
pub struct ResidentExperts {
    pub(crate) layers: BTreeMap<u32, LayerExperts>,
}

impl ResidentExperts {
    /// The matrices of a layer, for sources that wrap this one.
    pub fn mats(&self, layer: u32, glu: Glu) -> Result<ExpertMats> {
        let e = self.layers.get(&layer).ok_or_else(|| Error::NotLoaded(format!("experts of layer {layer}")))?;
        Ok(e.mats(glu))
    }
}

impl ExpertSource for ResidentExperts {
    fn begin(&mut self, _: &mut dyn Device, r: &Routed) -> Result<Wave> {
        Ok(Wave { groups: vec![Group { e: self.mats(r.layer, r.glu)?, pick: Pick::All, part: Part::Both }] })
    }
    fn next(&mut self, _: &mut dyn Device, w: &mut Wave) -> Result<Option<Group>> {
        Ok(w.groups.pop())
    }
}
