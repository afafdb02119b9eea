//! The multi-token predictor of Qwen3.5: one more block that looks one token further than the model.
//!
//! ```text
//! x = W_fc [ norm(embed(id)) ; norm(hidden of the row before) ]
//! x += W_o attention(norm(x));  x += ffn(norm(x))        over its own history, one row for every row of the model
//! hidden' = norm(x);  logits = W_head hidden'
//! ```
//! The hidden state is that of the model after its final norm. A row with the token at position p predicts the token
//! at p + 1 from what the model knew at p - 1; further drafts go on from `hidden'` in place of the model's own.
//! Position 0 has no row before it: what is kept there is seen by nobody else. Embedding and head are the model's,
//! unless a file brings others for the predictor.

use crate::cx::{Cx, Head};
use crate::decoder::{Block, Norms};
use crate::drafter::Drafter;
use crate::error::Result;
use crate::family::{Carry, Spec};
use crate::want::{At, Wants};
use device::{Rows, View};
use memory::KvSpec;
use state::{Decl, Stream};
use weights::{ExpertSource, WId};

/// The predictor.
#[derive(Clone, Debug)]
pub struct Predictor {
    /// Number of its layer, the one behind the model's last. The one behind that carries hidden states.
    layer: u32,
    hidden: u32,
    embed: WId,
    own_embed: WId,
    fc: WId,
    embed_norm: WId,
    hidden_norm: WId,
    block: Block,
    norm: WId,
    own_head: WId,
    head: Head,
}

impl Predictor {
    /// Wants it, around a block that attends; `embed` and `head` are the model's.
    pub fn want(
        w: &mut Wants,
        norms: &Norms,
        spec: &Spec,
        (embed, head): (WId, Head),
        block: impl FnOnce(&mut Wants, &At) -> Block,
    ) -> Self {
        let (layer, hidden) = (spec.n_layers, spec.hidden);
        let at = At::predictor(layer);
        let next = At { gguf: format!("{}.nextn", at.gguf), hf: "mtp".into(), ..at.clone() };
        let fc = next.mat(w, hidden, 2 * hidden, "eh_proj.weight", "fc.weight");
        let mut norm = |gguf, hf| next.vec_as(w, hidden, gguf, hf, norms.canon.clone());
        let embed_norm = norm("enorm.weight", "pre_fc_norm_embedding.weight");
        let hidden_norm = norm("hnorm.weight", "pre_fc_norm_hidden.weight");
        let norm = norm("shared_head_norm.weight", "norm.weight");
        let mut own = |gguf, hf| {
            let id = next.mat(w, spec.vocab, hidden, gguf, hf);
            w.optional();
            id
        };
        let own_embed = own("embed_tokens.weight", "embed_tokens.weight");
        let own_head = own("shared_head_head.weight", "shared_head.head.weight");
        let block = block(w, &at).since(1);
        Predictor { layer, hidden, embed, own_embed, fc, embed_norm, hidden_norm, block, norm, own_head, head }
    }
    /// The block's input.
    fn join(&self, cx: &mut Cx, r: &Rows, hidden: View) -> Result<View> {
        let (n, eps) = (self.hidden, self.head.eps);
        let x = cx.take(r.n, n)?;
        cx.scope(|cx| {
            let both = cx.take(r.n, 2 * n)?;
            let e = self.embedded(cx, r)?;
            cx.rms_norm_to(both.cols(0, n), e, self.embed_norm, eps)?;
            cx.rms_norm_to(both.cols(n, n), hidden, self.hidden_norm, eps)?;
            cx.linear_into(x, both, self.fc, r.class)
        })?;
        Ok(x)
    }
    fn embedded(&self, cx: &mut Cx, r: &Rows) -> Result<View> {
        let table = if cx.w.has(self.own_embed) { self.own_embed } else { self.embed };
        let e = cx.take(r.n, self.hidden)?;
        cx.embed(e, table, r.ids)?;
        Ok(e)
    }
}

impl Drafter for Predictor {
    fn state(&self, kv: &KvSpec) -> Vec<Decl> {
        let carried = Stream::Recurrent { state: [1, 1, self.hidden], conv: [0, 0] };
        vec![Decl { layer: self.layer, stream: self.block.stream(kv) }, Decl { layer: self.layer + 1, stream: carried }]
    }
    fn keeps(&self) -> Vec<WId> {
        let own = [self.own_embed, self.fc, self.embed_norm, self.hidden_norm];
        own.into_iter().chain(self.block.keeps()).collect()
    }
    fn follow(&self, cx: &mut Cx, r: &Rows, x: &Carry) -> Result<View> {
        let own = cx.rms_norm(x.streams[0], self.head.norm, self.head.eps)?;
        cx.shift(self.layer + 1, r, own)
    }
    fn recall(&self, cx: &mut Cx, r: &Rows) -> Result<View> {
        // What these rows leave in their slots goes with the rollback of the drafts.
        let own = self.embedded(cx, r)?;
        cx.shift(self.layer + 1, r, own)
    }
    fn keep(&self, cx: &mut Cx, r: &Rows, hidden: View) -> Result<()> {
        cx.scope(|cx| {
            let x = self.join(cx, r, hidden)?;
            self.block.keep(cx, self.layer, r, x)
        })
    }
    fn draft(&self, cx: &mut Cx, r: &Rows, hidden: View, out: View, ex: &mut dyn ExpertSource) -> Result<()> {
        cx.scope(|cx| {
            let x = self.join(cx, r, hidden)?;
            self.block.mix(cx, self.layer, r, x)?;
            self.block.ffn(cx, self.layer, r, x, ex)?;
            cx.rms_norm_to(out, x, self.norm, self.head.eps)
        })
    }
    fn logits(&self, cx: &mut Cx, r: &Rows, hidden: View, logits: View) -> Result<()> {
        let ours = [self.own_head, self.head.own].into_iter().find(|&w| cx.w.has(w));
        cx.linear_into(logits, hidden, ours.unwrap_or(self.head.tied), r.class)
    }
}
