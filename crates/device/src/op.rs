//! The operations, as data: checked, metered and run by every backend, and compared on one grid of cases.
//!
//! Shapes are on the host, values on the device. Nothing in an op depends on values, so the memory it needs follows
//! from it alone and a step can be replayed with other values at the same addresses.

use crate::view::{Buf, ExpertMats, Glu, Mat, View};
use memory::KvFormat;

/// The role of the rows of a call, set by whoever schedules them.
///
/// *Few* (decode, batch, verify): a row's bits depend only on its own inputs, weights and history: not on row count,
/// company, threads or the order in which experts arrive. *Many* (prefill): the same on a grid of 64 rows restarted
/// at each anchor. Few and Many may differ within tolerance and never share a call.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum RowClass {
    /// Decode, batch, verify.
    Few,
    /// Prefill.
    Many,
}

/// The rows of a step: counts on the host, values on the device at addresses that stay for the life of the plan.
/// Rows of one sequence are neighbours in ascending position.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Rows {
    /// Role.
    pub class: RowClass,
    /// Rows.
    pub n: u32,
    /// Sequences in the step; indexes the per-sequence arrays.
    pub seqs: u32,
    /// `i32[n]` token ids.
    pub ids: View,
    /// `i32[n]` positions.
    pub pos: View,
    /// `i32[n]` index of the row's sequence in this step.
    pub seq_of: View,
    /// `i32[seqs, max_pages]` page ids of each sequence, -1 beyond the last.
    pub page_table: View,
    /// `i32[seqs]` slot of each sequence, which its rings hang on.
    pub seq_slot: View,
    /// `i32[seqs]` recurrent slot that holds the state before each sequence's first row of this call, -1 for zeros
    /// (a sequence that has no past).
    pub rec_from: View,
    /// `i32[n]` recurrent slot that takes the state after the row, -1 where nobody asks for it. Few: every row has one.
    /// Many: at least the last row of each sequence.
    pub rec_to: View,
}

/// One layer's history: pages, or a ring of pages per sequence.
///
/// A layer-page holds 256 positions: keys, then values, head by head; of each head the elements of its 256 vectors (as
/// [`Pieces`](crate::kv::Pieces) says), then, where the format has them, their 256 scales (f16).
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct StreamView {
    /// All pages of this layer.
    pub buf: Buf,
    /// Bytes from page to page (a multiple of 4096).
    pub page_bytes: u64,
    /// Format of the stored vectors.
    pub fmt: KvFormat,
    /// Heads per position.
    pub heads: u32,
    /// Width of a head.
    pub d: u32,
    /// 0: pages come from the page table. Else a ring of this many pages per sequence, starting at
    /// `seq_slot * ring`; position p lies in its page `(p / 256) % ring`.
    pub ring: u32,
    /// The layer, which the signs of a rotated format follow from.
    pub layer: u32,
    /// The last pages in another format: a row reads the page that it lies in from here.
    pub own: Option<Side>,
    /// Page 0 in another format, read from here by every row; before [`own`](Self::own).
    pub sink: Option<Side>,
}

/// Pages beside those of a history, a ring for each sequence: the same vectors in another format. They are written by
/// the same append.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Side {
    /// All its pages.
    pub buf: Buf,
    /// Bytes from page to page (a multiple of 4096).
    pub page_bytes: u64,
    /// Format, not a rotated one.
    pub fmt: KvFormat,
    /// Pages of a sequence.
    pub ring: u32,
}

impl StreamView {
    /// Byte offset, in a page, of the vectors of a head, keys (`plane` 0) or values (`plane` 1): the elements of all, where
    /// [`Pieces`](crate::kv::Pieces) says, then the scales.
    pub fn block_at(&self, plane: u32, head: u32) -> u64 {
        (plane as u64 * self.heads as u64 + head as u64) * 256 * self.fmt.vector_bytes(self.d)
    }
    /// Byte offset, in a page, of a vector's elements, where they are in one piece (not keys of rotated formats).
    pub fn vector_at(&self, plane: u32, head: u32, at: u32) -> u64 {
        self.block_at(plane, head) + at as u64 * self.fmt.code_bytes(self.d)
    }
    /// Byte offset, in a page, of a vector's scale. Behind all elements where the format has none.
    pub fn scale_at(&self, plane: u32, head: u32, at: u32) -> u64 {
        self.block_at(plane, head) + 256 * self.fmt.code_bytes(self.d) + at as u64 * self.fmt.scale_bytes()
    }
    /// Bytes of the vectors of a head in a page.
    pub fn block_bytes(&self) -> u64 {
        256 * self.fmt.vector_bytes(self.d)
    }
    /// The pages of a [`Side`] of this history.
    pub fn beside(&self, s: &Side) -> StreamView {
        let Side { buf, page_bytes, fmt, ring } = *s;
        StreamView { buf, page_bytes, fmt, ring, own: None, sink: None, ..*self }
    }
    /// Pages of a side that rows read their own page from, when `rows` are written before they are read: as many as
    /// they can lie in.
    pub const fn own_pages(rows: u32) -> u32 {
        ((rows as u64 + 254) / 256 + 1) as u32
    }
}

