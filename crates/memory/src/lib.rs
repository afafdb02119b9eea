//! Ledger, reservations, the page pool, KV formats and the `Plan` value: pure data structures.
//! No devices, no I/O, no clocks (time is an argument).
//!
//! - [`experts`]: which routed experts are in memory, what a visit fetches and what makes room for it.
//! - [`ledger`]: one hard budget per memory tier; everything that grows holds a [`Reservation`].
//! - [`pages`]: reference-counted ids of pages of 256 positions, in slabs that come and go.
//! - [`slots`]: a free list of fixed-size places (recurrent states, rings).
//! - [`kv`]: the element formats a key/value page may have.
//! - [`plan`]: what was decided before the first weight is read.

pub mod experts;
pub mod kv;
pub mod ledger;
pub mod pages;
pub mod plan;
pub mod slots;

pub use experts::{ExpertId, ExpertPlan, SlotState, plan_experts};
pub use kv::{KvFormat, KvSpec};
pub use ledger::{Advice, Class, Footprint, Ledger, OverBudget, Promise, Reservation, Tier, TierUsage};
pub use pages::{PAGE_POSITIONS, PageId, PagePool, SlabId};
pub use plan::{Component, LayerPlan, Order, Plan, RegionSizes, Residency, SlotPlan, SlotPool, WeightShare};
pub use slots::{SlotId, Slots};
