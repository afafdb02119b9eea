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
