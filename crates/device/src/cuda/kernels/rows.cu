// Ops on rows without weights or history: norms, rotations, gates, sums, gathers, routing.
#include "heads.cuh"
#include "routing.cuh"

extern "C" __global__ void __launch_bounds__(1024) rms_norm(const __grid_constant__ NormArgs a) { norm<ALONE>(a, nullptr, nullptr, blockIdx.x); }
extern "C" __global__ void __launch_bounds__(1024) norm_rope(const __grid_constant__ NormRopeArgs a) { norm<TURNED>(a.norm, &a.rope, nullptr, blockIdx.x); }
extern "C" __global__ void __launch_bounds__(1024) norm_gate(const __grid_constant__ NormGateArgs a) { norm<GATED>(a.norm, nullptr, &a.gate, blockIdx.x); }

extern "C" __global__ void rope(RopeArgs a) {
  begin();
  int pairs = a.dims / 2;
  long i = (long)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= (long)a.x.rows * a.x.heads * pairs) return;
  int j = i % pairs, head = i / pairs % a.x.heads, row = i / pairs / a.x.heads;
  turn(a, row, j, f32(a.x, row, head));
}

// Position of element i of a view, columns fastest. Divisions of 64 bits would be most of what a kernel does.
DEV void place(const View& v, long i, int& row, int& head, int& col) {
  if (i >> 32) {
    col = i % v.cols;
    head = i / v.cols % v.heads;
    row = i / v.cols / v.heads;
  } else {
    u32 at = i, cols = v.cols, heads = v.heads, line = at / cols;
    col = at - line * cols;
    row = line / heads;
    head = line - row * heads;
  }
}

// Where codes are asked for, rows are whole groups and a warp has one of them.
extern "C" __global__ void gate(GateArgs a) {
  begin();
  long i = (long)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= (long)a.x.rows * a.x.heads * a.x.cols) return;
  int r, h, c;
  place(a.x, i, r, h, c);
  float y = f32(a.x, r, h)[c] * act(a.act, f32(a.g, r, h)[a.g.cols == 1 ? 0 : c]);
  f32(a.x, r, h)[c] = y;
  int width = a.x.heads * a.x.cols;
  if (a.to.hi) quantise_group(a.to, r, (h * a.x.cols + c) >> 5, width / 32, y);
}

struct GluArgs { View out, gate, up; Fifteen to; GluKind glu; int pad; };
extern "C" __global__ void glu(GluArgs a) {
  begin();
  long i = (long)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= (long)a.out.rows * a.out.heads * a.out.cols) return;
  int r, h, c;
  place(a.out, i, r, h, c);
  float y = glu_of(a.glu, f32(a.gate, r, h)[c], f32(a.up, r, h)[c]);
  f32(a.out, r, h)[c] = y;
  if (a.to.hi) quantise_group(a.to, r, (h * a.out.cols + c) >> 5, a.out.heads * a.out.cols / 32, y);
}

struct AddArgs { View x, y; };
extern "C" __global__ void add(AddArgs a) {
  begin();
  long i = (long)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= (long)a.x.rows * a.x.heads * a.x.cols) return;
  int r, h, c;
  place(a.x, i, r, h, c);
  f32(a.x, r, h)[c] += f32(a.y, r, h)[c];
}

// x *= by, with `wide` one number per column; x = cap tanh(x / cap); x = 0.
struct ScaleArgs { View x; const float* by; int wide, pad; };
extern "C" __global__ void scale(ScaleArgs a) {
  begin();
  long i = (long)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= (long)a.x.rows * a.x.heads * a.x.cols) return;
  int r, h, c;
  place(a.x, i, r, h, c);
  f32(a.x, r, h)[c] *= a.by[a.wide ? c : 0];
}
struct SoftcapArgs { View x; float cap; int pad; };
extern "C" __global__ void softcap(SoftcapArgs a) {
  begin();
  long i = (long)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= (long)a.x.rows * a.x.heads * a.x.cols) return;
  int r, h, c;
  place(a.x, i, r, h, c);
  float* x = f32(a.x, r, h) + c;
  *x = a.cap * tanhf(*x / a.cap);
}
struct ZeroArgs { View x; };
extern "C" __global__ void zero(ZeroArgs a) {
  begin();
  long i = (long)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= (long)a.x.rows * a.x.heads * a.x.cols) return;
  int r, h, c;
  place(a.x, i, r, h, c);
  f32(a.x, r, h)[c] = 0.f;
}

