//! Tiny models with known answers, for the tests of the other crates: weights from a counter-based generator, written as
//! a checkpoint directory, and the numbers an independent implementation computed from the same weights. It is a
//! dev-dependency only, depends on no crate of this workspace, and knows no forward pass.
//!
//! A model is described once, in `models/NAME.json` (config, tensor list, seed), which this crate and
//! `scripts/oracle_tiny.py` both read. The script generates the same weights, runs them through the transformers
//! library in float32 on a CPU and writes `expected/NAME.json`. To add a model: write its description, add its name to
//! [`NAMES`]' table, run the script.
//!
//! [`gate`] has reference scores of a text under two really trained models, for judging quantised weights and
//! activations.
//!
//! ```
//! let dir = testkit::materialise("llama-a")?; // config.json and model.safetensors, removed on drop
//! let want = testkit::expected("llama-a")?;
//! assert!(dir.path().join("model.safetensors").exists());
//! assert_eq!(want.logits[0].values.len(), 256);
//! # Ok::<(), testkit::Error>(())
//! ```

mod description;
mod error;
mod expected;
mod gate;
mod generate;
mod write;

pub use description::{NAMES, Tensor, TinyModel, model};
pub use error::Error;
pub use expected::{Expected, Greedy, Mtp, Routing, Row, expected};
pub use gate::{GATE_TEXT, GATES, Gate, Tally, Window, gate};
pub use generate::fill;
pub use write::{materialise, write_checkpoint, write_safetensors};
