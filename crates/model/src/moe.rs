//! The feed-forward of a mixture: the only caller of an [`ExpertSource`].
//!
//! `route` the rows, ask the source to begin, compute the `base` (the shared expert) while misses are read, then take
//! groups of experts as they become ready, then `close` with the sum. Few rows keep each expert's output in the place
//! of its (row, rank) and combine in rank order, so arrival order changes no bit; Many rows add experts in ascending id.

use crate::cx::Cx;
use crate::error::Result;
use device::{Acc, Act, ExpertBias, ExpertMats, Glu, Op, Region, Router, Routing, RowClass, Rows, View};
use weights::{ExpertSource, Routed};

/// Shape of a mixture.
#[derive(Copy, Clone, Debug)]
pub struct Moe {
    /// Routed experts.
    pub experts: u32,
    /// Width of an expert's intermediate.
    pub inner: u32,
    /// How rows choose.
    pub router: Router,
    /// What is added to the experts' products.
    pub bias: ExpertBias,
    /// The experts' nonlinearity.
    pub glu: Glu,
}

/// What a family plugs into [`drive`].
pub trait Mixture {
    /// The experts' input `h` `[n, H]` and the router's logits `[n, E]`.
    fn route(&mut self, cx: &mut Cx) -> Result<(View, View)>;
    /// What is computed beside the routed experts, `[n, H]`.
    fn base(&mut self, cx: &mut Cx, h: View) -> Result<View>;
    /// Takes the sum of base and experts.
    fn close(&mut self, cx: &mut Cx, sum: View) -> Result<()>;
}

/// Runs layer `l`'s mixture over the rows of one call.
///
/// # Errors
/// Those of the device and of the source.
pub fn drive(cx: &mut Cx, l: u32, r: &Rows, ex: &mut dyn ExpertSource, m: &Moe, mix: &mut dyn Mixture) -> Result<()> {
    cx.scope(|cx| {
        let (h, logits) = mix.route(cx)?;
        let k = m.router.k;
        let routing = Routing { ids: cx.dev.take(Region::Step, Act::I32, r.n, k)?, w: cx.take(r.n, k)? };
        cx.dev.run(Op::Route { out: routing, logits, router: m.router })?;
        let routed = Routed { layer: l, routing, class: r.class, glu: m.glu };
        let mut wave = ex.begin(cx.dev, &routed)?;
        let sum = mix.base(cx, h)?;
        let mid = cx.take(r.n * k, m.inner)?;
        let dst = match r.class {
            RowClass::Few => Acc::Parts(cx.take(r.n, k * h.cols)?.heads(k)),
            RowClass::Many => Acc::Sum(sum),
        };
        while let Some(g) = ex.next(cx.dev, &mut wave)? {
            let (pick, part, class) = (g.pick, g.part, r.class);
            let e = ExpertMats { bias: m.bias, ..g.e };
            cx.dev.run(Op::ExpertGroup { dst, mid, h, routed: routing, e, pick, part, class })?;
        }
        if let Acc::Parts(parts) = dst {
            cx.dev.run(Op::Combine { out: sum, base: sum, parts, w: routing.w })?;
        }
        mix.close(cx, sum)
    })
}
