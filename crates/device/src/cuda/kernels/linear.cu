// Products of few rows: every weight is read once, a row's bits depend on that row alone.
// Activations that meet block formats have fifteen bits in two byte planes, q = 128 h + l, per group of 32.
#include "dot.cuh"
#include "set.cuh"

struct QuantArgs { View x; Fifteen to; };
// A warp per group.
extern "C" __global__ void quantise(QuantArgs a) {
  begin();
  int groups = a.x.cols / 32, lane = threadIdx.x & 31;
  long i = (long)blockIdx.x * (blockDim.x / 32) + (threadIdx.x >> 5);
  if (i >= (long)a.x.rows * groups) return;
  int row = i / groups, g = i % groups;
  quantise_group(a.to, row, g, groups, f32(a.x, row, 0)[32 * g + lane]);
}

static constexpr int WARPS = 4;

// A warp has R outputs of B rows. What is loaded of weights does not wait for the kernel before.
template <int F, int B, int R> DEV void blocks(const SetArgs& a) {
  early();
  const One& m = one_of(a, blockIdx.x);
  Mat w = m.w;
  int lane = threadIdx.x & 31, groups = w.k / 32;
  int n0 = ((blockIdx.x - m.first) * WARPS + (threadIdx.x >> 5)) * R, row0 = blockIdx.y * B;
  bool mine = n0 < w.n;
  float acc[R][B] = {};
  Raw raw[R];
  auto fetch = [&](int g) {
#pragma unroll
    for (int r = 0; r < R; r++) raw[r] = load<F>(w, min(n0 + r, w.n - 1), g, groups);
  };
  if (mine && lane < groups) fetch(lane);
  ready();
  if (!mine) return;
  for (int g = lane; g < groups; g += 32) {
    Codes c[R];
#pragma unroll
    for (int r = 0; r < R; r++) c[r] = codes<F>(raw[r], g);
    if (g + 32 < groups) fetch(g + 32);
#pragma unroll
    for (int b = 0; b < B; b++) {
      Row15 x = load15(a.q, min(row0 + b, a.rows - 1), g, groups);
#pragma unroll
      for (int r = 0; r < R; r++) acc[r][b] = group_dot<F>(c[r], x, acc[r][b]);
    }
  }
#pragma unroll
  for (int r = 0; r < R; r++)
#pragma unroll
    for (int b = 0; b < B; b++) {
      float y = warp_sum(acc[r][b]);
      if (lane == 0 && n0 + r < w.n && row0 + b < a.rows) put(m.out, m.bias, m.add, row0 + b, n0 + r, y);
    }
}

// Four neighbouring floats of a row of weights; `aligned`: they lie in one piece.
template <int F> DEV float4 four(const u8* w, long at, int left, bool aligned) {
  if (aligned && F == F32) return __ldg((const float4*)((const float*)w + at));
  if (aligned) {
    uint2 v = __ldg((const uint2*)((const u16*)w + at));
    if (F == BF16) return make_float4(__uint_as_float(v.x << 16), __uint_as_float(v.x & 0xffff0000u), __uint_as_float(v.y << 16), __uint_as_float(v.y & 0xffff0000u));
    return make_float4(half_of(v.x), half_of(v.x >> 16), half_of(v.y), half_of(v.y >> 16));
  }
  return make_float4(plain<F>(w, at), left > 1 ? plain<F>(w, at + 1) : 0.f, left > 2 ? plain<F>(w, at + 2) : 0.f, left > 3 ? plain<F>(w, at + 3) : 0.f);
}
// Four neighbouring floats of a row.
DEV float4 four_of(const float* x, int left, bool aligned) {
  if (aligned) return *(const float4*)x;
  return make_float4(x[0], left > 1 ? x[1] : 0.f, left > 2 ? x[2] : 0.f, left > 3 ? x[3] : 0.f);
}
DEV float dot4f(float4 w, float4 v, float y) { return fmaf(w.w, v.w, fmaf(w.z, v.z, fmaf(w.y, v.y, fmaf(w.x, v.x, y)))); }
DEV bool rows_aligned(const View& x) { return (u64)x.p % 16 == 0 && x.s0 % 4 == 0; }
DEV bool aligned_floats(const Mat& w) { return w.k % 4 == 0 && (u64)w.q % 16 == 0; }

