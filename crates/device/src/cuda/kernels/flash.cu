// Attention of many rows over pages on tensor cores; tiles of the rotated formats become bf16 in shared memory. A block has 64 rows of one query head and goes through the keys
// in tiles of 64 aligned to positions, so a row meets its keys in one order in any company: tiles that it does not see
// change nothing. Scores stay in registers.
#include "codes.cuh"

static constexpr int ROWS = 64, THREADS = 128;
// Keys of a tile: as many as fit into the shared memory of every card.
template <int FMT, int D> DEV constexpr int keys_of() { return rotated(FMT) && D == 256 ? 32 : 64; }

// A tile's row of D bf16; its 16-byte pieces are rotated by the row so that ldmatrix meets no conflict.
template <int D> DEV u32 at(int row, int c) { return row * (D * 2) + ((c ^ (row & 7)) << 4); }

// A piece of eight elements of a packed vector as bf16, for 16 bytes of a tile.
template <int FMT> DEV void unpack(const u8* table, const u8* block, int at0, int at1, u32* v) {
  u32 w = *(const u32*)(block + at0);
  if (FMT == KV_TQ4) {
    v[0] = pair_of<0>(table, w); v[1] = pair_of<1>(table, w); v[2] = pair_of<2>(table, w); v[3] = pair_of<3>(table, w);
  } else {
    u32 x = *(const u32*)(block + at1);
    v[0] = bytes_pair(w, 0); v[1] = bytes_pair(w, 2); v[2] = bytes_pair(x, 0); v[3] = bytes_pair(x, 2);
  }
}
// Rows of f32 in shared memory, 16 of them a warp, back from the rotation.
template <int D> DEV void unrotate(float* rows, int layer, int head) {
  constexpr int R = D / 32;
  int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  for (int r = 16 * warp; r < 16 * warp + 16; r++) {
    float y[R];
#pragma unroll
    for (int i = 0; i < R; i++) y[i] = rows[r * D + lane + 32 * i];
    gather<R>(y, layer, 1, head);
#pragma unroll
    for (int i = 0; i < R; i++) rows[r * D + lane + 32 * i] = y[i];
  }
}

