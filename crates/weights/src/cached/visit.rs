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
    /// Whether somebody else had asked for it before, whose failure is not this visit's.
    joined: bool,
    /// Whether it was in its slot already.
    found: bool,
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
            Need { expert, kind, slot: None, given: [false; 2], joined: false, found: false }
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
        // By now everything that is missing was asked for, so this costs the disk nothing.
        for n in v.needs.iter().filter(|n| n.found) {
            if let Some(slot) = n.slot {
                store.found(d, v.id(n), slot)?;
            }
        }
        let failed = store.poll(d, false)?;
        v.blame(failed)?;
        Ok(v)
    }

    fn id(&self, n: &Need) -> ExpertId {
        ExpertId { layer: self.layer, expert: n.expert }
    }

    /// Finds slots for what has none, and starts reading: first for what is here, because that will make room when it is
    /// computed.
    fn place(&mut self, store: &mut Store, d: &mut dyn Device) -> Result<()> {
        for only_found in [true, false] {
            self.place_some(store, d, only_found)?;
        }
        Ok(())
    }

    fn place_some(&mut self, store: &mut Store, d: &mut dyn Device, only_found: bool) -> Result<()> {
        for i in 0..self.needs.len() {
            let n = self.needs[i];
            let id = self.id(&n);
            if n.slot.is_some() || only_found && store.state(self.layer)?.slot_of(id).is_none() {
                continue;
            }
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
            self.needs[i].joined = !coming.is_empty();
            self.needs[i].found |= !hits.is_empty();
            self.needs[i].slot = hits.iter().chain(&coming).chain(&fetch).map(|f| f.1).next();
            if !later.is_empty() {
                // The ones behind it would only take what it waits for.
                return Ok(());
            }
        }
        Ok(())
    }

    /// The error of a record that this visit asked for. One that others asked for first is asked for again; failures of
    /// what nobody needs now concern nobody.
    fn blame(&mut self, failed: Vec<(ExpertId, Error)>) -> Result<()> {
        for (id, e) in failed.into_iter().filter(|f| f.0.layer == self.layer) {
            match self.needs.iter_mut().find(|n| n.expert == id.expert) {
                Some(n) if n.joined => (n.slot, n.joined, n.given) = (None, false, [false; 2]),
                Some(_) => return Err(e),
                None => {}
            }
        }
        Ok(())
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
            wait = store.reads() > 0;
            if !wait {
                self.give_up_one(store)?;
            }
        }
    }

    /// Nothing is under way, nothing is ready: what is here and comes later in the order keeps the slots that come first.
    /// The last of it is given up, to be read again when its turn comes.
    fn give_up_one(&mut self, store: &mut Store) -> Result<()> {
        let last = self.needs.iter_mut().rev().find(|n| n.slot.is_some() && !n.given[1]);
        let Some((need, slot)) = last.and_then(|n| n.slot.map(|s| (n, s))) else { return Err(Error::NoSlots) };
        need.slot = None;
        let state = store.state(self.layer)?;
        state.release(slot);
        // Its place is the next to be taken, or it would be found again at once.
        state.drop_now(slot);
        Ok(())
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
