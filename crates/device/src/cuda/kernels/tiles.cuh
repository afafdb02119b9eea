// Tiles of sixteen outputs by eight groups of four-bit blocks in shared memory, and rows' codes that meet them on whole-number
// tensor cores.
//
// A product of the tensor cores has 16 outputs, 32 codes and 8 columns. Lane (g, t) hands over codes of outputs g and g + 8 and
// gets back what these outputs came to in columns 2 t and 2 t + 1. Here each lane hands over codes of a group of its own, number
// 4 s + t, eight at a time, and the columns are upper and lower bytes of the four groups' codes of a row. Of those only the lanes
// with t = g / 2 have any that are not zero: so columns 2 t and 2 t + 1 are sums of group 4 s + t alone, exact ones, and the lane
// that gets them has the group's scales at hand. The order in which groups are added follows from the columns of a matrix.
#pragma once
#include "dot.cuh"
#include "tensor.cuh"

static constexpr int OUTPUTS = 16, GROUPS = 8;  // of a tile
template <int F> DEV constexpr int scale_bytes() { return F == MXFP4 ? 1 : 2; }
template <int F> DEV constexpr int weight_bytes() { return OUTPUTS * GROUPS * (16 + scale_bytes<F>()); }

// Where a lane's pieces of a tile lie, whose first output is row `row` of the matrix and whose first group is `group`: eight pieces
// of a line together, of every fourth output; scales of one output.
template <int F> DEV const u8* codes_from(const Mat& m, long row, int group, int lane) {
  return m.q + (row + (lane >> 3)) * (m.k / 2L) + (lane & 7) * 16 + 16L * group;
}
template <int F> DEV const u8* scales_from(const Mat& m, long row, int group, int lane) {
  return m.s + (row + (lane & 15)) * (scale_bytes<F>() * (m.k / 32L)) + scale_bytes<F>() * (long)group;
}
// Odd outputs have the halves of their line exchanged, so that no two lanes meet in a bank when they read.
template <int F> DEV void ask_tile(u32 to, const u8* q, const u8* s, int groups, int lane) {
  constexpr int SB = scale_bytes<F>();
  u32 at = to + (lane >> 3) * 128 + (((lane & 7) ^ ((lane >> 3 & 1) << 2)) << 4);
#pragma unroll
  for (int i = 0; i < 4; i++) copy16_once(at + 512 * i, q + 64L * i * groups);
  if (lane < 16) copy_near_once<SB * GROUPS>(to + OUTPUTS * GROUPS * 16 + lane * (SB * GROUPS), s);
}
// Four small numbers in a register. By way of shared memory: what a compiler knows all lanes to have alike it copies there anew for
// every look.
DEV u32 low_numbers() {
  __shared__ u32 looked_up[32];
  int lane = threadIdx.x & 31;
  looked_up[lane] = bytes4(0, 1, 2, 3);
  __syncwarp();
  return *(volatile u32*)(looked_up + lane);
}

// Four groups of a tile, from group `u` on, meet B rows: x has upper or lower bytes of the codes of group u + t, of the lanes with
// t = g / 2, meta what belongs to them.
template <int F, int B> DEV void meet(const u8* at, int u, int g, int t, const uint4 (&x)[B][2], const float2 (&meta)[B], u32 low, float (&acc)[2][B]) {
  constexpr int SB = scale_bytes<F>();
  Raw raw[2];
#pragma unroll
  for (int r = 0; r < 2; r++) {
    raw[r].q = *(const uint4*)(at + (g + 8 * r) * 128 + (((u + t) ^ ((g & 1) << 2)) << 4));
    const u8* s = at + OUTPUTS * GROUPS * 16 + (g + 8 * r) * (SB * GROUPS) + (u + t) * SB;
    raw[r].s.x = SB == 1 ? *s : *(const u16*)s;
  }
  int sum[B][4];
  Codes w[2];
  if (F == MXFP4) {
    // Twice the values of positive numbers and of negative ones apart: what is looked up among the others is zero.
    constexpr u32 high = bytes4(4, 6, 8, 12);
    int less[B][4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
      u32 v0 = (&raw[0].q.x)[i], v1 = (&raw[1].q.x)[i], n0 = v0 ^ 0x88888888u, n1 = v1 ^ 0x88888888u;
      u32 p[4] = {permute(low, high, v0), permute(low, high, v1), permute(low, high, v0 >> 16), permute(low, high, v1 >> 16)};
      u32 n[4] = {permute(low, high, n0), permute(low, high, n1), permute(low, high, n0 >> 16), permute(low, high, n1 >> 16)};
#pragma unroll
      for (int b = 0; b < B; b++) {
        u32 b0 = (&x[b][i >> 1].x)[2 * (i & 1)], b1 = (&x[b][i >> 1].x)[2 * (i & 1) + 1];
        if (i == 0) {
          mma8<true>(sum[b], p[0], p[1], p[2], p[3], b0, b1);
          mma8<true>(less[b], n[0], n[1], n[2], n[3], b0, b1);
        } else {
          mma8<false>(sum[b], p[0], p[1], p[2], p[3], b0, b1);
          mma8<false>(less[b], n[0], n[1], n[2], n[3], b0, b1);
        }
      }
    }
#pragma unroll
    for (int r = 0; r < 2; r++) w[r].s0 = half_power(raw[r].s.x);
#pragma unroll
    for (int b = 0; b < B; b++)
#pragma unroll
      for (int i = 0; i < 4; i++) sum[b][i] -= less[b][i];
  } else {
#pragma unroll
    for (int r = 0; r < 2; r++) w[r] = codes<F>(raw[r], 0);
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
      for (int b = 0; b < B; b++) {
        u32 b0 = (&x[b][i >> 1].x)[2 * (i & 1)], b1 = (&x[b][i >> 1].x)[2 * (i & 1) + 1];
        if (i == 0) mma8<true>(sum[b], w[0].c[0], w[1].c[0], w[0].c[1], w[1].c[1], b0, b1);
        else mma8<false>(sum[b], w[0].c[2 * i], w[1].c[2 * i], w[0].c[2 * i + 1], w[1].c[2 * i + 1], b0, b1);
      }
  }
#pragma unroll
  for (int b = 0; b < B; b++)
#pragma unroll
    for (int r = 0; r < 2; r++) {
      float y = fmaf(w[r].s0 * meta[b].x, (float)(sum[b][2 * r] * 128 + sum[b][2 * r + 1]), acc[r][b]);
      acc[r][b] = F == MXFP4 ? y : fmaf(w[r].b, meta[b].y, y);
    }
}
// What the four lanes of an output have, added up in all of them.
DEV float four_lanes(float y) {
  y += __shfl_xor_sync(FULL, y, 1);
  return y + __shfl_xor_sync(FULL, y, 2);
}
