// Recurrent mixers: the short convolution and the gated delta rule.
#include "delta.cuh"

struct ConvArgs { View out, x; const float* w; float* conv; Rows rows; int kernel, conv_elems, slots; };
// A thread per channel walks CHUNK rows of a sequence with the last inputs in registers; the first of them it reads from
// the rows before, or from the sequence's window. Where several rows leave their window in one slot, the last one does. Into the
// slot that the sequence came from only those may write who read it, the threads of the first rows: others may be earlier.
static constexpr int CHUNK = 32;
extern "C" __global__ void conv_silu(const __grid_constant__ ConvArgs a) {
  early();
  int c = blockIdx.x * blockDim.x + threadIdx.x, seq = blockIdx.y, channels = a.x.cols, taps = a.kernel - 1;
  float w[8], past[8];
  // Eight names for at most eight taps: an index known only at run time would put them into local memory.
#pragma unroll
  for (int i = 0; i < 8; i++) w[i] = c < channels && i < a.kernel ? a.w[(long)c * a.kernel + i] : 0.f;
  ready();
  if (c >= channels) return;
  int first = 0;
  while (first < a.rows.n && *i32(a.rows.seq_of, first) != seq) first++;
  int begin_row = first + blockIdx.z * CHUNK, end = min(begin_row + CHUNK, a.rows.n);
  if (begin_row >= end || *i32(a.rows.seq_of, begin_row) != seq) return;
  int from = *i32(a.rows.rec_from, seq);
#pragma unroll
  for (int i = 0; i < 7; i++) {
    past[i] = 0.f;
    if (i >= taps) continue;
    int row = begin_row - taps + i, at = row - first + taps;  // place in the window, where the row lies before the first
    past[i] = row >= first ? f32(a.x, row, 0)[c] : from < 0 ? 0.f : a.conv[(long)from * a.conv_elems + at * channels + c];
  }
  for (int row = begin_row; row < end && *i32(a.rows.seq_of, row) == seq; row++) {
    float x = f32(a.x, row, 0)[c], sum = 0.f, own = 0.f;
#pragma unroll
    for (int i = 0; i < 7; i++)
      if (i < taps) sum = fmaf(w[i], past[i], sum);
#pragma unroll
    for (int i = 0; i < 8; i++)
      if (i == taps) own = w[i];
    f32(a.out, row, 0)[c] = silu(fmaf(own, x, sum));
#pragma unroll
    for (int i = 0; i < 7; i++)
      if (i < taps) past[i] = i + 1 < taps ? past[i + 1] : x;
    int to = *i32(a.rows.rec_to, row), last = to >= 0 ? last_of(a.rows, row, seq) : row;
    if (to >= 0 && (blockIdx.z == 0 || to != from) && (row == last || *i32(a.rows.rec_to, last) != to))
#pragma unroll
      for (int i = 0; i < 7; i++)
        if (i < taps) a.conv[(long)to * a.conv_elems + i * channels + c] = past[i];
  }
  if (blockIdx.z > 0 || from < 0) return;
  int last = last_of(a.rows, first, seq);
  if (last < end || *i32(a.rows.rec_to, last) != from) return;
  for (int i = 0; i < taps; i++) a.conv[(long)from * a.conv_elems + i * channels + c] = f32(a.x, last - taps + 1 + i, 0)[c];
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

extern "C" __global__ void __launch_bounds__(128) delta_32(const __grid_constant__ DeltaArgs a) { early(); delta<4>(a); }
extern "C" __global__ void __launch_bounds__(128) delta_128(const __grid_constant__ DeltaArgs a) { early(); delta<16>(a); }
extern "C" __global__ void __launch_bounds__(128) delta_256(const __grid_constant__ DeltaArgs a) { early(); delta<32>(a); }