template <int FMT, int D> DEV void flash(const AttnArgs& a) {
  constexpr int KEYS = keys_of<FMT, D>();
  extern __shared__ __align__(128) u8 shared[];
  u32 qs = smem_of(shared), ks = qs + ROWS * D * 2, vs = ks + KEYS * D * 2;
  // Behind the tiles: scales of keys and values, then the table.
  float* scales = (float*)(shared + (ROWS + 2 * KEYS) * D * 2);
  u8* table = (u8*)(scales + 2 * KEYS);
  if (FMT == KV_TQ4) fill_table((u32*)table, D);
  table += 4 * (threadIdx.x & 31);
  int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, head = blockIdx.x, kv = head / (a.q.heads / a.st.heads);
  int row0 = blockIdx.y * ROWS, n = min(ROWS, a.rows.n - row0);
  if (rotated(FMT)) {
    // A warp for each row: rotated, then written like the others below.
    constexpr int R = D / 32;
    for (int r = warp; r < ROWS; r += THREADS / 32) {
      float x[R];
#pragma unroll
      for (int i = 0; i < R; i++) x[i] = r < n ? f32(a.q, row0 + r, head)[lane + 32 * i] : 0.f;
      spread<R>(x, a.st.layer, 0, kv);
#pragma unroll
      for (int i = 0; i < R; i++) {
        int c = lane + 32 * i;
        *(__nv_bfloat16*)(shared + at<D>(r, c >> 3) + 2 * (c & 7)) = __float2bfloat16(x[i] * rsqrtf((float)D));
      }
    }
  } else
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
  const float scale = a.scale * 1.4426950408889634f * (rotated(FMT) ? unit_of<FMT>(D) : 1.f);
  for (int begin = 0; begin < n;) {  // runs of rows of one sequence
    int run = *i32(a.rows.seq_of, row0 + begin), end = begin + 1;
    while (end < n && *i32(a.rows.seq_of, row0 + end) == run) end++;
    int low = *i32(a.rows.pos, row0 + begin), high = *i32(a.rows.pos, row0 + end - 1);
    int first = ::max(a.window > 0 ? ::max(0, low + 1 - a.window) : 0, ::min(a.since, low));
    for (int key0 = first / KEYS * KEYS; key0 <= high; key0 += KEYS) {
      long page = page_of(a.st, a.rows, run, key0);
      if (page < 0) break;
      u8 *kb = block_at(a.st, FMT, D, page, 0, kv), *vb = block_at(a.st, FMT, D, page, 1, kv);
      int in = key0 % 256;
      __syncthreads();
      // Vectors behind the last position hold anything: scores of such keys are masked, values must be zeros.
      if (!rotated(FMT)) {
        const u8 *k = kb + in * D * 2, *v = vb + in * D * 2;
        for (int i = threadIdx.x; i < KEYS * D / 8; i += THREADS) {
          int r = i / (D / 8), c = i % (D / 8);
          copy16(ks + at<D>(r, c), k + (long)i * 16, key0 + r <= high);
          copy16(vs + at<D>(r, c), v + (long)i * 16, key0 + r <= high && key0 + r >= first);
        }
        commit();
        wait_all();
      } else {
        constexpr int BYTES = FMT == KV_TQ4 ? 4 : 8;  // of eight elements
        for (int i = threadIdx.x; i < KEYS * D / 8; i += THREADS) {
          // Keys lie in turn, sixteen together: neighbours take neighbouring keys.
          int r = (i & 15) + 16 * (i / (2 * D)), c = i / 16 % (D / 8);
          u32 p[4];
          unpack<FMT>(table, kb, byte_at(FMT, D, 0, in + r, BYTES * c), byte_at(FMT, D, 0, in + r, BYTES * c + 4), p);
          store16(ks + at<D>(r, c), p);
        }
#pragma unroll 4
        for (int i = threadIdx.x; i < KEYS * D / 8; i += THREADS) {
          int r = i / (D / 8), c = i % (D / 8);
          u32 p[4];
          unpack<FMT>(table, vb, byte_at(FMT, D, 1, in + r, BYTES * c), byte_at(FMT, D, 1, in + r, BYTES * c + 4), p);
          store16(vs + at<D>(r, c), p);
        }
        if (threadIdx.x < 2 * KEYS) {
          int r = threadIdx.x % KEYS;
          bool there = key0 + r <= high && key0 + r >= first;
          float by = threadIdx.x < KEYS ? scale : unit_of<FMT>(D);
          scales[threadIdx.x] = there ? by * __half2float(scales_of(threadIdx.x < KEYS ? kb : vb, FMT, D)[in + r]) : 0.f;
        }
      }
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
          s[j][e] = seen ? s[j][e] * (rotated(FMT) ? scales[8 * j + 2 * (lane & 3) + (e & 1)] : scale) : -INF;
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
          if (rotated(FMT)) s[j][e] *= scales[KEYS + 8 * j + 2 * (lane & 3) + (e & 1)];
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
  // Rotated values go back row by row, in the room of keys and values.
  float* rows = (float*)shared;
  if (rotated(FMT)) __syncthreads();
#pragma unroll
  for (int r = 0; r < 2; r++) {
    sum[r] += __shfl_xor_sync(FULL, sum[r], 1);
    sum[r] += __shfl_xor_sync(FULL, sum[r], 2);
    float own = 1.f;
    if (a.sinks) {
      float sink = a.sinks[head] * 1.4426950408889634f, m = fmaxf(max[r], sink);
      own = exp2f(max[r] - m);
      sum[r] = sum[r] * own + exp2f(sink - m);
    }
    bool mine = r0 + 8 * r < n;
    float by = own / sum[r], *out = mine ? f32(a.out, row0 + r0 + 8 * r, head) : nullptr;
    if (rotated(FMT)) {
      out = rows + (r0 + 8 * r) * D;
      by *= rsqrtf((float)D);
    }
    if (!out) continue;
#pragma unroll
    for (int d = 0; d < D / 8; d++)
#pragma unroll
      for (int j = 0; j < 2; j++) out[8 * d + 2 * (lane & 3) + j] = acc[d][2 * r + j] * by;
  }
  if (!rotated(FMT)) return;
  __syncwarp();
  unrotate<D>(rows, a.st.layer, kv);
  __syncwarp();
  for (int r = 16 * warp; r < min(16 * warp + 16, n); r++)
    for (int c = lane; c < D; c += 32) f32(a.out, row0 + r, head)[c] = rows[r * D + c];
}
#define FLASH(NAME, FMT, D) \
  extern "C" __global__ void __launch_bounds__(THREADS) flash_##NAME##_##D(AttnArgs a) { begin(); flash<FMT, D>(a); }
#define FLASHES(NAME, FMT) FLASH(NAME, FMT, 64) FLASH(NAME, FMT, 128) FLASH(NAME, FMT, 256)
FLASHES(bf16, KV_BF16)
FLASHES(q8, KV_Q8)
FLASHES(tq4, KV_TQ4)
