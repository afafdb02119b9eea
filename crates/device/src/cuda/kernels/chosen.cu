// A mixture's experts of few rows in two kernels, in four-bit blocks: the choice (of one row; more rows have it made before, because
// every block would make it) and the first half; the second half, the sum over
// experts, the shared expert and the residual stream. What is behind the norm, the router and the shared expert's first products are
// one kernel before them (stream.cu).
//
// Every block asks for all of its weights at once, as soon as it knows whose.
#include "fifteen.cuh"
#include "routing.cuh"
#include "set.cuh"
#include "tiles.cuh"

// Upper or lower bytes of the codes of a row's group, and what belongs to the group, as `meet` wants them.
DEV void codes_of(const Fifteen& q, long row, int groups, int group, int g, bool own, uint4 (&x)[1][2], float2 (&meta)[1]) {
  const uint4* plane = (g & 1 ? q.lo : q.hi) + row * 2 * groups + group;
  x[0][0] = own ? plane[0] : make_uint4(0, 0, 0, 0);
  x[0][1] = own ? plane[groups] : make_uint4(0, 0, 0, 0);
  meta[0] = q.meta[row * groups + group];
}

// `gate`, `up` of each expert meet codes `q` of the rows; codes of what they make go to `to`, by entry (row, rank). What the shared
// expert's have made already goes through the same unit, codes to `shared_to`.
struct ChosenUpArgs { RouteArgs route; Fifteen q, to, shared_to; MatSet gate, up; View shared_gate, shared_up; GluKind glu; int chosen; };
static constexpr int UP_WARPS = 8, UP_TILES = 2;  // of gate, and as many of up

// A block has 32 outputs of one (row, rank): eight warps two tiles of gate, eight two of up; each eight share the columns. Blocks
// behind those of the last rank have sixteen groups of the shared expert.
template <int F> DEV void chosen_up(const ChosenUpArgs& a) {
  constexpr int WEIGHTS = weight_bytes<F>();
  extern __shared__ __align__(128) u8 mem[];
  __shared__ float part[2][UP_TILES][UP_WARPS][OUTPUTS];
  __shared__ Choice choice;
  int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, upper = warp / UP_WARPS, share = warp % UP_WARPS, g = lane >> 2, t = lane & 3, row = blockIdx.y;
  int wide = a.gate.first.n / 32, rank = blockIdx.x / wide, unit = blockIdx.x % wide, k = a.route.k;
  u32 low = low_numbers();
  // What follows may ask for the router's logits before this has ended: they are there when it begins.
  ready();
  early();
  if (rank >= k) {
    int group = (blockIdx.x - k * wide) * 2 * UP_WARPS + warp, groups = a.shared_gate.cols / 32;
    if (group >= groups) return;
    int c = 32 * group + lane;
    quantise_group(a.shared_to, row, group, groups, glu_of(a.glu, f32(a.shared_gate, row, 0)[c], f32(a.shared_up, row, 0)[c]));
    return;
  }
  if (a.chosen) chosen_of(a.route, row, choice);
  else route_of(a.route, row, choice);
  Mat m = slot_of(upper ? a.up : a.gate, choice.expert[rank]);
  int groups = m.k / 32;
  u8* own_mem = mem + warp * UP_TILES * WEIGHTS;
  bool own = t == g >> 1;
#pragma unroll 1
  for (int c = share; c * GROUPS < groups; c += UP_WARPS) {
#pragma unroll
    for (int i = 0; i < UP_TILES; i++) {
      long from = 32L * unit + OUTPUTS * i;
      ask_tile<F>(smem_of(own_mem) + i * WEIGHTS, codes_from<F>(m, from, c * GROUPS, lane), scales_from<F>(m, from, c * GROUPS, lane), groups, lane);
    }
    commit();
    uint4 x[2][1][2];
    float2 meta[2][1];
#pragma unroll
    for (int u = 0; u < 2; u++) codes_of(a.q, row, groups, c * GROUPS + 4 * u + t, g, own, x[u], meta[u]);
    wait_all();
    __syncwarp();
    // One tile after the other: code that is fetched for one use costs more.
#pragma unroll 1
    for (int i = 0; i < UP_TILES; i++) {
      float acc[2][1] = {};
#pragma unroll
      for (int u = 0; u < 2; u++) meet<F, 1>(own_mem + i * WEIGHTS, 4 * u, g, t, x[u], meta[u], low, acc);
#pragma unroll
      for (int r = 0; r < 2; r++) {
        float y = four_lanes(acc[r][0]);
        if (t == 0) part[upper][i][share][g + 8 * r] = c == share ? y : part[upper][i][share][g + 8 * r] + y;
      }
    }
    __syncwarp();
  }
  __syncthreads();
  if (!a.chosen && blockIdx.x == 0 && warp == 1 && lane < k) {
    i32(a.route.ids, row)[lane] = choice.expert[lane];
    f32(a.route.w, row, 0)[lane] = choice.weight(a.route, lane);
  }
  if (warp > 0) return;
  float y[2] = {0.f, 0.f};
#pragma unroll
  for (int half = 0; half < 2; half++)
#pragma unroll
    for (int i = 0; i < UP_WARPS; i++)
      if (i * GROUPS < groups) y[half] += part[half][lane >> 4][i][lane & 15];
  quantise_group(a.to, (long)row * k + rank, unit, wide, glu_of(a.glu, y[0], y[1]));
}

