//! The decoder that most families are: pre-norm blocks of a mixer and a feed-forward around one residual stream.
//!
//! ```text
//! x = embed(ids)
//! x += W_o mixer(norm(x))
//! x += ffn(norm(x))
//! logits = W_head norm(x)                 W_head may be the embedding
//! ```
//! A family says which mixer and which feed-forward each layer has, under which names; the pass over them is here.

use crate::cx::{Cx, Head, Mlp};
use crate::drafter::Drafter;
use crate::error::Result;
use crate::family::{Carry, Family, Spec};
use crate::gdn::Gdn;
use crate::gqa::Gqa;
use crate::keys::Keys;
use crate::mtp::Predictor;
use crate::sparse::Sparse;
use crate::want::{At, Want, Wants};
use checkpoint::Meta;
use device::{Glu, Rows, View};
use memory::{Component, KvSpec};
use state::{Decl, Stream};
use weights::{Canon, ExpertSource, WId};

/// How rows of a sequence see one another.
#[derive(Clone, Debug)]
pub enum Mixer {
    /// Attention.
    Attention(Gqa),
    /// The gated delta rule.
    Gdn(Gdn),
}

/// What is done to every row by itself.
#[derive(Clone, Debug)]
pub enum Ffn {
    /// One gated feed-forward.
    Dense(Mlp),
    /// A mixture.
    Sparse(Box<Sparse>),
}

/// A layer.
#[derive(Clone, Debug)]
pub struct Block {
    input_norm: WId,
    mixer: Mixer,
    ffn_norm: WId,
    ffn: Ffn,
    eps: f32,
}

/// What the norms of a family are like.
#[derive(Clone, Debug)]
pub struct Norms {
    /// Added to the mean of squares.
    pub eps: f32,
    /// What makes those of safetensors files canonical.
    pub canon: Canon,
    /// Name in GGUF files of the norm before the feed-forward.
    pub ffn: &'static str,
}

impl Norms {
    /// Wants a block around a mixer and a feed-forward.
    pub fn block(
        &self,
        w: &mut Wants,
        at: &At,
        hidden: u32,
        mixer: impl FnOnce(&mut Wants) -> Mixer,
        ffn: impl FnOnce(&mut Wants) -> Ffn,
    ) -> Block {
        let norm = |w: &mut Wants, gguf, hf| at.vec_as(w, hidden, gguf, hf, self.canon.clone());
        let input_norm = norm(w, "attn_norm.weight", "input_layernorm.weight");
        let mixer = mixer(w);
        let ffn_norm = norm(w, self.ffn, "post_attention_layernorm.weight");
        Block { input_norm, mixer, ffn_norm, ffn: ffn(w), eps: self.eps }
    }
}

impl Ffn {
    /// Wants a dense one of width `inner`.
    pub fn dense(w: &mut Wants, at: &At, hidden: u32, inner: u32) -> Ffn {
        Ffn::Dense(Mlp {
            gate: at.mat(w, inner, hidden, "ffn_gate.weight", "mlp.gate_proj.weight"),
            up: at.mat(w, inner, hidden, "ffn_up.weight", "mlp.up_proj.weight"),
            down: at.mat(w, hidden, inner, "ffn_down.weight", "mlp.down_proj.weight"),
            glu: Glu::Swiglu,
        })
    }
}

impl Block {
    /// What a sequence keeps for it.
    pub fn stream(&self, kv: &KvSpec) -> Stream {
        match &self.mixer {
            Mixer::Attention(a) => a.stream(kv),
            Mixer::Gdn(g) => g.stream(),
        }
    }
    /// The same block with positions before `since` hidden from all others.
    pub fn since(self, since: u32) -> Self {
        match self.mixer {
            Mixer::Attention(a) => Block { mixer: Mixer::Attention(a.since(since)), ..self },
            Mixer::Gdn(_) => self,
        }
    }
    /// The parameters that [`keep`](Self::keep) needs.
    pub fn keeps(&self) -> Vec<WId> {
        let mixer = match &self.mixer {
            Mixer::Attention(a) => a.keeps().to_vec(),
            Mixer::Gdn(g) => g.parameters().to_vec(),
        };
        std::iter::once(self.input_norm).chain(mixer).collect()
    }
    /// Keeps what later rows look at of these, and computes no more.
    ///
    /// # Errors
    /// Those of the device.
    pub fn keep(&self, cx: &mut Cx, l: u32, r: &Rows, x: View) -> Result<()> {
        cx.scope(|cx| {
            let h = cx.rms_norm(x, self.input_norm, self.eps)?;
            match &self.mixer {
                Mixer::Attention(a) => a.keep(cx, l, r, h),
                Mixer::Gdn(g) => g.forward(cx, l, r, h).map(drop),
            }
        })
    }
    /// `x += W_o mixer(norm(x))`, with the streams of layer `l`.
    ///
    /// # Errors
    /// Those of the device.
    pub fn mix(&self, cx: &mut Cx, l: u32, r: &Rows, x: View) -> Result<()> {
        cx.scope(|cx| {
            let h = cx.rms_norm(x, self.input_norm, self.eps)?;
            let (y, out) = match &self.mixer {
                Mixer::Attention(a) => (a.forward(cx, l, r, h)?, a.o),
                Mixer::Gdn(g) => (g.forward(cx, l, r, h)?, g.out),
            };
            cx.linear_add(x, y, out, r.class)
        })
    }
    /// `x += ffn(norm(x))`, with the experts of layer `l`.
    ///
    /// # Errors
    /// Those of the device and of the source.
    pub fn ffn(&self, cx: &mut Cx, l: u32, r: &Rows, x: View, ex: &mut dyn ExpertSource) -> Result<()> {
        match &self.ffn {
            Ffn::Dense(mlp) => cx.tiles(r.n, |cx, t| {
                let h = cx.rms_norm(t.of(x), self.ffn_norm, self.eps)?;
                cx.mlp_add(t.of(x), h, mlp, r.class)
            }),
            Ffn::Sparse(s) => s.forward(cx, l, r, x, (self.ffn_norm, self.eps), ex),
        }
    }
}