// Floats, few rows: a block has R outputs, its warps share the columns, so that small matrices (gates, routers) still have many
// blocks. Who has which column follows from k alone.
template <int F, int B, int R> DEV void floats(const SetArgs& a) {
  constexpr int D = 4, STEP = 4 * 32 * WARPS;
  __shared__ float part[WARPS][R * B];
  early();
  const One& m = one_of(a, blockIdx.x);
  Mat w = m.w;
  int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, k = w.k, n0 = (blockIdx.x - m.first) * R, row0 = blockIdx.y * B;
  bool aligned = aligned_floats(w), rows_too = aligned && rows_aligned(a.x);
  float acc[R][B] = {};
  float4 ahead[D][R];
  auto fetch = [&](float4* to, int i) {
#pragma unroll
    for (int r = 0; r < R; r++) to[r] = four<F>(w.q, (long)min(n0 + r, w.n - 1) * w.step * k + i, k - i, aligned);
  };
#pragma unroll
  for (int d = 0; d < D; d++)
    if (4 * threadIdx.x + STEP * d < k) fetch(ahead[d], 4 * threadIdx.x + STEP * d);
  ready();
  for (int i0 = 4 * threadIdx.x; i0 < k; i0 += STEP * D) {
#pragma unroll
    for (int d = 0; d < D; d++) {
      int i = i0 + STEP * d;
      if (i >= k) break;
      float4 v[R];
#pragma unroll
      for (int r = 0; r < R; r++) v[r] = ahead[d][r];
      if (i + STEP * D < k) fetch(ahead[d], i + STEP * D);
#pragma unroll
      for (int b = 0; b < B; b++) {
        float4 x = four_of(f32(a.x, min(row0 + b, a.rows - 1), 0) + i, k - i, rows_too);
#pragma unroll
        for (int r = 0; r < R; r++) acc[r][b] = dot4f(v[r], x, acc[r][b]);
      }
    }
  }
#pragma unroll
  for (int r = 0; r < R; r++)
#pragma unroll
    for (int b = 0; b < B; b++) {
      float y = warp_sum(acc[r][b]);
      if (lane == 0) part[warp][r * B + b] = y;
    }
  __syncthreads();
  if (threadIdx.x >= R * B) return;
  int r = threadIdx.x / B, b = threadIdx.x % B;
  float y = 0.f;
#pragma unroll
  for (int i = 0; i < WARPS; i++) y += part[i][threadIdx.x];
  if (n0 + r < w.n && row0 + b < a.rows) put(m.out, m.bias, m.add, row0 + b, n0 + r, y);
}

// f32 weights, many rows: a warp has two outputs of eight rows.
extern "C" __global__ void __launch_bounds__(128) linear_many_f32(const __grid_constant__ SetArgs a) {
  constexpr int B = 8, R = 2;
  begin();
  Mat w = a.m[0].w;
  int lane = threadIdx.x & 31, k = w.k, n0 = (blockIdx.x * WARPS + (threadIdx.x >> 5)) * R, row0 = blockIdx.y * B;
  if (n0 >= w.n) return;
  bool aligned = aligned_floats(w), rows_too = aligned && rows_aligned(a.x);
  float acc[R][B] = {};
#pragma unroll 2
  for (int i = lane * 4; i < k; i += 128) {
    float4 v[R];
#pragma unroll
    for (int r = 0; r < R; r++) v[r] = four<F32>(w.q, (long)min(n0 + r, w.n - 1) * w.step * k + i, k - i, aligned);
#pragma unroll
    for (int b = 0; b < B; b++) {
      float4 x = four_of(f32(a.x, min(row0 + b, a.rows - 1), 0) + i, k - i, rows_too);
#pragma unroll
      for (int r = 0; r < R; r++) acc[r][b] = dot4f(v[r], x, acc[r][b]);
    }
  }
#pragma unroll
  for (int r = 0; r < R; r++)
#pragma unroll
    for (int b = 0; b < B; b++) {
      float y = warp_sum(acc[r][b]);
      if (lane == 0 && n0 + r < w.n && row0 + b < a.rows) put(a.m[0].out, a.m[0].bias, a.m[0].add, row0 + b, n0 + r, y);
    }
}