// x += sum over ranks of w * (down * codes of the entry) + sigmoid(shared_by) * (shared * codes of the row).
struct ChosenDownArgs { RouteArgs route; Fifteen q, shared_q; MatSet down; Mat shared; View x, sum, shared_by; int chosen, pad; };

// A block has sixteen outputs of a row, a warp of it all columns of one expert, the next warp those of the shared one. Weights are
// asked for while the kernel before computes what they will meet.
template <int F> DEV void chosen_down(const ChosenDownArgs& a) {
  constexpr int WEIGHTS = weight_bytes<F>();
  extern __shared__ __align__(128) u8 mem[];
  __shared__ float part[17][OUTPUTS];
  __shared__ Choice choice;
  early();
  int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3, row = blockIdx.y, k = a.route.k;
  u32 low = low_numbers();
  if (a.chosen) chosen_of(a.route, row, choice);
  else route_of(a.route, row, choice);
  bool routed = warp < k;
  Mat m = routed ? slot_of(a.down, choice.expert[warp]) : a.shared;
  int groups = m.k / 32, stages = groups / GROUPS, most = ::max(a.down.first.k, a.shared.k) / (32 * GROUPS);
  u8* own_mem = mem + warp * most * WEIGHTS;
  if (warp > k) stages = 0;
#pragma unroll 1
  for (int c = 0; c < stages; c++)
    ask_tile<F>(smem_of(own_mem) + c * WEIGHTS, codes_from<F>(m, OUTPUTS * blockIdx.x, c * GROUPS, lane), scales_from<F>(m, OUTPUTS * blockIdx.x, c * GROUPS, lane), groups, lane);
  commit();
  ready();
  const Fifteen& q = routed ? a.q : a.shared_q;
  long entry = routed ? (long)row * k + warp : row;
  bool own = t == g >> 1;
  float acc[2][1] = {};
  bool last = threadIdx.x < OUTPUTS;
  float old = 0.f, by = 0.f;
  if (last) {
    old = f32(a.x, row, 0)[OUTPUTS * blockIdx.x + threadIdx.x];
    by = *f32(a.shared_by, row, 0);
  }
#pragma unroll 1
  for (int c = 0; c < stages; c++) {
    uint4 x[2][1][2];
    float2 meta[2][1];
#pragma unroll
    for (int u = 0; u < 2; u++) codes_of(q, entry, groups, c * GROUPS + 4 * u + t, g, own, x[u], meta[u]);
    if (c == 0) {
      wait_all();
      __syncwarp();
    }
#pragma unroll
    for (int u = 0; u < 2; u++) meet<F, 1>(own_mem + c * WEIGHTS, 4 * u, g, t, x[u], meta[u], low, acc);
  }
#pragma unroll
  for (int r = 0; r < 2; r++) {
    float y = four_lanes(acc[r][0]);
    if (t == 0 && warp <= k) part[warp][g + 8 * r] = y;
  }
  if (!a.chosen && threadIdx.x < k) choice.p[threadIdx.x] = choice.weight(a.route, threadIdx.x);
  __syncthreads();
  if (!last) return;
  float sum = 0.f;
#pragma unroll 1
  for (int r = 0; r < k; r++) sum = fmaf(choice.p[r], part[r][threadIdx.x], sum);
  int c = OUTPUTS * blockIdx.x + threadIdx.x;
  sum = __fadd_rn(__fmul_rn(part[k][threadIdx.x], sigmoid(by)), sum);
  f32(a.sum, row, 0)[c] = sum;
  f32(a.x, row, 0)[c] = old + sum;
}
#define CHOSEN(NAME, F) \
  extern "C" __global__ void __launch_bounds__(64 * UP_WARPS, 2) chosen_up_##NAME(const __grid_constant__ ChosenUpArgs a) { chosen_up<F>(a); } \
  extern "C" __global__ void __launch_bounds__(512) chosen_down_##NAME(const __grid_constant__ ChosenDownArgs a) { chosen_down<F>(a); }
CHOSEN(q4_0, Q4_0)
CHOSEN(mxfp4, MXFP4)
