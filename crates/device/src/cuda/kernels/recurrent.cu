// Recurrent mixers: the short convolution and the gated delta rule.
#include "common.cuh"

struct ConvArgs { View out, x; const float* w; float* conv; Rows rows; int kernel, conv_elems, slots; };
// A thread per channel of a sequence walks the sequence's rows with the last inputs in registers.
extern "C" __global__ void conv_silu(ConvArgs a) {
  int c = blockIdx.x * blockDim.x + threadIdx.x, seq = blockIdx.y, channels = a.x.cols, taps = a.kernel - 1;
  if (c >= channels) return;
  float w[8], past[8];
  for (int i = 0; i < a.kernel; i++) w[i] = a.w[(long)c * a.kernel + i];
  int first = 0;
  while (first < a.rows.n && *i32(a.rows.seq_of, first) != seq) first++;
  if (first == a.rows.n) return;
  int from = *i32(a.rows.rec_from, seq);
  for (int i = 0; i < taps; i++) past[i] = from < 0 ? 0.f : a.conv[(long)from * a.conv_elems + i * channels + c];
  for (int row = first; row < a.rows.n && *i32(a.rows.seq_of, row) == seq; row++) {
    float x = f32(a.x, row, 0)[c], sum = 0.f;
    for (int i = 0; i < taps; i++) sum = fmaf(w[i], past[i], sum);
    f32(a.out, row, 0)[c] = silu(fmaf(w[taps], x, sum));
    for (int i = 0; i + 1 < taps; i++) past[i] = past[i + 1];
    if (taps > 0) past[taps - 1] = x;
    int to = *i32(a.rows.rec_to, row);
    if (to >= 0)
      for (int i = 0; i < taps; i++) a.conv[(long)to * a.conv_elems + i * channels + c] = past[i];
  }
}

struct ShiftArgs { View out, x; float* state; Rows rows; int state_elems, slots; };
// Each row becomes the one before it; the state is the last row.
extern "C" __global__ void shift(ShiftArgs a) {
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

// q and k of a row and head, of unit length, q scaled by d_k^-0.5. One warp each.
DEV void unit(const float* x, float* to, int d, float scale) {
  int lane = threadIdx.x & 31;
  float sum = 0.f;
  for (int i = lane; i < d; i += 32) sum = fmaf(x[i], x[i], sum);
  float by = scale / sqrtf(warp_sum(sum) + 1e-6f);
  for (int i = lane; i < d; i += 32) to[i] = x[i] * by;
}

static constexpr int COLS = 32;  // columns of a state that a block keeps in registers

// A block of 4 warps has COLS columns of one head's state. A column is spread over 4 threads, one of each warp's
// quarter of d_k, so the two sums of a row meet in shared memory. DK is d_k / 4 rounded up.
template <int DK>
DEV void delta(const DeltaArgs& a) {
  extern __shared__ float mem[];
  int quarter = threadIdx.x >> 5, lane = threadIdx.x & 31, h = blockIdx.x, col = blockIdx.y * COLS + lane, seq = blockIdx.z;
  float *q = mem, *k = mem + a.d_k, *part = mem + 2 * a.d_k;  // part: [2][4][32]
  int kh = a.mod ? h % a.n_k : h / (a.n_v / a.n_k), each = (a.d_k + 3) / 4, begin = quarter * each;
  bool mine = col < a.d_v;
  int first = 0;
  while (first < a.rows.n && *i32(a.rows.seq_of, first) != seq) first++;
  if (first == a.rows.n) return;
  float s[DK];
  int from = *i32(a.rows.rec_from, seq);
  auto at = [&](int slot, int i) -> float& {
    return a.state[(long)slot * a.state_elems + ((long)h * a.d_k + begin + i) * a.d_v + col];
  };
  auto held = [&](int i) { return mine && i < each && begin + i < a.d_k; };
#pragma unroll
  for (int i = 0; i < DK; i++) s[i] = from >= 0 && held(i) ? at(from, i) : 0.f;
  for (int row = first; row < a.rows.n && *i32(a.rows.seq_of, row) == seq; row++) {
    const float* x = f32(a.qkv, row, 0);
    __syncthreads();
    if (quarter == 0) unit(x + (long)kh * a.d_k, q, a.d_k, 1.f / sqrtf((float)a.d_k));
    if (quarter == 1) unit(x + (long)(a.n_k + kh) * a.d_k, k, a.d_k, 1.f);
    float beta = sigmoid(f32(a.b, row, 0)[h]), t = f32(a.a, row, 0)[h] + a.dt[h];
    float keep = expf(a.decay[h] * (t > 20.f ? t : log1pf(expf(t))));
    float v = mine ? x[2 * a.n_k * a.d_k + (long)h * a.d_v + col] : 0.f;
    __syncthreads();
    float seen = 0.f;
#pragma unroll
    for (int i = 0; i < DK; i++)
      if (i < each && begin + i < a.d_k) {
        s[i] *= keep;
        seen = fmaf(s[i], k[begin + i], seen);
      }
    part[quarter * 32 + lane] = seen;
    __syncthreads();
    float delta = beta * (v - ((part[lane] + part[32 + lane]) + (part[64 + lane] + part[96 + lane])));
    float y = 0.f;
#pragma unroll
    for (int i = 0; i < DK; i++)
      if (i < each && begin + i < a.d_k) {
        s[i] = fmaf(k[begin + i], delta, s[i]);
        y = fmaf(s[i], q[begin + i], y);
      }
    part[128 + quarter * 32 + lane] = y;
    __syncthreads();
    if (quarter == 0 && mine)
      f32(a.out, row, h)[col] = (part[128 + lane] + part[160 + lane]) + (part[192 + lane] + part[224 + lane]);
    int to = *i32(a.rows.rec_to, row);
    if (to >= 0) {
#pragma unroll
      for (int i = 0; i < DK; i++)
        if (held(i)) at(to, i) = s[i];
    }
  }
}
extern "C" __global__ void __launch_bounds__(128) delta_32(DeltaArgs a) { delta<8>(a); }
extern "C" __global__ void __launch_bounds__(128) delta_128(DeltaArgs a) { delta<32>(a); }
extern "C" __global__ void __launch_bounds__(128) delta_256(DeltaArgs a) { delta<64>(a); }
