// Products of few rows: every weight is read once, a row's bits depend on that row alone.
// Activations that meet block formats have fifteen bits in two byte planes, q = 128 h + l, per group of 32.
#include "dot.cuh"

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

struct LinearArgs { View out, x; Fifteen q; Mat w; const float* bias; int add, pad; };

// Up to four matrices that meet the same rows, as one grid: matrix i has the blocks from first[i] on.
static constexpr int SET = 4;
struct One { View out; Mat w; const float* bias; int add, first; };
struct SetArgs { Fifteen q; One m[SET]; int rows, count; };

DEV void put(const View& view, const float* bias, int add, int row, int n, float y) {
  float* out = f32(view, row, 0) + n;
  if (bias) y += bias[n];
  *out = add ? *out + y : y;
}

static constexpr int WARPS = 4;

// A warp has R outputs of B rows. What is loaded of weights does not wait for the kernel before.
template <int F, int B, int R> DEV void blocks(const SetArgs& a) {
  early();
  int which = 0;
#pragma unroll
  for (int i = 1; i < SET; i++) which += i < a.count && blockIdx.x >= a.m[i].first;
  const One& m = a.m[which];
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
// Floats: a lane has four neighbouring elements at a time.
template <int F, int B, int R> DEV void floats(const LinearArgs& a) {
  begin();
  int lane = threadIdx.x & 31, k = a.w.k;
  int n0 = (blockIdx.x * WARPS + (threadIdx.x >> 5)) * R, row0 = blockIdx.y * B;
  if (n0 >= a.w.n) return;
  bool aligned = k % 4 == 0 && (u64)a.w.q % 16 == 0, rows_too = (u64)a.x.p % 16 == 0 && a.x.s0 % 4 == 0;
  float acc[R][B] = {};
#pragma unroll 4
  for (int i = lane * 4; i < k; i += 128) {
    float4 w[R];
#pragma unroll
    for (int r = 0; r < R; r++) w[r] = four<F>(a.w.q, (long)min(n0 + r, a.w.n - 1) * a.w.step * k + i, k - i, aligned);
#pragma unroll
    for (int b = 0; b < B; b++) {
      const float* x = f32(a.x, min(row0 + b, a.x.rows - 1), 0) + i;
      float4 v = aligned && rows_too ? *(const float4*)x : make_float4(x[0], k - i > 1 ? x[1] : 0.f, k - i > 2 ? x[2] : 0.f, k - i > 3 ? x[3] : 0.f);
#pragma unroll
      for (int r = 0; r < R; r++) acc[r][b] = fmaf(w[r].w, v.w, fmaf(w[r].z, v.z, fmaf(w[r].y, v.y, fmaf(w[r].x, v.x, acc[r][b]))));
    }
  }
#pragma unroll
  for (int r = 0; r < R; r++)
#pragma unroll
    for (int b = 0; b < B; b++) {
      float y = warp_sum(acc[r][b]);
      if (lane == 0 && n0 + r < a.w.n && row0 + b < a.x.rows) put(a.out, a.bias, a.add, row0 + b, n0 + r, y);
    }
}

#define LINEAR(NAME, BODY, ARGS, F)                                                                 \
  extern "C" __global__ void __launch_bounds__(128) linear_##NAME##_1(const __grid_constant__ ARGS a) { BODY<F, 1, 2>(a); } \
  extern "C" __global__ void __launch_bounds__(128) linear_##NAME##_2(const __grid_constant__ ARGS a) { BODY<F, 2, 2>(a); } \
  extern "C" __global__ void __launch_bounds__(128) linear_##NAME##_4(const __grid_constant__ ARGS a) { BODY<F, 4, 2>(a); } \
  extern "C" __global__ void __launch_bounds__(128) linear_##NAME##_8(const __grid_constant__ ARGS a) { BODY<F, 8, 2>(a); }
LINEAR(f32, floats, LinearArgs, F32)
LINEAR(f16, floats, LinearArgs, F16)
LINEAR(bf16, floats, LinearArgs, BF16)
LINEAR(q4_0, blocks, SetArgs, Q4_0)
LINEAR(q4_1, blocks, SetArgs, Q4_1)
LINEAR(q5_0, blocks, SetArgs, Q5_0)
LINEAR(q5_1, blocks, SetArgs, Q5_1)
LINEAR(q8_0, blocks, SetArgs, Q8_0)
LINEAR(q4_k, blocks, SetArgs, Q4_K)
LINEAR(q5_k, blocks, SetArgs, Q5_K)
LINEAR(q6_k, blocks, SetArgs, Q6_K)
LINEAR(iq4_nl, blocks, SetArgs, IQ4_NL)
LINEAR(iq4_xs, blocks, SetArgs, IQ4_XS)
LINEAR(mxfp4, blocks, SetArgs, MXFP4)
LINEAR(affine4, blocks, SetArgs, AFFINE4)
LINEAR(affine8, blocks, SetArgs, AFFINE8)

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
