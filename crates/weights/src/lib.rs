//! Where each parameter is and how it gets where it must be. No sequences.
//!
//! A family lists what it needs; matching that against a checkpoint gives [`Bound`]s, which name byte ranges and no
//! longer anything of the container. [`Weights::open`] reads them: matrices byte for byte as they lie in the file,
//! vectors as canonical f32. Routed experts are reached through an [`ExpertSource`], of which weights that are all
//! resident are the trivial case; those that do not fit are read into slots by [`CachedExperts`]. What is used now and then
//! is a [`Lease`]; of an embedding that stays in its file a [`Window`] has the rows of a step.

mod bound;
mod cached;
mod draw;
mod error;
mod experts;
mod fill;
pub mod io;
pub mod layers;
mod lease;
mod load;
mod placed;
pub mod record;
mod rows;
mod scripted;
mod sum;
mod tap;
mod window;

pub use bound::{Bound, Canon, Data, Proj, Role, Side, WId};
pub use cached::{CacheStats, CachedExperts, CachedOptions, MakePolicy, SharedStats};
pub use error::{Error, Result};
pub use experts::{ExpertSource, Group, Listener, ResidentExperts, Routed, Wave};
pub use fill::STAGING;
pub use lease::Lease;
pub use load::{Progress, Resident, Weights};
pub use placed::placed_bytes;
pub use rows::RowReader;
pub use scripted::ScriptedArrivals;
pub use tap::{Recorder, Rerouted, Tap, Tapped, Visit, Visits};
pub use window::{RowStats, Window};
