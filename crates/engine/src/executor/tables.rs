//! Tables that stay in their file: what of them is read for the ids of a step, before its pass and never inside a graph.

use super::Executor;
use crate::error::Result;
use crate::plan::{embed_by_rows, side_bytes, step_rows};
use crate::stream::MakeReader;
use checkpoint::Checkpoint;
use device::{Act, Device, View};
use memory::{Class, Ledger, Plan};
use model::Family;
use state::Span;
use weights::io::{Access, reader};
use weights::{Bound, RowReader, RowStats, Weights, Window};

/// The reader of a family's side table, and where its rows go: one address for every step.
pub(super) struct SideRows {
    reader: RowReader,
    to: View,
    values: Vec<f32>,
}

impl SideRows {
    pub fn new(
        family: &dyn Family,
        ck: &Checkpoint,
        bounds: &[Bound],
        plan: &Plan,
        ledger: &Ledger,
        dev: &mut dyn Device,
    ) -> Result<Option<Self>> {
        let Some(side) = family.side() else { return Ok(None) };
        let table = bounds.iter().find(|b| b.id == side.table);
        let missing = || weights::Error::NotLoaded("the table of per-layer embeddings".into());
        let reader = RowReader::new(ck, table.ok_or_else(missing)?)?;
        let paid =
            ledger.reserve_planned(plan.tier, Class::Workspace, "per-layer embeddings", side_bytes(family, plan))?;
        let to = View::dense(dev.alloc(paid)?, Act::F32, step_rows(plan), side.width);
        Ok(Some(SideRows { reader, to, values: Vec::new() }))
    }
    /// Reads and uploads the rows of a step's ids.
    pub fn fill(&mut self, dev: &mut dyn Device, spans: &[Span]) -> Result<View> {
        let ids: Vec<u32> = spans.iter().flat_map(|s| s.ids).copied().collect();
        let to = self.to.rows(0, ids.len() as u32);
        self.fill_into(dev, &ids, to)?;
        Ok(to)
    }
    /// Reads rows and uploads them to `to`.
    pub fn fill_into(&mut self, dev: &mut dyn Device, ids: &[u32], to: View) -> Result<()> {
        self.values.resize(ids.len() * self.reader.cols() as usize, 0.0);
        self.reader.read(ids, &mut self.values)?;
        dev.write_f32(to, &self.values)?;
        Ok(())
    }
}

/// The rows of the embedding that are in memory, where the plan leaves the table in its file; its places are known to
/// `weights` then.
pub(super) fn window(
    ck: &Checkpoint,
    bounds: &[Bound],
    plan: &Plan,
    ledger: &Ledger,
    weights: &mut Weights,
    dev: &mut dyn Device,
) -> Result<Option<Window>> {
    let Some(table) = embed_by_rows(bounds, plan) else { return Ok(None) };
    let access = match plan.slots.as_ref().is_some_and(|s| s.page_cache) {
        true => Access::PageCache,
        false => Access::Direct,
    };
    let w = Window::new(ck, table, step_rows(plan), access, reader, ledger, dev)?;
    weights.install_window(table.id, &w);
    Ok(Some(w))
}

impl Executor {
    /// Brings the rows of the embedding for these ids, where it stays in its file.
    pub(super) fn bring_rows(&mut self, ids: &[u32]) -> Result<()> {
        bring(&mut self.embed, self.dev.as_mut(), ids)
    }
    /// The same for the ids of a step.
    pub(super) fn bring_spans(&mut self, spans: &[Span]) -> Result<()> {
        if self.embed.is_none() {
            return Ok(());
        }
        self.bring_rows(&spans.iter().flat_map(|s| s.ids).copied().collect::<Vec<_>>())
    }
    /// What reading rows of the embedding did so far; `None` where all of it is in memory.
    pub fn embed_rows(&self) -> Option<RowStats> {
        self.embed.as_ref().map(Window::stats)
    }
    /// Reads rows of the embedding with what `make` makes, from none on.
    pub(super) fn embed_with(&mut self, make: MakeReader) -> Result<()> {
        Ok(self.embed.as_mut().map_or(Ok(()), |w| w.read_with(make))?)
    }
}

/// Brings rows into a window, if there is one.
pub(super) fn bring(window: &mut Option<Window>, dev: &mut dyn Device, ids: &[u32]) -> Result<()> {
    Ok(window.as_mut().map_or(Ok(()), |w| w.bring(dev, ids))?)
}
