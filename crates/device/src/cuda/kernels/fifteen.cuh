// Rows as fifteen-bit codes: what block formats meet where rows are few.
#pragma once
#include "common.cuh"

// Planes hi and lo as [row][half of a group][group] of 16 bytes, so that neighbouring lanes read neighbouring words; meta
// [row][group] = (d, d * sum of q). q = 128 h + l, per group of 32. Null where nobody asks for them.
struct Fifteen { uint4 *hi, *lo; float2* meta; };

// A warp's 32 elements, one a lane, as group `g` of a row.
DEV void quantise_group(const Fifteen& to, long row, int g, int groups, float x) {
  int lane = threadIdx.x & 31;
  // Magnitudes order like their bits, and what is no number or infinite is above all others.
  u32 most = __reduce_max_sync(FULL, __float_as_uint(fabsf(x)));
  bool bad = most >= 0x7f800000u;
  float max = __uint_as_float(most);
  float d = max / 16256.f, by = max == 0.f ? 0.f : 16256.f / max;
  // A maximum so small that its inverse overflows: nothing of it would be left in a product.
  if (!(by < INF)) by = 0.f;
  int q = bad ? 0 : __float2int_rn(x * by), h = (q + 64) >> 7, l = q - 128 * h;
  int sum = __reduce_add_sync(FULL, q);
  long at = (row * 2 + (lane >> 4)) * groups + g;
  ((i8*)(to.hi + at))[lane & 15] = h;
  ((i8*)(to.lo + at))[lane & 15] = l;
  if (lane == 0) to.meta[row * groups + g] = bad ? make_float2(NOT_A_NUMBER, NOT_A_NUMBER) : make_float2(d, d * (float)sum);
}

// A warp's 128 elements, four neighbours a lane from column `c` on, as four groups: the same codes. Every lane of the warp comes
// here; those that are not `there` leave nothing.
DEV void quantise_four(const Fifteen& to, long row, int c, int groups, const float4& x, bool there) {
  float v[4] = {x.x, x.y, x.z, x.w};
  u32 most = 0;
#pragma unroll
  for (int i = 0; i < 4; i++) most = ::max(most, __float_as_uint(fabsf(v[i])));
#pragma unroll
  for (int d = 1; d < 8; d *= 2) most = ::max(most, __shfl_xor_sync(FULL, most, d));
  bool bad = most >= 0x7f800000u;
  float max = __uint_as_float(most);
  float d = max / 16256.f, by = max == 0.f ? 0.f : 16256.f / max;
  if (!(by < INF)) by = 0.f;
  u32 hi = 0, lo = 0;
  int sum = 0;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    int q = bad ? 0 : __float2int_rn(v[i] * by), h = (q + 64) >> 7, l = q - 128 * h;
    hi |= (u32)(h & 255) << (8 * i);
    lo |= (u32)(l & 255) << (8 * i);
    sum += q;
  }
#pragma unroll
  for (int d = 1; d < 8; d *= 2) sum += __shfl_xor_sync(FULL, sum, d);
  if (!there) return;
  int g = c >> 5;
  long at = (row * 2 + (c >> 4 & 1)) * groups + g;
  ((u32*)(to.hi + at))[c >> 2 & 3] = hi;
  ((u32*)(to.lo + at))[c >> 2 & 3] = lo;
  if ((c & 31) == 0) to.meta[row * groups + g] = bad ? make_float2(NOT_A_NUMBER, NOT_A_NUMBER) : make_float2(d, d * (float)sum);
}
