// Routed experts. Few rows: a warp per pair of outputs of one (row, rank), experts named by ids on the device.
// Many rows: entries (row, rank) sorted by expert for the grouped products of gemm.cu, then summed by ascending id.
#include "dot.cuh"

struct MatSet { Mat first; u64 step[3]; int slots, pad; };
DEV Mat slot_of(const MatSet& s, long slot) {
  Mat m = s.first;
  m.q += slot * s.step[0];
  m.h += slot * s.step[1];
  m.s += slot * s.step[2];
  return m;
}

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

static constexpr int WARPS = 4;

template <int F> DEV float block_dot(const Mat& m, int n, const Fifteen& x, long row) {
  int lane = threadIdx.x & 31, groups = m.k / 32;
  float acc = 0.f;
  for (int g = lane; g < groups; g += 32) acc = group_dot<F>(decode<F>(m, n, g, groups), load15(x, row, g, groups), acc);
  return warp_sum(acc);
}
template <int F> DEV float float_dot(const Mat& m, int n, const float* x) {
  int lane = threadIdx.x & 31;
  float acc = 0.f;
  for (int i = lane; i < m.k; i += 32) acc = fmaf(plain<F>(m.q, (long)n * m.step * m.k + i), x[i], acc);
  return warp_sum(acc);
}

// Biases are [experts, outputs], null where absent.
struct GateUpArgs { View mid, h; Fifteen q; MatSet gate, up; Chosen c; const float *gate_bias, *up_bias; GluKind glu; int pad; };
template <int F> DEV void gate_up(const GateUpArgs& a) {
  int i = blockIdx.x * WARPS + (threadIdx.x >> 5), entry = blockIdx.y, row = entry / a.c.k;
  int s = slot(a.c, row, entry % a.c.k);
  if (i >= a.mid.cols || s < 0) return;
  Mat gate = slot_of(a.gate, s), up = slot_of(a.up, s);
  float g, u;
  if (F <= BF16) {
    g = float_dot<F <= BF16 ? F : F32>(gate, i, f32(a.h, row, 0));
    u = float_dot<F <= BF16 ? F : F32>(up, i, f32(a.h, row, 0));
  } else {
    int lane = threadIdx.x & 31, groups = gate.k / 32;
    g = u = 0.f;
    for (int j = lane; j < groups; j += 32) {
      Raw rg = load<F>(gate, i, j, groups), ru = load<F>(up, i, j, groups);
      Row15 x = load15(a.q, row, j, groups);
      g = group_dot<F>(codes<F>(rg, j), x, g);
      u = group_dot<F>(codes<F>(ru, j), x, u);
    }
    g = warp_sum(g);
    u = warp_sum(u);
  }
  if ((threadIdx.x & 31) == 0) {
    long b = (long)i32(a.c.ids, row)[entry % a.c.k] * a.mid.cols + i;
    if (a.gate_bias) g += a.gate_bias[b];
    if (a.up_bias) u += a.up_bias[b];
    f32(a.mid, entry, 0)[i] = glu_of(a.glu, g, u);
  }
}

struct DownArgs { View parts, mid; Fifteen q; MatSet down; Chosen c; const float* bias; };
template <int F> DEV void down(const DownArgs& a) {
  int i = blockIdx.x * WARPS + (threadIdx.x >> 5), entry = blockIdx.y, row = entry / a.c.k, rank = entry % a.c.k;
  int s = slot(a.c, row, rank);
  if (i >= a.parts.cols || s < 0) return;
  Mat m = slot_of(a.down, s);
  float y = F <= BF16 ? float_dot<F <= BF16 ? F : F32>(m, i, f32(a.mid, entry, 0)) : block_dot<F <= BF16 ? Q4_0 : F>(m, i, a.q, entry);
  if ((threadIdx.x & 31) == 0)
    f32(a.parts, row, rank)[i] = a.bias ? y + a.bias[(long)i32(a.c.ids, row)[rank] * a.parts.cols + i] : y;
}
#define EXPERTS(NAME, F)                                                                            \
  extern "C" __global__ void __launch_bounds__(128) gate_up_##NAME(GateUpArgs a) { gate_up<F>(a); } \
  extern "C" __global__ void __launch_bounds__(128) down_##NAME(DownArgs a) { down<F>(a); }
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

// Entries in ascending (expert, row, rank), and tiles of at most `tile` of them with one expert each.
// tiles: (slot, first entry in `order`, entries), count[0] = tiles. One block; 4 bytes of shared memory an expert.
struct SortArgs { Chosen c; int *order, *count; int4* tiles; int n, tile; };
extern "C" __global__ void expert_sort(SortArgs a) {
  extern __shared__ int start[];
  int entries = a.n * a.c.k, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  auto expert = [&](int i) {
    int e = i32(a.c.ids, i / a.c.k)[i % a.c.k];
    return e >= 0 && e < a.c.experts && picked(a.c.pick, e) ? e : -1;
  };
  for (int e = threadIdx.x; e < a.c.experts; e += blockDim.x) start[e] = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < entries; i += blockDim.x)
    if (expert(i) >= 0) atomicAdd(&start[expert(i)], 1);
  __syncthreads();
  if (threadIdx.x == 0) {
    int at = 0, tiles = 0;
    for (int e = 0; e < a.c.experts; e++) {
      int n = start[e], s = a.c.slot_of ? a.c.slot_of[e] : e;
      start[e] = at;
      for (int i = 0; i < n && s >= 0; i += a.tile) a.tiles[tiles++] = make_int4(s, at + i, min(a.tile, n - i), e);
      at += n;
    }
    a.count[0] = tiles;
  }
  __syncthreads();
  for (int e = warp; e < a.c.experts; e += blockDim.x / 32) {
    int at = start[e], end = e + 1 < a.c.experts ? start[e + 1] : entries;
    for (int i = 0; i < entries && at < end; i += 32) {
      bool mine = i + lane < entries && expert(i + lane) == e;
      u32 who = __ballot_sync(FULL, mine);
      if (mine) a.order[at + __popc(who & ((1u << lane) - 1))] = i + lane;
      at += __popc(who);
    }
  }
}

// sum[row] += w * part over the picked experts of a row, ascending by id.
struct SumArgs { View sum, parts; Chosen c; };
extern "C" __global__ void expert_sum(SumArgs a) {
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
