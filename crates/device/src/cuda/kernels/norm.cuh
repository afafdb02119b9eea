// Norms of rows whose codes somebody will multiply. Codes are of x * w, not of x * scale * w: they are known before a row is whole,
// by whoever makes the last of a group's elements, and the scale goes into what belongs to a group.
#pragma once
#include "fifteen.cuh"

// `threads`: of the kernel `rms_norm` for as many columns, which the order of the sum of squares of what has no codes follows from.
struct NormArgs { View out, x; const float* w; Fifteen to; float eps; int threads; };

// Squares of a group's 32 elements, four neighbours a lane, in all of its eight lanes.
DEV float squares_of(const float4& v) {
  float s = fmaf(v.w, v.w, fmaf(v.z, v.z, fmaf(v.y, v.y, fmaf(v.x, v.x, 0.f))));
#pragma unroll
  for (int d = 1; d < 8; d *= 2) s += __shfl_xor_sync(FULL, s, d);
  return s;
}
// What a row is divided by, from the squares of its groups. A whole warp comes here.
template <class F> DEV float scale_of(F squares, int groups, float eps) {
  float s = 0.f;
#pragma unroll 1
  for (int g = threadIdx.x & 31; g < groups; g += 32) s += squares(g);
  return 1.f / sqrtf(warp_sum(s) / (float)(32 * groups) + eps);
}
DEV float4 times(const float4& a, const float4& b) { return make_float4(a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w); }
DEV float4 times(const float4& a, float b) { return make_float4(a.x * b, a.y * b, a.z * b, a.w * b); }

// Rows behind a norm whose scale nobody knows yet: x, weights (or null), squares of groups, and what belongs to the groups of their codes
// without the scale. Who meets them first leaves the rows themselves at `h` and whole meta for everybody else. Without `squares` the
// rows are there, at `h`.
struct Behind { View h, x; const float* w; float* squares; float2 *raw, *meta; float eps; int pad; };
// Four neighbours of such a row, as `rms_norm` has them.
DEV float4 four_of(const Behind& a, int row, int c, float scale) {
  if (!a.squares) return *(const float4*)(f32(a.h, row, 0) + c);
  float4 y = times(*(const float4*)(f32(a.x, row, 0) + c), scale);
  return a.w ? times(y, __ldg((const float4*)(a.w + c))) : y;
}
