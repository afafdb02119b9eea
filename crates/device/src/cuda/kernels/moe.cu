// Routed experts. Few rows: a warp per pair of outputs of one (row, rank), experts named by ids on the device.
// Many rows: entries (row, rank) sorted by expert for the grouped products of gemm.cu, then summed by ascending id.
#include "dot.cuh"
#include "set.cuh"

// Which experts the call computes: all, or those whose bit is set.
struct Picked { u32 bits[32]; int all, pad; };
DEV bool picked(const Picked& p, int e) { return p.all || (e < 1024 && p.bits[e >> 5] >> (e & 31) & 1); }

struct Chosen { View ids, w; const int* slot_of; Picked pick; int experts, k; };
// Slot of the expert of entry (row, rank), -1 where this call does not compute it.
DEV int slot(const Chosen& c, int row, int rank) {
  int e = i32(c.ids, row)[rank];
  if (e < 0 || e >= c.experts || !picked(c.pick, e)) return -1;
  return c.slot_of ? c.slot_of[e] : e;
}

static constexpr int WARPS = 8;

template <int F> DEV float float_dot(const Mat& m, int n, const float* x) {
  int lane = threadIdx.x & 31;
  float acc = 0.f;
  for (int i = lane; i < m.k; i += 32) acc = fmaf(plain<F>(m.q, (long)n * m.step * m.k + i), x[i], acc);
  return warp_sum(acc);
}

// Biases are [experts, outputs], null where absent. `to`: codes of mid, where they are wanted.
struct GateUpArgs { View mid, h; Fifteen q, to; MatSet gate, up; Chosen c; const float *gate_bias, *up_bias; GluKind glu; int pad; };
// A block has 32 outputs of one (row, rank), a warp two of them.
template <int F> DEV void gate_up(const GateUpArgs& a) {
  __shared__ float made[32];
  begin();
  constexpr int EACH = 2;
  int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, i0 = blockIdx.x * 32 + warp * EACH, entry = blockIdx.y, row = entry / a.c.k;
  int s = slot(a.c, row, entry % a.c.k);
  if (s < 0) return;
  Mat gate = slot_of(a.gate, s), up = slot_of(a.up, s);
  float g[EACH] = {}, u[EACH] = {};
  if (F <= BF16) {
    for (int i = 0; i < EACH; i++) {
      if (i0 + i >= a.mid.cols) break;
      g[i] = float_dot<F <= BF16 ? F : F32>(gate, i0 + i, f32(a.h, row, 0));
      u[i] = float_dot<F <= BF16 ? F : F32>(up, i0 + i, f32(a.h, row, 0));
    }
  } else {
    // Weights are asked for a group ahead.
    int groups = gate.k / 32, most = a.mid.cols - 1;
    Raw rg[2][EACH], ru[2][EACH];
    auto fetch = [&](int d, int j) {
#pragma unroll
      for (int i = 0; i < EACH; i++) {
        rg[d][i] = load<F>(gate, min(i0 + i, most), j, groups);
        ru[d][i] = load<F>(up, min(i0 + i, most), j, groups);
      }
    };
    if (lane < groups) fetch(0, lane);
    if (lane + 32 < groups) fetch(1, lane + 32);
#pragma unroll 1
    for (int j = lane; j < groups; j += 32) {
      Row15 x = load15(a.q, row, j, groups);
#pragma unroll
      for (int i = 0; i < EACH; i++) {
        g[i] = group_dot<F>(codes<F>(rg[0][i], j), x, g[i]);
        u[i] = group_dot<F>(codes<F>(ru[0][i], j), x, u[i]);
        rg[0][i] = rg[1][i];
        ru[0][i] = ru[1][i];
      }
      if (j + 64 < groups) fetch(1, j + 64);
    }
#pragma unroll
    for (int i = 0; i < EACH; i++) {
      g[i] = warp_sum(g[i]);
      u[i] = warp_sum(u[i]);
    }
  }
  if (lane == 0)
#pragma unroll
    for (int i = 0; i < EACH; i++) {
      if (i0 + i >= a.mid.cols) break;
      long b = (long)i32(a.c.ids, row)[entry % a.c.k] * a.mid.cols + i0 + i;
      float x = g[i] + (a.gate_bias ? a.gate_bias[b] : 0.f), y = u[i] + (a.up_bias ? a.up_bias[b] : 0.f);
      made[warp * EACH + i] = f32(a.mid, entry, 0)[i0 + i] = glu_of(a.glu, x, y);
    }
  if (!a.to.hi) return;
  __syncthreads();
  if (warp == 0) quantise_group(a.to, entry, blockIdx.x, a.mid.cols / 32, made[lane]);
}

