// Kernels of few rows timed alone, each behind its like as in a step: products of the sizes of a 27B and a 35B-A3B model and attention over
// long histories. Where the kernels are, on a machine with a card (compute capability 9.0):
//   nvcc -O3 -std=c++17 -arch=sm_90 -I../../src/cuda/kernels alone.cu ../../src/cuda/kernels/{linear,stream,few,attention}.cu -o alone
#include <cstring>

#include "timing.cuh"
#include "pages.cuh"
#include "stream.cuh"
#define KERNEL(NAME, ARGS) extern "C" __global__ void NAME(ARGS);
#define SETS(F) \
  KERNEL(linear_##F##_1, SetArgs) KERNEL(linear_##F##_2, SetArgs) KERNEL(linear_##F##_4, SetArgs) \
  KERNEL(stream_##F##_1, StreamArgs) KERNEL(stream_##F##_2, StreamArgs) KERNEL(stream_##F##_4, StreamArgs)
SETS(mxfp4)
SETS(q4_0)
KERNEL(few_tq4_256, AttnArgs)
KERNEL(few_bf16_256, AttnArgs)
struct MeetArgs { AttnArgs a; View g; Fifteen to; int act, gated; };
KERNEL(attention_meet, MeetArgs)

// Meta of four rows, as their codes have it.
__global__ void metas(Fifteen q, int groups) {
  int i = blockIdx.x * blockDim.x + threadIdx.x, row = i / groups, g = i % groups, sum = 0;
  if (row >= 4) return;
  for (int e = 0; e < 32; e++) {
    long at = (((long)row * 2 + e / 16) * groups + g) * 16 + e % 16;
    sum += 128 * ((i8*)q.hi)[at] + ((i8*)q.lo)[at];
  }
  q.meta[i] = make_float2(0.001f * (1 + i % 7), 0.001f * (1 + i % 7) * sum);
}
template <class A> static void launch(void* f, dim3 grid, int threads, int shared, const A& a) { launch_with(f, grid, threads, shared, 0, true, &a); }
// Microseconds a call, 24 one behind the other.
template <class F> static double each(F f) {
  return timed(0, [&] { for (int i = 0; i < 24; i++) f(i); }) / 24;
}

static void products(int processors) {
  struct { const char* name; void *whole, *streamed; int scale, rows, stages; } kinds[] = {
      {"mxfp4", (void*)linear_mxfp4_1, (void*)stream_mxfp4_1, 1, 1, 4}, {"mxfp4", (void*)linear_mxfp4_2, (void*)stream_mxfp4_2, 1, 2, 3},
      {"mxfp4", (void*)linear_mxfp4_4, (void*)stream_mxfp4_4, 1, 4, 2}, {"q4_0", (void*)linear_q4_0_1, (void*)stream_q4_0_1, 2, 1, 3},
      {"q4_0", (void*)linear_q4_0_2, (void*)stream_q4_0_2, 2, 2, 3},    {"q4_0", (void*)linear_q4_0_4, (void*)stream_q4_0_4, 2, 4, 2}};
  const int sizes[][2] = {{34816, 5120}, {5120, 17408}, {16384, 5120}, {5120, 6144}, {248320, 5120}, {12288, 2048}, {2048, 4096}, {1024, 2048}};
  const size_t ALL = 1400u << 20;
  u8 *w = (u8*)room(ALL, ~0u, 0), *powers = (u8*)room(ALL / 16, 0x03030303, 0x78787878), *halves = (u8*)room(ALL / 8, 0x00ff00ff, 0x2c002c00);
  Fifteen q = {(uint4*)room(1 << 18, 0x3f3f3f3f, 0), (uint4*)room(1 << 18, 0x3f3f3f3f, 0), (float2*)room(1 << 18, 0, 0)};
  float* out = (float*)room(16 * 250000, 0, 0);
  for (auto& z : kinds) for (auto& s : sizes) {
    int n = s[0], k = s[1];
    size_t codes = (size_t)n * k / 2, scales = codes / 16 * z.scale, copies = ALL / codes;
    metas<<<32, 256>>>(q, k / 32);
    auto args = [&](int i, int blocks) {
      size_t c = i % copies;
      SetArgs a = {{nullptr, z.rows, 1, k, k, k, 0}, q, {}, z.rows, 1, blocks, 0};
      a.m[0] = {{out, z.rows, 1, n, n, n, 0}, {w + c * codes, nullptr, (z.scale == 1 ? powers : halves) + c * scales, n, k, 1, 0}, nullptr, 0, 0};
      return a;
    };
    std::vector<float> got[2];
    printf("%-5s %d rows %6d of %5d:", z.name, z.rows, n, k);
    for (int warps : {0, 16, 8, 4}) {  // none: without shared memory
      int shared = warps * z.stages * (128 * (16 + z.scale) + z.rows * 576), blocks = n / (warps ? 16 : 8), fit = 0;
      void* f = warps ? z.streamed : z.whole;
      if (warps) OK(cudaFuncSetAttribute(f, cudaFuncAttributeMaxDynamicSharedMemorySize, 16 * shared / warps));
      if (warps) OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&fit, f, 32 * warps, shared));
      auto run = [&](int i) {
        StreamArgs a = {args(i, blocks)};
        a.conv.which = -1;
        if (warps) launch(f, dim3(std::min(blocks, fit * processors)), 32 * warps, shared, a);
        else launch(f, dim3(blocks), 128, 0, args(i, blocks));
      };
      run(0);
      std::vector<float>& y = got[warps > 0];
      y.resize((size_t)n * z.rows);
      OK(cudaMemcpy(y.data(), out, y.size() * 4, cudaMemcpyDeviceToHost));
      OK(cudaMemset(out, 0xff, y.size() * 4));
      double us = each(run), worst = 0, size = 0;
      printf("  %6.1f us %.2f TB/s", us, (codes + scales) / us / 1e6);
      for (size_t i = 0; i < y.size(); i++) size += (double)got[0][i] * got[0][i], worst = y[i] == y[i] ? std::max(worst, (double)std::abs(y[i] - got[0][i])) : 1e30;
      if (!(worst <= 1e-4 * sqrt(size / y.size()))) printf(" WRONG");
    }
    printf("\n");
    fflush(stdout);
  }
}

