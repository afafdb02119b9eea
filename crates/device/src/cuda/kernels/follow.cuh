// What becomes of a group of 32 outputs at once, by the block that makes the last of them: codes behind a norm, or a gated unit and its
// codes. So neither is a kernel.
#pragma once
#include "norm.cuh"

enum { NOTHING = 0, A_NORM = 1, A_UNIT = 2 };
// Groups have `needs` tiles of sixteen outputs, of one matrix or of two. Squares of a norm's groups at `squares`, meta without its scale
// in `to`. Rows are `a`, or `a` and `b`; a unit goes to `out`. `count` is as it was when everything has been there.
struct Follow { View a, b, out; Fifteen to; float* squares; const float* w; u32* count; GluKind glu; int kind, needs; };

// A warp is done with a tile of group `g` of `rows` rows from `row` on, at most four; `set` counts warps that have other rows.
DEV void follow(const Follow& f, int set, int row, int rows, int g) {
  int lane = threadIdx.x & 31, cols = f.a.cols, groups = cols / 32, at = lane >> 3, c = 32 * g + 4 * (lane & 7);
  u32* count = f.count + set * groups + g;
  __syncwarp();
  u32 before = 0;
  if (lane == 0) {
    __threadfence();
    before = atomicAdd(count, 1);
    __threadfence();
  }
  if (__shfl_sync(FULL, before, 0) + 1 < (u32)f.needs) return;
  if (lane == 0) *count = 0;
  bool there = at < rows;
  row = there ? row + at : 0;
  float4 x = __ldcg((const float4*)(f32(f.a, row, 0) + c));
  if (f.kind == A_NORM) {
    float s = squares_of(x);
    if (there && (lane & 7) == 0) f.squares[(long)row * groups + g] = s;
    if (f.w) x = times(x, __ldg((const float4*)(f.w + c)));
  } else {
    float4 up = __ldcg((const float4*)(f32(f.b, row, 0) + c));
    x = make_float4(glu_of(f.glu, x.x, up.x), glu_of(f.glu, x.y, up.y), glu_of(f.glu, x.z, up.z), glu_of(f.glu, x.w, up.w));
    if (there) *(float4*)(f32(f.out, row, 0) + c) = x;
  }
  quantise_four(f.to, row, c, groups, x, there);
}
