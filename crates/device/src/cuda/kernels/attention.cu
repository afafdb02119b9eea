// History: keys and values into pages, and causal attention over them where tensor cores do not fit (f32, odd widths).
#include "fifteen.cuh"
#include "pages.cuh"
#include "rotation.cuh"

struct AppendArgs { Stream st; Rows rows; View k, v; };
extern "C" __global__ void append(AppendArgs a) {
  begin();
  int row = blockIdx.x / a.st.heads, head = blockIdx.x % a.st.heads;
  int seq = *i32(a.rows.seq_of, row), pos = *i32(a.rows.pos, row);
  long page = page_of(a.st, a.rows, seq, pos);
  if (page < 0) return;
  for (int plane = 0; plane < 2; plane++) {
    const float* x = f32(plane ? a.v : a.k, row, head);
    if (a.st.fmt == KV_F32) {
      float* to = (float*)vector_at<KV_F32>(a.st, page, plane, head, pos % 256);
      for (int i = threadIdx.x; i < a.st.d; i += blockDim.x) to[i] = x[i];
    } else {
      __nv_bfloat16* to = (__nv_bfloat16*)vector_at<KV_BF16>(a.st, page, plane, head, pos % 256);
      for (int i = threadIdx.x; i < a.st.d; i += blockDim.x) to[i] = __float2bfloat16(x[i]);
    }
  }
}

DEV double warp_sum(double x) {
#pragma unroll
  for (int d = 16; d > 0; d >>= 1) x += __shfl_xor_sync(FULL, x, d);
  return x;
}
// A scale as it is stored: beyond f16 the greatest f16.
DEV __half scale_of(float x) {
  float most = 65504.f;
  return __float2half_rn(x > most ? most : x < -most ? -most : x);
}
// Four neighbouring lanes' codes of `BITS` bits each meet in one word, which the first of a word's lanes writes.
template <int BITS> DEV u32 word_of(u32 code) {
  constexpr int LANES = 32 / BITS;
  u32 word = code << (BITS * (threadIdx.x & (LANES - 1)));
#pragma unroll
  for (int d = 1; d < LANES; d *= 2) word |= __shfl_xor_sync(FULL, word, d);
  return word;
}
// A warp for each vector: keys and values of a (row, head). The bytes are those of kv/tq4.rs and kv/q8.rs.
template <int FMT, int D> DEV void pack_vector(const AppendArgs& a) {
  constexpr int R = D / 32;
  int plane = threadIdx.x >> 5, lane = threadIdx.x & 31, row = blockIdx.x / a.st.heads, head = blockIdx.x % a.st.heads;
  int seq = *i32(a.rows.seq_of, row), pos = *i32(a.rows.pos, row), at = pos % 256;
  long page = page_of(a.st, a.rows, seq, pos);
  if (page < 0) return;
  const float* from = f32(plane ? a.v : a.k, row, head);
  u8* block = block_at(a.st, FMT, D, page, plane, head);
  float x[R];
  double square = 0.0;
#pragma unroll
  for (int r = 0; r < R; r++) {
    x[r] = from[lane + 32 * r];
    square += (double)x[r] * (double)x[r];
  }
  double norm = sqrt(warp_sum(square));
  __half scale;
  u32 code[R];
  spread<R>(x, a.st.layer, plane, head);
  if (FMT == KV_TQ4) {
    bool bad = !(norm < (double)INF);
    float by = 1.f / (float)norm;
    if (!(by < INF)) by = 0.f;
    double along = 0.0;
#pragma unroll
    for (int r = 0; r < R; r++) {
      float y = x[r] * by;
      code[r] = 0;
#pragma unroll
      for (int i = 0; i < 15; i++) code[r] += y > (centroid(D, i) + centroid(D, i + 1)) * 0.5f;
      along += (double)y * (double)centroid(D, code[r]);
      if (bad) code[r] = 0;
    }
    along = warp_sum(along) / (double)D;
    scale = bad ? __float2half_rn(NOT_A_NUMBER) : scale_of(by == 0.f ? 0.f : (float)(norm / along));
  } else {
    float by = 1.f / sqrtf((float)D), most = 0.f;
    bool bad = false;
#pragma unroll
    for (int r = 0; r < R; r++) {
      x[r] *= by;
      most = fmaxf(most, fabsf(x[r]));
      bad = bad || !(fabsf(x[r]) < INF);
    }
    most = warp_max(most);
    bad = __any_sync(FULL, bad);
    scale = bad ? __float2half_rn(NOT_A_NUMBER) : scale_of(most);
    float steps = 127.f / __half2float(scale);
    if (!(steps < INF)) steps = 0.f;
#pragma unroll
    for (int r = 0; r < R; r++) code[r] = bad ? 0 : (u32)(u8)(i8)__float2int_rn(fminf(fmaxf(x[r] * steps, -127.f), 127.f));
  }
#pragma unroll
  for (int r = 0; r < R; r++) {
    constexpr int BITS = FMT == KV_TQ4 ? 4 : 8, LANES = 32 / BITS;
    u32 word = word_of<BITS>(code[r]);
    if (lane % LANES == 0) *(u32*)(block + byte_at(FMT, D, plane, at, (lane + 32 * r) * BITS / 8)) = word;
  }
  if (lane == 0) scales_of(block, FMT, D)[at] = scale;
}
#define APPEND(NAME, FMT, D) \
  extern "C" __global__ void __launch_bounds__(64) append_##NAME##_##D(AppendArgs a) { begin(); pack_vector<FMT, D>(a); }
