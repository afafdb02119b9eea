//! Looking at what rows are routed to, or changing it, before a source is asked for experts: for comparing with a
//! reference, for recording traces, and for replaying them.

use crate::error::{Error, Result};
use crate::experts::{ExpertSource, Group, Routed, Wave};
use device::Device;
use memory::experts::trace::Fitted;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Sees every visit to a source of experts. It reads or writes ids on the host, so steps with it are not recorded.
pub trait Tap: Send {
    /// Called before the source's own [`begin`](ExpertSource::begin).
    ///
    /// # Errors
    /// Those of the device; what cannot be replayed.
    fn routed(&mut self, d: &mut dyn Device, r: &Routed) -> Result<()>;
}

/// A source with a tap before it.
pub struct Tapped<'a> {
    tap: &'a mut dyn Tap,
    inner: &'a mut dyn ExpertSource,
}

impl<'a> Tapped<'a> {
    /// Shows `inner`'s visits to `tap`.
    pub fn new(tap: &'a mut dyn Tap, inner: &'a mut dyn ExpertSource) -> Self {
        Tapped { tap, inner }
    }
}

impl ExpertSource for Tapped<'_> {
    fn enter(&mut self, d: &mut dyn Device, layer: u32) -> Result<()> {
        self.inner.enter(d, layer)
    }
    fn wants_hints(&self, layer: u32) -> bool {
        self.inner.wants_hints(layer)
    }
    fn hint(&mut self, layer: u32, ids: Vec<u32>) {
        self.inner.hint(layer, ids);
    }
    fn ahead(&mut self, d: &mut dyn Device, layer: u32) -> Result<()> {
        self.inner.ahead(d, layer)
    }
    fn begin(&mut self, d: &mut dyn Device, r: &Routed) -> Result<Wave> {
        self.tap.routed(d, r)?;
        self.inner.begin(d, r)
    }
    fn next(&mut self, d: &mut dyn Device, w: &mut Wave) -> Result<Option<Group>> {
        self.inner.next(d, w)
    }
}

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

/// Writes visits down.
#[derive(Clone, Debug)]
pub struct Recorder(Visits);

impl Recorder {
    /// Writes them down in `visits`.
    pub fn new(visits: Visits) -> Self {
        Recorder(visits)
    }
}

impl Tap for Recorder {
    fn routed(&mut self, d: &mut dyn Device, r: &Routed) -> Result<()> {
        let ids = d.read_i32(r.routing.ids)?;
        let k = (r.routing.ids.cols as usize).max(1);
        let row = |row: &[i32]| row.iter().map(|&e| e.max(0) as u32).collect();
        self.0.push(Visit { layer: r.layer, experts: ids.chunks_exact(k).map(row).collect() });
        Ok(())
    }
}

/// Puts recorded routing in the place of the router's ids; the router's weights stay. What a model says then means
/// nothing: this is for measuring how fast experts are brought that are asked for as a trained router asks for them.
#[derive(Clone, Debug)]
pub struct Rerouted {
    routing: Fitted,
    /// Rows so far, by layer.
    rows: HashMap<u32, u64>,
}

impl Rerouted {
    /// Replays this routing from its start.
    pub fn new(routing: Fitted) -> Self {
        Rerouted { routing, rows: HashMap::new() }
    }
}

impl Tap for Rerouted {
    fn routed(&mut self, d: &mut dyn Device, r: &Routed) -> Result<()> {
        let ids = r.routing.ids;
        let at = self.rows.entry(r.layer).or_default();
        let mut all = Vec::with_capacity(ids.rows as usize * ids.cols as usize);
        for row in *at..*at + u64::from(ids.rows) {
            all.extend(self.routing.experts(r.layer, row).into_iter().map(|e| e as i32));
        }
        *at += u64::from(ids.rows);
        if all.len() != ids.rows as usize * ids.cols as usize {
            return Err(Error::Unusable {
                tensor: format!("routing of layer {}", r.layer),
                what: format!("the trace gives another number of experts than {} a row", ids.cols),
            });
        }
        d.write_i32(ids, &all)?;
        Ok(())
    }
}
