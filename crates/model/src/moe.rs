//! The feed-forward of a mixture: the only caller of an [`ExpertSource`].
//!
//! `route` the rows, ask the source to begin, compute the `base` (the shared expert) while misses are read, then take
//! groups of experts as they become ready, then `close` with the sum. Few rows keep each expert's output in the place
//! of its (row, rank) and combine in rank order, so arrival order changes no bit; Many rows add experts in ascending id.

use crate::cx::{Cx, Tile};
use crate::error::Result;
use device::{Acc, Act, ExpertBias, ExpertMats, Glu, Op, Part, Region, Router, Routing, RowClass, Rows, View};
use weights::{ExpertSource, Routed, Wave};

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
    /// Takes the room that lasts as long as the call. Returns what base and experts are summed up in, f32 `[n, H]`: new
    /// room, or, where the experts are all there is, the stream that they are added to.
    fn begin(&mut self, cx: &mut Cx, n: u32) -> Result<View>;
    /// The experts' input into `h` `[t.n, H]`, and the router's logits `[t.n, E]` in new room.
    fn route(&mut self, cx: &mut Cx, t: Tile, h: View) -> Result<View>;
    /// What is computed beside the routed experts, into `sum` `[t.n, H]`.
    fn base(&mut self, cx: &mut Cx, t: Tile, h: View, sum: View) -> Result<()>;
    /// Takes the sum of base and experts `[t.n, H]`.
    fn close(&mut self, cx: &mut Cx, t: Tile, sum: View) -> Result<()>;
}

/// Runs layer `l`'s mixture over the rows of one call, tile by tile where there are more than a tile. Experts are asked
/// for once: each meets the rows of all tiles while it is here.
///
/// # Errors
/// Those of the device and of the source.
pub fn drive(cx: &mut Cx, l: u32, r: &Rows, ex: &mut dyn ExpertSource, m: &Moe, mix: &mut dyn Mixture) -> Result<()> {
    cx.scope(|cx| {
        let (n, k) = (r.n, m.router.k);
        let sum = mix.begin(cx, n)?;
        let h = cx.take(n, sum.cols)?;
        let routing = Routing { ids: cx.dev.take(Region::Step, Act::I32, n, k)?, w: cx.take(n, k)? };
        cx.tiles(n, |cx, t| {
            let logits = mix.route(cx, t, t.of(h))?;
            Ok(cx.dev.run(Op::Route { out: rows(&routing, t), logits, router: m.router })?)
        })?;
        let routed = Routed { layer: l, routing, class: r.class, glu: m.glu };
        let mut wave = ex.begin(cx.dev, &routed)?;
        cx.tiles(n, |cx, t| mix.base(cx, t, t.of(h), t.of(sum)))?;
        experts(cx, ex, &mut wave, m, &Operands { routing, h, sum, class: r.class })?;
        cx.tiles(n, |cx, t| mix.close(cx, t, t.of(sum)))
    })
}

fn rows(r: &Routing, t: Tile) -> Routing {
    Routing { ids: t.of(r.ids), w: t.of(r.w) }
}

/// Of all rows of a call.
struct Operands {
    routing: Routing,
    h: View,
    sum: View,
    class: RowClass,
}

/// Adds the experts of a visit to the sum.
fn experts(cx: &mut Cx, ex: &mut dyn ExpertSource, wave: &mut Wave, m: &Moe, of: &Operands) -> Result<()> {
    cx.scope(|cx| {
        let Operands { routing, h, sum, class } = *of;
        let (n, k) = (h.rows, m.router.k);
        // Few rows are one tile, because their parts are combined when all have arrived.
        let tiles: Vec<Tile> = if class == RowClass::Few { vec![Tile { first: 0, n }] } else { cx.cut(n).collect() };
        let mid = cx.take(tiles.first().map_or(0, |t| t.n) * k, m.inner)?;
        let parts = if class == RowClass::Few { Some(cx.take(n, k * h.cols)?.heads(k)) } else { None };
        while let Some(g) = ex.next(cx.dev, wave)? {
            // There is room for the intermediates of one tile. Where there are more, the halves wait for each other.
            let part = match g.part {
                Part::GateUp if tiles.len() > 1 => continue,
                Part::Down if tiles.len() > 1 => Part::Both,
                part => part,
            };
            let e = ExpertMats { bias: m.bias, ..g.e };
            for &t in &tiles {
                let dst = parts.map_or(Acc::Sum(t.of(sum)), Acc::Parts);
                let (mid, h, routed, pick) = (mid.rows(0, t.n * k), t.of(h), rows(&routing, t), g.pick.clone());
                cx.dev.run(Op::ExpertGroup { dst, mid, h, routed, e, pick, part, class })?;
            }
        }
        match parts {
            Some(parts) => Ok(cx.dev.run(Op::Combine { out: sum, base: sum, parts, w: routing.w })?),
            None => Ok(()),
        }
    })
}