/// One recurrent layer's states: slot-major `f32[heads, d_k, d_v]` and the last inputs of its convolution.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct RecView {
    /// `f32[slots, n_v_heads, d_k, d_v]`.
    pub state: Buf,
    /// Elements of one slot's state.
    pub state_elems: u32,
    /// `f32[slots, kernel - 1, channels]`, oldest input first.
    pub conv: Buf,
    /// Elements of one slot's convolution window.
    pub conv_elems: u32,
    /// Slots there are.
    pub slots: u32,
}

/// Which elements rotate together.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Pairing {
    /// `(i, i + dims / 2)`: most checkpoints.
    Half,
    /// `(2i, 2i + 1)`: GGUF files of the llama architecture.
    Adjacent,
}

/// Rotary position embedding of the first `dims` columns of a head. Angles are computed, not tabled: the angle of
/// pair i at position p is the f32 product `p * inv_freq[i]`; cosine and sine are multiplied by `factor`.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Rope {
    /// Pairing of the columns.
    pub pairing: Pairing,
    /// Columns that rotate.
    pub dims: u32,
    /// `f32[dims / 2]`: base frequencies with any scaling already in them.
    pub inv_freq: Buf,
    /// Attention factor (YaRN), 1 elsewhere.
    pub factor: f32,
}

/// Elementwise gates.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum ActFn {
    /// `1 / (1 + e^-g)`.
    Sigmoid,
    /// `g * sigmoid(g)`.
    Silu,
}

/// Which key head serves value head `j` of a gated delta rule.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum KeyHeadRule {
    /// `j / (n_v / n_k)`: Hugging Face files.
    Div,
    /// `j % n_k`: GGUF files of qwen35 and qwen35moe.
    Mod,
}

/// Head geometry of a gated delta rule.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct GdnShape {
    /// Key heads.
    pub n_k: u32,
    /// Value heads.
    pub n_v: u32,
    /// Width of a key head.
    pub d_k: u32,
    /// Width of a value head.
    pub d_v: u32,
    /// Which key head a value head uses.
    pub rule: KeyHeadRule,
}

impl GdnShape {
    /// Channels of the convolution: queries, keys, values.
    pub fn channels(&self) -> u32 {
        2 * self.n_k * self.d_k + self.n_v * self.d_v
    }
}

/// How router logits become expert ids and weights.
///
/// Experts are chosen by `score(logit) + bias`, those outside the best groups left out; the weight of a chosen one is
/// `score / sum * scale * per_expert`, the sum being that of the chosen scores with `renormalise` and 1 without.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Router {
    /// Experts chosen per row. Ties go to the lower id.
    pub k: u32,
    /// The scores.
    pub score: RouterScore,
    /// `f32[E]`, added for choosing only: it is in no weight.
    pub bias: Option<Buf>,
    /// Groups that compete before experts do.
    pub groups: Option<Groups>,
    /// Whether the chosen weights are divided by their sum. For softmax that is softmax over the chosen alone.
    pub renormalise: bool,
    /// Multiplies every weight.
    pub scale: f32,
    /// `f32[E]`: multiplies the weights of an expert.
    pub per_expert: Option<Buf>,
}

impl Router {
    /// The `k` greatest of a softmax over all experts, as they are.
    pub fn softmax(k: u32) -> Self {
        let (score, bias, groups, per_expert) = (RouterScore::Softmax, None, None, None);
        Router { k, score, bias, groups, renormalise: false, scale: 1.0, per_expert }
    }
}

