// A step of the gated delta rule for one row of each sequence, the norm of each head behind it, and the gate on what comes of that,
// with its codes: one kernel, the bits of the three.
#include "delta.cuh"
#include "fifteen.cuh"

struct DeltaGateArgs { DeltaArgs d; View g; Fifteen to; const float* w; float eps; int act; };

DEV void arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
DEV void all_arrived() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
// A word of shared memory of another block of the cluster.
DEV void put_far(float* at, int block, float x) {
  u32 here = (u32)__cvta_generic_to_shared(at), there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here), "r"(block));
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(there), "f"(x) : "memory");
}

// As in `delta`, a block has 32 columns of a head's state, and lanes have the same elements of it; the four blocks of a head are a
// cluster, which adds up the head's squares. Heads are 128 wide. State and weights are asked for before the kernel in front has
// ended: nothing in a step of few rows has written to them.
static constexpr int DEEP = 4, WIDE = 128;
extern "C" __global__ void __cluster_dims__(1, 4, 1) __launch_bounds__(128) delta_gate(const __grid_constant__ DeltaGateArgs a) {
  const DeltaArgs& d = a.d;
  __shared__ __align__(16) float q[WIDE], k[WIDE], mine[COLS], squares[COLS];
  early();
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
  int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, i0 = lane >> 2, h = blockIdx.x, part = blockIdx.y, seq = blockIdx.z;
  int pair = warp * 8 + 2 * (lane & 3), col = part * COLS + pair, kh = d.mod ? h % d.n_k : h / (d.n_v / d.n_k);
  float dt = d.dt[h], decay = d.decay[h], shrink = 1.f / sqrtf((float)d.d_k), weight = a.w ? a.w[part * COLS + lane] : 1.f;
  int row = 0, from = __ldcg(i32(d.rows.rec_from, seq));
  while (row < d.rows.n - 1 && __ldcg(i32(d.rows.seq_of, row)) != seq) row++;
  int to = __ldcg(i32(d.rows.rec_to, row));
  float* state = d.state + ((long)h * d.d_k + 4 * i0) * WIDE + col;
  float s[DEEP][4][2];
#pragma unroll
  for (int m = 0; m < DEEP; m++)
#pragma unroll
    for (int e = 0; e < 4; e++) {
      bool there = from >= 0 && 4 * (i0 + 8 * m) + e < d.d_k;
      float2 two = there ? __ldcg((const float2*)(state + (long)from * d.state_elems + (32 * m + e) * WIDE)) : make_float2(0.f, 0.f);
      s[m][e][0] = two.x;
      s[m][e][1] = two.y;
    }
  ready();
  const float* x = f32(d.qkv, row, 0);
  float2 value = *(const float2*)(x + 2 * d.n_k * d.d_k + (long)h * WIDE + col);
  float t = f32(d.a, row, 0)[h] + dt, rate = sigmoid(f32(d.b, row, 0)[h]);
  float gate = act(a.act, f32(a.g, row, h)[part * COLS + lane]);
  float keeps = expf(decay * (t > 20.f ? t : log1pf(expf(t))));
  if (threadIdx.x < 8) {
    // Four threads make the query of unit length, four the key.
    bool key = threadIdx.x >= 4;
    int quarter = threadIdx.x & 3;
    const float* e = x + (long)(key ? d.n_k + kh : kh) * d.d_k;
    float4 v[8];
    float square = 0.f;
#pragma unroll
    for (int p = 0; p < 8; p++) v[p] = 4 * (quarter + 4 * p) < d.d_k ? *(const float4*)(e + 4 * (quarter + 4 * p)) : make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
    for (int p = 0; p < 8; p++)
      square = fmaf(v[p].w, v[p].w, fmaf(v[p].z, v[p].z, fmaf(v[p].y, v[p].y, fmaf(v[p].x, v[p].x, square))));
    square += __shfl_xor_sync(0xffu, square, 1);
    square += __shfl_xor_sync(0xffu, square, 2);
    float by = (key ? 1.f : shrink) / sqrtf(square + 1e-6f);
#pragma unroll
    for (int p = 0; p < 8; p++) *(float4*)((key ? k : q) + 4 * (quarter + 4 * p)) = make_float4(v[p].x * by, v[p].y * by, v[p].z * by, v[p].w * by);
  }
  __syncthreads();
  float sums[4][2] = {}, seen[2], y[2];
  float4 kk[DEEP];
#pragma unroll
  for (int m = 0; m < DEEP; m++) kk[m] = *(const float4*)(k + 4 * (i0 + 8 * m));
#pragma unroll
  for (int m = 0; m < DEEP; m++)
#pragma unroll
    for (int c = 0; c < 2; c++) {
      sums[0][c] = fmaf(s[m][0][c], kk[m].x, sums[0][c]);
      sums[1][c] = fmaf(s[m][1][c], kk[m].y, sums[1][c]);
      sums[2][c] = fmaf(s[m][2][c], kk[m].z, sums[2][c]);
      sums[3][c] = fmaf(s[m][3][c], kk[m].w, sums[3][c]);
    }
#pragma unroll
  for (int c = 0; c < 2; c++) {
    seen[c] = (sums[0][c] + sums[1][c]) + (sums[2][c] + sums[3][c]);
#pragma unroll
    for (int o = 4; o < 32; o *= 2) seen[c] += __shfl_xor_sync(FULL, seen[c], o);
  }
  seen[0] = rate * fmaf(-keeps, seen[0], value.x);
  seen[1] = rate * fmaf(-keeps, seen[1], value.y);
#pragma unroll
  for (int c = 0; c < 2; c++)
#pragma unroll
    for (int e = 0; e < 4; e++) sums[e][c] = 0.f;
#pragma unroll
  for (int m = 0; m < DEEP; m++) {
    float4 qq = *(const float4*)(q + 4 * (i0 + 8 * m));
    const float ke[4] = {kk[m].x, kk[m].y, kk[m].z, kk[m].w}, qe[4] = {qq.x, qq.y, qq.z, qq.w};
#pragma unroll
    for (int e = 0; e < 4; e++)
#pragma unroll
      for (int c = 0; c < 2; c++) {
        s[m][e][c] = fmaf(ke[e], seen[c], s[m][e][c] * keeps);
        sums[e][c] = fmaf(s[m][e][c], qe[e], sums[e][c]);
      }
  }
#pragma unroll
  for (int c = 0; c < 2; c++) {
    y[c] = (sums[0][c] + sums[1][c]) + (sums[2][c] + sums[3][c]);
#pragma unroll
    for (int o = 4; o < 32; o *= 2) y[c] += __shfl_xor_sync(FULL, y[c], o);
  }
  if (lane < 4) *(float2*)(mine + pair) = make_float2(y[0], y[1]);
  __syncthreads();
  all_arrived();
  if (threadIdx.x < 8) {
    // A thread of `rms_norm` has four neighbours.
    float4 v = *(const float4*)(mine + 4 * threadIdx.x);
    float square = fmaf(v.w, v.w, fmaf(v.z, v.z, fmaf(v.y, v.y, fmaf(v.x, v.x, 0.f))));
#pragma unroll
    for (int b = 0; b < 4; b++) put_far(squares + 8 * part + threadIdx.x, b, square);
  }
  arrive();
  // Behind the barrier, which would wait for what was written before it.
  if (to >= 0)
#pragma unroll
    for (int m = 0; m < DEEP; m++)
#pragma unroll
      for (int e = 0; e < 4; e++)
        if (4 * (i0 + 8 * m) + e < d.d_k) *(float2*)(state + (long)to * d.state_elems + (32 * m + e) * WIDE) = make_float2(s[m][e][0], s[m][e][1]);
  all_arrived();
  if (warp > 0) return;
  float scale = 1.f / sqrtf(warp_sum(squares[lane]) / (float)WIDE + a.eps), z = mine[lane] * scale;
  if (a.w) z *= weight;
  z *= gate;
  f32(d.out, row, h)[part * COLS + lane] = z;
  if (a.to.hi) quantise_group(a.to, row, 4 * h + part, 4 * d.n_v, z);
}
