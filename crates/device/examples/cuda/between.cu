// What lies between two parts of a step: a kernel behind a kernel in a recorded step, in several ways, or a barrier of the whole grid in
// one kernel that stays. Every part reads a row of 2,048 floats that the part before has written, sums it up, and writes sixteen of its own.
// Where the kernels are, on a machine with a card (compute capability 9.0):
//   nvcc -O3 -std=c++17 -arch=sm_90 -I../../src/cuda/kernels between.cu -o between
#include "timing.cuh"

static constexpr int COLS = 2048, PARTS = 200;
struct Args { const float* from; float* to; const uint4* weights; u32* bar; size_t each; int work; };
// Nothing but one word, or a row, that all blocks read; blocks with numbers below 128 write sixteen columns.
template <bool ROW> DEV void part(const float* from, float* to) {
  __shared__ float shared[32];
  float sum = 0.f;
  if (ROW) {
    for (int c = 4 * threadIdx.x; c < COLS; c += 4 * blockDim.x) {
      float4 v = __ldcg((const float4*)(from + c));
      sum += v.x + v.y + v.z + v.w;
    }
    sum = block_sum(sum, shared);
  } else {
    sum = __ldcg(from + threadIdx.x);
  }
  int at = blockIdx.x * 16 + threadIdx.x;
  if (threadIdx.x < 16 && at < COLS) to[at] = sum * 1e-3f + 1.f;
}
enum { PLAIN, FIRST, LATER };
template <bool ROW, int HOW> __global__ void step(Args a) {
  if (HOW == FIRST) asm volatile("griddepcontrol.launch_dependents;");
  if (HOW != PLAIN) asm volatile("griddepcontrol.wait;" ::: "memory");
  if (HOW == LATER) asm volatile("griddepcontrol.launch_dependents;");
  part<ROW>(a.from, a.to);
}
// One block a multiprocessor; all of them meet between parts. Whoever waits asks again and again.
template <bool ROW> __global__ void stays(Args a) {
  float* x[2] = {(float*)a.from, a.to};
  for (int i = 0; i < PARTS; i++) {
    part<ROW>(x[i & 1], x[~i & 1]);
    __syncthreads();
    if (threadIdx.x == 0) {
      asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(a.bar) : "memory");
      u32 seen, want = (i + 1) * gridDim.x;
      do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(a.bar) : "memory"); while (seen < want);
    }
    __syncthreads();
  }
}
// Weights of a part (`each` bytes) read once: with what a kernel costs besides.
__global__ void reads(Args a) {
  asm volatile("griddepcontrol.launch_dependents;");
  size_t n = a.each / 16;
  uint4 v[8];
  u32 sum = 0;
  size_t at = blockIdx.x * (size_t)blockDim.x + threadIdx.x, step = (size_t)gridDim.x * blockDim.x;
  bool waited = false;
  for (size_t i = at; i < n; i += 8 * step) {
#pragma unroll
    for (int k = 0; k < 8; k++) v[k] = i + k * step < n ? __ldcs(a.weights + i + k * step) : make_uint4(0, 0, 0, 0);
    if (!waited) asm volatile("griddepcontrol.wait;" ::: "memory");
    waited = true;
#pragma unroll
    for (int k = 0; k < 8; k++) sum ^= v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
  }
  if (sum == 0x12345) a.to[0] = 1.f;
}
// Asks for the weights of the next part, and works for a while on nothing.
__global__ void idles(Args a) {
  asm volatile("griddepcontrol.launch_dependents;");
  if (a.work & 1) {
    size_t lines = a.each / 128;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < lines; i += (size_t)gridDim.x * blockDim.x)
      asm volatile("prefetch.global.L2 [%0];" ::"l"((const char*)a.weights + 128 * i));
  }
  asm volatile("griddepcontrol.wait;" ::: "memory");
  long from = clock64();
  while (clock64() - from < (a.work >> 1)) {}
}

static void launch(void* f, int grid, int threads, bool early, const Args& a, cudaStream_t s) { launch_with(f, dim3(grid), threads, 0, s, early, &a); }
int main() {
  cudaDeviceProp card;
  OK(cudaGetDeviceProperties(&card, 0));
  int all = card.multiProcessorCount;
  cudaStream_t s;
  OK(cudaStreamCreate(&s));
  float *x, *y;
  u32* bar;
  uint4* w;
  const size_t ROOM = 4ul << 30;
  OK(cudaMalloc(&x, 4 * COLS));
  OK(cudaMalloc(&y, 4 * COLS));
  OK(cudaMalloc(&bar, 4));
  OK(cudaMalloc(&w, ROOM));
  OK(cudaMemset(x, 0, 4 * COLS));
  OK(cudaMemset(y, 0, 4 * COLS));
  OK(cudaMemset(w, 1, ROOM));
  struct { const char* name; void *word, *row; bool early; } ways[] = {
      {"kernels one behind the other", (void*)step<false, PLAIN>, (void*)step<true, PLAIN>, false},
      {"next may come at once", (void*)step<false, FIRST>, (void*)step<true, FIRST>, true},
      {"next may come behind the wait", (void*)step<false, LATER>, (void*)step<true, LATER>, true}};
  for (auto& way : ways) for (int grid : {1, all, 2 * all}) for (int threads : {128, 256, 512}) {
    double us[2];
    for (int row = 0; row < 2; row++)
      us[row] = recorded(s, [&] {
        for (int i = 0; i < PARTS; i++) launch(row ? way.row : way.word, grid, threads, way.early, Args{i & 1 ? y : x, i & 1 ? x : y, w, bar, 0, 0}, s);
      });
    printf("%-30s %4d blocks of %3d: a word %.2f us, a row %.2f us\n", way.name, grid, threads, us[0] / PARTS, us[1] / PARTS);
  }
  for (int threads : {128, 256, 512}) {
    double us[2];
    for (int row = 0; row < 2; row++)
      us[row] = recorded(s, [&] {
        OK(cudaMemsetAsync(bar, 0, 4, s));
        launch(row ? (void*)stays<true> : (void*)stays<false>, all, threads, false, Args{x, y, w, bar, 0, 0}, s);
      });
    printf("barriers of the grid           %4d blocks of %3d: a word %.2f us, a row %.2f us\n", all, threads, us[0] / PARTS, us[1] / PARTS);
  }
  for (size_t mb : {2, 5, 14, 28, 95}) {
    size_t each = mb << 20, copies = ROOM / each;
    double us = recorded(s, [&] { for (int i = 0; i < 40; i++) launch((void*)reads, 2 * all, 512, true, Args{x, y, (uint4*)((char*)w + i % copies * each), bar, each, 0}, s); }) / 40;
    printf("%3zu MiB read: %.2f us, %.2f TB/s", mb, us, each / us / 1e6);
    for (int work : {0, 1, 8000, 8001, 20000, 20001}) {
      us = recorded(s, [&] {
        for (int i = 0; i < 40; i++) {
          Args a{x, y, (uint4*)((char*)w + i % copies * each), bar, each, work};
          launch((void*)idles, all, 256, true, a, s);
          launch((void*)reads, 2 * all, 512, true, a, s);
        }
      }) / 40;
      printf("; %d behind %s %.2f", work / 2, work & 1 ? "asking ahead" : "nothing", us);
    }
    printf("\n");
  }
  OK(cudaDeviceSynchronize());
}
