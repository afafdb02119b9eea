//! The feed-forward of Qwen's mixtures: routed experts, beside them in some models a shared expert behind a gate of
//! its own.
//!
//! ```text
//! y = sum of w_e expert_e(h) over the top k      w = softmax(W_router h), divided by the chosen ones' sum
//!   + sigmoid(w_s h) shared(h)
//! ```

use crate::cx::{Cx, Mlp, Tile};
use crate::error::Result;
use crate::keys::Keys;
use crate::moe::{self, Moe};
use crate::want::{At, Experts, Wants};
use checkpoint::Meta;
use device::{ActFn, ExpertBias, Glu, Router, Rows, View};
use weights::{ExpertSource, Proj, WId};

/// The shape of the mixture in every layer of a model.
#[derive(Copy, Clone, Debug)]
pub struct Shape {
    /// The routed experts.
    pub moe: Moe,
    /// Width of the shared expert's intermediate, where there is one.
    pub shared: Option<u32>,
}

/// One layer's parameters.
#[derive(Clone, Debug)]
pub struct Sparse {
    router: WId,
    shared: Option<Shared>,
    moe: Moe,
}

#[derive(Copy, Clone, Debug)]
struct Shared {
    gate: WId,
    mlp: Mlp,
}

impl Shape {
    /// Reads the shape. `renormalise` is whether the chosen weights are divided by their sum where no key says so.
    pub fn read(c: &Keys, shared: bool, renormalise: bool) -> Self {
        let experts = c.count(c.either("num_experts", "num_local_experts"), "expert_count");
        let k = c.count("num_experts_per_tok", "expert_used_count");
        c.require(k <= experts, "num_experts_per_tok", "expert_used_count", k, "there are fewer experts");
        let renormalise = c.opt_bool("norm_topk_prob", "expert_weights_norm").unwrap_or(renormalise);
        let router = Router { renormalise, ..Router::softmax(k) };
        let inner = c.count("moe_intermediate_size", "expert_feed_forward_length");
        let beside = || c.count("shared_expert_intermediate_size", "expert_shared_feed_forward_length");
        Shape {
            moe: Moe { experts, inner, router, bias: ExpertBias::default(), glu: Glu::Swiglu },
            shared: shared.then(beside),
        }
    }
    /// Routed experts of a layer and how many a row uses.
    pub fn experts(&self) -> (u32, u32) {
        (self.moe.experts, self.moe.router.k)
    }
    /// Wants the parameters of one layer.
    pub fn want(&self, w: &mut Wants, at: &At, hidden: u32) -> Sparse {
        let Moe { experts: count, inner, .. } = self.moe;
        for (proj, n, k) in [(Proj::Gate, inner, hidden), (Proj::Up, inner, hidden), (Proj::Down, hidden, inner)] {
            at.experts(w, Experts { layer: at.layer, proj, count, n, k }, "mlp");
        }
        let router = at.mat(w, count, hidden, "ffn_gate_inp.weight", "mlp.gate.weight");
        let shared = self.shared.map(|inner| Shared {
            gate: at.mat(w, 1, hidden, "ffn_gate_inp_shexp.weight", "mlp.shared_expert_gate.weight"),
            mlp: Mlp {
                gate: at.mat(w, inner, hidden, "ffn_gate_shexp.weight", "mlp.shared_expert.gate_proj.weight"),
                up: at.mat(w, inner, hidden, "ffn_up_shexp.weight", "mlp.shared_expert.up_proj.weight"),
                down: at.mat(w, hidden, inner, "ffn_down_shexp.weight", "mlp.shared_expert.down_proj.weight"),
                glu: Glu::Swiglu,
            },
        });
        Sparse { router, shared, moe: self.moe }
    }
    /// Writes the shape as keys of architecture `arch`.
    pub fn export(&self, arch: &str, out: &mut Meta) {
        let key = |name: &str| format!("{arch}.{name}");
        out.set(&key("expert_count"), self.moe.experts);
        out.set(&key("expert_used_count"), self.moe.router.k);
        out.set(&key("expert_feed_forward_length"), self.moe.inner);
        out.set(&key("expert_weights_norm"), self.moe.router.renormalise);
        if let Some(n) = self.shared {
            out.set(&key("expert_shared_feed_forward_length"), n);
        }
    }
}

impl Sparse {
    /// `x += mixture(norm(x))` over the rows of layer `l`.
    ///
    /// # Errors
    /// Those of the device and of the source.
    pub fn forward(
        &self,
        cx: &mut Cx,
        l: u32,
        r: &Rows,
        x: View,
        (norm, eps): (WId, f32),
        ex: &mut dyn ExpertSource,
    ) -> Result<()> {
        moe::drive(cx, l, r, ex, &self.moe, &mut Ffn { w: self, x, r, norm, eps })
    }
}

struct Ffn<'a> {
    w: &'a Sparse,
    x: View,
    r: &'a Rows,
    norm: WId,
    eps: f32,
}

impl moe::Mixture for Ffn<'_> {
    /// Without a shared expert the routed ones are added to the residual stream itself.
    fn begin(&mut self, cx: &mut Cx, n: u32) -> Result<View> {
        if self.w.shared.is_some() { cx.take(n, self.x.cols) } else { Ok(self.x) }
    }
    fn route(&mut self, cx: &mut Cx, t: Tile, h: View) -> Result<View> {
        cx.rms_norm_to(h, t.of(self.x), self.norm, self.eps)?;
        cx.linear(h, self.w.router, self.r.class)
    }
    fn base(&mut self, cx: &mut Cx, _: Tile, h: View, sum: View) -> Result<()> {
        let Some(s) = &self.w.shared else { return Ok(()) };
        cx.mlp_into(sum, h, &s.mlp, self.r.class)?;
        let g = cx.linear(h, s.gate, self.r.class)?;
        cx.gate(sum, g, ActFn::Sigmoid)
    }
    fn close(&mut self, cx: &mut Cx, t: Tile, sum: View) -> Result<()> {
        if self.w.shared.is_some() { cx.add(t.of(self.x), sum) } else { Ok(()) }
    }
}