/// A family made of blocks.
pub struct Decoder {
    spec: Spec,
    embed: WId,
    blocks: Vec<Block>,
    head: Head,
    wants: Wants,
    keys: Meta,
    predictor: Option<Predictor>,
}

impl Decoder {
    /// Wants embedding, blocks and head, which may be the embedding unless the configuration denies it. `block` gives layer `l`; `keys` are the GGUF keys that are the family's own, to
    /// which the usual ones are added.
    pub fn new(
        c: &Keys,
        spec: Spec,
        norms: &Norms,
        mut keys: Meta,
        mut w: Wants,
        mut block: impl FnMut(&mut Wants, u32) -> Block,
    ) -> Self {
        let Spec { vocab, hidden, .. } = spec;
        let embed = w.mat(Component::Embed, vocab, hidden, "token_embd.weight", "~embed_tokens.weight");
        let blocks = (0..spec.n_layers).map(|l| block(&mut w, l)).collect();
        let canon = norms.canon.clone();
        let norm = w.vec_as(Component::Core, hidden, "output_norm.weight", "~norm.weight", canon);
        let own = w.mat(Component::Head, vocab, hidden, "output.weight", "lm_head.weight");
        w.or_hf("language_model.lm_head.weight");
        if !c.untied() {
            w.optional();
        }
        let head = Head { norm, eps: norms.eps, own, tied: embed };
        spec.export(&mut keys);
        Decoder { spec, embed, blocks, head, wants: w, keys, predictor: None }
    }
    /// Wants the predictor behind it, where the configuration has one; `block` gives its block.
    pub fn with_predictor(mut self, norms: &Norms, block: impl FnOnce(&mut Wants, &At) -> Block) -> Self {
        if self.spec.mtp_layers > 0 {
            let shared = (self.embed, self.head);
            self.predictor = Some(Predictor::want(&mut self.wants, norms, &self.spec, shared, block));
        }
        self
    }
}

impl Family for Decoder {
    fn spec(&self) -> &Spec {
        &self.spec
    }
    fn tensors(&self) -> &[Want] {
        self.wants.as_slice()
    }
    fn state(&self, kv: &[KvSpec]) -> Vec<Decl> {
        let layers = self.blocks.iter().zip(kv).zip(0..);
        layers.map(|((b, kv), layer)| Decl { layer, stream: b.stream(kv) }).collect()
    }
    fn export(&self, out: &mut Meta) {
        out.extend(&self.keys);
    }
    fn embed(&self, cx: &mut Cx, r: &Rows, x: &mut Carry) -> Result<()> {
        cx.embed(x.streams[0], self.embed, r.ids)
    }
    fn mix(&self, cx: &mut Cx, l: u32, r: &Rows, x: &mut Carry) -> Result<()> {
        self.blocks[l as usize].mix(cx, l, r, x.streams[0])
    }
    fn ffn(&self, cx: &mut Cx, l: u32, r: &Rows, x: &mut Carry, ex: &mut dyn ExpertSource) -> Result<()> {
        self.blocks[l as usize].ffn(cx, l, r, x.streams[0], ex)
    }
    fn head(&self, cx: &mut Cx, r: &Rows, pick: View, x: &Carry, logits: View) -> Result<()> {
        cx.head(x.streams[0], pick, &self.head, logits, r.class)
    }
    fn drafter(&self) -> Option<&dyn Drafter> {
        self.predictor.as_ref().map(|p| p as &dyn Drafter)
    }
}
