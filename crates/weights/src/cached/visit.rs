//! One layer's visit: what is asked for, what of it is there, and what was handed out.

use super::store::Store;
use crate::error::{Error, Result};
use crate::experts::{Group, Routed};
use crate::io::Urgency;
use device::{Device, ExpertMats, Part, Pick, RowClass};
use memory::SlotId;
use memory::experts::{ExpertId, ExpertPlan, Visit};

/// An expert that is asked for.
#[derive(Copy, Clone, Debug)]
struct Need {
    expert: u32,
    /// What its slot is kept for afterwards.
    kind: Visit,
    slot: Option<SlotId>,
    /// Whether gate and up, and all of it, were handed out.
    given: [bool; 2],
}

pub(super) struct Visiting {
    layer: u32,
    class: RowClass,
    mats: ExpertMats,
    needs: Vec<Need>,
    /// Slots of what was handed out by the last call, which is computed when the next one comes.
    computed: Vec<SlotId>,
}

impl Visiting {
    pub fn begin(store: &mut Store, d: &mut dyn Device, r: &Routed, routed: &[i32]) -> Result<Self> {
        let (layer, class) = (r.layer, r.class);
        let k = (r.routing.ids.cols as usize).max(1);
        let valid = |ids: &[i32]| -> Vec<u32> {
            let mut ids: Vec<u32> = ids.iter().filter_map(|&i| u32::try_from(i).ok()).collect();
            ids.sort_unstable();
            ids.dedup();
            ids
        };
        let ids = valid(routed);
        let experts = store.experts(layer);
        if let Some(&id) = ids.iter().find(|&&id| id >= experts) {
            return Err(Error::NotLoaded(format!("expert {id} of layer {layer}")));
        }
        // Decoding goes on from a prompt's last row: what that one asks for is kept.
        let kept = match class {
            RowClass::Few => ids.clone(),
            RowClass::Many => valid(routed.rchunks(k).next().unwrap_or_default()),
        };
        store.check_guess(layer, &ids);
        let state = store.state(layer)?;
        state.begin(layer, &kept, Visit::Decode);
        state.hold(layer, &ids);
        let need = |expert: u32| {
            let kind = if kept.binary_search(&expert).is_ok() { Visit::Decode } else { Visit::Sweep };
            Need { expert, kind, slot: None, given: [false; 2] }
        };
        let mut needs: Vec<Need> = ids.into_iter().map(need).collect();
        if class == RowClass::Few {
            // In the order of their ranks: the greatest weights of the first row are read first.
            let rank = |n: &Need| routed.iter().position(|&id| id == n.expert as i32);
            needs.sort_by_key(rank);
        }
        let mats = store.mats(layer, r.glu)?;
        let mut v = Visiting { layer, class, mats, needs, computed: Vec::new() };
        v.place(store, d)?;
        store.foresee(d)?;
        store.poll(d, false).and_then(|failed| v.blame(failed))?;
        Ok(v)
    }

    fn id(&self, n: &Need) -> ExpertId {
        ExpertId { layer: self.layer, expert: n.expert }
    }

    /// Finds slots for what has none, and starts reading.
    fn place(&mut self, store: &mut Store, d: &mut dyn Device) -> Result<()> {
        for i in 0..self.needs.len() {
            let n = self.needs[i];
            if n.slot.is_some() {
                continue;
            }
            let id = self.id(&n);
            let ExpertPlan { hits, coming, fetch, evict, later } =
                store.state(self.layer)?.place(self.layer, &[n.expert], n.kind);
            store.forget(d, &evict)?;
            let counts = &mut store.counts;
            counts.hits += hits.len() as u64;
            counts.foreseen += coming.len() as u64;
            counts.misses += fetch.len() as u64;
            counts.sweep += (self.class == RowClass::Many && later.is_empty()) as u64;
            if hits.is_empty() && later.is_empty() {
                store.counts.missed_bytes += store.record_bytes(id);
            }
            if !coming.is_empty() {
                store.hurry(id);
            }
            for &(_, slot) in &fetch {
                store.fetch(d, id, slot, Urgency::Demand)?;
            }
            self.needs[i].slot = hits.iter().chain(&coming).chain(&fetch).map(|f| f.1).next();
            if !later.is_empty() {
                // The ones behind it would only take what it waits for.
                return Ok(());
            }
        }
        Ok(())
    }

    /// The error of a record that this visit asked for; failures of others concern nobody.
    fn blame(&self, failed: Vec<(ExpertId, Error)>) -> Result<()> {
        let asked = |id: ExpertId| id.layer == self.layer && self.needs.iter().any(|n| n.expert == id.expert);
        failed.into_iter().find(|f| asked(f.0)).map_or(Ok(()), |f| Err(f.1))
    }

    /// The next group that is ready; waits while there is none and something is missing.
    pub fn next(&mut self, store: &mut Store, d: &mut dyn Device) -> Result<Option<Group>> {
        if !self.computed.is_empty() {
            let state = store.state(self.layer)?;
            self.computed.drain(..).for_each(|s| state.release(s));
            self.place(store, d)?;
        }
        let mut wait = false;
        loop {
            let failed = store.poll(d, wait)?;
            self.blame(failed)?;
            self.place(store, d)?;
            if let Some(g) = self.ready(store) {
                return Ok(Some(g));
            }
            if self.needs.iter().all(|n| n.given[1]) {
                return Ok(None);
            }
            if wait && store.reads() == 0 && self.needs.iter().all(|n| n.slot.is_none() || n.given[1]) {
                // Nothing is under way and nothing was found room for: there is no slot at all.
                return Err(Error::NoSlots);
            }
            wait = true;
        }
    }

    /// What can be computed now: whole experts before halves, so that few groups do most of the work.
    fn ready(&mut self, store: &Store) -> Option<Group> {
        if self.class == RowClass::Many {
            return self.ready_in_order(store);
        }
        let arrived = |v: &Self, n: &Need| if n.slot.is_some() { store.halves(v.id(n)) } else { [false; 2] };
        let find = |v: &Self, want: &dyn Fn(&Need, [bool; 2]) -> bool| -> Vec<usize> {
            (0..v.needs.len()).filter(|&i| want(&v.needs[i], arrived(v, &v.needs[i]))).collect()
        };
        for part in [Part::Both, Part::Down, Part::GateUp] {
            let which = find(self, &|n, here| match part {
                Part::Both => here[1] && n.given == [false; 2],
                Part::Down => here[1] && n.given == [true, false],
                Part::GateUp => here == [true, false] && n.given == [false; 2],
            });
            if !which.is_empty() {
                return Some(self.give(&which, part));
            }
        }
        None
    }

    /// Of Many rows, those that come next by their ids and are there.
    fn ready_in_order(&mut self, store: &Store) -> Option<Group> {
        let first = self.needs.iter().position(|n| !n.given[1])?;
        let here = |n: &Need| n.slot.is_some() && store.halves(self.id(n))[1];
        let n = self.needs[first..].iter().take_while(|n| here(n)).count();
        (n > 0).then(|| self.give(&Vec::from_iter(first..first + n), Part::Both))
    }

    fn give(&mut self, which: &[usize], part: Part) -> Group {
        let mut experts = Vec::with_capacity(which.len());
        for &i in which {
            let n = &mut self.needs[i];
            n.given = if part == Part::GateUp { [true, false] } else { [true; 2] };
            if n.given[1] {
                self.computed.extend(n.slot);
            }
            experts.push(n.expert);
        }
        experts.sort_unstable();
        Group { e: self.mats, pick: Pick::Experts(experts), part }
    }
}