#define APPENDS(NAME, FMT) APPEND(NAME, FMT, 64) APPEND(NAME, FMT, 128) APPEND(NAME, FMT, 256) APPEND(NAME, FMT, 512)
APPENDS(q8, KV_Q8)
APPENDS(tq4, KV_TQ4)

static constexpr int TILE = 64;

// One partition of one row for the query heads of one key head. 8 warps; every warp scores its own keys, then all
// threads weigh values column by column. Query heads go in blocks of H.
template <int K, int H> DEV void few(const AttnArgs& a) {
  extern __shared__ float mem[];
  int group = a.q.heads / a.st.heads, d = a.st.d, kv = blockIdx.y, row = blockIdx.z, part = blockIdx.x;
  int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
  int seq = *i32(a.rows.seq_of, row);
  Cut cut = cut_of(a, *i32(a.rows.pos, row));
  if (part >= cut.parts || part >= a.room) return;
  int2 seen = cut.part(part);
  int start = seen.x, end = seen.y;
  float *q = mem, *p = q + H * d, *stat = p + H * TILE;  // stat: [H][max, sum, keep]
  for (int h0 = 0; h0 < group; h0 += H) {
    int heads = min(H, group - h0);
    __syncthreads();
    for (int i = threadIdx.x; i < H * d; i += blockDim.x)
      q[i] = i / d < heads ? f32(a.q, row, kv * group + h0 + i / d)[i % d] * a.scale : 0.f;
    if (threadIdx.x < H) { stat[3 * threadIdx.x] = -INF; stat[3 * threadIdx.x + 1] = 0.f; }
    float acc[2][H] = {};
    for (int at = start; at < end;) {
      int n = min((at / TILE + 1) * TILE, end) - at;
      long page = page_of(a.st, a.rows, seq, at);
      if (page < 0) break;
      __syncthreads();
      for (int j = warp; j < n; j += warps) {
        const u8* key = vector_at<K>(a.st, page, 0, kv, at % 256 + j);
        float s[H] = {};
        for (int i = lane * 4; i < d; i += 128) {
          float x[4];
          if (K == KV_BF16 && d % 4 == 0) {
            uint2 v = *(const uint2*)(key + 2 * i);
            x[0] = __uint_as_float(v.x << 16); x[1] = __uint_as_float(v.x & 0xffff0000u);
            x[2] = __uint_as_float(v.y << 16); x[3] = __uint_as_float(v.y & 0xffff0000u);
          } else {
#pragma unroll
            for (int e = 0; e < 4; e++) x[e] = i + e < d ? elem<K>(key, i + e) : 0.f;
          }
#pragma unroll
          for (int h = 0; h < H; h++)
#pragma unroll
            for (int e = 0; e < 4; e++) s[h] = i + e < d ? fmaf(q[h * d + i + e], x[e], s[h]) : s[h];
        }
#pragma unroll
        for (int h = 0; h < H; h++) {
          float y = warp_sum(s[h]);
          if (lane == 0) p[h * TILE + j] = y;
        }
      }
      __syncthreads();
      for (int h = warp; h < H; h += warps) {
        float a0 = lane < n ? p[h * TILE + lane] : -INF, a1 = lane + 32 < n ? p[h * TILE + lane + 32] : -INF;
        float old = stat[3 * h], m = fmaxf(old, warp_max(fmaxf(a0, a1)));
        a0 = lane < n ? expf(a0 - m) : 0.f;
        a1 = lane + 32 < n ? expf(a1 - m) : 0.f;
        p[h * TILE + lane] = a0;
        p[h * TILE + lane + 32] = a1;
        float keep = expf(old - m), sum = warp_sum(a0 + a1);
        __syncwarp();
        if (lane == 0) { stat[3 * h] = m; stat[3 * h + 1] = stat[3 * h + 1] * keep + sum; stat[3 * h + 2] = keep; }
      }
      __syncthreads();
#pragma unroll
      for (int u = 0; u < 2; u++) {
        int c = threadIdx.x + u * blockDim.x;
        if (c >= d) break;
#pragma unroll
        for (int h = 0; h < H; h++) acc[u][h] *= stat[3 * h + 2];
        const u8* v = vector_at<K>(a.st, page, 1, kv, at % 256);
        for (int j = 0; j < n; j++) {
          float x = elem<K>(v + (long)j * d * (K == KV_F32 ? 4 : 2), c);
#pragma unroll
          for (int h = 0; h < H; h++) acc[u][h] = fmaf(p[h * TILE + j], x, acc[u][h]);
        }
      }
      at += n;
    }
    __syncthreads();
    for (int h = 0; h < heads; h++) {
      float* to = held(a, row, kv * group + h0 + h, part);
      if (threadIdx.x == 0) { to[0] = stat[3 * h]; to[1] = stat[3 * h + 1]; }
#pragma unroll
      for (int u = 0; u < 2; u++) {
        int c = threadIdx.x + u * blockDim.x;
        if (c < d) {
#pragma unroll
          for (int i = 0; i < H; i++)
            if (i == h) to[2 + c] = acc[u][i];
        }
      }
    }
  }
}
extern "C" __global__ void __launch_bounds__(256) attention_few_f32(AttnArgs a) { begin(); few<KV_F32, 4>(a); }
extern "C" __global__ void __launch_bounds__(256) attention_few_bf16(AttnArgs a) { begin(); few<KV_BF16, 8>(a); }

