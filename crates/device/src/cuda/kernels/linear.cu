// Products of few rows: every weight is read once, a row's bits depend on that row alone.
// Activations that meet block formats have fifteen bits in two byte planes, q = 128 h + l, per group of 32.
#include "dot.cuh"

struct QuantArgs { View x; Fifteen to; };
// A warp per group.
extern "C" __global__ void quantise(QuantArgs a) {
  int groups = a.x.cols / 32, lane = threadIdx.x & 31;
  long i = (long)blockIdx.x * (blockDim.x / 32) + (threadIdx.x >> 5);
  if (i >= (long)a.x.rows * groups) return;
  int row = i / groups, g = i % groups;
  float x = f32(a.x, row, 0)[32 * g + lane];
  float max = warp_max(fabsf(x));
  bool bad = __any_sync(FULL, !(fabsf(x) < INF));
  float d = max / 16256.f, by = max == 0.f ? 0.f : 16256.f / max;
  // A maximum so small that its inverse overflows: nothing of it would be left in a product.
  if (!(by < INF)) by = 0.f;
  int q = bad ? 0 : __float2int_rn(x * by), h = (q + 64) >> 7, l = q - 128 * h;
  int sum = warp_sum(q);
  long at = ((long)row * 2 + (lane >> 4)) * groups + g;
  ((i8*)(a.to.hi + at))[lane & 15] = h;
  ((i8*)(a.to.lo + at))[lane & 15] = l;
  if (lane == 0) a.to.meta[(long)row * groups + g] = bad ? make_float2(NOT_A_NUMBER, NOT_A_NUMBER) : make_float2(d, d * (float)sum);
}

struct LinearArgs { View out, x; Fifteen q; Mat w; const float* bias; int add, pad; };

DEV void put(const LinearArgs& a, int row, int n, float y) {
  float* out = f32(a.out, row, 0) + n;
  if (a.bias) y += a.bias[n];
  *out = a.add ? *out + y : y;
}

static constexpr int WARPS = 4;

// A warp has R outputs of B rows.
template <int F, int B, int R> DEV void blocks(const LinearArgs& a) {
  int lane = threadIdx.x & 31, groups = a.w.k / 32;
  int n0 = (blockIdx.x * WARPS + (threadIdx.x >> 5)) * R, row0 = blockIdx.y * B;
  if (n0 >= a.w.n) return;
  float acc[R][B] = {};
  for (int g = lane; g < groups; g += 32) {
    Raw raw[R];
#pragma unroll
    for (int r = 0; r < R; r++) raw[r] = load<F>(a.w, min(n0 + r, a.w.n - 1), g, groups);
    Codes w[R];
#pragma unroll
    for (int r = 0; r < R; r++) w[r] = codes<F>(raw[r], g);
#pragma unroll
    for (int b = 0; b < B; b++) {
      Row15 x = load15(a.q, min(row0 + b, a.x.rows - 1), g, groups);
#pragma unroll
      for (int r = 0; r < R; r++) acc[r][b] = group_dot<F>(w[r], x, acc[r][b]);
    }
  }
#pragma unroll
  for (int r = 0; r < R; r++)
#pragma unroll
    for (int b = 0; b < B; b++) {
      float y = warp_sum(acc[r][b]);
      if (lane == 0 && n0 + r < a.w.n && row0 + b < a.x.rows) put(a, row0 + b, n0 + r, y);
    }
}

// Floats: a lane has four neighbouring elements at a time where rows are aligned, one at the ragged end.
template <int F, int B, int R> DEV void floats(const LinearArgs& a) {
  int lane = threadIdx.x & 31, k = a.w.k;
  int n0 = (blockIdx.x * WARPS + (threadIdx.x >> 5)) * R, row0 = blockIdx.y * B;
  if (n0 >= a.w.n) return;
  float acc[R][B] = {};
  for (int i = lane * 4; i < k; i += 128) {
    float w[R][4];
#pragma unroll
    for (int r = 0; r < R; r++) {
      long at = (long)min(n0 + r, a.w.n - 1) * a.w.step * k + i;
      if (F != F32 && k % 4 == 0) {
        uint2 v = __ldg((const uint2*)((const u16*)a.w.q + at));
        const u16 e[4] = {(u16)v.x, (u16)(v.x >> 16), (u16)v.y, (u16)(v.y >> 16)};
#pragma unroll
        for (int j = 0; j < 4; j++)
          w[r][j] = F == BF16 ? __uint_as_float((u32)e[j] << 16) : __half2float(__ushort_as_half(e[j]));
      } else {
#pragma unroll
        for (int j = 0; j < 4; j++) w[r][j] = i + j < k ? plain<F>(a.w.q, at + j) : 0.f;
      }
    }
#pragma unroll
    for (int b = 0; b < B; b++) {
      const float* x = f32(a.x, min(row0 + b, a.x.rows - 1), 0) + i;
#pragma unroll
      for (int j = 0; j < 4; j++) {
        float v = i + j < k ? x[j] : 0.f;
#pragma unroll
        for (int r = 0; r < R; r++) acc[r][b] = fmaf(w[r][j], v, acc[r][b]);
      }
    }
  }
#pragma unroll
  for (int r = 0; r < R; r++)
#pragma unroll
    for (int b = 0; b < B; b++) {
      float y = warp_sum(acc[r][b]);
      if (lane == 0 && n0 + r < a.w.n && row0 + b < a.x.rows) put(a, row0 + b, n0 + r, y);
    }
}

#define LINEAR(NAME, BODY, F)                                                                             \
  extern "C" __global__ void __launch_bounds__(128) linear_##NAME##_1(LinearArgs a) { BODY<F, 1, 2>(a); } \
  extern "C" __global__ void __launch_bounds__(128) linear_##NAME##_2(LinearArgs a) { BODY<F, 2, 2>(a); } \
  extern "C" __global__ void __launch_bounds__(128) linear_##NAME##_4(LinearArgs a) { BODY<F, 4, 2>(a); } \
  extern "C" __global__ void __launch_bounds__(128) linear_##NAME##_8(LinearArgs a) { BODY<F, 8, 2>(a); }
LINEAR(f32, floats, F32)
LINEAR(f16, floats, F16)
LINEAR(bf16, floats, BF16)
LINEAR(q4_0, blocks, Q4_0)
LINEAR(q4_1, blocks, Q4_1)
LINEAR(q5_0, blocks, Q5_0)
LINEAR(q5_1, blocks, Q5_1)
LINEAR(q8_0, blocks, Q8_0)
LINEAR(q4_k, blocks, Q4_K)
LINEAR(q5_k, blocks, Q5_K)
LINEAR(q6_k, blocks, Q6_K)
LINEAR(iq4_nl, blocks, IQ4_NL)
LINEAR(iq4_xs, blocks, IQ4_XS)
LINEAR(mxfp4, blocks, MXFP4)

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
#define EMBED(NAME, BODY, F) extern "C" __global__ void embed_##NAME(EmbedArgs a) { BODY<F>(a); }
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
