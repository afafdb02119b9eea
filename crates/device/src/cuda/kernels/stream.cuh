// Products of few rows with four-bit blocks: weights come through shared memory, a ring of stages for each warp, and meet the rows'
// codes on whole-number tensor cores (tiles.cuh). A team of warps has sixteen outputs at a time, its warps share their columns.
//
// The rows' codes come through the ring too, and a block is a team; or, where a norm makes the rows, four teams make all of them for
// themselves. Small matrices of floats that meet the same rows go along, and a short convolution may follow one of the matrices.
#pragma once
#include "norm.cuh"
#include "set.cuh"
#include "tiles.cuh"

static constexpr int MOST = 16;                // warps of a block at most
static constexpr int TEAMS = 4;                // teams of a block behind a norm
static constexpr int ROW_BYTES = GROUPS * 72;  // codes and meta of a row's stage
template <int F, int B> DEV constexpr int stage_bytes() { return weight_bytes<F>() + B * ROW_BYTES; }

// One row of each sequence goes through a convolution of four taps behind matrix `which` (none below 0).
struct ConvOf { View out, seq_of, from, to; const float* w; float* state; int which, elems; };
// `f`: matrices of floats, whose outputs count from `first` on; `outputs` of all of them. Without a norm rows are at `set.x`.
struct StreamArgs { SetArgs set; NormArgs norm; One f[SET]; ConvOf conv; int floats, outputs; };

// Where a warp's next stage comes from: it goes through the tiles of its block, and of each through every so-manieth stage.
template <int F> struct Cursor {
  const SetArgs& a;
  const u8 *q, *s;
  int tile, stage, groups, warp, warps, lane, step;
  DEV void enter() {
    if (tile >= a.blocks) return;
    const One& m = one_of(a, tile);
    long row = 16L * (tile - m.first);
    q = codes_from<F>(m.w, row, warp * GROUPS, lane);
    s = scales_from<F>(m.w, row, warp * GROUPS, lane);
  }
  DEV void ask(u32 to) {
    if (tile >= a.blocks) return;
    ask_tile<F>(to, q, s, groups, lane);
    q += warps * (16 * GROUPS);
    s += warps * (scale_bytes<F>() * GROUPS);
    stage += warps;
    if (stage * GROUPS < groups) return;
    stage = warp;
    tile += step;
    enter();
  }
};

// Waits for the other warps of a team, or of four warps that share an output.
DEV void meet_team(int id, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }

// Outputs of float matrices: four warps have one, each the columns that a warp of `linear_f32` has. The last blocks and warps of a
// grid have the fewest tiles and take them first; behind a norm the very last block leaves the rows to others and comes behind all of
// them. What is asked for before the rows are there is all of an output's weights, or (where registers are few) the first of them.
template <int F, int B, bool NORMED> struct Floats {
  static constexpr int D = F == MXFP4 && B == 1 && !NORMED ? 10 : 4, STEP = 512;
  const StreamArgs& a;
  int lane, warp, fours, k;
  float4 ahead[D];
  DEV Floats(const StreamArgs& a) : a(a) {
    lane = threadIdx.x & 31;
    warp = threadIdx.x >> 5;
    fours = blockDim.x >> 7;
    k = NORMED ? a.norm.x.cols : a.set.x.cols;
  }
  DEV int output() const {
    int last = gridDim.x - 1;
    if (!NORMED) return (last - blockIdx.x) * fours + (warp >> 2);
    int block = blockIdx.x == last ? last : last - 1 - blockIdx.x;
    return (fours - 1 - (warp >> 2)) * gridDim.x + block;
  }
  DEV const One& of(int o) const {
    int which = 0;
#pragma unroll
    for (int i = 1; i < SET; i++) which += i < a.floats && o >= a.f[i].first;
    return a.f[which];
  }
  DEV const float* weights(int o) const {
    const One& m = of(o);
    return (const float*)m.w.q + (long)(o - m.first) * m.w.step * k;
  }
  DEV void fetch(const float* w, int i0) {
#pragma unroll
    for (int d = 0; d < D; d++)
      if (i0 + STEP * d < k) ahead[d] = __ldg((const float4*)(w + i0 + STEP * d));
  }
  DEV void before() {
    if (output() < a.outputs) fetch(weights(output()), 4 * (threadIdx.x & 127));
  }
  DEV float4 four(int row, int c, float by) const {
    return NORMED ? Normed<B>::four(a.norm, row, c, by) : *(const float4*)(f32(a.set.x, row, 0) + c);
  }
  DEV void after(int row0, const float* by) {
    __shared__ float part[MOST][B];
    int own = 4 * (threadIdx.x & 127), last = a.set.rows - 1, first = warp & ~3;
#pragma unroll 1
    for (int o = output(); o < a.outputs; o += fours * gridDim.x) {
      float acc[B] = {};
      const float* w = weights(o);
#pragma unroll 1
      for (int i0 = own; i0 < k; i0 += STEP * D) {
        if (o != output() || i0 != own) fetch(w, i0);
#pragma unroll
        for (int d = 0; d < D; d++) {
          int c = i0 + STEP * d;
          if (c >= k) break;
#pragma unroll
          for (int b = 0; b < B; b++) {
            float4 v = ahead[d], x = four(min(row0 + b, last), c, NORMED ? by[b] : 1.f);
            acc[b] = fmaf(v.w, x.w, fmaf(v.z, x.z, fmaf(v.y, x.y, fmaf(v.x, x.x, acc[b]))));
          }
        }
      }
#pragma unroll
      for (int b = 0; b < B; b++) {
        float y = warp_sum(acc[b]);
        if (lane == 0) part[warp][b] = y;
      }
      meet_team(1 + TEAMS + (warp >> 2), 128);
      if (warp == first && lane < B && row0 + lane < a.set.rows) {
        float y = 0.f;
#pragma unroll
        for (int j = 0; j < 4; j++) y += part[first + j][lane];
        const One& m = of(o);
        put(m.out, m.bias, m.add, row0 + lane, o - m.first, y);
      }
      meet_team(1 + TEAMS + (warp >> 2), 128);
    }
  }
};