struct GatherArgs { View out, x, rows; };
extern "C" __global__ void gather_rows(GatherArgs a) {
  begin();
  int row = blockIdx.x, from = *i32(a.rows, row);
  bool there = from >= 0 && from < a.x.rows;
  for (int c = threadIdx.x; c < a.out.cols; c += blockDim.x)
    f32(a.out, row, 0)[c] = there ? f32(a.x, from, 0)[c] : 0.f;
}

struct CombineArgs { View out, base, parts, w; };
// Ranks in order from zero, then the base: one order for any company.
extern "C" __global__ void combine(CombineArgs a) {
  begin();
  int row = blockIdx.y, c = blockIdx.x * blockDim.x + threadIdx.x;
  if (c >= a.out.cols) return;
  float sum = 0.f;
  for (int r = 0; r < a.w.cols; r++) sum = fmaf(f32(a.w, row, 0)[r], f32(a.parts, row, r)[c], sum);
  f32(a.out, row, 0)[c] = f32(a.base, row, 0)[c] + sum;
}

// Few enough experts for a thread each, without groups: a thread counts the choices before its own, which is its rank.
static constexpr int RANKED = 512;
extern "C" __global__ void __launch_bounds__(RANKED) route_ranks(RouteArgs a) {
  __shared__ __align__(16) u32 keys[RANKED];
  __shared__ float weights[RANKED], shared[32];
  begin();
  int row = blockIdx.x, n = a.logits.cols, i = threadIdx.x, lane = i & 31, warp = i >> 5, warps = blockDim.x >> 5;
  float x = i < n ? f32(a.logits, row, 0)[i] : -INF, p;
  if (a.sigmoid) {
    p = sigmoid(x);
  } else {
    float max = warp_max(x);
    if (lane == 0) shared[warp] = max;
    __syncthreads();
    max = warp_max(lane < warps ? shared[lane] : -INF);
    p = i < n ? expf(x - max) : 0.f;
    p /= block_sum(p, shared);
  }
  // Choices as integers that order like them; what is no number orders below everything. Of equals the lowest id comes first.
  float choice = i < n ? p + (a.bias ? a.bias[i] : 0.f) : -INF;
  u32 b = __float_as_uint(choice), mine = choice > -INF ? (b >> 31 ? ~b : b | 0x80000000u) : 0;
  keys[i] = mine;
  __syncthreads();
  int rank = 0;
  for (int j = 0; j < n; j += 4) {  // what is behind the last expert has key 0 and a higher id than all of them
    uint4 k = *(const uint4*)(keys + j);
    rank += k.x > mine || (k.x == mine && j < i);
    rank += k.y > mine || (k.y == mine && j + 1 < i);
    rank += k.z > mine || (k.z == mine && j + 2 < i);
    rank += k.w > mine || (k.w == mine && j + 3 < i);
  }
  bool chosen = i < n && rank < a.k;
  if (chosen) weights[rank] = p;
  __syncthreads();
  if (!chosen) return;
  float total = a.sigmoid ? 1e-20f : 0.f;
  for (int r = 0; r < a.k; r++) total += weights[r];
  i32(a.ids, row)[rank] = i;
  f32(a.w, row, 0)[rank] = p / (a.renormalise ? total : 1.f) * a.scale * (a.per_expert ? a.per_expert[i] : 1.f);
}
// One block per row: scores, then k rounds of "greatest choice left, lowest id first".
extern "C" __global__ void route(RouteArgs a) {
  begin();
  extern __shared__ float p[];  // scores, then choices, then sums of groups
  __shared__ float shared[32];
  __shared__ float best[32];
  __shared__ int where[32];
  int row = blockIdx.x, n = a.logits.cols, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  float *choice = p + n, *sums = p + 2 * n;
  const float* x = f32(a.logits, row, 0);
  if (a.sigmoid) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) p[i] = sigmoid(x[i]);
  } else {
    float max = -INF;
    for (int i = threadIdx.x; i < n; i += blockDim.x) max = fmaxf(max, x[i]);
    max = warp_max(max);
    if (lane == 0) shared[warp] = max;
    __syncthreads();
    max = warp_max(lane < blockDim.x / 32 ? shared[lane] : -INF);
    float sum = 0.f;
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += p[i] = expf(x[i] - max);
    sum = block_sum(sum, shared);
    for (int i = threadIdx.x; i < n; i += blockDim.x) p[i] /= sum;
  }
  for (int i = threadIdx.x; i < n; i += blockDim.x) choice[i] = p[i] + (a.bias ? a.bias[i] : 0.f);
  __syncthreads();
  if (a.groups > 0) {
    int size = n / a.groups;
    for (int g = threadIdx.x; g < a.groups; g += blockDim.x) {
      float first = -INF, second = -INF;
      for (int i = g * size; i < (g + 1) * size; i++) {
        float c = choice[i];
        if (c > first) { second = first; first = c; } else if (c > second) second = c;
      }
      sums[g] = first + (size > 1 ? second : 0.f);
    }
    __syncthreads();
    for (int g = threadIdx.x; g < a.groups; g += blockDim.x) {
      int better = 0;
      for (int o = 0; o < a.groups; o++) better += sums[o] > sums[g] || (sums[o] == sums[g] && o < g);
      if (better >= a.keep)
        for (int i = g * size; i < (g + 1) * size; i++) choice[i] = -INF;
    }
    __syncthreads();
  }
  float total = a.sigmoid ? 1e-20f : 0.f;
  for (int r = 0; r < a.k; r++) {
    float top = -INF;
    int at = 0x7fffffff;
    for (int i = threadIdx.x; i < n; i += blockDim.x)
      if (choice[i] > top) { top = choice[i]; at = i; }
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) {
      float t = __shfl_xor_sync(FULL, top, d);
      int o = __shfl_xor_sync(FULL, at, d);
      if (t > top || (t == top && o < at)) { top = t; at = o; }
    }
    if (lane == 0) { best[warp] = top; where[warp] = at; }
    __syncthreads();
    if (threadIdx.x == 0) {
      for (int i = 1; i < blockDim.x / 32; i++)
        if (best[i] > top || (best[i] == top && where[i] < at)) { top = best[i]; at = where[i]; }
      // Nothing comparable is left (logits that are no numbers): the lowest id that was not taken.
      if (at >= n) for (at = 0; at < n - 1 && choice[at] == -INF; at++) {}
      i32(a.ids, row)[r] = at;
      f32(a.w, row, 0)[r] = p[at];
      total += p[at];
      choice[at] = -INF;
    }
    __syncthreads();
  }
  if (threadIdx.x == 0)
    for (int r = 0; r < a.k; r++) {
      float* w = f32(a.w, row, 0) + r;
      *w = *w / (a.renormalise ? total : 1.f) * a.scale * (a.per_expert ? a.per_expert[i32(a.ids, row)[r]] : 1.f);
    }
}

