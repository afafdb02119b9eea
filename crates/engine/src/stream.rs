//! What is read while a step runs, as a plan says: experts into slots, layers into two buffers.

use crate::error::Result;
use checkpoint::Checkpoint;
use device::Device;
use device::Mat;
use memory::experts::{PoolSize, usual};
use memory::{LayerPlan, Ledger, SlotPlan};
use weights::io::{Access, Files, RangeReader, reader};
use weights::layers::{LayerOptions, LayerRuns, LayerStream};
use weights::record::LayerRecords;
use weights::{Bound, CachedExperts, CachedOptions, Error, ExpertSource, ResidentExperts, WId};

/// Makes the reader of a checkpoint's files.
pub type MakeReader<'a> = &'a dyn Fn(&Files) -> std::io::Result<Box<dyn RangeReader>>;

/// What a cache is for.
pub(crate) struct Streamed<'a> {
    pub ck: &'a Checkpoint,
    pub bounds: &'a [Bound],
    pub slots: &'a SlotPlan,
    /// Experts that one row chooses.
    pub top_k: u32,
    pub ledger: &'a Ledger,
}

impl Streamed<'_> {
    /// The cache, empty. `make` takes the place of this machine's usual reader.
    pub fn cache(
        self,
        resident: ResidentExperts,
        dev: &mut dyn Device,
        make: Option<MakeReader>,
    ) -> Result<CachedExperts> {
        let unusable = |(tensor, what): (String, &str)| Error::Unusable { tensor, what: what.into() };
        let records = LayerRecords::of(self.bounds).map_err(unusable)?;
        let access = if self.slots.page_cache { Access::PageCache } else { Access::Direct };
        let files = Files::open(self.ck, access)?;
        let none = |e: std::io::Error| Error::Reader { reader: "none", why: e.to_string() };
        let reader = make.unwrap_or(&reader)(&files).map_err(none)?;
        let policy = |size: &PoolSize| usual(size, self.top_k);
        let how = CachedOptions {
            ck: self.ck,
            records,
            pools: &self.slots.pools,
            policy: &policy,
            files,
            reader,
            verify: self.slots.verify,
            lookahead: self.slots.lookahead,
            ledger: self.ledger,
        };
        Ok(CachedExperts::new(how, resident, dev)?)
    }
}

/// The streamed layers around a source of experts, and where their matrices will lie.
pub(crate) fn stream_layers(
    ck: &Checkpoint,
    bounds: &[Bound],
    plan: &LayerPlan,
    ledger: &Ledger,
    inner: Box<dyn ExpertSource + Send>,
    dev: &mut dyn Device,
    make: Option<MakeReader>,
) -> Result<(LayerStream, Vec<(WId, Mat)>)> {
    let layers = LayerRuns::of(bounds).into_iter().filter(|l| plan.layers.contains(&l.layer)).collect();
    let files = Files::open(ck, Access::Direct)?;
    let none = |e: std::io::Error| Error::Reader { reader: "none", why: e.to_string() };
    let reader = make.unwrap_or(&reader)(&files).map_err(none)?;
    let how = LayerOptions { layers, buffer_bytes: plan.buffer_bytes, verify: plan.verify, files, reader, ledger };
    Ok(LayerStream::new(how, inner, dev)?)
}
