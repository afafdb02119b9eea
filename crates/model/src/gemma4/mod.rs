//! Gemma 4, text: windowed and full attention with heads of different widths, a dense feed-forward, in the 26B a mixture
//! beside it, in the E models an embedding per layer.
//!
//! ```text
//! x = sqrt(H) embed(ids)
//! x += norm(W_o attention(rope(norm(W_q h)), rope(norm(W_k h)), unit(W_v h)))   h = norm(x); scores are not scaled
//! y = W_down (gelu(W_gate h) * W_up h)                                          h = norm(x)
//! y = norm(y) + norm(sum of w_e expert_e(norm(x)))                              mixtures: both branches read x
//!     w = softmax over the chosen of W_router (unit(x) * s) H^-0.5, times a factor of each expert
//! x += norm(y)
//! x += norm(W_p (gelu(W_i x) * e_l))                                            E models
//! x *= a number of the layer
//! logits = 30 tanh(W_embed norm(x) / 30)
//! ```
//! `unit` is a norm without weights. Norms are plain in every kind of file. Full layers of the larger models have no
//! `W_v`: their values are the keys before norm and rope (both are kept). Windowed layers rotate all columns; full ones
//! a quarter of the pairs, which stay paired over the whole head ("proportional").
//!
//! The last `num_kv_shared_layers` layers keep no history: they read that of the last layer of their kind before them,
//! and in some models are twice as wide in the feed-forward. The embeddings per layer, `e_l`, join a row of a large
//! table, which stays in the file and is read row by row, with a projection of x:
//! `e = (sqrt(P) table[ids] + norm(W x H^-0.5)) 2^-0.5`, cut into layers.

mod config;
mod layer;

use crate::cx::{Attn, Cx, Head};
use crate::error::Result;
use crate::family::{Carry, Family, SideTable, Spec};
use crate::keys::Keys;
use crate::moe;
use crate::want::{Want, Wants};
use checkpoint::Meta;
use config::Config;
use device::{Glu, Router, Rows, View};
use layer::{Layer, Mixed, PerLayer, layer, per_layer};
use memory::{Component, KvSpec};
use state::{Decl, Stream};
use weights::{ExpertSource, WId};

/// Name of the architecture in GGUF files.
const ARCH: &str = "gemma4";

/// See the module.
pub struct Gemma4 {
    spec: Spec,
    cfg: Config,
    embed: WId,
    per_layer: Option<PerLayer>,
    layers: Vec<Layer>,
    head: Head,
    wants: Vec<Want>,
}

impl Gemma4 {
    /// Reads the configuration.
    ///
    /// # Errors
    /// Whatever is missing or impossible in it.
    pub fn new(c: &Keys) -> Result<Self> {
        let mut spec = Spec {
            arch: c.arch().to_string(),
            n_layers: c.layers("num_hidden_layers", "block_count"),
            hidden: c.count("hidden_size", "embedding_length"),
            vocab: c.vocab(),
            context: c.count("max_position_embeddings", "context_length"),
            experts: None,
            mtp_layers: 0,
        };
        let mut w = Wants::default();
        let cfg = Config::new(c, &mut w, &spec)?;
        spec.experts = cfg.moe.map(|m| (m.experts, m.router.k));
        let embed = w.mat(Component::Embed, spec.vocab, spec.hidden, "token_embd.weight", "~embed_tokens.weight");
        let per_layer = cfg.per_layer.map(|p| per_layer(&mut w, &spec, p));
        let layers = (0..spec.n_layers).map(|l| layer(&mut w, l, spec.hidden, &cfg)).collect();
        let norm = w.vec(Component::Core, spec.hidden, "output_norm.weight", "~norm.weight");
        let own = w.mat(Component::Head, spec.vocab, spec.hidden, "output.weight", "lm_head.weight");
        w.optional();
        let head = Head { norm, eps: cfg.eps, own, tied: embed };
        c.done()?;
        Ok(Gemma4 { spec, cfg, embed, per_layer, layers, head, wants: w.finish() })
    }

    fn dense(&self, cx: &mut Cx, w: &Layer, r: &Rows, x: View) -> Result<()> {
        let eps = self.cfg.eps;
        cx.tiles(r.n, |cx, t| {
            let h = cx.rms_norm(t.of(x), w.ffn_norm, eps)?;
            let y = cx.mlp(h, &w.mlp, r.class)?;
            cx.rms_norm_in(y, w.post_ffn, eps)?;
            cx.add(t.of(x), y)
        })
    }

    /// `x += norm(W_p (gelu(W_i x) * e_l))`.
    fn join(&self, cx: &mut Cx, l: u32, r: &Rows, x: View, side: Option<View>) -> Result<()> {
        let (Some(p), Some(own), Some(side)) = (&self.per_layer, &self.layers[l as usize].per_layer, side) else {
            return Ok(());
        };
        cx.tiles(r.n, |cx, t| {
            let y = cx.linear(t.of(x), own.gate, r.class)?;
            cx.glu_in(y, t.of(side).cols(l * p.width, p.width), Glu::GegluTanh)?;
            let y = cx.linear(y, own.project, r.class)?;
            cx.rms_norm_in(y, own.norm, self.cfg.eps)?;
            cx.add(t.of(x), y)
        })
    }
}