// The likeliest ids of a row: blocks sort 4,096 logits each in shared memory, one block sorts what they left. A key is a
// logit that orders like an integer, then the id with its bits flipped, so that of equals the lowest id is the greatest.
static constexpr int KEYS = 4096;
struct LikeliestArgs { View out, x; u64* keys; int k, parts; };
DEV u64 key_of(float x, int id) {
  if (!(x > -INF)) return 0;
  u32 b = __float_as_uint(x);
  b = b >> 31 ? ~b : b | 0x80000000u;
  return (u64)b << 32 | (u32)~id;
}
// Falling.
DEV void sort(u64* a) {
  for (int size = 2; size <= KEYS; size *= 2)
    for (int step = size / 2; step > 0; step /= 2) {
      __syncthreads();
      for (int i = threadIdx.x; i < KEYS / 2; i += blockDim.x) {
        int lo = 2 * i - (i & (step - 1)), hi = lo + step;
        u64 x = a[lo], y = a[hi];
        if ((x < y) == ((lo & size) == 0)) { a[lo] = y; a[hi] = x; }
      }
    }
  __syncthreads();
}
// The greatest key of a block, for whoever wants one id only.
DEV u64 greatest(u64 key, u64* shared) {
#pragma unroll
  for (int d = 16; d > 0; d >>= 1) key = ::max(key, __shfl_xor_sync(FULL, key, d));
  if ((threadIdx.x & 31) == 0) shared[threadIdx.x >> 5] = key;
  __syncthreads();
  key = (threadIdx.x & 31) < blockDim.x / 32 ? shared[threadIdx.x & 31] : 0;
#pragma unroll
  for (int d = 16; d > 0; d >>= 1) key = ::max(key, __shfl_xor_sync(FULL, key, d));
  return key;
}
extern "C" __global__ void __launch_bounds__(512) likeliest_parts(LikeliestArgs a) {
  __shared__ u64 keys[KEYS];
  begin();
  int row = blockIdx.y, first = blockIdx.x * KEYS;
  if (a.k == 1) {
    u64 best = 0;
#pragma unroll
    for (int i = 0; i < KEYS / 512; i++) {
      int id = first + threadIdx.x + 512 * i;
      if (id < a.x.cols) best = ::max(best, key_of(f32(a.x, row, 0)[id], id));
    }
    best = greatest(best, keys);
    if (threadIdx.x == 0) a.keys[(long)row * a.parts + blockIdx.x] = best;
    return;
  }
  for (int i = threadIdx.x; i < KEYS; i += blockDim.x) keys[i] = first + i < a.x.cols ? key_of(f32(a.x, row, 0)[first + i], first + i) : 0;
  sort(keys);
  for (int i = threadIdx.x; i < a.k; i += blockDim.x) a.keys[((long)row * a.parts + blockIdx.x) * a.k + i] = keys[i];
}
extern "C" __global__ void __launch_bounds__(512) likeliest_meet(LikeliestArgs a) {
  __shared__ u64 keys[KEYS];
  begin();
  int row = blockIdx.x, all = a.parts * a.k;
  const u64* from = a.keys + (long)row * all;
  if (a.k == 1) {
    u64 best = 0;
    for (int i = threadIdx.x; i < all; i += blockDim.x) best = ::max(best, from[i]);
    best = greatest(best, keys + 32);
    if (threadIdx.x == 0) keys[0] = best;
    __syncthreads();
  } else {
    // What was best so far stays in front of the next ones.
    for (int done = 0; done < all || done == 0;) {
      int stay = done == 0 ? 0 : a.k, n = min(KEYS - stay, all - done);
      __syncthreads();
      for (int i = threadIdx.x; i < KEYS - stay; i += blockDim.x) keys[stay + i] = i < n ? from[done + i] : 0;
      sort(keys);
      done += n;
    }
  }
  for (int i = threadIdx.x; i < a.k; i += blockDim.x) {
    u32 b = keys[i] >> 32;
    b = b >> 31 ? b & 0x7fffffffu : ~b;
    i32(a.out, row)[i] = keys[i] ? (int)~(u32)keys[i] : -1;
    i32(a.out, row)[a.k + i] = keys[i] ? (int)b : 0;
  }
}