template <int R> DEV void back(float* at, float by, int layer, int head) {
  int lane = threadIdx.x & 31;
  float y[R];
#pragma unroll
  for (int r = 0; r < R; r++) y[r] = at[lane + 32 * r];
  gather<R>(y, layer, 1, head);
#pragma unroll
  for (int r = 0; r < R; r++) at[lane + 32 * r] = y[r] * by;
}
// A gate on what comes of it, where there is one, and codes of that.
struct MeetArgs { AttnArgs a; View g; Fifteen to; int act, gated; };
// Partitions of a (row, head) meet: as many threads as fit have a column each, and of its partitions every so-manieth, the first
// of which they ask for before they know what a partition weighs.
extern "C" __global__ void __launch_bounds__(1024) attention_meet(const __grid_constant__ MeetArgs args) {
  const AttnArgs& a = args.a;
  constexpr int AHEAD = 8;
  __shared__ float weight[PARTS], part[1024], y[512], whole;
  early();
  int row = blockIdx.x / a.q.heads, head = blockIdx.x % a.q.heads, d = a.st.d, lane = threadIdx.x & 31;
  Cut cut = cut_of(a, __ldcg(i32(a.rows.pos, row)));  // was there before the step
  ready();
  int parts = min(cut.parts, a.room), each = d + 2, sharers = blockDim.x / d, share = threadIdx.x / d, c = threadIdx.x - share * d;
  const float* first = held(a, row, head, 0);
  if (share >= sharers) parts = 0;
  float ahead[AHEAD], gate = args.gated && threadIdx.x < d ? f32(args.g, row, head)[c] : 0.f;
#pragma unroll
  for (int i = 0; i < AHEAD; i++) ahead[i] = share + i * sharers < parts ? first[(share + i * sharers) * each + 2 + c] : 0.f;
  if (threadIdx.x < 32) {
    constexpr int EACH = PARTS / 32;
    float top[EACH], l[EACH], sink = a.sinks ? a.sinks[head] : -INF, m = sink, sum = 0.f;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
      int part = lane + 32 * i;
      top[i] = part < parts ? first[part * each] : -INF;
      l[i] = part < parts ? first[part * each + 1] : 0.f;
      m = fmaxf(m, top[i]);
    }
    m = warp_max(m);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
      float w = lane + 32 * i < parts ? expf(top[i] - m) : 0.f;
      sum = fmaf(l[i], w, sum);
      weight[lane + 32 * i] = w;
    }
    sum = warp_sum(sum);
    if (lane == 0) whole = sum + (a.sinks ? expf(sink - m) : 0.f);
  }
  __syncthreads();
  float by = 1.f / whole, *out = f32(a.out, row, head), sum = 0.f;
#pragma unroll
  for (int i = 0; i < AHEAD; i++)
    if (share + i * sharers < parts) sum = fmaf(ahead[i], weight[share + i * sharers], sum);
#pragma unroll 8
  for (int i = share + AHEAD * sharers; i < parts; i += sharers) sum = fmaf(first[i * each + 2 + c], weight[i], sum);
  part[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x < d) {
    for (int i = 1; i < sharers; i++) sum += part[i * d + c];
    y[c] = rotated(a.st.fmt) ? sum : sum * by;
  }
  if (rotated(a.st.fmt)) {
    // Values were weighed as they are stored; one rotation back for all of them.
    __syncthreads();
    if (threadIdx.x < 32) {
      int kv = head / (a.q.heads / a.st.heads);
      by *= 1.f / sqrtf((float)d);
      if (d == 64) back<2>(y, by, a.st.layer, kv);
      else if (d == 128) back<4>(y, by, a.st.layer, kv);
      else if (d == 256) back<8>(y, by, a.st.layer, kv);
      else back<16>(y, by, a.st.layer, kv);
    }
    __syncthreads();
  }
  if (threadIdx.x >= d) return;
  float value = y[c];
  if (args.gated) value *= act(args.act, gate);
  out[c] = value;
  if (args.to.hi) quantise_group(args.to, row, (head * d + c) >> 5, a.q.heads * d / 32, value);
}
