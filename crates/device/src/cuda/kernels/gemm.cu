// Products of many rows on tensor cores: activations rounded to bf16, weight tiles decoded to bf16 in shared memory.
// The K order of an element is fixed, so a row's bits do not depend on the tile or the company it is computed in.
#include "dot.cuh"
#include "tensor.cuh"

struct BfArgs { View x; __nv_bfloat16* to; int k, pad; };
// Rows of x as dense bf16 [rows, k], k padded with zeros to a multiple of 64: a thread has eight columns.
extern "C" __global__ void to_bf16(BfArgs a) {
  begin();
  int row = blockIdx.x, c = 8 * (blockIdx.y * blockDim.x + threadIdx.x);
  if (c >= a.k) return;
  const float* x = f32(a.x, row, 0) + c;
  u32 v[4];
  if (c + 8 <= a.x.cols && (u64)x % 16 == 0) {
    float4 lo = ((const float4*)x)[0], hi = ((const float4*)x)[1];
    v[0] = pack(lo.x, lo.y); v[1] = pack(lo.z, lo.w); v[2] = pack(hi.x, hi.y); v[3] = pack(hi.z, hi.w);
  } else {
#pragma unroll
    for (int i = 0; i < 4; i++)
      v[i] = pack(c + 2 * i < a.x.cols ? x[2 * i] : 0.f, c + 2 * i + 1 < a.x.cols ? x[2 * i + 1] : 0.f);
  }
  *(uint4*)(a.to + (long)row * a.k + c) = make_uint4(v[0], v[1], v[2], v[3]);
}

// `out[to(r)] = x[from(r)] w^T + bias`. Without tiles r is the row itself. With tiles (experts) a tile's rows are entries of
// `order`; x is read at entry / from_div and out written at the entry, biases are [experts, outputs].
struct GemmArgs {
  View out;
  const __nv_bfloat16* x;
  Mat w;
  u64 step[3];
  const float* bias;
  const int* order;
  const int4* tiles;
  const int* count;
  int rows, kp, add, from_div;
};

static constexpr int BK = 64, BN = 128, THREADS = 256;
// A row of a tile is 128 bytes; its eight 16-byte pieces are rotated by the row so that ldmatrix meets no conflict.
DEV u32 piece(int row, int c) { return row * 128 + ((c ^ (row & 7)) << 4); }
// A byte as a float without a conversion instruction: 2^23 + byte, minus 2^23. Signed bytes are flipped to 0..255 before.
DEV float byte_float(u32 word, int i, float bias) { return __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7440 + i)) - bias; }

template <int F> struct WTile {
  Raw raw;
  uint4 plain[4];
  DEV void fetch(const Mat& m, int row, int g, int groups) {
    if (F == BF16 || F == F16) {
      const u8* p = m.q + ((long)row * m.step * m.k + 32 * g) * 2;
#pragma unroll
      for (int i = 0; i < 4; i++) {
        int left = m.k - 32 * g - 8 * i;
        if (left >= 8 && m.k % 8 == 0) plain[i] = __ldg((const uint4*)p + i);
        else {
          u32 v[4] = {};
          for (int j = 0; j < 8 && j < left; j++) v[j >> 1] |= (u32)((const u16*)p)[8 * i + j] << (16 * (j & 1));
          plain[i] = make_uint4(v[0], v[1], v[2], v[3]);
        }
      }
    } else {
      if (g < groups) raw = load<F>(m, row, g, groups);
      else { raw = Raw{}; }
    }
  }
  DEV void store(u32 tile, int row, int half, int g, bool there) {
    u32 v[16];
    if (F == BF16 || F == F16) {
      const u32 p[16] = {plain[0].x, plain[0].y, plain[0].z, plain[0].w, plain[1].x, plain[1].y, plain[1].z, plain[1].w,
                         plain[2].x, plain[2].y, plain[2].z, plain[2].w, plain[3].x, plain[3].y, plain[3].z, plain[3].w};
#pragma unroll
      for (int i = 0; i < 16; i++) v[i] = F == BF16 ? p[i] : pack(half_of(p[i]), half_of(p[i] >> 16));
    } else {
      Codes w = codes<F>(raw, g);
      constexpr bool has_sign = !has_offset<F>() || F == AFFINE8;
      constexpr float off = has_sign ? 8388608.f + 128.f : 8388608.f;
#pragma unroll
      for (int i = 0; i < 8; i++) {
        u32 c = has_sign ? w.c[i] ^ 0x80808080u : w.c[i];
        float s = i < 4 ? w.s0 : w.s1;
        v[2 * i] = pack(fmaf(s, byte_float(c, 0, off), w.b), fmaf(s, byte_float(c, 1, off), w.b));
        v[2 * i + 1] = pack(fmaf(s, byte_float(c, 2, off), w.b), fmaf(s, byte_float(c, 3, off), w.b));
      }
    }
    // A choice between two addresses would put both into local memory.
#pragma unroll
    for (int i = 0; i < 16; i++) v[i] = there ? v[i] : 0;
#pragma unroll
    for (int i = 0; i < 4; i++) store16(tile + piece(row, 4 * half + i), v + 4 * i);
  }
};

