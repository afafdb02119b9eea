//! The plan: what was decided, and counted to the byte, before the first weight is read.

use crate::{KvSpec, Tier};

/// A group of parameters that comes and goes together. A tied embedding and output head are one component,
/// [`Component::Embed`], with two users.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Component {
    /// Norms and small constants outside the layers.
    Core,
    /// The token embedding table.
    Embed,
    /// A table with columns for every layer, of which each token needs one row (Gemma 4's E models).
    LayerEmbed,
    /// The output head, where it is not the embedding.
    Head,
    /// The multi-token predictor.
    Mtp,
    /// What layer `n` always needs: mixer, norms, router, shared expert, dense FFN.
    Layer(u32),
    /// The routed experts of layer `n`.
    Experts(u32),
}

/// How a component comes to be in memory.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Residency {
    /// Loaded once, kept for life.
    Resident,
    /// Attached only while somebody uses it.
    Leased,
    /// Kept as far as room allows.
    Cached,
    /// Never in memory: single rows are read from the file when they are needed.
    RowRead,
}

impl Residency {
    /// The word for it in reports.
    pub fn name(self) -> &'static str {
        match self {
            Residency::Resident => "resident",
            Residency::Leased => "leased",
            Residency::Cached => "cached",
            Residency::RowRead => "row-read",
        }
    }
}

/// One component's share of W.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct WeightShare {
    /// Which.
    pub component: Component,
    /// How it is kept.
    pub residency: Residency,
    /// Its bytes in the checkpoint's own formats.
    pub bytes: u64,
}

/// Bytes of the arena's regions.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct RegionSizes {
    /// Dies with the step.
    pub step: u64,
    /// Outlives steps: the residuals of a segment.
    pub carry: u64,
}

/// What the host holds for a model that lies in a device's memory.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct HostShare {
    /// Bytes that files are read into on their way to the device.
    pub staging: u64,
    /// What is kept for H, the process itself.
    pub allowance: u64,
    /// Most bytes that the process may hold.
    pub guard: u64,
}

impl HostShare {
    /// Bytes that it needs.
    pub fn needed(&self) -> u64 {
        self.staging.saturating_add(self.allowance)
    }
}

/// How the rows of a prompt go through the layers.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// A chunk of rows through all layers, then the next chunk.
    #[default]
    ChunkOuter,
    /// A segment of rows through each layer before the next one, so that a layer's experts are read once for all of them.
    LayerOuter {
        /// Most rows of a segment.
        segment: u32,
        /// Most rows that a feed-forward computes at once.
        tile: u32,
    },
}

/// Slots of one size for routed experts that are not all in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotPool {
    /// Whose experts it holds.
    pub layers: Vec<u32>,
    /// Experts of all these layers together.
    pub experts: u32,
    /// Bytes of a slot.
    pub slot_bytes: u64,
    /// Bytes of one expert, the most of any.
    pub record_bytes: u64,
    /// Slots.
    pub slots: u32,
    /// Of these, slots that are never kept: what prompts and guesses pass through.
    pub passing: u32,
}

/// Where routed experts are kept that are read from their file when they are needed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlotPlan {
    /// Slots by size.
    pub pools: Vec<SlotPool>,
    /// Bytes of tables beside them.
    pub tables: u64,
    /// Bytes that the process itself needs to know where every expert is.
    pub heap: u64,
    /// Whether files are read through the page cache.
    pub page_cache: bool,
    /// When the next layer's router is asked ahead of its time, and what it names read ahead.
    pub lookahead: crate::experts::Lookahead,
    /// Whether what is read again is compared with what it was at first.
    pub verify: bool,
}

impl SlotPlan {
    /// Bytes that are reserved.
    pub fn bytes(&self) -> u64 {
        let pools = self.pools.iter().map(|p| p.slot_bytes.saturating_mul(p.slots.into()));
        pools.fold(self.tables, u64::saturating_add)
    }
    /// Slots in all.
    pub fn slots(&self) -> u64 {
        self.pools.iter().map(|p| u64::from(p.slots)).sum()
    }
    /// Experts in all.
    pub fn experts(&self) -> u64 {
        self.pools.iter().map(|p| u64::from(p.experts)).sum()
    }
}

/// Layers whose matrices are read while others are computed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LayerPlan {
    /// Which, two at least.
    pub layers: Vec<u32>,
    /// Bytes of their matrices.
    pub bytes: u64,
    /// Of these, bytes that every step reads: a layer that shares its buffer with no other stays there.
    pub read_bytes: u64,
    /// Bytes of each of the two buffers.
    pub buffer_bytes: u64,
    /// Whether what is read again is compared with what it was at first.
    pub verify: bool,
}