/// Router scores.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum RouterScore {
    /// Softmax over all experts.
    Softmax,
    /// Each logit's own `1 / (1 + e^-x)`. `1e-20` is added to the sum that weights are divided by.
    Sigmoid,
}

/// Experts in groups of equal size: only those of the `keep` best groups can be chosen. A group counts as the sum of the
/// two greatest `score + bias` in it; ties go to the lower group.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct Groups {
    /// Groups.
    pub n: u32,
    /// Of which experts may be chosen.
    pub keep: u32,
}

/// What routing decided for some rows, by rank: falling `score + bias`.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Routing {
    /// `i32[n, k]` expert ids.
    pub ids: View,
    /// `f32[n, k]` weights.
    pub w: View,
}

/// Which experts of the routing a group computes.
#[derive(Clone, Debug, PartialEq)]
pub enum Pick {
    /// Every one that the routing names; the device reads the ids.
    All,
    /// These experts (ascending, each once), known on the host because they were fetched by it.
    Experts(Vec<u32>),
}

/// Which half of an expert is computed.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// `mid = glu(gate h, up h)`.
    GateUp,
    /// `dst <- down mid`.
    Down,
    /// One after the other.
    Both,
}

/// Where expert outputs go.
#[derive(Copy, Clone, Debug, PartialEq)]
pub enum Acc {
    /// Few: `f32[n, k, H]`, each output unweighted in the place of its (row, rank), summed later by [`Op::Combine`].
    Parts(View),
    /// Many: `f32[n, H] += weight * output`, experts in ascending id.
    Sum(View),
}