// BM rows by BN outputs a block; WM warps along the rows, 8 / WM along the outputs.
template <int F, int BM, int WM> DEV void gemm(const GemmArgs& a) {
  constexpr int WN = 8 / WM, MT = BM / WM / 16, NT = BN / WN / 8;
  extern __shared__ __align__(128) u8 shared[];
  u32 xs = smem_of(shared), ws = xs + 2 * BM * 128;
  int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, wm = warp % WM, wn = warp / WM;
  Mat w = a.w;
  const float* bias = a.bias;
  int first = blockIdx.y * BM, rows = a.rows - first, n0 = blockIdx.x * BN;
  if (a.tiles) {
    if (blockIdx.y >= a.count[0]) return;
    int4 t = a.tiles[blockIdx.y];
    w.q += t.x * a.step[0];
    w.h += t.x * a.step[1];
    w.s += t.x * a.step[2];
    first = t.y;
    rows = t.z;
    if (bias) bias += (long)t.w * w.n;
  }
  // This thread's pieces of x: always the same rows and column of pieces.
  constexpr int XP = BM * 8 / THREADS;
  const __nv_bfloat16* from[XP];
  bool there[XP];
#pragma unroll
  for (int i = 0; i < XP; i++) {
    int r = (tid + i * THREADS) >> 3;
    there[i] = r < rows;
    int at = first + (there[i] ? r : 0);
    if (a.order) at = a.order[at] / a.from_div;
    from[i] = a.x + (long)at * a.kp + 8 * (tid & 7);
  }
  int wrow = tid >> 1, half = tid & 1, groups = (w.k + 31) / 32, steps = a.kp / BK;
  bool wthere = n0 + wrow < w.n;
  WTile<F> wt;
  auto copy_x = [&](int k, int buf) {
#pragma unroll
    for (int i = 0; i < XP; i++) {
      int r = (tid + i * THREADS) >> 3;
      copy16(xs + buf * BM * 128 + piece(r, tid & 7), from[i] + (long)k * BK, there[i]);
    }
    commit();
  };
  auto fetch_w = [&](int k) { wt.fetch(w, wthere ? n0 + wrow : 0, min(2 * k + half, groups - 1), groups); };
  auto store_w = [&](int k, int buf) { wt.store(ws + buf * BN * 128, wrow, half, 2 * k + half, wthere && 2 * k + half < groups); };
  float acc[MT][NT][4] = {};
  fetch_w(0);
  copy_x(0, 0);
  store_w(0, 0);
  if (steps > 1) fetch_w(1);
  for (int k = 0; k < steps; k++) {
    int buf = k & 1;
    wait_all();
    __syncthreads();
    if (k + 1 < steps) copy_x(k + 1, buf ^ 1);
    u32 xb = xs + buf * BM * 128, wb = ws + buf * BN * 128;
#pragma unroll
    for (int kk = 0; kk < BK / 16; kk++) {
      u32 xa[MT][4], wf[NT / 2][4];
#pragma unroll
      for (int m = 0; m < MT; m++) ldsm4(xa[m], xb + piece(wm * MT * 16 + m * 16 + (lane & 15), 2 * kk + (lane >> 4)));
#pragma unroll
      for (int n = 0; n < NT / 2; n++)
        ldsm4(wf[n], wb + piece(wn * NT * 8 + n * 16 + (lane & 7) + ((lane >> 4) << 3), 2 * kk + (lane >> 3 & 1)));
#pragma unroll
      for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < NT; n++) mma(acc[m][n], xa[m], &wf[n >> 1][2 * (n & 1)]);
      // The next tile's weights are taken apart while tensor cores are busy with this one's.
      if (kk == 0 && k + 1 < steps) {
        store_w(k + 1, buf ^ 1);
        if (k + 2 < steps) fetch_w(k + 2);
      }
    }
  }
#pragma unroll
  for (int m = 0; m < MT; m++)
#pragma unroll
    for (int half_m = 0; half_m < 2; half_m++) {
      int r = wm * MT * 16 + m * 16 + half_m * 8 + (lane >> 2);
      if (r >= rows) continue;
      float* out = f32(a.out, a.order ? a.order[first + r] : first + r, 0);
#pragma unroll
      for (int n = 0; n < NT; n++) {
        int c = n0 + wn * NT * 8 + n * 8 + 2 * (lane & 3);
#pragma unroll
        for (int j = 0; j < 2; j++)
          if (c + j < w.n) {
            float y = acc[m][n][2 * half_m + j] + (bias ? bias[c + j] : 0.f);
            out[c + j] = a.add ? out[c + j] + y : y;
          }
      }
    }
}
#define GEMM(NAME, F)                                                                                   \
  extern "C" __global__ void __launch_bounds__(THREADS) gemm_##NAME##_256(const __grid_constant__ GemmArgs a) { begin(); gemm<F, 256, 4>(a); } \
  extern "C" __global__ void __launch_bounds__(THREADS) gemm_##NAME##_128(const __grid_constant__ GemmArgs a) { begin(); gemm<F, 128, 2>(a); } \
  extern "C" __global__ void __launch_bounds__(THREADS) gemm_##NAME##_32(const __grid_constant__ GemmArgs a) { begin(); gemm<F, 32, 1>(a); }
GEMM(f16, F16)
GEMM(bf16, BF16)
GEMM(q4_0, Q4_0)
GEMM(q4_1, Q4_1)
GEMM(q5_0, Q5_0)
GEMM(q5_1, Q5_1)
GEMM(q8_0, Q8_0)
GEMM(q4_k, Q4_K)
GEMM(q5_k, Q5_K)
GEMM(q6_k, Q6_K)
GEMM(iq4_nl, IQ4_NL)
GEMM(iq4_xs, IQ4_XS)
GEMM(mxfp4, MXFP4)
GEMM(affine4, AFFINE4)
GEMM(affine8, AFFINE8)