/// Everything that was decided for serving one model, immutable from then on.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// W by component.
    pub weights: Vec<WeightShare>,
    /// Where routed experts are kept; `None` where all of them are in memory.
    pub slots: Option<SlotPlan>,
    /// Layers that are read for every step; `None` where all are in memory.
    pub layers: Option<LayerPlan>,
    /// Formats of history, one per layer.
    pub kv: Vec<KvSpec>,
    /// Formats of a second history that the same rows are read into, to compare with; empty where there is none.
    pub beside: Vec<KvSpec>,
    /// Most positions of a sequence.
    pub context: u32,
    /// Most sequences at a time.
    pub parallel: u32,
    /// Pages of history that all sequences share.
    pub pages: u32,
    /// Most rows of one `mix` call.
    pub chunk: u32,
    /// Most rows of the class Few in one call.
    pub few: u32,
    /// How prompts that are longer than a chunk go through the layers.
    pub order: Order,
    /// Most rows that are written to a history before the first of them is read for the last time: what rings have room
    /// for besides their windows.
    pub ring_rows: u32,
    /// Pages of history that are backed by memory together.
    pub slab_pages: u32,
    /// K: bytes of key/value pages and rings when all pages are in use.
    pub kv_bytes: u64,
    /// Bytes of history that one more position takes.
    pub kv_bytes_per_position: u64,
    /// S: bytes of recurrent states of sequences.
    pub state_bytes: u64,
    /// Of S, bytes for states kept of what was read; `None` where nobody asked for any.
    pub snapshot_bytes: Option<u64>,
    /// X: the exact peak of the arena.
    pub workspace: RegionSizes,
    /// Of X, bytes that only segments take, in turn with the head where it is leased: it is away while a segment is under
    /// way, and otherwise these are. 0 where the head is there all the time.
    pub aside: u64,
    /// The rest of X: ids, positions and tables of a step's rows, at fixed addresses.
    pub row_bytes: u64,
    /// The memory that all of these are in.
    pub tier: Tier,
    /// What is kept there for H, the bytes of the process beyond all of these.
    pub allowance: u64,
    /// Most bytes that the process may hold there.
    pub guard: u64,
    /// What the host holds besides, where they are in a device's memory.
    pub host: Option<HostShare>,
    /// Most tokens drafted ahead by the model's predictor, 0 where nobody drafts.
    pub draft: u32,
}

impl Plan {
    /// Bytes of what is in memory all the time: components, and slots.
    pub fn resident_bytes(&self) -> u64 {
        let streamed = self.layers.as_ref().map_or((0, 0), |l| (l.bytes, 2 * l.buffer_bytes));
        let here: u64 = self.weights.iter().filter(|w| self.is_loaded(w.residency)).map(|w| w.bytes).sum();
        let here = here.saturating_sub(streamed.0).saturating_add(streamed.1);
        self.slots.iter().map(SlotPlan::bytes).fold(here, u64::saturating_add)
    }
    fn leased(&self, c: Component) -> u64 {
        let leased = |w: &&WeightShare| w.residency == Residency::Leased && w.component == c;
        self.weights.iter().filter(leased).map(|w| w.bytes).sum()
    }
    /// Bytes of the predictor that come and go while the model is used, and are not counted in any total.
    pub fn leased_bytes(&self) -> u64 {
        if self.draft > 0 { self.leased(Component::Mtp) } else { 0 }
    }
    /// Bytes of the head, where it gives its room to segments of prompts.
    pub fn head_bytes(&self) -> u64 {
        self.leased(Component::Head)
    }
    /// Of these, bytes beyond what segments take in its place.
    pub fn head_beyond(&self) -> u64 {
        self.head_bytes().saturating_sub(self.aside)
    }
    /// Bytes of the step region that are there beside the head.
    pub fn step_with_head(&self) -> u64 {
        self.workspace.step.saturating_sub(self.aside.saturating_sub(self.workspace.carry))
    }
    /// Whether components kept like this are loaded from the start.
    pub fn is_loaded(&self, r: Residency) -> bool {
        match r {
            Residency::Resident => true,
            Residency::Cached => self.slots.is_none(),
            Residency::Leased | Residency::RowRead => false,
        }
    }
    /// Most rows of a segment, 0 where there are none.
    pub fn segment(&self) -> u32 {
        if let Order::LayerOuter { segment, .. } = self.order { segment } else { 0 }
    }
    /// Most rows of a segment that a feed-forward computes at once.
    pub fn tile(&self) -> u32 {
        if let Order::LayerOuter { tile, .. } = self.order { tile } else { self.chunk }
    }
    /// Bytes for states kept of what was read, always in the host's memory.
    pub fn snapshots(&self) -> u64 {
        self.snapshot_bytes.unwrap_or(0)
    }
    /// X.
    pub fn workspace_bytes(&self) -> u64 {
        [self.workspace.step, self.workspace.carry, self.row_bytes].into_iter().fold(0, u64::saturating_add)
    }
    /// W + K + S + X.
    pub fn reserved_bytes(&self) -> u64 {
        let snapshots = if self.tier == Tier::Host { self.snapshots() } else { 0 };
        let weights = self.resident_bytes().saturating_add(self.head_beyond());
        let parts = [weights, self.kv_bytes, self.state_bytes, snapshots, self.workspace_bytes()];
        parts.into_iter().fold(0, u64::saturating_add)
    }
    /// W + K + S + X + H.
    pub fn total_bytes(&self) -> u64 {
        self.reserved_bytes().saturating_add(self.allowance)
    }
    /// Whether it stays within its limit.
    pub fn fits(&self) -> bool {
        let beside = self.host.is_none_or(|h| h.needed().saturating_add(self.snapshots()) <= h.guard);
        beside && self.total_bytes() <= self.guard
    }
}
