//! What proposes tokens ahead of the model, for a scheduler to verify.

use crate::cx::Cx;
use crate::error::Result;
use crate::family::Carry;
use device::{Rows, View};
use memory::KvSpec;
use state::Decl;
use weights::{ExpertSource, WId};

/// A small model that reads the hidden states of a larger one. A row is a token together with the hidden state of the
/// row before it; what it keeps lies at the token's own position, so that the reservation of the model's rows is its
/// reservation too, and so are commit and rollback.
///
/// After every pass of the model: [`follow`](Self::follow), then [`keep`](Self::keep). To draft behind what was
/// committed: [`recall`](Self::recall), then [`draft`](Self::draft) row by row, each with the hidden state that the last
/// one gave and the token that was chosen from its logits.
pub trait Drafter: Send + Sync {
    /// What a sequence keeps for it, under layer numbers behind the model's.
    fn state(&self, kv: &KvSpec) -> Vec<Decl>;
    /// The parameters that following and keeping need; all others of it are for drafting alone.
    fn keeps(&self) -> Vec<WId>;
    /// Hidden states `[n, H]` of the rows before the rows, whose own go to their slots. `x` is what the last layer left.
    ///
    /// # Errors
    /// Those of the device.
    fn follow(&self, cx: &mut Cx, r: &Rows, x: &Carry) -> Result<View>;
    /// The hidden states `[n, H]` that were left for the first rows behind what was committed, one row a sequence.
    ///
    /// # Errors
    /// Those of the device.
    fn recall(&self, cx: &mut Cx, r: &Rows) -> Result<View>;
    /// Keeps what later rows look at, and predicts nothing. `hidden` `[n, H]` is of the rows before.
    ///
    /// # Errors
    /// Those of the device.
    fn keep(&self, cx: &mut Cx, r: &Rows, hidden: View) -> Result<()>;
    /// The rows' own hidden states into `out` `[n, H]`, from which the next row goes on and logits follow.
    ///
    /// # Errors
    /// Those of the device and of the source.
    fn draft(&self, cx: &mut Cx, r: &Rows, hidden: View, out: View, ex: &mut dyn ExpertSource) -> Result<()>;
    /// Logits `[n, vocab]` of the token after each row's.
    ///
    /// # Errors
    /// Those of the device.
    fn logits(&self, cx: &mut Cx, r: &Rows, hidden: View, logits: View) -> Result<()>;
}