/// One operation. `out` never overlaps an input unless the op says so.
#[derive(Clone, Debug, PartialEq)]
#[allow(clippy::large_enum_variant, reason = "a few hundred ops a step, each moved once; boxing would allocate")]
pub enum Op {
    /// `out[n, H] = scale * table[ids]`. An id outside the table gives a row of zeros.
    Embed {
        /// `f32[n, H]`.
        out: View,
        /// `[vocab, H]`.
        table: Mat,
        /// `i32[n, 1]`.
        ids: View,
        /// Multiplies every element.
        scale: f32,
    },
    /// `out = x * rsqrt(mean(x^2) + eps) * w`, over the columns of each (row, head). In place allowed.
    RmsNorm {
        /// Shape of `x`.
        out: View,
        /// `f32[n, heads, d]`.
        x: View,
        /// `f32[d]`, all ones where absent.
        w: Option<Buf>,
        /// Added to the mean of squares.
        eps: f32,
    },
    /// `out = x w^T (+ bias)`, or `out += ...` with `add`.
    Linear {
        /// `f32[n, N]`.
        out: View,
        /// `f32[n, K]`.
        x: View,
        /// `[N, K]`.
        w: Mat,
        /// `f32[N]`.
        bias: Option<Buf>,
        /// Whether the product is added to `out`.
        add: bool,
        /// Role of the rows.
        class: RowClass,
    },
    /// Rotates `x[n, heads, d]` in place.
    Rope {
        /// `f32[n, heads, d]`.
        x: View,
        /// `i32[n, 1]`.
        pos: View,
        /// The rotation.
        rope: Rope,
    },
    /// `x *= act(g)` in place; a `g` with one column per (row, head) is broadcast over the columns.
    Gate {
        /// `f32[n, heads, d]`.
        x: View,
        /// `f32[n, heads, d]` or `f32[n, heads, 1]`.
        g: View,
        /// The nonlinearity.
        act: ActFn,
    },
    /// `out = act(gate) * up`. `out` may be `gate` or `up`.
    Glu {
        /// `f32[n, I]`.
        out: View,
        /// `f32[n, I]`.
        gate: View,
        /// `f32[n, I]`.
        up: View,
        /// The nonlinearity.
        glu: Glu,
    },
    /// `x += y` in place.
    Add {
        /// `f32[n, H]`.
        x: View,
        /// `f32[n, H]`.
        y: View,
    },
    /// `x = 0`.
    Zero {
        /// `f32[n, heads, d]`.
        x: View,
    },
    /// `x *= by` in place: one number, or one per column.
    Scale {
        /// `f32[n, heads, d]`.
        x: View,
        /// `f32[1]` or `f32[d]`.
        by: Buf,
    },
    /// `x = cap * tanh(x / cap)` in place.
    Softcap {
        /// `f32[n, heads, d]`.
        x: View,
        /// The limit.
        cap: f32,
    },
    /// Encodes keys and values at the rows' positions, in room that was reserved for them.
    Append {
        /// Where.
        st: StreamView,
        /// Whose.
        rows: Rows,
        /// `f32[n, n_kv_heads, d]`, after norm and rotation.
        k: View,
        /// `f32[n, n_kv_heads, d]`.
        v: View,
    },
    /// Causal attention over the sequence's own history up to and including the row itself, which must have been
    /// appended. Query head h uses key head `h / (heads / n_kv_heads)`.
    Attention {
        /// `f32[n, heads, d]`.
        out: View,
        /// `f32[n, heads, d]`.
        q: View,
        /// History.
        st: StreamView,
        /// Rows.
        rows: Rows,
        /// Multiplies every score.
        scale: f32,
        /// Position j is visible to i only if `i - j < window`.
        window: Option<u32>,
        /// Positions before this one are visible to nobody but themselves.
        since: u32,
        /// `f32[heads]`: one more logit per head in the softmax, whose share is dropped.
        sinks: Option<Buf>,
    },
    /// `out_t[c] = silu(sum_i w[c, i] * x_{t - kernel + 1 + i}[c])`: causal depthwise convolution per sequence, inputs
    /// before the first row from the window of its recurrent slot. The windows after rows go to `rec_to`.
    ConvSilu {
        /// `f32[n, channels]`.
        out: View,
        /// `f32[n, channels]`.
        x: View,
        /// `f32[channels, kernel]`.
        w: Buf,
        /// Taps.
        kernel: u32,
        /// States.
        st: RecView,
        /// Rows.
        rows: Rows,
    },
    /// The gated delta rule (arXiv 2412.06464) of each sequence: q, k of unit length (eps 1e-6), q scaled by `d_k^-0.5`;
    /// `g = decay * softplus(a + dt)`, `beta = sigmoid(b)`;
    /// `S <- e^g S; S <- S + k (beta (v - S^T k))^T; out = S^T q`. The states after rows go to `rec_to`.
    GatedDelta {
        /// `f32[n, n_v, d_v]`.
        out: View,
        /// `f32[n, channels]`: queries, keys, values.
        qkv: View,
        /// `f32[n, n_v]`.
        a: View,
        /// `f32[n, n_v]`.
        b: View,
        /// `f32[n_v]`: `-exp(A_log)`.
        decay: Buf,
        /// `f32[n_v]`.
        dt: Buf,
        /// Geometry.
        g: GdnShape,
        /// States.
        st: RecView,
        /// Rows.
        rows: Rows,
    },
    /// `out_t = x_{t-1}`: each row takes the one before it in its sequence, the first row what the recurrent slot
    /// keeps. The rows themselves go to `rec_to`.
    Shift {
        /// `f32[n, H]`.
        out: View,
        /// `f32[n, H]`.
        x: View,
        /// A state is one row; there is no convolution.
        st: RecView,
        /// Rows.
        rows: Rows,
    },
    /// Router logits to expert ids and weights, by rank.
    Route {
        /// `ids` `i32[n, k]`, `w` `f32[n, k]`.
        out: Routing,
        /// `f32[n, E]`.
        logits: View,
        /// The rule.
        router: Router,
    },
    /// Some experts of a routing on the rows that chose them.
    ExpertGroup {
        /// Where outputs go.
        dst: Acc,
        /// `f32[n * k, I]`: the intermediate of (row, rank) in row `row * k + rank`.
        mid: View,
        /// `f32[n, H]`.
        h: View,
        /// Who chose what.
        routed: Routing,
        /// The weights.
        e: ExpertMats,
        /// Which experts.
        pick: Pick,
        /// Which half.
        part: Part,
        /// Role of the rows.
        class: RowClass,
    },
    /// `out = base + sum_r w[r] * parts[r]`, summed in rank order from 0 and then added to `base`. `out` may be `base`.
    Combine {
        /// `f32[n, H]`.
        out: View,
        /// `f32[n, H]`.
        base: View,
        /// `f32[n, k, H]`.
        parts: View,
        /// `f32[n, k]`.
        w: View,
    },
    /// `out[i] = x[rows[i]]`.
    GatherRows {
        /// `f32[m, H]`.
        out: View,
        /// `f32[n, H]`.
        x: View,
        /// `i32[m, 1]`.
        rows: View,
    },
    /// The likeliest ids of each row, falling, of equals the lowest first, as many as half the columns of `out`: first the
    /// ids, then the bits of their logits. Id -1 where no more logits are numbers above negative infinity.
    Likeliest {
        /// `i32[n, 2 k]`, k up to [`LIKELIEST`].
        out: View,
        /// `f32[n, vocab]`.
        x: View,
    },
}