impl Family for Gemma4 {
    fn spec(&self) -> &Spec {
        &self.spec
    }
    fn tensors(&self) -> &[Want] {
        &self.wants
    }
    fn state(&self, kv: &[KvSpec]) -> Vec<Decl> {
        let window = self.cfg.window;
        let own = self.cfg.layers.iter().zip(kv).zip(0..).filter(|((l, _), at)| l.history == *at);
        own.map(|((l, kv), layer)| {
            let (heads, d, fmt) = (l.n_kv_heads, l.head_dim, kv.main);
            let stream = match l.sliding {
                true => Stream::Ring { window, heads, d, fmt },
                false => Stream::History { heads, d, kv: *kv },
            };
            Decl { layer, stream }
        })
        .collect()
    }
    fn readers(&self, l: u32) -> u32 {
        self.cfg.layers.iter().filter(|of| of.history == l).count() as u32
    }
    fn side(&self) -> Option<SideTable> {
        let p = self.per_layer.as_ref()?;
        Some(SideTable { table: p.table, width: p.width * self.spec.n_layers })
    }
    fn export(&self, out: &mut Meta) {
        self.cfg.export(&self.spec, out);
    }
    fn embed(&self, cx: &mut Cx, r: &Rows, x: &mut Carry) -> Result<()> {
        let (out, side) = (x.streams[0], x.side);
        cx.embed_scaled(out, self.embed, r.ids, self.cfg.embed_scale)?;
        let (Some(p), Some(side)) = (&self.per_layer, side) else { return Ok(()) };
        cx.scope(|cx| {
            let y = cx.linear(out, p.project, r.class)?;
            // The norm of `y H^-0.5` with eps is that of `y` with `eps H`.
            let eps = self.cfg.eps * self.spec.hidden as f32;
            cx.rms_norm_in(y.heads(self.spec.n_layers), p.norm, eps)?;
            cx.scale(side, p.root)?;
            cx.add(side, y)?;
            cx.scale(side, p.mean)
        })
    }
    fn mix(&self, cx: &mut Cx, l: u32, r: &Rows, x: &mut Carry) -> Result<()> {
        let (c, w, x) = (&self.cfg, &self.layers[l as usize], x.streams[0]);
        let of = &c.layers[l as usize];
        let rope = &c.ropes[of.sliding as usize];
        cx.scope(|cx| {
            let h = cx.rms_norm(x, w.attn_norm, c.eps)?;
            let q = cx.linear(h, w.q, r.class)?.heads(c.n_heads);
            cx.rms_norm_in(q, w.q_norm, c.eps)?;
            cx.rope(q, r.pos, rope)?;
            if let Some(own) = &w.kv {
                let k = cx.linear(h, own.k, r.class)?.heads(of.n_kv_heads);
                let v = match own.v {
                    Some(v) => {
                        let v = cx.linear(h, v, r.class)?.heads(of.n_kv_heads);
                        cx.rms_unit_in(v, c.eps)?;
                        v
                    }
                    None => cx.rms_unit(k, c.eps)?,
                };
                cx.rms_norm_in(k, own.k_norm, c.eps)?;
                cx.rope(k, r.pos, rope)?;
                cx.append(l, r, k, v)?;
            }
            let window = of.sliding.then_some(c.window);
            let y = cx.attend(of.history, r, q, &Attn { window, ..Attn::FULL })?;
            let y = cx.linear(y.flat(), w.o, r.class)?;
            cx.rms_norm_in(y, w.post_attn, c.eps)?;
            cx.add(x, y)
        })
    }
    fn ffn(&self, cx: &mut Cx, l: u32, r: &Rows, x: &mut Carry, ex: &mut dyn ExpertSource) -> Result<()> {
        let (c, w, side, x) = (&self.cfg, &self.layers[l as usize], x.side, x.streams[0]);
        match (c.moe, &w.mixture) {
            (Some(m), Some(mixture)) => {
                let router = Router { per_expert: Some(cx.w.vec(mixture.per_expert)?), ..m.router };
                let mut parts = Mixed::new(w, mixture, x, r, c.eps);
                moe::drive(cx, l, r, ex, &moe::Moe { router, ..m }, &mut parts)?;
            }
            _ => self.dense(cx, w, r, x)?,
        }
        self.join(cx, l, r, x, side)?;
        cx.scale(x, w.scalar)
    }
    fn head(&self, cx: &mut Cx, r: &Rows, pick: View, x: &Carry, logits: View) -> Result<()> {
        cx.head(x.streams[0], pick, &self.head, logits, r.class)?;
        match self.cfg.softcap {
            Some(cap) => cx.softcap(logits, cap),
            None => Ok(()),
        }
    }
}
