// Several matrices that meet the same rows.
#pragma once
#include "decode.cuh"
#include "fifteen.cuh"

// Up to four matrices that meet the same rows, as one grid: matrix i has the blocks from first[i] on, of `blocks` together. Block
// formats meet the codes of the rows, floats the rows themselves.
static constexpr int SET = 4;
struct One { View out; Mat w; const float* bias; int add, first; };
struct SetArgs { View x; Fifteen q; One m[SET]; int rows, count, blocks, pad; };
DEV int which_of(const SetArgs& a, int block) {
  int which = 0;
#pragma unroll
  for (int i = 1; i < SET; i++) which += i < a.count && block >= a.m[i].first;
  return which;
}
DEV const One& one_of(const SetArgs& a, int block) { return a.m[which_of(a, block)]; }

// A matrix of each of many experts, one behind the other in every plane.
struct MatSet { Mat first; u64 step[3]; int slots, pad; };
DEV Mat slot_of(const MatSet& s, long slot) {
  Mat m = s.first;
  m.q += slot * s.step[0];
  m.h += slot * s.step[1];
  m.s += slot * s.step[2];
  return m;
}

DEV void put(const View& view, const float* bias, int add, int row, int n, float y) {
  float* out = f32(view, row, 0) + n;
  if (bias) y += bias[n];
  *out = add ? *out + y : y;
}
