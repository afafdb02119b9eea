// What the programs beside this share: memory with something in it, kernels that may begin while the one before ends, times.
#pragma once
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>
#include <vector>

#include "common.cuh"

#define OK(x) do { cudaError_t e = (x); if (e != cudaSuccess) { printf("%s: %s\n", #x, cudaGetErrorString(e)); exit(1); } } while (0)

static __global__ void fill(u32* p, size_t n, u32 seed, u32 mask, u32 add) {
  for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
    u32 z = (u32)i * 2654435761u + seed;
    z = (z ^ z >> 15) * 2246822519u;
    z = (z ^ z >> 13) * 3266489917u;
    p[i] = ((z ^ z >> 16) & mask) + add;
  }
}
// Words of these bits and `add`.
static void* room(size_t bytes, u32 mask, u32 add) {
  static u32 seed = 1;
  u32* p;
  OK(cudaMalloc(&p, bytes));
  fill<<<2048, 256>>>(p, bytes / 4, seed++, mask, add);
  return p;
}
// A kernel with one struct as its argument.
static void launch_with(void* f, dim3 grid, int threads, int shared, cudaStream_t s, bool early, const void* args) {
  cudaLaunchConfig_t c = {};
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  c.gridDim = grid, c.blockDim = dim3(threads), c.dynamicSmemBytes = shared, c.stream = s, c.attrs = &attribute, c.numAttrs = early;
  void* p[] = {(void*)args};
  OK(cudaLaunchKernelExC(&c, f, p));
}
// Median of nine, microseconds, of what `run` enqueues.
template <class F> static double timed(cudaStream_t s, F run) {
  cudaEvent_t from, to;
  cudaEventCreate(&from), cudaEventCreate(&to);
  std::vector<float> ms(9);
  for (float& t : ms) {
    OK(cudaEventRecord(from, s));
    run();
    OK(cudaEventRecord(to, s));
    OK(cudaEventSynchronize(to));
    cudaEventElapsedTime(&t, from, to);
  }
  std::sort(ms.begin(), ms.end());
  cudaEventDestroy(from), cudaEventDestroy(to);
  return ms[4] * 1e3;
}
// The same of a step that is recorded first.
template <class F> static double recorded(cudaStream_t s, F enqueue) {
  cudaGraph_t g;
  cudaGraphExec_t x;
  OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
  enqueue();
  OK(cudaStreamEndCapture(s, &g));
  OK(cudaGraphInstantiateWithFlags(&x, g, 0));
  double us = timed(s, [&] { OK(cudaGraphLaunch(x, s)); });
  cudaGraphExecDestroy(x), cudaGraphDestroy(g);
  return us;
}
