//! What a sequence owns: KV pages, rings, recurrent states. No scheduling.
//!
//! A model declares one [`Stream`] per layer; [`State`] hands parts of their memory to sequences. Rings and recurrent
//! states are allocated once, for the life of the plan. Pages of history have their addresses from the start and their
//! memory as sequences grow, slab by slab, each paid for in the ledger; slabs without an owned page can be
//! [let go](State::trim). There is one way to change what a sequence holds, for every
//! kind of stream:
//!
//! ```text
//! reserve -> ops write only the reserved room -> commit(accepted) | rollback
//! ```
//!
//! Nothing else changes a length, a page list or a recurrent slot. What was reserved and not accepted may hold
//! anything: no committed row ever looks at it.
//!
//! - `decl`: what layers keep, and how many bytes that is.
//! - `layers`: the memory behind each layer's stream.
//! - `sequence`: sequences by generational id.
//! - `share`: sequences that begin where others were: shared pages and snapshots.
//! - `carry`: pages and snapshots as bytes, to be kept elsewhere.
//! - `room`: free pages and free recurrent slots.
//! - `append`: the rows of one append, from reservation to its end.
//! - `park`: recurrent states as bytes for keeping, in f32, bf16 or int8.
//! - `fill`: history that nobody computed, to measure at a depth.
//! - `table`: what a step's ops read about its rows, at fixed device addresses.

mod append;
mod carry;
mod decl;
mod error;
mod fill;
mod layers;
pub mod park;
mod room;
mod sequence;
mod share;
mod store;
mod table;
#[cfg(test)]
mod tests;

pub use append::{Append, PART_ROWS, Span};
pub use carry::Fill;
pub use decl::{Bytes, Decl, Limits, Stream, position_bytes, slab_pages, snapshot_bytes};
pub use error::{Error, Result};
pub use park::Park;
pub use sequence::SeqId;
pub use share::{Beginning, Snapshot, Taking};
pub use store::{Recurrent, State};
