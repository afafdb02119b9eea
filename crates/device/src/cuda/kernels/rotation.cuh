// The rotation of packed history: signs from a counter, then the Hadamard transform (kv/rotation.rs), and the centroids
// of four bits (kv/tables.rs).
#pragma once
#include "common.cuh"

static constexpr u64 SEED = 0x736e75675f6b7631ull;
DEV u64 random_word(u64 counter) {
  u64 z = SEED + (counter + 1) * 0x9e3779b97f4a7c15ull;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ z >> 27) * 0x94d049bb133111ebull;
  return z ^ z >> 31;
}
// Turns the signs of a warp's elements lane + 32 r of the keys (plane 0) or values (plane 1) of a head.
DEV float flip(float x, u32 sign) { return __uint_as_float(__float_as_uint(x) ^ sign); }
template <int R> DEV void flip_signs(float* x, int layer, int plane, int head) {
  int lane = threadIdx.x & 31;
  u64 stream = ((u64)layer << 1 | (u64)plane) << 32 | (u64)head;
#pragma unroll
  for (int r = 0; r < R; r += 2) {
    u64 word = random_word(stream * 8 + r / 2);
    x[r] = flip(x[r], (u32)(word >> lane & 1) << 31);
    x[r + 1] = flip(x[r + 1], (u32)(word >> (lane + 32) & 1) << 31);
  }
}

// x <- H x for a warp that holds element lane + 32 r in x[r]; every element is the same sums and differences in the same
// order on all backends.
template <int R> DEV void hadamard(float* x) {
  int lane = threadIdx.x & 31;
#pragma unroll
  for (int half = 1; half < 32; half *= 2)
#pragma unroll
    for (int r = 0; r < R; r++) {
      float y = __shfl_xor_sync(FULL, x[r], half);
      x[r] = lane & half ? y - x[r] : x[r] + y;
    }
#pragma unroll
  for (int half = 1; half < R; half *= 2)
#pragma unroll
    for (int r = 0; r < R; r++)
      if (!(r & half)) {
        float a = x[r], b = x[r + half];
        x[r] = a + b;
        x[r + half] = a - b;
      }
}
// x <- H (s x): longer than the rotation by sqrt(d).
template <int R> DEV void spread(float* x, int layer, int plane, int head) {
  flip_signs<R>(x, layer, plane, head);
  hadamard<R>(x);
}
// x <- s H x, longer than the inverse by sqrt(d).
template <int R> DEV void gather(float* x, int layer, int plane, int head) {
  hadamard<R>(x);
  flip_signs<R>(x, layer, plane, head);
}

__device__ const float HALVES[4][8] = {
    {0.1273522f, 0.3847183f, 0.6504941f, 0.9318940f, 1.2394042f, 1.5908491f, 2.0233098f, 2.6463705f},
    {0.1278732f, 0.3863809f, 0.6536189f, 0.9370970f, 1.2477705f, 1.6043427f, 2.0459254f, 2.6888593f},
    {0.1281340f, 0.3872140f, 0.6551872f, 0.9397137f, 1.2519890f, 1.6111681f, 2.0574112f, 2.7105670f},
    {0.1282645f, 0.3876310f, 0.6559727f, 0.9410258f, 1.2541072f, 1.6146006f, 2.0631991f, 2.7215386f}};
DEV int table_of(int d) { return d <= 64 ? 0 : d <= 128 ? 1 : d <= 256 ? 2 : 3; }
DEV float centroid(int d, int i) {
  float h = HALVES[table_of(d)][i < 8 ? 7 - i : i - 8];
  return i < 8 ? -h : h;
}