struct DownArgs { View parts, mid; Fifteen q; MatSet down; Chosen c; const float* bias; };
// Outputs of a lane that are asked for at once.
static constexpr int DOWN = 4;
// A warp has outputs of one (row, rank), DOWN of them beside each other; as many times that as its lanes are enough for where
// rows are narrow.
template <int F> DEV void down(const DownArgs& a) {
  begin();
  int entry = blockIdx.y, row = entry / a.c.k, rank = entry % a.c.k, lane = threadIdx.x & 31;
  int groups = a.down.first.k / 32, lanes = 32;
  if (F > BF16)
    while (lanes > 1 && lanes / 2 >= groups) lanes /= 2;
  int i0 = ((blockIdx.x * WARPS + (threadIdx.x >> 5)) * (32 / lanes) + lane / lanes) * DOWN, most = a.parts.cols - 1;
  int s = slot(a.c, row, rank);
  if (s < 0) return;
  Mat m = slot_of(a.down, s);
  float y[DOWN] = {};
  if (F <= BF16) {
#pragma unroll
    for (int i = 0; i < DOWN; i++) y[i] = float_dot<F <= BF16 ? F : F32>(m, min(i0 + i, most), f32(a.mid, entry, 0));
  } else {
    for (int j = lane & (lanes - 1); j < groups; j += lanes) {
      Raw raw[DOWN];
#pragma unroll
      for (int i = 0; i < DOWN; i++) raw[i] = load<F>(m, min(i0 + i, most), j, groups);
      Row15 x = load15(a.q, entry, j, groups);
#pragma unroll
      for (int i = 0; i < DOWN; i++) y[i] = group_dot<F>(codes<F>(raw[i], j), x, y[i]);
    }
    for (int d = lanes / 2; d > 0; d >>= 1)
#pragma unroll
      for (int i = 0; i < DOWN; i++) y[i] += __shfl_xor_sync(FULL, y[i], d);
  }
  if ((lane & (lanes - 1)) != 0) return;
#pragma unroll
  for (int i = 0; i < DOWN; i++)
    if (i0 + i <= most)
      f32(a.parts, row, rank)[i0 + i] = a.bias ? y[i] + a.bias[(long)i32(a.c.ids, row)[rank] * a.parts.cols + i0 + i] : y[i];
}
#define EXPERTS(NAME, F)                                                                                  \
  extern "C" __global__ void __launch_bounds__(512) gate_up_##NAME(const __grid_constant__ GateUpArgs a) { gate_up<F>(a); } \
  extern "C" __global__ void __launch_bounds__(32 * WARPS) down_##NAME(const __grid_constant__ DownArgs a) { down<F>(a); }
EXPERTS(f32, F32)
EXPERTS(f16, F16)
EXPERTS(bf16, BF16)
EXPERTS(q4_0, Q4_0)
EXPERTS(q4_1, Q4_1)
EXPERTS(q5_0, Q5_0)
EXPERTS(q5_1, Q5_1)
EXPERTS(q8_0, Q8_0)
EXPERTS(q4_k, Q4_K)
EXPERTS(q5_k, Q5_K)
EXPERTS(q6_k, Q6_K)
EXPERTS(iq4_nl, IQ4_NL)
EXPERTS(iq4_xs, IQ4_XS)
EXPERTS(mxfp4, MXFP4)
EXPERTS(affine4, AFFINE4)
EXPERTS(affine8, AFFINE8)

