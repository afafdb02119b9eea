// Attention of few rows over pages on tensor cores: bf16, and the rotated formats decoded on their way into registers.
// A block has one partition of one row for up to eight query heads of one key head; each of its warps goes through tiles of
// sixteen keys of its own. Scores are products of keys (16) with queries (8 heads), sums products of values (16 columns)
// with weights (8 heads), so that nothing is shared between warps until they end.
#include "codes.cuh"

static constexpr int WARPS = 8, HEADS = 8;

DEV u32 transposed(u32 x) {
  u32 y;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

// Words of keys that a lane holds of each of its two keys, and of values of each of its four. The elements of a vector come
// in any order that queries and sums follow: see `key_elem` and `value_elem`.
template <int FMT, int D> struct Shape {
  static constexpr int PER = FMT == KV_TQ4 ? 8 : FMT == KV_Q8 ? 4 : 2;  // elements of a word
  static constexpr int KW = D / PER / 4, VW = D / PER / 8;
};
// First element of word `w` of a key's lane `t`.
template <int FMT, int D> DEV int key_elem(int w, int t) { return (4 * w + t) * Shape<FMT, D>::PER; }
// First element of word `w` of a value's lane `g`.
template <int FMT, int D> DEV int value_elem(int w, int g) { return (8 * w + g) * Shape<FMT, D>::PER; }

// Four-bit history comes through shared memory: a tile of keys and one of values for each warp, copied while the other of them
// is worked on. Registers hold no codes then, and copies and products overlap, which they do not where a warp waits for its own
// loads. Vectors 512 wide would not fit on cards with 100 KiB.
template <int FMT, int D> DEV constexpr bool staged() { return FMT == KV_TQ4 && D <= 256; }
// Bytes of a warp's tiles: sixteen keys, sixteen values, their scales.
template <int D> DEV constexpr int stage_bytes() { return 16 * D + 64; }

template <int D> struct Stage {
  static constexpr int TILE = 8 * D;  // bytes of sixteen vectors
  u8* mem;
  int lane;
  DEV void keys(const u8* block, int in) const {
    u32 to = smem_of(mem);
#pragma unroll
    for (int i = 0; i < TILE / 512; i++) copy16(to + 16 * (lane + 32 * i), block + in * (D / 2) + 16 * (lane + 32 * i), true);
    if (lane < 2) copy16(to + 2 * TILE + 16 * lane, block + 256 * (D / 2) + 2 * in + 16 * lane, true);
    commit();
  }
  // Units of 32 bytes of a value's row lie turned by a quarter of its number, so that what the lanes of a warp read at a time
  // (eight words of every fourth row) lies in different banks.
  DEV static int unit(int key, int u) { return (key * (D / 64) + u) ^ (key >> 2); }
  DEV void values(const u8* block, int in) const {
    u32 to = smem_of(mem) + TILE;
#pragma unroll
    for (int i = 0; i < TILE / 512; i++) {
      int piece = lane + 32 * i, key = piece / (D / 32), in_row = piece % (D / 32);
      copy16(to + 32 * unit(key, in_row >> 1) + 16 * (in_row & 1), block + in * (D / 2) + 16 * piece, true);
    }
    if (lane < 2) copy16(to + TILE + 32 + 16 * lane, block + 256 * (D / 2) + 2 * in + 16 * lane, true);
    commit();
  }
  // Word `w` of keys 2 g and 2 g + 1.
  DEV uint2 key(int w, int g) const { return *(const uint2*)(mem + 64 * w + 8 * g); }
  // Word 8 w + g of a value.
  DEV u32 value(int key, int w, int g) const { return *(const u32*)(mem + TILE + 32 * unit(key, w) + 4 * g); }
  // Scales of keys or values 2 g and 2 g + 1.
  DEV float2 scales(int plane, int g) const { return __half22float2(*(const __half2*)(mem + 2 * TILE + 32 * plane + 4 * g)); }
};

template <int FMT, int D> DEV void few(const AttnArgs& a) {
  using S = Shape<FMT, D>;
  constexpr bool STAGED = staged<FMT, D>();
  constexpr int PAIRS = S::PER / 2;  // pairs of elements of a word
  constexpr int R = D / 32;
  extern __shared__ __align__(128) u8 mem[];
  int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
  int group = a.q.heads / a.st.heads, kv = blockIdx.y, row = blockIdx.z, part = blockIdx.x;
  early();
  // What rows are and where pages lie was there before the step, and so was what they hold in front of the positions that it writes.
  int seq = __ldcg(i32(a.rows.seq_of, row)), pos = __ldcg(i32(a.rows.pos, row)), before = a.rows.n == a.rows.seqs ? pos : 0;
  Cut cut = cut_of(a, pos);
  bool mine_too = part < cut.parts && part < a.room;
  int2 seen = cut.part(part);
  int start = seen.x, end = seen.y, first = (start & ~15) + 16 * warp;
  u32* table = (u32*)mem;
  const u8* mine = mem + 4 * lane;
  __nv_bfloat16* qs = (__nv_bfloat16*)(mem + TABLE_BYTES);
  constexpr int QD = D + 32;  // rows of queries half of all banks apart
  constexpr float LOG2E = 1.4426950408889634f;
  const Stage<D> stage{mem + TABLE_BYTES + HEADS * QD * 2 + warp * stage_bytes<D>(), lane};
  const float by = a.scale * LOG2E * (rotated(FMT) ? unit_of<FMT>(D) : 1.f);
  // Keys of a tile are asked for while the one before it is weighed; scales past the nearest cache, which may have lines from before the
  // step (vectors have lines of their own).
  u32 kw[2][S::KW];
  float sk[2];
  auto ask = [&](int at) {
    long page = at < end ? page_of(a.st, a.rows, seq, at) : -1;
    if (page < 0) return page;
    u8* ks = block_at(a.st, FMT, D, page, 0, kv);
    int in = at & 255;
#pragma unroll
    for (int i = 0; i < 2; i++) {
#pragma unroll
      for (int w = 0; w < S::KW; w++) kw[i][w] = *(const u32*)(ks + byte_at(FMT, D, 0, in + g + 8 * i, 4 * (4 * w + t)));
      sk[i] = rotated(FMT) ? by * __half2float(__ldcg(scales_of(ks, FMT, D) + in + g + 8 * i)) : by;
    }
    return page;
  };
  long page_first = STAGED && mine_too && first < end ? page_of(a.st, a.rows, seq, first) : -1;
  auto stage_first = [&] {
    stage.keys(block_at(a.st, FMT, D, page_first, 0, kv), first & 255);
    stage.values(block_at(a.st, FMT, D, page_first, 1, kv), first & 255);
  };
  bool ahead = mine_too && first < end && first + 16 <= before;
  if (ahead && !STAGED) page_first = ask(first);
  if (STAGED && ahead && page_first >= 0) stage_first();
  if (FMT == KV_TQ4) fill_table(table, D);
  ready();
  if (!mine_too) return;
  for (int h0 = 0; h0 < group; h0 += HEADS) {
    int heads = min(HEADS, group - h0);
    __syncthreads();
    if (FMT == KV_TQ4 && h0 > 0) fill_table(table, D);
    int at = first;
    long page = page_first, page_next = -1;
    if (STAGED && page >= 0) {
      if (!ahead || h0 > 0) stage_first();
      if (at + 16 * WARPS < end) page_next = page_of(a.st, a.rows, seq, at + 16 * WARPS);
    }
    for (int h = warp; h < HEADS; h += WARPS) {
      float x[R];
#pragma unroll
      for (int r = 0; r < R; r++) x[r] = h < heads ? f32(a.q, row, kv * group + h0 + h)[lane + 32 * r] : 0.f;
      float shrink = 1.f;
      if (rotated(FMT)) {
        spread<R>(x, a.st.layer, 0, kv);
        shrink = rsqrtf((float)D);
      }
#pragma unroll
      for (int r = 0; r < R; r++) qs[h * QD + lane + 32 * r] = __float2bfloat16(x[r] * shrink);
    }
    __syncthreads();
    float acc[D / 16][4] = {}, max[2] = {-INF, -INF}, sum[2] = {0.f, 0.f};
    auto key_at = [&](int half) { return STAGED ? 2 * g + half : g + 8 * half; };
    if (!STAGED && (!ahead || h0 > 0)) page = ask(at);
    while (page >= 0) {
      u8* vs = block_at(a.st, FMT, D, page, 1, kv);
      int in = at & 255;
      u32 vw[4][S::VW];
      // Keys 2t, 2t + 1, 2t + 8, 2t + 9. What was not written yet may be no number, which no weight makes harmless.
#pragma unroll
      for (int i = 0; i < 4 && !STAGED; i++) {
        int key = 2 * t + (i & 1) + 8 * (i >> 1);
        bool seen = at + key >= start && at + key < end;
#pragma unroll
        for (int w = 0; w < S::VW; w++) vw[i][w] = seen ? *(const u32*)(vs + byte_at(FMT, D, 1, in + key, 4 * (8 * w + g))) : 0;
      }
      float sv[2] = {1.f, 1.f};
      if (STAGED) {
        wait_but<1>();
        __syncwarp();
        float2 two = stage.scales(0, g);
        sk[0] = by * two.x;
        sk[1] = by * two.y;
      } else if (rotated(FMT)) {
#pragma unroll
        for (int i = 0; i < 2; i++) sv[i] = unit_of<FMT>(D) * __half2float(scales_of(vs, FMT, D)[in + g + 8 * i]);
      }
      float s[4] = {};
#pragma unroll
      for (int w = 0; w < S::KW; w++) {
        const __nv_bfloat16* at_q = qs + g * QD + key_elem<FMT, D>(w, t);
        if (FMT == KV_TQ4) {
          if (STAGED) {
            uint2 two = stage.key(4 * w + t, g);
            kw[0][w] = two.x;
            kw[1][w] = two.y;
          }
          uint4 four = *(const uint4*)at_q;
          const u32 q[4] = {four.x, four.y, four.z, four.w};
          u32 a0[4] = {pair_of<0>(mine, kw[0][w]), pair_of<0>(mine, kw[1][w]), pair_of<1>(mine, kw[0][w]), pair_of<1>(mine, kw[1][w])};
          u32 a1[4] = {pair_of<2>(mine, kw[0][w]), pair_of<2>(mine, kw[1][w]), pair_of<3>(mine, kw[0][w]), pair_of<3>(mine, kw[1][w])};
          mma(s, a0, q);
          mma(s, a1, q + 2);
        } else if (FMT == KV_Q8) {
          uint2 two = *(const uint2*)at_q;
          const u32 q[2] = {two.x, two.y};
          u32 a0[4] = {bytes_pair(kw[0][w], 0), bytes_pair(kw[1][w], 0), bytes_pair(kw[0][w], 2), bytes_pair(kw[1][w], 2)};
          mma(s, a0, q);
        } else if (w % 2 == 0) {
          u32 a0[4] = {kw[0][w], kw[1][w], kw[0][w + 1], kw[1][w + 1]};
          const u32 q[2] = {*(const u32*)at_q, *(const u32*)(qs + g * QD + key_elem<FMT, D>(w + 1, t))};
          mma(s, a0, q);
        }
      }
      // s: keys `key_at` of rows g, g + 8 by heads 2t, 2t + 1.
      float top[2] = {-INF, -INF};
#pragma unroll
      for (int e = 0; e < 4; e++) {
        int key = at + key_at(e >> 1);
        s[e] = key >= start && key < end ? s[e] * sk[e >> 1] : -INF;
        top[e & 1] = fmaxf(top[e & 1], s[e]);
      }
      at += 16 * WARPS;
      if (STAGED) {
        // Everybody has read the keys: the next ones may come over them.
        page = page_next;
        __syncwarp();
        if (page >= 0) stage.keys(block_at(a.st, FMT, D, page, 0, kv), at & 255);
        else commit();
        page_next = page >= 0 && at + 16 * WARPS < end ? page_of(a.st, a.rows, seq, at + 16 * WARPS) : -1;
      } else if (rotated(FMT)) page = ask(at);
      float keep[2], base[2];
#pragma unroll
      for (int i = 0; i < 2; i++) {
#pragma unroll
        for (int d = 4; d < 32; d *= 2) top[i] = fmaxf(top[i], __shfl_xor_sync(FULL, top[i], d));
        float m = fmaxf(max[i], top[i]);
        base[i] = m == -INF ? 0.f : m;
        keep[i] = exp2f(max[i] - base[i]);
        max[i] = m;
      }
#pragma unroll
      for (int e = 0; e < 4; e++) s[e] = exp2f(s[e] - base[e & 1]);
#pragma unroll
      for (int i = 0; i < 2; i++) sum[i] = fmaf(sum[i], keep[i], s[i] + s[2 + i]);
      if (__any_sync(FULL, keep[0] != 1.f || keep[1] != 1.f)) {
#pragma unroll
        for (int d = 0; d < D / 16; d++)
#pragma unroll
          for (int e = 0; e < 4; e++) acc[d][e] *= keep[e & 1];
      }
      if (STAGED) {
        wait_but<1>();
        __syncwarp();
        float2 two = stage.scales(1, g);
        sv[0] = unit_of<FMT>(D) * two.x;
        sv[1] = unit_of<FMT>(D) * two.y;
      }
#pragma unroll
      for (int e = 0; e < 4; e++) s[e] = s[e] > 0.f ? s[e] * sv[e >> 1] : 0.f;
      u32 p[2] = {transposed(pack(s[0], s[1])), transposed(pack(s[2], s[3]))};
      // Rows of a product are columns of values: row g the even one, row g + 8 the odd one of a pair.
#pragma unroll
      for (int w = 0; w < S::VW; w++) {
        // Rows 2t, 2t + 1, 2t + 8 and 2t + 9 of the product: which keys those are follows from `key_at`.
        if (STAGED) {
          vw[0][w] = stage.value(4 * t, w, g);
          vw[1][w] = stage.value(4 * t + 2, w, g);
          vw[2][w] = stage.value(4 * t + 1, w, g);
          vw[3][w] = stage.value(4 * t + 3, w, g);
        }
#pragma unroll
        for (int j = 0; j < PAIRS; j++) {
          u32 v[4];
#pragma unroll
          for (int i = 0; i < 4; i++) {
            if (FMT == KV_TQ4) v[i] = j == 0 ? pair_of<0>(mine, vw[i][w]) : j == 1 ? pair_of<1>(mine, vw[i][w]) : j == 2 ? pair_of<2>(mine, vw[i][w]) : pair_of<3>(mine, vw[i][w]);
            else if (FMT == KV_Q8) v[i] = bytes_pair(vw[i][w], 2 * j);
            else v[i] = vw[i][w];
          }
          u32 af[4] = {__byte_perm(v[0], v[1], 0x5410), __byte_perm(v[0], v[1], 0x7632), __byte_perm(v[2], v[3], 0x5410), __byte_perm(v[2], v[3], 0x7632)};
          mma(acc[w * PAIRS + j], af, p);
        }
      }
      if (STAGED) {
        __syncwarp();
        if (page >= 0) stage.values(block_at(a.st, FMT, D, page, 1, kv), at & 255);
        else commit();
      }
      // Wide words leave no registers to ask earlier.
      if (!rotated(FMT)) page = ask(at);
    }
    if (STAGED) wait_all();
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
      for (int d = 4; d < 32; d *= 2) sum[i] += __shfl_xor_sync(FULL, sum[i], d);
    // Warps meet in a tree: upper halves hand over, lower halves add. Lanes of all warps hold the same columns and heads.
    float* meet = (float*)mem;
    constexpr int EACH = D / 4 + 4;
    for (int half = WARPS / 2; half > 0; half /= 2) {
      __syncthreads();
      if (warp >= half && warp < 2 * half) {
        float* to = meet + (warp - half) * EACH * 32 + lane;
#pragma unroll
        for (int i = 0; i < 2; i++) {
          to[32 * i] = max[i];
          to[32 * (2 + i)] = sum[i];
        }
#pragma unroll
        for (int i = 0; i < D / 4; i++) to[32 * (4 + i)] = acc[i / 4][i % 4];
      }
      __syncthreads();
      if (warp < half) {
        const float* from = meet + warp * EACH * 32 + lane;
        float bx[2], by2[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
          float other = from[32 * i], m = fmaxf(max[i], other), b = m == -INF ? 0.f : m;
          bx[i] = exp2f(max[i] - b);
          by2[i] = exp2f(other - b);
          max[i] = m;
          sum[i] = fmaf(from[32 * (2 + i)], by2[i], sum[i] * bx[i]);
        }
#pragma unroll
        for (int i = 0; i < D / 4; i++) acc[i / 4][i % 4] = fmaf(from[32 * (4 + i)], by2[i & 1], acc[i / 4][i % 4] * bx[i & 1]);
      }
    }
    __syncthreads();
    if (warp == 0) {
#pragma unroll
      for (int i = 0; i < 2; i++) {
        int h = 2 * t + i;
        if (h >= heads) continue;
        float* to = held(a, row, kv * group + h0 + h, part);
        if (g == 0) {
          to[0] = max[i] * 0.6931471805599453f;
          to[1] = sum[i];
        }
#pragma unroll
        for (int w = 0; w < S::VW; w++)
#pragma unroll
          for (int j = 0; j < PAIRS; j++)
#pragma unroll
            for (int o = 0; o < 2; o++) to[2 + value_elem<FMT, D>(w, g) + 2 * j + o] = acc[w * PAIRS + j][2 * o + i];
      }
    }
  }
}
#define FEW(NAME, FMT, D) \
  extern "C" __global__ void __launch_bounds__(32 * WARPS, staged<FMT, D>() ? 2 : 1) few_##NAME##_##D(const __grid_constant__ AttnArgs a) { few<FMT, D>(a); }
#define FEWS(NAME, FMT) FEW(NAME, FMT, 64) FEW(NAME, FMT, 128) FEW(NAME, FMT, 256) FEW(NAME, FMT, 512)
FEWS(bf16, KV_BF16)
FEWS(q8, KV_Q8)
FEWS(tq4, KV_TQ4)
