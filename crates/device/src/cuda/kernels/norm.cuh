// A norm of rows inside a product: whoever needs the rows' codes makes them itself, in shared memory.
#pragma once
#include "fifteen.cuh"

// `threads`: of the kernel `rms_norm` for as many columns, which the order of the sum of squares follows from.
struct NormArgs { View out, x; const float* w; Fifteen to; float eps; int threads; };

// Bytes of a row's codes in shared memory: planes of upper and of lower bytes half of all banks apart, then meta.
DEV int row_bytes(int groups) { return 72 * groups + 64; }
DEV Fifteen codes_in(u8* at, int groups) { return {(uint4*)at, (uint4*)(at + 32 * groups + 64), (float2*)(at + 64 * groups + 64)}; }

// B rows, with as many warps each; every warp has some of the warps of `rms_norm` to do, of each one or two pieces of 128 columns.
template <int B> struct Normed {
  static constexpr int AHEAD = 4;  // pieces asked for at once
  const NormArgs& a;
  int lane, b, first, each, warps, per, pieces;
  DEV Normed(const NormArgs& a) : a(a) {
    lane = threadIdx.x & 31;
    each = (blockDim.x >> 5) / B;
    b = (threadIdx.x >> 5) / each;
    first = (threadIdx.x >> 5) % each;
    warps = a.threads >> 5;
    per = a.x.cols > 4 * a.threads ? 2 : 1;
    pieces = (warps - first + each - 1) / each * per;
  }
  DEV int warp_of(int i) const { return first + each * (per == 2 ? i >> 1 : i); }
  DEV int col_of(int i) const { return 4 * (lane + 32 * warp_of(i) + (per == 2 && (i & 1) ? a.threads : 0)); }
  // What the kernel before has not written comes near: the norm's weights.
  DEV void before() {
    if (!a.w) return;
#pragma unroll 1
    for (int i = 0; i < pieces; i++) {
      float4 w;
      asm volatile("ld.global.nc.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(w.x), "=f"(w.y), "=f"(w.z), "=f"(w.w) : "l"(a.w + col_of(i)));
    }
  }
  // Codes to `mine`, and how much rows shrink to `by`; who is the `writer` leaves rows and codes for everybody else. Loops stay loops:
  // code that is fetched for one use costs more than they do.
  DEV void after(u8* mine, int row0, bool writer, float* by) {
    __shared__ float squares[B][32];
    int row = min(row0 + b, a.x.rows - 1), groups = a.x.cols / 32;
    const float* x = f32(a.x, row, 0);
    float sum = 0.f;
#pragma unroll 1
    for (int base = 0; base < pieces; base += AHEAD) {
      float4 v[AHEAD];
#pragma unroll
      for (int i = 0; i < AHEAD; i++)
        if (base + i < pieces) v[i] = *(const float4*)(x + col_of(base + i));
#pragma unroll
      for (int i = 0; i < AHEAD; i++) {
        if (base + i >= pieces) continue;
        bool second = per == 2 && ((base + i) & 1);
        sum = fmaf(v[i].w, v[i].w, fmaf(v[i].z, v[i].z, fmaf(v[i].y, v[i].y, fmaf(v[i].x, v[i].x, second ? sum : 0.f))));
        if (per == 2 && !second) continue;
        float all = warp_sum(sum);
        if (lane == 0) squares[b][warp_of(base + i)] = all;
      }
    }
    __syncthreads();
    float scale = 1.f / sqrtf(warp_sum(lane < warps ? squares[b][lane] : 0.f) / (float)a.x.cols + a.eps);
    if (first == 0 && lane == 0) by[b] = scale;
    u8* own = mine + b * row_bytes(groups);
    Fifteen to = codes_in(own, groups);
    writer = writer && row0 + b < a.x.rows;
#pragma unroll 1
    for (int i = 0; i < pieces; i++) {
      int c = col_of(i);
      float4 y = four(a, row, c, scale);
      quantise_four(to, 0, c, groups, y, true);
      if (writer) *(float4*)(f32(a.out, row, 0) + c) = y;
    }
    __syncthreads();
    if (!writer) return;
#pragma unroll 1
    for (int i = first * 32 + lane; i < 2 * groups; i += 32 * each) {
      a.to.hi[(long)row * 2 * groups + i] = to.hi[i];
      a.to.lo[(long)row * 2 * groups + i] = to.lo[i];
      if (i < groups) a.to.meta[(long)row * groups + i] = to.meta[i];
    }
  }
  // Four neighbours of a row behind its norm, as `rms_norm` has them.
  static DEV float4 four(const NormArgs& a, int row, int c, float scale) {
    float4 u = *(const float4*)(f32(a.x, row, 0) + c);
    float4 y = make_float4(u.x * scale, u.y * scale, u.z * scale, u.w * scale);
    if (!a.w) return y;
    float4 w = __ldg((const float4*)(a.w + c));
    return make_float4(y.x * w.x, y.y * w.y, y.z * w.z, y.w * w.w);
  }
};
