// Norms of rows and of heads, and what may follow them at once.
#pragma once
#include "norm.cuh"

struct RopeArgs { View x, pos; const float* inv_freq; int dims, adjacent; float factor; };
struct GateArgs { View x, g; Fifteen to; int act, pad; };
// What may follow a norm of heads at once: nothing, a rotation of the same rows, a gate on them.
enum { ALONE = 0, TURNED = 1, GATED = 2 };
struct NormRopeArgs { NormArgs norm; RopeArgs rope; };
struct NormGateArgs { NormArgs norm; GateArgs gate; };
DEV bool wide(const View& v) { return (u64)v.p % 16 == 0 && (v.s0 | v.s1) % 4 == 0; }
// The pair j of a head's columns, turned.
DEV void turn(const RopeArgs& a, int row, int j, float* x) {
  int pairs = a.dims / 2, at = a.adjacent ? 2 * j : j, to = a.adjacent ? 2 * j + 1 : j + pairs;
  float sin, cos;
  sincosf((float)*i32(a.pos, row) * a.inv_freq[j], &sin, &cos);
  sin *= a.factor;
  cos *= a.factor;
  float u = x[at], v = x[to];
  // Said exactly: a compiler left to itself joins one product or the other, as it likes best in each kernel.
  x[at] = fmaf(u, cos, -(v * sin));
  x[to] = fmaf(v, cos, u * sin);
}
// One block per (row, head). The sum of squares has one order for a number of columns: a thread has four neighbours, of 8,192
// columns at most twice, asked for at once.
template <int THEN> DEV void norm(const NormArgs& a, const RopeArgs* rope, const GateArgs* gate, int block) {
  __shared__ float shared[32];
  constexpr int MOST = 2;
  early();
  int row = block / a.x.heads, head = block % a.x.heads, cols = a.x.cols, step = 4 * blockDim.x;
  const float* x = f32(a.x, row, head);
  float* out = f32(a.out, row, head);
  bool fours = cols % 4 == 0 && cols <= MOST * step && wide(a.x) && wide(a.out) && (u64)a.w % 16 == 0 && (THEN != GATED || wide(gate->g));
  float4 v[MOST], w[MOST];
  if (fours && a.w) {
#pragma unroll
    for (int i = 0; i < MOST; i++)
      if (4 * threadIdx.x + i * step < cols) w[i] = __ldg((const float4*)(a.w + 4 * threadIdx.x + i * step));
  }
  ready();
  float sum = 0.f;
  if (fours) {
#pragma unroll
    for (int i = 0; i < MOST; i++) {
      int c = 4 * threadIdx.x + i * step;
      v[i] = c < cols ? *(const float4*)(x + c) : make_float4(0.f, 0.f, 0.f, 0.f);
      sum = fmaf(v[i].w, v[i].w, fmaf(v[i].z, v[i].z, fmaf(v[i].y, v[i].y, fmaf(v[i].x, v[i].x, sum))));
    }
  } else {
    for (int c = threadIdx.x; c < cols; c += blockDim.x) sum = fmaf(x[c], x[c], sum);
  }
  float scale = 1.f / sqrtf(block_sum(sum, shared) / (float)cols + a.eps);
  const float* by = THEN == GATED ? f32(gate->g, row, head) : nullptr;
  const Fifteen& to = THEN == GATED ? gate->to : a.to;
  int first = THEN == GATED ? head * cols : 0, groups = THEN == GATED ? a.x.heads * cols / 32 : cols / 32;
  if (fours) {
#pragma unroll
    for (int i = 0; i < MOST; i++) {
      int c = 4 * threadIdx.x + i * step;
      float4 y = make_float4(v[i].x * scale, v[i].y * scale, v[i].z * scale, v[i].w * scale);
      if (a.w) y = make_float4(y.x * w[i].x, y.y * w[i].y, y.z * w[i].z, y.w * w[i].w);
      if (THEN == GATED && c < cols) {
        float4 g = *(const float4*)(by + c);
        y = make_float4(y.x * act(gate->act, g.x), y.y * act(gate->act, g.y), y.z * act(gate->act, g.z), y.w * act(gate->act, g.w));
      }
      if (c >= cols) y = make_float4(0.f, 0.f, 0.f, 0.f);
      else *(float4*)(out + c) = y;
      if (to.hi && i * step < cols) quantise_four(to, row, first + c, groups, y, c < cols);
    }
  } else {
    for (int c = threadIdx.x; c < cols; c += blockDim.x) {
      float y = x[c] * scale * (a.w ? a.w[c] : 1.f);
      if (THEN == GATED) y *= act(gate->act, by[c]);
      out[c] = y;
      if (to.hi) quantise_group(to, row, (first + c) >> 5, groups, y);
    }
  }
  if (THEN != TURNED) return;
  __syncthreads();
  for (int j = threadIdx.x; j < rope->dims / 2; j += blockDim.x) turn(*rope, row, j, out);
}
