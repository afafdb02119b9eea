// The gated delta rule: a state in registers, row after row.
#pragma once
#include "common.cuh"

// The last row of the run of rows that `row` is in.
DEV int last_of(const Rows& rows, int row, int seq) {
  int lo = row, hi = rows.n;  // rows[lo] is of the run, rows[hi] is not
  while (hi - lo > 1) {
    int mid = (lo + hi) / 2;
    if (*i32(rows.seq_of, mid) == seq) lo = mid; else hi = mid;
  }
  return lo;
}

struct DeltaArgs {
  View out, qkv, a, b;
  const float *decay, *dt;
  float* state;
  Rows rows;
  int n_k, n_v, d_k, d_v, mod, state_elems, slots;
};

static constexpr int COLS = 32;  // columns of a state that a block keeps in registers
static constexpr int TILE = 16;  // rows whose operands lie in shared memory together

// A block of 4 warps has COLS columns of one head's state, a warp 8 of them: lane (i, j) has the rows 4 (i + 8 m) to 4 (i + 8 m) + 3
// of d_k, R of them, and columns 2 j and 2 j + 1. The two sums of a row meet by shuffles among the eight lanes of a column, in
// one order whatever the company; those of a row's output go beside those of the next row's state. Operands of a tile of rows are
// asked for while the tile before is worked on; four threads make a query or key of unit length. R is d_k / 8 rounded up.
template <int R> DEV void delta(const DeltaArgs& a) {
  constexpr int Q = R / 4, P = R / 2, V = TILE * COLS / 128;
  static_assert(TILE == 16 && COLS == 32, "128 threads are four for each of sixteen queries and keys");
  extern __shared__ __align__(16) float operands[];
  int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, i0 = lane >> 2, h = blockIdx.x, seq = blockIdx.z;
  int pair = warp * 8 + 2 * (lane & 3), col = blockIdx.y * COLS + pair, width = 8 * R;
  float *q = operands, *k = q + TILE * width, *v = k + TILE * width, *keep = v + TILE * COLS, *beta = keep + TILE;
  int* slots = (int*)(beta + TILE);
  int kh = a.mod ? h % a.n_k : h / (a.n_v / a.n_k);
  float dt = a.dt[h], decay = a.decay[h], shrink = 1.f / sqrtf((float)a.d_k);
  ready();
  int first = 0, from = *i32(a.rows.rec_from, seq);
  while (first < a.rows.n && *i32(a.rows.seq_of, first) != seq) first++;
  if (first == a.rows.n) return;
  int end = last_of(a.rows, first, seq) + 1;
  auto state = [&](int slot, int m, int e) {
    return a.state + (long)slot * a.state_elems + ((long)h * a.d_k + 4 * (i0 + 8 * m) + e) * a.d_v + col;
  };
  bool both = col + 1 < a.d_v && a.d_v % 2 == 0 && a.state_elems % 2 == 0;
  float s[Q][4][2];
#pragma unroll
  for (int m = 0; m < Q; m++)
#pragma unroll
    for (int e = 0; e < 4; e++) {
      const float* at = state(max(from, 0), m, e);
      bool row = from >= 0 && 4 * (i0 + 8 * m) + e < a.d_k;
      float2 two = row && both ? *(const float2*)at : make_float2(row && col < a.d_v ? at[0] : 0.f, row && col + 1 < a.d_v ? at[1] : 0.f);
      s[m][e][0] = two.x;
      s[m][e][1] = two.y;
    }
  // What a tile needs, in registers: of a query or key every fourth piece of four elements, four values and, of the first
  // threads, what belongs to a row.
  int unit = threadIdx.x >> 2, quarter = threadIdx.x & 3, of = unit & 15;
  bool key = unit >= TILE, aligned = ((u64)a.qkv.p % 16 | a.qkv.s0 % 4 | a.d_k % 4) == 0;
  float4 ask_e[P];
  float ask_v[V], ask_a = 0.f, ask_b = 0.f;
  int ask_slot = -1;
  auto ask = [&](int row0) {
    int n = min(TILE, end - row0);
    const float* x = f32(a.qkv, row0 + min(of, n - 1), 0) + (long)(key ? a.n_k + kh : kh) * a.d_k;
#pragma unroll
    for (int p = 0; p < P; p++) {
      int c = 4 * (quarter + 4 * p);
      if (aligned) ask_e[p] = c < a.d_k ? *(const float4*)(x + c) : make_float4(0.f, 0.f, 0.f, 0.f);
      else ask_e[p] = make_float4(c < a.d_k ? x[c] : 0.f, c + 1 < a.d_k ? x[c + 1] : 0.f, c + 2 < a.d_k ? x[c + 2] : 0.f, c + 3 < a.d_k ? x[c + 3] : 0.f);
    }
#pragma unroll
    for (int i = 0; i < V; i++) {
      int u = threadIdx.x + 128 * i, r = u / COLS, c = blockIdx.y * COLS + u % COLS;
      ask_v[i] = r < n && c < a.d_v ? f32(a.qkv, row0 + r, 0)[2 * a.n_k * a.d_k + (long)h * a.d_v + c] : 0.f;
    }
    if (threadIdx.x < n) {
      ask_a = f32(a.a, row0 + threadIdx.x, 0)[h];
      ask_b = f32(a.b, row0 + threadIdx.x, 0)[h];
      ask_slot = *i32(a.rows.rec_to, row0 + threadIdx.x);
    }
  };
  ask(first);
  for (int row0 = first; row0 < end; row0 += TILE) {
    int n = min(TILE, end - row0);
    __syncthreads();
    float square = 0.f;
#pragma unroll
    for (int p = 0; p < P; p++)
      square = fmaf(ask_e[p].w, ask_e[p].w, fmaf(ask_e[p].z, ask_e[p].z, fmaf(ask_e[p].y, ask_e[p].y, fmaf(ask_e[p].x, ask_e[p].x, square))));
    square += __shfl_xor_sync(FULL, square, 1);
    square += __shfl_xor_sync(FULL, square, 2);
    float by = (key ? 1.f : shrink) / sqrtf(square + 1e-6f);
    float* unit_to = (key ? k : q) + of * width;
#pragma unroll
    for (int p = 0; p < P; p++)
      *(float4*)(unit_to + 4 * (quarter + 4 * p)) = make_float4(ask_e[p].x * by, ask_e[p].y * by, ask_e[p].z * by, ask_e[p].w * by);
#pragma unroll
    for (int i = 0; i < V; i++) v[threadIdx.x + 128 * i] = ask_v[i];
    if (threadIdx.x < n) {
      float t = ask_a + dt;
      slots[threadIdx.x] = ask_slot;
      beta[threadIdx.x] = sigmoid(ask_b);
      keep[threadIdx.x] = expf(decay * (t > 20.f ? t : log1pf(expf(t))));
    }
    __syncthreads();
    if (row0 + TILE < end) ask(row0 + TILE);
    float y[2] = {0.f, 0.f};  // of the row before: not summed over the lanes of a column yet
    auto put = [&](int r) {
#pragma unroll
      for (int c = 0; c < 2; c++)
        if (lane < 4 && col + c < a.d_v) f32(a.out, row0 + r, h)[col + c] = y[c];
    };
#pragma unroll 1
    for (int r = 0; r < n; r++) {
      float keeps = keep[r], rate = beta[r], part[4][2] = {}, seen[2];
      float2 value = *(const float2*)(v + r * COLS + pair);
      float4 kk[Q];
#pragma unroll
      for (int m = 0; m < Q; m++) kk[m] = *(const float4*)(k + r * width + 4 * (i0 + 8 * m));
#pragma unroll
      for (int m = 0; m < Q; m++)
#pragma unroll
        for (int c = 0; c < 2; c++) {
          part[0][c] = fmaf(s[m][0][c], kk[m].x, part[0][c]);
          part[1][c] = fmaf(s[m][1][c], kk[m].y, part[1][c]);
          part[2][c] = fmaf(s[m][2][c], kk[m].z, part[2][c]);
          part[3][c] = fmaf(s[m][3][c], kk[m].w, part[3][c]);
        }
#pragma unroll
      for (int c = 0; c < 2; c++) seen[c] = (part[0][c] + part[1][c]) + (part[2][c] + part[3][c]);
#pragma unroll
      for (int d = 4; d < 32; d *= 2)
#pragma unroll
        for (int c = 0; c < 2; c++) {
          seen[c] += __shfl_xor_sync(FULL, seen[c], d);
          y[c] += __shfl_xor_sync(FULL, y[c], d);
        }
      if (r > 0) put(r - 1);
      seen[0] = rate * fmaf(-keeps, seen[0], value.x);
      seen[1] = rate * fmaf(-keeps, seen[1], value.y);
#pragma unroll
      for (int c = 0; c < 2; c++)
#pragma unroll
        for (int e = 0; e < 4; e++) part[e][c] = 0.f;
#pragma unroll
      for (int m = 0; m < Q; m++) {
        float4 qq = *(const float4*)(q + r * width + 4 * (i0 + 8 * m));
        const float ke[4] = {kk[m].x, kk[m].y, kk[m].z, kk[m].w}, qe[4] = {qq.x, qq.y, qq.z, qq.w};
#pragma unroll
        for (int e = 0; e < 4; e++)
#pragma unroll
          for (int c = 0; c < 2; c++) {
            s[m][e][c] = fmaf(ke[e], seen[c], s[m][e][c] * keeps);
            part[e][c] = fmaf(s[m][e][c], qe[e], part[e][c]);
          }
      }
#pragma unroll
      for (int c = 0; c < 2; c++) y[c] = (part[0][c] + part[1][c]) + (part[2][c] + part[3][c]);
      int to = slots[r];
      if (__builtin_expect(to >= 0, 0)) {
#pragma unroll
        for (int m = 0; m < Q; m++)
#pragma unroll
          for (int e = 0; e < 4; e++) {
            if (4 * (i0 + 8 * m) + e >= a.d_k) continue;
            float* at = state(to, m, e);
            if (both) *(float2*)at = make_float2(s[m][e][0], s[m][e][1]);
            else {
              if (col < a.d_v) at[0] = s[m][e][0];
              if (col + 1 < a.d_v) at[1] = s[m][e][1];
            }
          }
      }
    }
#pragma unroll
    for (int d = 4; d < 32; d *= 2)
#pragma unroll
      for (int c = 0; c < 2; c++) y[c] += __shfl_xor_sync(FULL, y[c], d);
    put(n - 1);
  }
}