static void attention(int processors) {
  const int D = 256;
  for (int fmt : {KV_TQ4, KV_BF16}) for (int heads : {4, 2}) for (int pos : {131112, 32808, 1064}) {
    int most = std::min(128, (fmt == KV_TQ4 ? 2 : 1) * processors / heads), pages = pos / 256 + 1, queries = heads == 4 ? 24 : 16, copies = pos > 100000 ? 3 : 8;
    size_t page = 2 * heads * 256 * (size_t)(fmt == KV_TQ4 ? D / 2 + 2 : 2 * D);
    u8* p = (u8*)room(page * pages * copies, 0x3dff3dff, 0x02000200);
    float *q = (float*)room(queries * D * 4, 0x807fffff, 0x3e000000), *out = (float*)room(queries * D * 4, 0, 0), *scratch = (float*)room(queries * 128 * (D + 2) * 4, 0, 0);
    std::vector<int> h(2 + pages * copies);
    for (int i = 0; i < pages * copies; i++) h[2 + i] = i;
    h[0] = pos;
    int* ints = (int*)room(4 * h.size(), 0, 0);
    OK(cudaMemcpy(ints, h.data(), 4 * h.size(), cudaMemcpyHostToDevice));
    auto args = [&](int i) {
      AttnArgs a = {};
      a.q = {q, 1, queries, D, queries * D, D, 0}, a.out = {out, 1, queries, D, queries * D, D, 0};
      a.st = {p, page, fmt, heads, D, 0, 3, 0};
      a.rows.pos = {ints, 1, 1, 1, 1, 1, 0}, a.rows.seq_of = {ints + 1, 1, 1, 1, 1, 1, 0};
      a.rows.page_table = {ints + 2 + pages * (i % copies), 1, 1, pages, pages, pages, 0};
      a.rows.n = a.rows.seqs = 1, a.scale = 0.0625f, a.scratch = scratch, a.room = std::min(2 * pages, most), a.most = most;
      return a;
    };
    void* f = fmt == KV_TQ4 ? (void*)few_tq4_256 : (void*)few_bf16_256;
    int shared = std::max(256 * 128 + 8 * (D + 32) * 2 + (fmt == KV_TQ4 ? 8 * (16 * D + 64) : 0), 4 * (D / 4 + 4) * 32 * 4);
    OK(cudaFuncSetAttribute(f, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
    auto few = [&](int i) { launch(f, dim3(std::min(2 * pages, most), heads), 256, shared, args(i)); };
    double alone = each(few), both = each([&](int i) { few(i), launch((void*)attention_meet, dim3(queries), 1024, 0, MeetArgs{args(i)}); }), bytes = page * (pos + 1) / 256.0;
    printf("%-4s %d key heads, %6d positions: %6.1f us %.2f TB/s, with meeting %6.1f us %.2f TB/s\n", fmt == KV_TQ4 ? "tq4" : "bf16", heads, pos, alone, bytes / alone / 1e6, both, bytes / both / 1e6);
    fflush(stdout);
    for (void* x : {(void*)p, (void*)q, (void*)out, (void*)scratch, (void*)ints}) cudaFree(x);
  }
}

int main(int argc, char** argv) {
  cudaDeviceProp card;
  OK(cudaGetDeviceProperties(&card, 0));
  if (argc < 2 || !strcmp(argv[1], "products")) products(card.multiProcessorCount);
  if (argc < 2 || !strcmp(argv[1], "attention")) attention(card.multiProcessorCount);
}
