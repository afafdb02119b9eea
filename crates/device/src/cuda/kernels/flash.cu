// Attention of many rows over bf16 pages on tensor cores. A block has 64 rows of one query head and goes through the keys
// in tiles of 64 aligned to positions, so a row meets its keys in one order in any company: tiles that it does not see
// change nothing. Scores stay in registers.
#include "pages.cuh"
#include "tensor.cuh"

static constexpr int ROWS = 64, KEYS = 64, THREADS = 128;

// A tile's row of D bf16; its 16-byte pieces are rotated by the row so that ldmatrix meets no conflict.
template <int D> DEV u32 at(int row, int c) { return row * (D * 2) + ((c ^ (row & 7)) << 4); }

template <int D> DEV void flash(const AttnArgs& a) {
  extern __shared__ __align__(128) u8 shared[];
  u32 qs = smem_of(shared), ks = qs + ROWS * D * 2, vs = ks + KEYS * D * 2;
  int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, head = blockIdx.x, kv = head / (a.q.heads / a.st.heads);
  int row0 = blockIdx.y * ROWS, n = min(ROWS, a.rows.n - row0);
  for (int i = threadIdx.x; i < ROWS * D / 8; i += THREADS) {
    int r = i / (D / 8), c = i % (D / 8);
    u32 v[4] = {};
    if (r < n) {
      const float* q = f32(a.q, row0 + r, head) + 8 * c;
#pragma unroll
      for (int j = 0; j < 4; j++) v[j] = pack(q[2 * j], q[2 * j + 1]);
    }
    store16(qs + at<D>(r, c), v);
  }
  // The two rows of this lane's fragments.
  int r0 = warp * 16 + (lane >> 2), pos[2], seq[2];
#pragma unroll
  for (int i = 0; i < 2; i++) {
    bool there = r0 + 8 * i < n;
    pos[i] = there ? *i32(a.rows.pos, row0 + r0 + 8 * i) : -1;
    seq[i] = there ? *i32(a.rows.seq_of, row0 + r0 + 8 * i) : -1;
  }
  float acc[D / 8][4] = {}, max[2] = {-INF, -INF}, sum[2] = {0.f, 0.f};
  const float scale = a.scale * 1.4426950408889634f;
  for (int begin = 0; begin < n;) {  // runs of rows of one sequence
    int run = *i32(a.rows.seq_of, row0 + begin), end = begin + 1;
    while (end < n && *i32(a.rows.seq_of, row0 + end) == run) end++;
    int low = *i32(a.rows.pos, row0 + begin), high = *i32(a.rows.pos, row0 + end - 1);
    int first = ::max(a.window > 0 ? ::max(0, low + 1 - a.window) : 0, ::min(a.since, low));
    for (int key0 = first / KEYS * KEYS; key0 <= high; key0 += KEYS) {
      long page = page_of(a.st, a.rows, run, key0);
      if (page < 0) break;
      const u8 *k = vector_at<KV_BF16>(a.st, page, 0, kv, key0 % 256), *v = vector_at<KV_BF16>(a.st, page, 1, kv, key0 % 256);
      __syncthreads();
      // Vectors behind the last position hold anything: scores of such keys are masked, values must be zeros.
      for (int i = threadIdx.x; i < KEYS * D / 8; i += THREADS) {
        int r = i / (D / 8), c = i % (D / 8);
        copy16(ks + at<D>(r, c), k + (long)i * 16, key0 + r <= high);
        copy16(vs + at<D>(r, c), v + (long)i * 16, key0 + r <= high && key0 + r >= first);
      }
      commit();
      wait_all();
      __syncthreads();
      float s[KEYS / 8][4] = {};
#pragma unroll
      for (int kk = 0; kk < D / 16; kk++) {
        u32 qf[4];
        ldsm4(qf, qs + at<D>(warp * 16 + (lane & 15), 2 * kk + (lane >> 4)));
#pragma unroll
        for (int j = 0; j < KEYS / 16; j++) {
          u32 kf[4];
          ldsm4(kf, ks + at<D>(j * 16 + (lane & 7) + ((lane >> 4) << 3), 2 * kk + (lane >> 3 & 1)));
          mma(s[2 * j], qf, kf);
          mma(s[2 * j + 1], qf, kf + 2);
        }
      }
      float top[2] = {-INF, -INF};
#pragma unroll
      for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
          int key = key0 + 8 * j + 2 * (lane & 3) + (e & 1), r = e >> 1;
          bool seen = seq[r] == run && key <= pos[r] && (a.window == 0 || key > pos[r] - a.window) && key >= ::min(a.since, pos[r]);
          s[j][e] = seen ? s[j][e] * scale : -INF;
          top[r] = fmaxf(top[r], s[j][e]);
        }
      float keep[2], base[2], add[2] = {0.f, 0.f};
#pragma unroll
      for (int r = 0; r < 2; r++) {
        top[r] = fmaxf(top[r], __shfl_xor_sync(FULL, top[r], 1));
        top[r] = fmaxf(top[r], __shfl_xor_sync(FULL, top[r], 2));
        float m = fmaxf(max[r], top[r]);
        base[r] = m == -INF ? 0.f : m;
        keep[r] = exp2f(max[r] - base[r]);
        max[r] = m;
      }
#pragma unroll
      for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
          s[j][e] = exp2f(s[j][e] - base[e >> 1]);
          add[e >> 1] += s[j][e];
        }
#pragma unroll
      for (int r = 0; r < 2; r++) sum[r] = sum[r] * keep[r] + add[r];
#pragma unroll
      for (int d = 0; d < D / 8; d++)
#pragma unroll
        for (int e = 0; e < 4; e++) acc[d][e] *= keep[e >> 1];
#pragma unroll
      for (int j = 0; j < KEYS / 16; j++) {
        u32 pf[4] = {pack(s[2 * j][0], s[2 * j][1]), pack(s[2 * j][2], s[2 * j][3]), pack(s[2 * j + 1][0], s[2 * j + 1][1]),
                     pack(s[2 * j + 1][2], s[2 * j + 1][3])};
#pragma unroll
        for (int d = 0; d < D / 16; d++) {
          u32 vf[4];
          ldsm4_t(vf, vs + at<D>(j * 16 + (lane & 15), 2 * d + (lane >> 4)));
          mma(acc[2 * d], pf, vf);
          mma(acc[2 * d + 1], pf, vf + 2);
        }
      }
    }
    begin = end;
  }
#pragma unroll
  for (int r = 0; r < 2; r++) {
    sum[r] += __shfl_xor_sync(FULL, sum[r], 1);
    sum[r] += __shfl_xor_sync(FULL, sum[r], 2);
    if (r0 + 8 * r >= n) continue;
    float own = 1.f;
    if (a.sinks) {
      float sink = a.sinks[head] * 1.4426950408889634f, m = fmaxf(max[r], sink);
      own = exp2f(max[r] - m);
      sum[r] = sum[r] * own + exp2f(sink - m);
    }
    float by = own / sum[r], *out = f32(a.out, row0 + r0 + 8 * r, head);
#pragma unroll
    for (int d = 0; d < D / 8; d++)
#pragma unroll
      for (int j = 0; j < 2; j++) out[8 * d + 2 * (lane & 3) + j] = acc[d][2 * r + j] * by;
  }
}
#define FLASH(D) \
  extern "C" __global__ void __launch_bounds__(THREADS) flash_bf16_##D(AttnArgs a) { flash<D>(a); }
FLASH(64)
FLASH(128)
FLASH(256)
