//! A source that writes down which experts were routed to: for comparing with a reference and for traces.

use crate::error::Result;
use crate::experts::{ExpertSource, Group, ResidentExperts, Routed, Wave};
use device::Device;
use std::sync::{Arc, Mutex, PoisonError};

/// What was routed in one visit: a layer's rows with their experts by rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Visit {
    /// Layer.
    pub layer: u32,
    /// Experts of each row, by falling weight.
    pub experts: Vec<Vec<u32>>,
}

/// The visits of a [`Recorder`], shared with whoever asked for it.
#[derive(Clone, Debug, Default)]
pub struct Visits(Arc<Mutex<Vec<Visit>>>);

impl Visits {
    /// Takes all visits so far, in order.
    pub fn take(&self) -> Vec<Visit> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
    fn push(&self, v: Visit) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(v);
    }
}

/// Resident experts whose visits are written down. It reads ids on the host, so steps with it are not captured.
#[derive(Clone, Debug)]
pub struct Recorder {
    inner: ResidentExperts,
    visits: Visits,
}

impl Recorder {
    /// Writes down the visits of `inner` in `visits`.
    pub fn new(inner: ResidentExperts, visits: Visits) -> Self {
        Recorder { inner, visits }
    }
}

impl ExpertSource for Recorder {
    fn begin(&mut self, d: &mut dyn Device, r: &Routed) -> Result<Wave> {
        let ids = d.read_i32(r.routing.ids)?;
        let k = (r.routing.ids.cols as usize).max(1);
        let row = |row: &[i32]| row.iter().map(|&e| e.max(0) as u32).collect();
        self.visits.push(Visit { layer: r.layer, experts: ids.chunks_exact(k).map(row).collect() });
        self.inner.begin(d, r)
    }
    fn next(&mut self, d: &mut dyn Device, w: &mut Wave) -> Result<Option<Group>> {
        self.inner.next(d, w)
    }
}
