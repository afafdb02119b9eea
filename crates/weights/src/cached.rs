//! Routed experts that are in memory as far as room allows, and read from their file when they are not.
//!
//! A visit asks the policy in [`memory::experts`] what is here, what must be read and where to; hands out what is here;
//! and then the rest as it arrives: of Few rows in any order, gate and up before down where they come first; of Many rows
//! by ascending expert, while the disk reads ahead in the same order. What is read lands where kernels use it
//! ([`crate::record`]). A failed read leaves its slot empty and fails the visit that asked for it, no other.

mod stats;
mod store;
mod visit;

pub use stats::{CacheStats, SharedStats};

use crate::error::Result;
use crate::experts::{ExpertSource, Group, ResidentExperts, Routed, Wave};
use device::{Device, RowClass};
use std::time::Instant;
use store::Store;
use visit::Visiting;

pub use store::{CachedOptions, MakePolicy};

/// See the [module](self).
pub struct CachedExperts {
    store: Store,
    visit: Option<Visiting>,
    /// The last layer that was visited for few rows, and when the step it is of began.
    pace: Option<(u32, Instant)>,
    /// Experts of layers that are not streamed: a predictor's.
    resident: ResidentExperts,
}

impl CachedExperts {
    /// Slots that are empty, for the layers of `how.pools`.
    ///
    /// # Errors
    /// Those of files, device and ledger.
    pub fn new(how: CachedOptions, resident: ResidentExperts, dev: &mut dyn Device) -> Result<Self> {
        Ok(CachedExperts { store: Store::new(how, dev)?, visit: None, pace: None, resident })
    }
    /// What it did so far, shared with whoever asks later.
    pub fn stats(&self) -> SharedStats {
        self.store.stats.clone()
    }
}

impl CachedExperts {
    /// Tells what decides about looking ahead how long a step took.
    fn pace(&mut self, r: &Routed) {
        if r.class == RowClass::Many {
            self.pace = None;
            return self.store.ahead.interrupted();
        }
        let begun = match self.pace {
            Some((layer, begun)) if layer < r.layer => begun,
            before => {
                let now = Instant::now();
                before.iter().for_each(|(_, begun)| self.store.token(now - *begun));
                now
            }
        };
        self.pace = Some((r.layer, begun));
    }
}

impl ExpertSource for CachedExperts {
    fn begin(&mut self, d: &mut dyn Device, r: &Routed) -> Result<Wave> {
        self.visit = None;
        if !self.store.serves(r.layer) {
            return self.resident.begin(d, r);
        }
        self.pace(r);
        let ids = d.read_i32(r.routing.ids)?;
        self.visit = Some(Visiting::begin(&mut self.store, d, r, &ids)?);
        Ok(Wave { groups: Vec::new() })
    }
    fn next(&mut self, d: &mut dyn Device, w: &mut Wave) -> Result<Option<Group>> {
        let Some(visit) = &mut self.visit else { return self.resident.next(d, w) };
        let group = visit.next(&mut self.store, d);
        if !matches!(group, Ok(Some(_))) {
            self.visit = None;
            self.store.publish();
        }
        group
    }
    fn wants_hints(&self, layer: u32) -> bool {
        self.store.ahead.on() && self.store.serves(layer)
    }
    fn hint(&mut self, layer: u32, ids: Vec<u32>) {
        self.store.hint = Some((layer, ids));
    }
    fn ahead(&mut self, d: &mut dyn Device, layer: u32) -> Result<()> {
        if self.store.serves(layer) { self.store.ahead(d, layer) } else { Ok(()) }
    }
}
