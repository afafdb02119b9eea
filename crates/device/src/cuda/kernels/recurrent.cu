// Recurrent mixers: the short convolution and the gated delta rule.
#include "common.cuh"

struct ConvArgs { View out, x; const float* w; float* conv; Rows rows; int kernel, conv_elems, slots; };
// The last row of the run of rows that `row` is in.
DEV int last_of(const Rows& rows, int row, int seq) {
  int lo = row, hi = rows.n;  // rows[lo] is of the run, rows[hi] is not
  while (hi - lo > 1) {
    int mid = (lo + hi) / 2;
    if (*i32(rows.seq_of, mid) == seq) lo = mid; else hi = mid;
  }
  return lo;
}
// A thread per channel walks CHUNK rows of a sequence with the last inputs in registers; the first of them it reads from
// the rows before, or from the sequence's window. Where several rows leave their window in one slot, the last one does.
static constexpr int CHUNK = 32;
extern "C" __global__ void conv_silu(ConvArgs a) {
  begin();
  int c = blockIdx.x * blockDim.x + threadIdx.x, seq = blockIdx.y, channels = a.x.cols, taps = a.kernel - 1;
  if (c >= channels) return;
  float w[8], past[8];
  for (int i = 0; i < a.kernel; i++) w[i] = a.w[(long)c * a.kernel + i];
  int first = 0;
  while (first < a.rows.n && *i32(a.rows.seq_of, first) != seq) first++;
  int begin_row = first + blockIdx.z * CHUNK, end = min(begin_row + CHUNK, a.rows.n);
  if (begin_row >= end || *i32(a.rows.seq_of, begin_row) != seq) return;
  int from = *i32(a.rows.rec_from, seq);
  for (int i = 0; i < taps; i++) {
    int row = begin_row - taps + i, at = row - first + taps;  // place in the window, where the row lies before the first
    past[i] = row >= first ? f32(a.x, row, 0)[c] : from < 0 ? 0.f : a.conv[(long)from * a.conv_elems + at * channels + c];
  }
  for (int row = begin_row; row < end && *i32(a.rows.seq_of, row) == seq; row++) {
    float x = f32(a.x, row, 0)[c], sum = 0.f;
    for (int i = 0; i < taps; i++) sum = fmaf(w[i], past[i], sum);
    f32(a.out, row, 0)[c] = silu(fmaf(w[taps], x, sum));
    for (int i = 0; i + 1 < taps; i++) past[i] = past[i + 1];
    if (taps > 0) past[taps - 1] = x;
    int to = *i32(a.rows.rec_to, row), last = to >= 0 ? last_of(a.rows, row, seq) : row;
    if (to >= 0 && (row == last || *i32(a.rows.rec_to, last) != to))
      for (int i = 0; i < taps; i++) a.conv[(long)to * a.conv_elems + i * channels + c] = past[i];
  }
}

