// Products of few rows with four-bit blocks: weights and the rows' codes come through shared memory, a ring of stages for each
// warp, and meet on whole-number tensor cores. A block has sixteen outputs at a time, its warps share their columns.
//
// A product of the tensor cores has 16 outputs, 32 codes and 8 columns. Lane (g, t) hands over codes of outputs g and g + 8 and
// gets back what these outputs came to in columns 2 t and 2 t + 1. Here each lane hands over codes of a group of its own, number
// 4 s + t, eight at a time, and the columns are upper and lower bytes of the four groups' codes of a row. Of those only the lanes
// with t = g / 2 have any that are not zero: so columns 2 t and 2 t + 1 are sums of group 4 s + t alone, exact ones, and the lane
// that gets them has the group's scales at hand. The order in which groups are added follows from the columns of a matrix.
#include "dot.cuh"
#include "set.cuh"
#include "tensor.cuh"

static constexpr int OUTPUTS = 16, GROUPS = 8, MOST = 8;  // of a stage; warps of a block at most
template <int F> DEV constexpr int scale_bytes() { return F == MXFP4 ? 1 : 2; }
template <int F> DEV constexpr int weight_bytes() { return OUTPUTS * GROUPS * (16 + scale_bytes<F>()); }
static constexpr int ROW_BYTES = GROUPS * 72;  // codes and meta of a row
template <int F, int B> DEV constexpr int stage_bytes() { return weight_bytes<F>() + B * ROW_BYTES; }

// Where a warp's next stage comes from: it goes through the tiles of its block, and of each through every so-manieth stage.
template <int F> struct Cursor {
  const SetArgs& a;
  const u8 *q, *s;
  int tile, stage, groups, warp, warps, lane;
  // What a lane copies of a stage: eight pieces of a line together, of every fourth output; scales of one output.
  DEV void enter() {
    if (tile >= a.blocks) return;
    const One& m = one_of(a, tile);
    long row = 16L * (tile - m.first), line = 16L * groups;
    q = m.w.q + (row + (lane >> 3)) * line + (lane & 7) * 16 + warp * (16 * GROUPS);
    s = m.w.s + (row + (lane & 15)) * (scale_bytes<F>() * (long)groups) + warp * (scale_bytes<F>() * GROUPS);
  }
  // Odd outputs have the halves of their line exchanged, so that no two lanes meet in a bank when they read.
  DEV void ask(u32 to) {
    constexpr int SB = scale_bytes<F>();
    if (tile >= a.blocks) return;
    u32 at = to + (lane >> 3) * 128 + (((lane & 7) ^ ((lane >> 3 & 1) << 2)) << 4);
#pragma unroll
    for (int i = 0; i < 4; i++) copy16(at + 512 * i, q + 64L * i * groups, true);
    at = to + OUTPUTS * GROUPS * 16 + (lane & 15) * (SB * GROUPS);
    if (lane < 16) copy_near<SB * GROUPS>(at, s);
    q += warps * (16 * GROUPS);
    s += warps * (SB * GROUPS);
    stage += warps;
    if (stage * GROUPS < groups) return;
    stage = warp;
    tile += gridDim.x;
    enter();
  }
};