// The window of one channel of a row's sequence, asked for before the channel is known. Where it lies was there before the step.
struct Window {
  float w[4], past[3];
  int from, to;
  DEV void begin(const ConvOf& a, int row) {
    from = __ldcg(i32(a.from, __ldcg(i32(a.seq_of, row))));
    to = __ldcg(i32(a.to, row));
  }
  DEV void ask(const ConvOf& a, int c, int channels) {
    float4 taps = __ldg((const float4*)a.w + c);
    w[0] = taps.x, w[1] = taps.y, w[2] = taps.z, w[3] = taps.w;
#pragma unroll
    for (int i = 0; i < 3; i++) past[i] = from < 0 ? 0.f : a.state[(long)from * a.elems + i * channels + c];
  }
  // As `conv_silu` has it.
  DEV void put(const ConvOf& a, int row, int c, int channels, float x) {
    float sum = 0.f;
#pragma unroll
    for (int i = 0; i < 3; i++) sum = fmaf(w[i], past[i], sum);
    f32(a.out, row, 0)[c] = silu(fmaf(w[3], x, sum));
    if (to < 0) return;
    float* state = a.state + (long)to * a.elems + c;
    state[0] = past[1];
    state[channels] = past[2];
    state[2 * channels] = x;
  }
};

template <int F, int B, int S, bool NORMED> DEV void stream(const StreamArgs& args) {
  constexpr int WEIGHTS = weight_bytes<F>(), SETS = NORMED ? TEAMS : 1;
  constexpr bool LATE = B > 2;  // no registers are left for a window that waits
  extern __shared__ __align__(128) u8 mem[];
  __shared__ float part[SETS][2][MOST / SETS][OUTPUTS][B], by[B];
  early();
  const SetArgs& a = args.set;
  int warps = (blockDim.x >> 5) / SETS, team = NORMED ? (threadIdx.x >> 5) / warps : 0;
  int lane = threadIdx.x & 31, warp = (threadIdx.x >> 5) - team * warps, g = lane >> 2, t = lane & 3;
  // Tiles go from block to block, then to the next teams.
  int first_tile = team * gridDim.x + blockIdx.x, step = SETS * gridDim.x, own_thread = threadIdx.x - 32 * team * warps;
  int groups = a.m[0].w.k / 32, stages = groups / GROUPS, row0 = blockIdx.y * B;
  // Bytes of a stage, and from row to row and plane to plane of the codes.
  constexpr int each = WEIGHTS + (NORMED ? 0 : B * ROW_BYTES);
  int next_row = NORMED ? row_bytes(groups) : ROW_BYTES;
  int half = NORMED ? 16 * groups : 128, lower = NORMED ? 32 * groups + 64 : 256, metas = NORMED ? 64 * groups + 64 : 512;
  u8* ring = mem + (NORMED ? B * next_row : 0) + (threadIdx.x >> 5) * S * each;
  // A warp without a stage has no tile either.
  Cursor<F> next{a, nullptr, nullptr, warp < stages ? first_tile : a.blocks, warp, groups, warp, warps, lane, step};
  next.enter();
#pragma unroll
  for (int i = 0; i < S - 1; i++) {
    next.ask(smem_of(ring) + i * each);
    if (NORMED) commit();
  }
  // Codes of rows: two planes of two halves of eight groups each, of which a lane has a piece, and meta.
  const u8* codes_at = (const u8*)((lane >> 4 ? a.q.lo : a.q.hi) + (lane >> 3 & 1) * groups + (lane & 7));
  const u8* meta_at = (const u8*)(a.q.meta + 2 * (lane & 3));
  int stage = warp;
  auto ask_rows = [&](int slot) {
    u32 to = smem_of(ring) + slot * each + WEIGHTS + lane * 16;
    if (warp < stages) {
#pragma unroll
      for (int b = 0; b < B; b++) {
        long row = min(row0 + b, a.rows - 1);
        copy_near<16>(to + b * ROW_BYTES, codes_at + (row * 2 * groups + stage * GROUPS) * 16);
        if (lane < 4) copy_near<16>(to + b * ROW_BYTES + 512, meta_at + (row * groups + stage * GROUPS) * 8);
      }
    }
    stage = stage + warps < stages ? stage + warps : warp;
    commit();
  };
  int row = row0 + own_thread / OUTPUTS;
  bool first_rows = own_thread < OUTPUTS * B && row < a.rows;
  Window window;
  if (args.conv.which >= 0 && first_rows) window.begin(args.conv, row);
  Floats<F, B, NORMED> floats(args);
  if (NORMED) {
    Normed<B> norm(args.norm);
    norm.before();
    if (args.outputs > 0) floats.before();
    ready();
    norm.after(mem, row0, blockIdx.x == gridDim.x - 1, by);
  } else {
    if (args.outputs > 0) floats.before();
    ready();
#pragma unroll
    for (int i = 0; i < S - 1; i++) ask_rows(i);
  }
  if (args.outputs > 0) floats.after(row0, by);
  bool own = t == g >> 1;
  uint4 x[B][2];
#pragma unroll
  for (int b = 0; b < B; b++) x[b][0] = x[b][1] = make_uint4(0, 0, 0, 0);
  u32 low = low_numbers();
  int slot = 0, buf = 0;
#pragma unroll 1
  for (int tile = first_tile; tile < a.blocks; tile += step) {
    float acc[2][B] = {};
    int which = which_of(a, tile);
    const One& m = a.m[which];
    int out = OUTPUTS * (tile - m.first) + own_thread % OUTPUTS;
    bool convolved = first_rows && which == args.conv.which;
    if (!LATE && convolved) window.ask(args.conv, out, m.w.n);
#pragma unroll 1
    for (int c = warp; c < stages; c += warps) {
      wait_but<S - 2>();
      __syncwarp();
      const u8* at = ring + slot * each;
      const u8* codes = NORMED ? mem + 16 * GROUPS * c : at + WEIGHTS;
      const u8* meta_of = NORMED ? mem + metas + 8 * GROUPS * c : at + WEIGHTS + metas;
#pragma unroll
      for (int u = 0; u < GROUPS; u += 4) {
        float2 meta[B];
#pragma unroll
        for (int b = 0; b < B; b++) {
          const u8* from = codes + b * next_row + (g & 1) * lower + 16 * (u + t);
          if (own) {
            x[b][0] = *(const uint4*)from;
            x[b][1] = *(const uint4*)(from + half);
          }
          meta[b] = *(const float2*)(meta_of + b * next_row + 8 * (u + t));
        }
        meet<F, B>(at, u, g, t, x, meta, low, acc);
      }
      __syncwarp();
      int free = slot == 0 ? S - 1 : slot - 1;
      next.ask(smem_of(ring) + free * each);
      if (NORMED) commit();
      else ask_rows(free);
      slot = slot == S - 1 ? 0 : slot + 1;
    }
#pragma unroll
    for (int b = 0; b < B; b++)
#pragma unroll
      for (int r = 0; r < 2; r++) {
        float y = four_lanes(acc[r][b]);
        if (t == 0) part[team][buf][warp][g + 8 * r][b] = y;
      }
    // Two sets of partial sums: whoever is a tile ahead has passed here once more.
    if (NORMED) meet_team(1 + team, 32 * warps);
    else __syncthreads();
    if (LATE && convolved) window.ask(args.conv, out, m.w.n);
    if (first_rows) {
      float y = 0.f;
      for (int i = 0; i < warps; i++) y += part[team][buf][i][own_thread % OUTPUTS][own_thread / OUTPUTS];
      put(m.out, m.bias, m.add, row, out, y);
      if (convolved) window.put(args.conv, row, out, m.w.n, y);
    }
    buf ^= 1;
  }
  wait_all();
}