/// Most ids of [`Op::Likeliest`].
pub const LIKELIEST: u32 = 64;

impl Op {
    /// Name in profiles and errors.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Embed { .. } => "embed",
            Op::RmsNorm { .. } => "rms_norm",
            Op::Linear { .. } => "linear",
            Op::Rope { .. } => "rope",
            Op::Gate { .. } => "gate",
            Op::Glu { .. } => "glu",
            Op::Add { .. } => "add",
            Op::Zero { .. } => "zero",
            Op::Scale { .. } => "scale",
            Op::Softcap { .. } => "softcap",
            Op::Append { .. } => "append",
            Op::Attention { .. } => "attention",
            Op::ConvSilu { .. } => "conv_silu",
            Op::GatedDelta { .. } => "gated_delta",
            Op::Shift { .. } => "shift",
            Op::Route { .. } => "route",
            Op::ExpertGroup { .. } => "expert_group",
            Op::Combine { .. } => "combine",
            Op::GatherRows { .. } => "gather_rows",
            Op::Likeliest { .. } => "likeliest",
        }
    }
}

/// The `k` likeliest ids of a row with their logits, as [`Op::Likeliest`] orders them.
pub fn likeliest(row: &[f32], k: usize) -> Vec<(u32, f32)> {
    let numbers = row.iter().enumerate().filter(|(_, x)| **x > f32::NEG_INFINITY);
    let mut numbers = numbers.map(|(i, x)| (i as u32, *x));
    let falling = |a: &(u32, f32), b: &(u32, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
    if k == 1 {
        let first = numbers.next().map(|f| numbers.fold(f, |a, b| if b.1.total_cmp(&a.1).is_gt() { b } else { a }));
        return first.into_iter().collect();
    }
    let mut all: Vec<(u32, f32)> = numbers.collect();
    if k < all.len() {
        all.select_nth_unstable_by(k, falling);
        all.truncate(k);
    }
    all.sort_unstable_by(falling);
    all
}

/// Bytes from row to row of a matrix in the plane of its codes.
pub fn row_stride(m: &Mat) -> Option<u64> {
    row_bytes(m)?.checked_mul(m.row_step as u64)
}

/// Bytes of each plane of a matrix from its first to behind its last row, `None` when the format has no rows of that
/// width, or no rows in turn because several share a part of a plane.
pub fn extents(m: &Mat) -> Option<[Option<u64>; checkpoint::PLANES]> {
    let (n, step) = (m.n as u64, m.row_step as u64);
    if m.layout == crate::Layout::Split {
        let stored = n.saturating_sub(1).checked_mul(step)? + (n > 0) as u64;
        let [codes, high, scales] = crate::split::row_parts(&m.fmt, m.k)?.map(|p| (p > 0).then_some(p * stored));
        return Some([codes, high, scales, None]);
    }
    let mut all = m.fmt.planes(m.k.into()).ok()?.map(|cut| cut.map(|c| (c, c.total(n))));
    for (cut, total) in all.iter_mut().flatten().filter(|(cut, _)| step != 1 && n > 0 && cut.rows != 0) {
        if cut.rows != 1 {
            return None;
        }
        *total = cut.bytes.checked_mul(step)?.checked_mul(n - 1)?.checked_add(cut.bytes)?;
    }
    Some(all.map(|plane| plane.map(|(_, total)| total)))
}

/// Bytes of one row of a matrix in the plane of its codes, `None` when the format has no rows of that width.
pub fn row_bytes(m: &Mat) -> Option<u64> {
    m.fmt.planes(m.k.into()).ok()?[0].map(|p| p.bytes)
}

/// Bytes of a matrix over all planes, `None` when the format has no rows of that width.
pub fn mat_bytes(m: &Mat) -> Option<u64> {
    let planes = m.fmt.planes(m.k.into()).ok()?;
    Some(planes.iter().flatten().map(|p| p.total(m.n.into())).sum())
}