#define ROWS_OF(NAME, BODY, F, B, R) \
  extern "C" __global__ void __launch_bounds__(128) linear_##NAME##_##B(const __grid_constant__ SetArgs a) { BODY<F, B, R>(a); }
// Two rows have kernels of their own where somebody measured what they are for; elsewhere they go with those of four.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ == 900
#define LINEAR(NAME, BODY, F, R) ROWS_OF(NAME, BODY, F, 1, R) ROWS_OF(NAME, BODY, F, 2, R) ROWS_OF(NAME, BODY, F, 4, R)
#else
#define LINEAR(NAME, BODY, F, R) ROWS_OF(NAME, BODY, F, 1, R) ROWS_OF(NAME, BODY, F, 4, R)
#endif
LINEAR(f32, floats, F32, 1)
LINEAR(f16, floats, F16, 2)
LINEAR(bf16, floats, BF16, 2)
LINEAR(q4_0, blocks, Q4_0, 2)
LINEAR(q4_1, blocks, Q4_1, 2)
LINEAR(q5_0, blocks, Q5_0, 2)
LINEAR(q5_1, blocks, Q5_1, 2)
LINEAR(q8_0, blocks, Q8_0, 2)
LINEAR(q4_k, blocks, Q4_K, 2)
LINEAR(q5_k, blocks, Q5_K, 2)
LINEAR(q6_k, blocks, Q6_K, 2)
LINEAR(iq4_nl, blocks, IQ4_NL, 2)
LINEAR(iq4_xs, blocks, IQ4_XS, 2)
LINEAR(mxfp4, blocks, MXFP4, 2)
LINEAR(affine4, blocks, AFFINE4, 2)
LINEAR(affine8, blocks, AFFINE8, 2)

struct EmbedArgs { View out, ids; Mat table; float scale; };
template <int F> DEV void embed(const EmbedArgs& a) {
  int row = blockIdx.x, id = *i32(a.ids, row), k = a.table.k;
  bool there = id >= 0 && id < a.table.n;
  float* out = f32(a.out, row, 0);
  if (F <= BF16) {
    for (int c = threadIdx.x; c < k; c += blockDim.x) out[c] = there ? plain<F>(a.table.q, (long)id * k + c) * a.scale : 0.f;
  }
}
template <int F> DEV void embed_blocks(const EmbedArgs& a) {
  int row = blockIdx.x, id = *i32(a.ids, row), groups = a.table.k / 32;
  bool there = id >= 0 && id < a.table.n;
  float* out = f32(a.out, row, 0);
  for (int g = threadIdx.x; g < groups; g += blockDim.x) {
    Codes w;
    if (there) w = decode<F>(a.table, id, g, groups);
    for (int e = 0; e < 32; e++) out[32 * g + e] = there ? code_of(w, e) * a.scale : 0.f;
  }
}
#define EMBED(NAME, BODY, F) extern "C" __global__ void embed_##NAME(EmbedArgs a) { begin(); BODY<F>(a); }
EMBED(f32, embed, F32)
EMBED(f16, embed, F16)
EMBED(bf16, embed, BF16)
EMBED(q4_0, embed_blocks, Q4_0)
EMBED(q4_1, embed_blocks, Q4_1)
EMBED(q5_0, embed_blocks, Q5_0)
EMBED(q5_1, embed_blocks, Q5_1)
EMBED(q8_0, embed_blocks, Q8_0)
EMBED(q4_k, embed_blocks, Q4_K)
EMBED(q5_k, embed_blocks, Q5_K)
EMBED(q6_k, embed_blocks, Q6_K)
EMBED(iq4_nl, embed_blocks, IQ4_NL)
EMBED(iq4_xs, embed_blocks, IQ4_XS)
EMBED(mxfp4, embed_blocks, MXFP4)
EMBED(affine4, embed_blocks, AFFINE4)
EMBED(affine8, embed_blocks, AFFINE8)