// Entries in ascending (expert, row, rank), and tiles of at most `tile` of them with one expert each.
// tiles: (slot, first entry in `order`, entries, expert), count[0] = tiles; start: where each expert's entries begin.
struct SortArgs { Chosen c; int *order, *count, *start; int4* tiles; int n, tile; };
DEV int expert_of(const SortArgs& a, int i) {
  int e = i32(a.c.ids, i / a.c.k)[i % a.c.k];
  return e >= 0 && e < a.c.experts && picked(a.c.pick, e) ? e : -1;
}
// One block; 4 bytes of shared memory an expert.
extern "C" __global__ void expert_sort(const __grid_constant__ SortArgs a) {
  begin();
  extern __shared__ int held[];
  int entries = a.n * a.c.k;
  for (int e = threadIdx.x; e < a.c.experts; e += blockDim.x) held[e] = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < entries; i += blockDim.x) {
    int e = expert_of(a, i);
    if (e >= 0) atomicAdd(&held[e], 1);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    int at = 0, tiles = 0;
    for (int e = 0; e < a.c.experts; e++) {
      int n = held[e], s = a.c.slot_of ? a.c.slot_of[e] : e;
      a.start[e] = at;
      for (int i = 0; i < n && s >= 0; i += a.tile) a.tiles[tiles++] = make_int4(s, at + i, min(a.tile, n - i), e);
      at += n;
    }
    a.start[a.c.experts] = at;
    a.count[0] = tiles;
  }
}
// A block for each expert finds its entries, in order: each thread looks at four neighbours at a time.
static constexpr int EACH = 4;
extern "C" __global__ void __launch_bounds__(256) expert_order(const __grid_constant__ SortArgs a) {
  __shared__ int sums[8];
  begin();
  int e = blockIdx.x, lane = threadIdx.x & 31, warp = threadIdx.x >> 5, entries = a.n * a.c.k;
  int at = a.start[e], end = a.start[e + 1];
  for (int base = 0; base < entries && at < end; base += 256 * EACH) {
    int first = base + EACH * threadIdx.x, mine = 0;
    bool is[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++) {
      is[i] = first + i < entries && expert_of(a, first + i) == e;
      mine += is[i];
    }
    int before = mine;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
      int y = __shfl_up_sync(FULL, before, d);
      if (lane >= d) before += y;
    }
    __syncthreads();
    if (lane == 31) sums[warp] = before;
    __syncthreads();
    int place = at + before - mine, all = 0;
    for (int w = 0; w < 8; w++) {
      if (w < warp) place += sums[w];
      all += sums[w];
    }
#pragma unroll
    for (int i = 0; i < EACH; i++)
      if (is[i]) a.order[place++] = first + i;
    at += all;
  }
}

// sum[row] += w * part over the picked experts of a row, ascending by id.
struct SumArgs { View sum, parts; Chosen c; };
extern "C" __global__ void expert_sum(const __grid_constant__ SumArgs a) {
  begin();
  int row = blockIdx.y, col = blockIdx.x * blockDim.x + threadIdx.x;
  if (col >= a.sum.cols) return;
  const int* ids = i32(a.c.ids, row);
  float y = f32(a.sum, row, 0)[col];
  for (int done = 0, last = -1; done < a.c.k; done++) {
    int rank = -1, best = 0x7fffffff;
    for (int r = 0; r < a.c.k; r++)
      if (ids[r] > last && ids[r] < best) { best = ids[r]; rank = r; }
    if (rank < 0) break;
    last = best;
    if (slot(a.c, row, rank) >= 0) y = fmaf(f32(a.c.w, row, 0)[rank], f32(a.parts, row, rank)[col], y);
  }
  f32(a.sum, row, 0)[col] = y;
}
