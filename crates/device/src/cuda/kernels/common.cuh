// What every kernel file shares: views, warp sums, and the exact functions of f32 arithmetic.
// Structs mirror `args.rs`, field by field.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed char i8;

#define DEV __device__ __forceinline__
#define FULL 0xffffffffu
#define INF __int_as_float(0x7f800000)
#define NOT_A_NUMBER __int_as_float(0x7fffffff)

// Where the card can begin a kernel while the one before it ends (compute capability 9.0), every kernel says at once that
// the next may come, and reads what others wrote only behind `ready`. What was written is never read through the
// non-coherent cache (__ldg), which may hold older lines; weights may.
DEV void early() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}
DEV void ready() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
DEV void begin() {
  early();
  ready();
}

// A strided [rows, heads, cols]; columns are contiguous, strides in elements.
struct View {
  void* p;
  int rows, heads, cols, s0, s1, pad;
};
DEV float* f32(const View& v, long row, long head) { return (float*)v.p + row * v.s0 + head * v.s1; }
DEV int* i32(const View& v, long row) { return (int*)v.p + row * v.s0; }

// The rows of a step, as `Rows` in op.rs.
struct Rows {
  View pos, seq_of, page_table, seq_slot, rec_from, rec_to;
  int n, seqs;
};

DEV float warp_sum(float x) {
#pragma unroll
  for (int d = 16; d > 0; d >>= 1) x += __shfl_xor_sync(FULL, x, d);
  return x;
}
DEV int warp_sum(int x) {
#pragma unroll
  for (int d = 16; d > 0; d >>= 1) x += __shfl_xor_sync(FULL, x, d);
  return x;
}
DEV float warp_max(float x) {
#pragma unroll
  for (int d = 16; d > 0; d >>= 1) x = fmaxf(x, __shfl_xor_sync(FULL, x, d));
  return x;
}

// Sum over a block of at most 1024 threads; the order depends on the block size alone.
DEV float block_sum(float x, float* shared) {
  int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, warps = (blockDim.x + 31) >> 5;
  x = warp_sum(x);
  __syncthreads();
  if (lane == 0) shared[warp] = x;
  __syncthreads();
  x = lane < warps ? shared[lane] : 0.f;
  return warp_sum(x);
}

DEV float sigmoid(float x) { return 1.f / (1.f + expf(-x)); }
DEV float silu(float x) { return x * sigmoid(x); }

// Activation functions and gated units by number, as args.rs numbers them.
enum { ACT_SIGMOID = 0, ACT_SILU = 1 };
DEV float act(int kind, float g) { return kind == ACT_SIGMOID ? sigmoid(g) : silu(g); }

// Gated units by number.
enum { GLU_SWIGLU = 0, GLU_GEGLU_TANH = 1, GLU_SWIGLU_CLAMPED = 2 };
struct GluKind { int kind; float limit, alpha; };
DEV float clamp(float x, float lo, float hi) { return x < lo ? lo : x > hi ? hi : x; }  // hands on what is no number
DEV float glu_of(const GluKind& g, float gate, float up) {
  if (g.kind == GLU_SWIGLU) return silu(gate) * up;
  // x (1 + tanh(t)) / 2 = x sigmoid(2 t), without losing the far left end.
  if (g.kind == GLU_GEGLU_TANH) return gate * sigmoid(1.5957691216057308f * fmaf(0.044715f * gate * gate, gate, gate)) * up;
  gate = clamp(gate, -INF, g.limit);
  up = clamp(up, -g.limit, g.limit);
  return (up + 1.f) * gate * sigmoid(g.alpha * gate);
}
