// The choice of experts by one block, wherever a kernel needs it: cheaper than a kernel of its own and the wait for it.
#pragma once
#include "common.cuh"

struct RouteArgs {
  View ids, w, logits;
  const float *bias, *per_expert;  // null where absent
  int k, renormalise, sigmoid, groups, keep;
  float scale;
};
// Experts that 256 threads choose among, and most that they choose.
static constexpr int CHOOSERS = 256, CHOSEN_MOST = 16;
struct Choice {
  float of_warp[2][8];
  __align__(16) u32 key[8 * CHOSEN_MOST], id[8 * CHOSEN_MOST];
  float p[8 * CHOSEN_MOST], total;
  int expert[CHOSEN_MOST];
  float share[CHOSEN_MOST];  // of each rank, before it is divided and scaled
  DEV float weight(const RouteArgs& a, int r) const {
    return share[r] / (a.renormalise ? total : 1.f) * a.scale * (a.per_expert ? a.per_expert[expert[r]] : 1.f);
  }
};

// What another kernel has chosen.
DEV void chosen_of(const RouteArgs& a, int row, Choice& c) {
  if (threadIdx.x < a.k) {
    c.expert[threadIdx.x] = __ldcg(i32(a.ids, row) + threadIdx.x);
    c.p[threadIdx.x] = __ldcg(f32(a.w, row, 0) + threadIdx.x);
  }
  __syncthreads();
}
// Ids and weights to the bits that `route_ranks` gives, in three steps: a warp ranks 32 experts, the first of each are compared with
// each other. A block of at least 256 threads; all of them come here. Logits come past the nearest cache: a kernel may ask before the
// one in front of it has ended, where it knows that they are there.
DEV void route_of(const RouteArgs& a, int row, Choice& c) {
  int n = a.logits.cols, i = threadIdx.x, lane = i & 31, warp = i >> 5, k = a.k;
  bool chooses = i < CHOOSERS;
  float x = chooses && i < n ? __ldcg(f32(a.logits, row, 0) + i) : -INF, p = 0.f;
  if (a.sigmoid) {
    p = sigmoid(x);
  } else {
    u32 b = __float_as_uint(x), most = __reduce_max_sync(FULL, x > -INF ? (b >> 31 ? ~b : b | 0x80000000u) : 0);
    if (chooses && lane == 0) c.of_warp[0][warp] = most == 0 ? -INF : __uint_as_float(most >> 31 ? most ^ 0x80000000u : ~most);
    __syncthreads();
    float max = c.of_warp[0][0];
#pragma unroll
    for (int j = 1; j < 8; j++) max = fmaxf(max, c.of_warp[0][j]);
    p = i < n ? expf(x - max) : 0.f;
    float sum = warp_sum(p);
    if (chooses && lane == 0) c.of_warp[1][warp] = sum;
    __syncthreads();
    p /= warp_sum(lane < 8 ? c.of_warp[1][lane] : 0.f);
  }
  // Keys order like choices; what is no number comes behind everything, and 0 is none of the experts. Of equals the lowest id comes first.
  float choice = p + (a.bias && i < n ? a.bias[i] : 0.f);
  u32 b = __float_as_uint(choice), key = i >= n ? 0 : choice > -INF ? (b >> 31 ? ~b : b | 0x80000000u) + 1 : 1;
  int rank = 0;
#pragma unroll
  for (int d = 1; d < 32; d++) {
    u32 other = __shfl_sync(FULL, key, lane + d);
    rank += other > key || (other == key && ((lane + d) & 31) < lane);
  }
  if (chooses && rank < k) {
    c.key[warp * k + rank] = key;
    c.id[warp * k + rank] = i;
    c.p[warp * k + rank] = p;
  }
  __syncthreads();
  // Four threads for each of those that are left.
#pragma unroll 1
  for (int at = i >> 2; at < 8 * k && chooses; at += CHOOSERS / 4) {
    u32 mine = c.key[at], id = c.id[at];
    int before = 0;
#pragma unroll 1
    for (int o = 4 * (i & 3); o < 8 * k; o += 16) {
      uint4 other = *(const uint4*)(c.key + o), ids = *(const uint4*)(c.id + o);
      before += other.x > mine || (other.x == mine && ids.x < id);
      before += other.y > mine || (other.y == mine && ids.y < id);
      before += other.z > mine || (other.z == mine && ids.z < id);
      before += other.w > mine || (other.w == mine && ids.w < id);
    }
    u32 four = 0xfu << (lane & ~3);
    before += __shfl_xor_sync(four, before, 1);
    before += __shfl_xor_sync(four, before, 2);
    if ((i & 3) == 0 && before < k) {
      c.expert[before] = id;
      c.share[before] = c.p[at];
    }
  }
  __syncthreads();
  if (i == 0) {
    float total = a.sigmoid ? 1e-20f : 0.f;
    for (int r = 0; r < k; r++) total += c.share[r];
    c.total = total;
  }
}