struct ShiftArgs { View out, x; float* state; Rows rows; int state_elems, slots; };
// Each row becomes the one before it; the state is the last row.
extern "C" __global__ void shift(ShiftArgs a) {
  begin();
  int c = blockIdx.x * blockDim.x + threadIdx.x, seq = blockIdx.y;
  if (c >= a.x.cols) return;
  int first = 0;
  while (first < a.rows.n && *i32(a.rows.seq_of, first) != seq) first++;
  if (first == a.rows.n) return;
  int from = *i32(a.rows.rec_from, seq);
  float past = from < 0 ? 0.f : a.state[(long)from * a.state_elems + c];
  for (int row = first; row < a.rows.n && *i32(a.rows.seq_of, row) == seq; row++) {
    f32(a.out, row, 0)[c] = past;
    past = f32(a.x, row, 0)[c];
    int to = *i32(a.rows.rec_to, row);
    if (to >= 0) a.state[(long)to * a.state_elems + c] = past;
  }
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

// A block of 4 warps has COLS columns of one head's state, a warp 8 of them: lane (i, j) has every eighth row of d_k from row i
// on, R of them, and columns 2 j and 2 j + 1. The two sums of a row meet by shuffles among the eight lanes of a column, in
// one order whatever the company; between tiles of rows nothing is waited for. R is d_k / 8 rounded up.
template <int R> DEV void delta(const DeltaArgs& a) {
  extern __shared__ __align__(16) float mem[];
  int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, i0 = lane >> 2, h = blockIdx.x, seq = blockIdx.z;
  int pair = warp * 8 + 2 * (lane & 3), col = blockIdx.y * COLS + pair, width = 8 * R;
  float *q = mem, *k = q + TILE * width, *v = k + TILE * width, *keep = v + TILE * COLS, *beta = keep + TILE;
  int* slots = (int*)(beta + TILE);
  int kh = a.mod ? h % a.n_k : h / (a.n_v / a.n_k);
  int first = 0, from = *i32(a.rows.rec_from, seq);
  while (first < a.rows.n && *i32(a.rows.seq_of, first) != seq) first++;
  if (first == a.rows.n) return;
  auto at = [&](int slot, int i, int c) -> float& {
    return a.state[(long)slot * a.state_elems + ((long)h * a.d_k + i0 + 8 * i) * a.d_v + col + c];
  };
  auto held = [&](int i, int c) { return i0 + 8 * i < a.d_k && col + c < a.d_v; };
  float s[R][2];
#pragma unroll
  for (int i = 0; i < R; i++)
#pragma unroll
    for (int c = 0; c < 2; c++) s[i][c] = from >= 0 && held(i, c) ? at(from, i, c) : 0.f;
  for (int row0 = first; row0 < a.rows.n && *i32(a.rows.seq_of, row0) == seq; row0 += TILE) {
    int mine = row0 + (lane & 15);
    bool here = lane < TILE && mine < a.rows.n && *i32(a.rows.seq_of, mine) == seq;
    int n = __popc(__ballot_sync(FULL, here));
    __syncthreads();
    // Queries and keys of unit length: a warp has eight of them, asked for at once.
    constexpr int UNITS = 2 * TILE / 4, E = R / 4;
    float e[UNITS][E];
#pragma unroll
    for (int j = 0; j < UNITS; j++) {
      int u = warp + 4 * j, r = u >> 1;
      if (r >= n) break;
      const float* x = f32(a.qkv, row0 + r, 0) + (long)(u & 1 ? a.n_k + kh : kh) * a.d_k;
#pragma unroll
      for (int i = 0; i < E; i++) e[j][i] = lane + 32 * i < a.d_k ? x[lane + 32 * i] : 0.f;
    }
#pragma unroll
    for (int j = 0; j < UNITS; j++) {
      int u = warp + 4 * j;
      if ((u >> 1) >= n) break;
      float sum = 0.f;
#pragma unroll
      for (int i = 0; i < E; i++) sum = fmaf(e[j][i], e[j][i], sum);
      float by = (u & 1 ? 1.f : 1.f / sqrtf((float)a.d_k)) / sqrtf(warp_sum(sum) + 1e-6f);
#pragma unroll
      for (int i = 0; i < E; i++) (u & 1 ? k : q)[(u >> 1) * width + lane + 32 * i] = e[j][i] * by;
    }
    for (int u = threadIdx.x; u < n * COLS; u += blockDim.x) {
      int r = u / COLS, c = blockIdx.y * COLS + u % COLS;
      v[u] = c < a.d_v ? f32(a.qkv, row0 + r, 0)[2 * a.n_k * a.d_k + (long)h * a.d_v + c] : 0.f;
    }
    if (threadIdx.x < n) {
      int row = row0 + threadIdx.x;
      float t = f32(a.a, row, 0)[h] + a.dt[h];
      slots[threadIdx.x] = *i32(a.rows.rec_to, row);
      beta[threadIdx.x] = sigmoid(f32(a.b, row, 0)[h]);
      keep[threadIdx.x] = expf(a.decay[h] * (t > 20.f ? t : log1pf(expf(t))));
    }
    __syncthreads();
    for (int r = 0; r < n; r++) {
      float kk[R], seen[2] = {0.f, 0.f}, y[2] = {0.f, 0.f}, by = keep[r];
#pragma unroll
      for (int i = 0; i < R; i++) kk[i] = k[r * width + i0 + 8 * i];
#pragma unroll
      for (int i = 0; i < R; i++)
#pragma unroll
        for (int c = 0; c < 2; c++) {
          s[i][c] *= by;
          seen[c] = fmaf(s[i][c], kk[i], seen[c]);
        }
#pragma unroll
      for (int c = 0; c < 2; c++) {
#pragma unroll
        for (int d = 4; d < 32; d *= 2) seen[c] += __shfl_xor_sync(FULL, seen[c], d);
        seen[c] = beta[r] * (v[r * COLS + pair + c] - seen[c]);
      }
#pragma unroll
      for (int i = 0; i < R; i++) {
        float qi = q[r * width + i0 + 8 * i];
#pragma unroll
        for (int c = 0; c < 2; c++) {
          s[i][c] = fmaf(kk[i], seen[c], s[i][c]);
          y[c] = fmaf(s[i][c], qi, y[c]);
        }
      }
#pragma unroll
      for (int c = 0; c < 2; c++) {
#pragma unroll
        for (int d = 4; d < 32; d *= 2) y[c] += __shfl_xor_sync(FULL, y[c], d);
        if (lane < 4 && col + c < a.d_v) f32(a.out, row0 + r, h)[col + c] = y[c];
      }
      int to = slots[r];
      if (to >= 0) {
#pragma unroll
        for (int i = 0; i < R; i++)
#pragma unroll
          for (int c = 0; c < 2; c++)
            if (held(i, c)) at(to, i, c) = s[i][c];
      }
    }
  }
}
extern "C" __global__ void __launch_bounds__(128) delta_32(DeltaArgs a) { begin(); delta<4>(a); }
extern "C" __global__ void __launch_bounds__(128) delta_128(DeltaArgs a) { begin(); delta<16>(a); }
extern "C" __global__ void __launch_bounds__(128) delta_256(DeltaArgs a) { begin(); delta<32>(a); }