template <int F, int B, int S> DEV void stream(const SetArgs& a) {
  constexpr int SB = scale_bytes<F>(), STAGE = stage_bytes<F, B>(), WEIGHTS = weight_bytes<F>();
  extern __shared__ __align__(128) u8 mem[];
  __shared__ float part[2][MOST][OUTPUTS][B];
  early();
  int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5, g = lane >> 2, t = lane & 3;
  int groups = a.m[0].w.k / 32, stages = groups / GROUPS, row0 = blockIdx.y * B;
  u8* ring = mem + warp * S * STAGE;
  // A warp without a stage has no tile either.
  Cursor<F> next{a, nullptr, nullptr, warp < stages ? (int)blockIdx.x : a.blocks, warp, groups, warp, warps, lane};
  next.enter();
#pragma unroll
  for (int i = 0; i < S - 1; i++) next.ask(smem_of(ring) + i * STAGE);
  ready();
  // Codes of rows: two planes of two halves of eight groups each, of which a lane has a piece, and meta.
  const u8* codes_from = (const u8*)((lane >> 4 ? a.q.lo : a.q.hi) + (lane >> 3 & 1) * groups + (lane & 7));
  const u8* meta_from = (const u8*)(a.q.meta + 2 * (lane & 3));
  int stage = warp;
  auto ask_rows = [&](int slot) {
    u32 to = smem_of(ring) + slot * STAGE + WEIGHTS + lane * 16;
    if (warp < stages) {
#pragma unroll
      for (int b = 0; b < B; b++) {
        long row = min(row0 + b, a.rows - 1);
        copy_near<16>(to + b * ROW_BYTES, codes_from + (row * 2 * groups + stage * GROUPS) * 16);
        if (lane < 4) copy_near<16>(to + b * ROW_BYTES + 512, meta_from + (row * groups + stage * GROUPS) * 8);
      }
    }
    stage = stage + warps < stages ? stage + warps : warp;
    commit();
  };
#pragma unroll
  for (int i = 0; i < S - 1; i++) ask_rows(i);
  bool own = t == g >> 1;
  uint4 x[B][2];
#pragma unroll
  for (int b = 0; b < B; b++) x[b][0] = x[b][1] = make_uint4(0, 0, 0, 0);
  // By way of shared memory into a register: what a compiler knows all lanes to have alike it copies there anew for every look.
  __shared__ u32 looked_up[32];
  looked_up[lane] = bytes4(0, 1, 2, 3);
  __syncwarp();
  u32 low = *(volatile u32*)(looked_up + lane);
  int slot = 0, buf = 0;
#pragma unroll 1
  for (int tile = blockIdx.x; tile < a.blocks; tile += gridDim.x) {
    float acc[2][B] = {};
#pragma unroll 1
    for (int c = warp; c < stages; c += warps) {
      wait_but<S - 2>();
      __syncwarp();
      const u8* at = ring + slot * STAGE;
#pragma unroll
      for (int u = 0; u < GROUPS; u += 4) {
        float2 meta[B];
#pragma unroll
        for (int b = 0; b < B; b++) {
          const u8* from = at + WEIGHTS + b * ROW_BYTES;
          if (own) {
            x[b][0] = *(const uint4*)(from + (g & 1) * 256 + 16 * (u + t));
            x[b][1] = *(const uint4*)(from + (g & 1) * 256 + 128 + 16 * (u + t));
          }
          meta[b] = *(const float2*)(from + 512 + 8 * (u + t));
        }
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
      __syncwarp();
      int free = slot == 0 ? S - 1 : slot - 1;
      next.ask(smem_of(ring) + free * STAGE);
      ask_rows(free);
      slot = slot == S - 1 ? 0 : slot + 1;
    }
#pragma unroll
    for (int b = 0; b < B; b++)
#pragma unroll
      for (int r = 0; r < 2; r++) {
        float y = acc[r][b];
        y += __shfl_xor_sync(FULL, y, 1);
        y += __shfl_xor_sync(FULL, y, 2);
        if (t == 0) part[buf][warp][g + 8 * r][b] = y;
      }
    // Two sets of partial sums: whoever is a tile ahead has passed here once more.
    __syncthreads();
    if (threadIdx.x < OUTPUTS * B) {
      int n = threadIdx.x % OUTPUTS, b = threadIdx.x / OUTPUTS;
      float y = 0.f;
      for (int i = 0; i < warps; i++) y += part[buf][i][n][b];
      const One& m = one_of(a, tile);
      if (row0 + b < a.rows) put(m.out, m.bias, m.add, row0 + b, OUTPUTS * (tile - m.first) + n, y);
    }
    buf ^= 1;
  }
  wait_all();
}
// Stages as many as leave as many blocks to a multiprocessor as registers do: a grid is what fits at a time.
#define STREAM(NAME, F, B, S, BLOCKS) \
  extern "C" __global__ void __launch_bounds__(32 * MOST, BLOCKS) stream_##NAME##_##B(const __grid_constant__ SetArgs a) { stream<F, B, S>(a); }
STREAM(q4_0, Q4_0, 1, 3, 3)
STREAM(q4_0, Q4_0, 2, 3, 2)
STREAM(q4_0, Q4_0, 4, 2, 2)
STREAM(mxfp4, MXFP4, 1, 4, 2)
STREAM(mxfp4, MXFP4, 2, 3, 2)
STREAM(mxfp4, MXFP4, 4, 2, 2)
