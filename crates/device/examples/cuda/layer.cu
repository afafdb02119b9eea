// A recurrent layer of a 35B-A3B model, one row, as the six kernels that it takes, forty times over in one recorded step: how long a
// layer takes, how much of it each kernel adds, and how long each takes behind its like.
// Where the kernels are, on a machine with a card (compute capability 9.0):
//   nvcc -O3 -std=c++17 -arch=sm_90 -I../../src/cuda/kernels layer.cu -o layer
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>
#include <string>
#include <vector>

#include "normed.cu"
#include "stream.cu"
#include "chosen.cu"
#include "gated.cu"

#define OK(x) do { cudaError_t e = (x); if (e != cudaSuccess) { printf("%s: %s\n", #x, cudaGetErrorString(e)); exit(1); } } while (0)
__global__ void fill(u32* p, size_t n, u32 seed, u32 mask, u32 add) {
  for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
    u32 z = (u32)i * 2654435761u + seed;
    z = (z ^ z >> 15) * 2246822519u;
    z = (z ^ z >> 13) * 3266489917u;
    p[i] = ((z ^ z >> 16) & mask) + add;
  }
}
static void* room(size_t bytes, u32 mask, u32 add) {
  static u32 seed = 1;
  u32* p;
  OK(cudaMalloc(&p, bytes));
  fill<<<2048, 256>>>(p, bytes / 4, seed++, mask, add);
  return p;
}
static constexpr int LAYERS = 40, H = 2048, CHANNELS = 8192, VALUES = 4096, HEADS = 32, EXPERTS = 256, K = 8, INNER = 512, ROWS = 1;
static View view(void* p, int cols) { return {p, ROWS, 1, cols, cols, cols, 0}; }
static float* floats(int n) { return (float*)room(4ul * n, 0x807fffff, 0x3e000000); }
static Mat q4(int n, int k, int count = 1) {
  size_t all = (size_t)n * k * count;
  return {(u8*)room(all / 2, ~0u, 0), nullptr, (u8*)room(all / 16, 0x00ff00ff, 0x14001400), n, k, 1, 0};
}
static MatSet set(int n, int k) { return {q4(n, k, EXPERTS), {(u64)n * k / 2, 0, (u64)n * k / 16}, EXPERTS, 0}; }
static Mat f4(int n, int k) { return {(u8*)floats(n * k), nullptr, nullptr, n, k, 1, 0}; }
static Fifteen codes(int k, int rows = 1) { return {(uint4*)room(k * rows, 0, 0), (uint4*)room(k * rows, 0, 0), (float2*)room(k / 4 * rows, 0, 0)}; }

struct Launch { const char* name; void* f; dim3 grid; int threads, shared; std::vector<char> args; };
template <class A> static Launch of(const char* name, void* f, dim3 grid, int threads, int shared, const A& a) {
  return {name, f, grid, threads, shared, std::vector<char>((const char*)&a, (const char*)&a + sizeof a)};
}
static void enqueue(const Launch& l, cudaStream_t s) {
  cudaLaunchConfig_t c = {};
  cudaLaunchAttribute early;
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  c.gridDim = l.grid, c.blockDim = dim3(l.threads), c.dynamicSmemBytes = l.shared, c.stream = s, c.attrs = &early, c.numAttrs = 1;
  void* p[] = {(void*)l.args.data()};
  OK(cudaLaunchKernelExC(&c, l.f, p));
}
static double recorded(cudaStream_t s, const std::vector<const Launch*>& all) {
  cudaGraph_t g;
  cudaGraphExec_t x;
  OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
  for (const Launch* l : all) enqueue(*l, s);
  OK(cudaStreamEndCapture(s, &g));
  OK(cudaGraphInstantiateWithFlags(&x, g, 0));
  cudaEvent_t from, to;
  cudaEventCreate(&from), cudaEventCreate(&to);
  std::vector<float> ms(9);
  for (float& t : ms) {
    OK(cudaEventRecord(from, s));
    OK(cudaGraphLaunch(x, s));
    OK(cudaEventRecord(to, s));
    OK(cudaEventSynchronize(to));
    cudaEventElapsedTime(&t, from, to);
  }
  std::sort(ms.begin(), ms.end());
  cudaGraphExecDestroy(x), cudaGraphDestroy(g);
  return ms[4] * 1e3 / LAYERS;
}
int main() {
  cudaDeviceProp card;
  OK(cudaGetDeviceProperties(&card, 0));
  int all = card.multiProcessorCount;
  cudaStream_t s;
  OK(cudaStreamCreate(&s));
  for (void* f : {(void*)stream_q4_0_1, (void*)normed_q4_0_1, (void*)chosen_up_q4_0, (void*)chosen_down_q4_0}) OK(cudaFuncSetAttribute(f, cudaFuncAttributeMaxDynamicSharedMemorySize, 200 << 10));
  std::vector<std::vector<Launch>> layers;
  float *x = floats(H), *h = floats(H), *qkv = floats(CHANNELS), *z = floats(VALUES), *turned = floats(CHANNELS), *y = floats(VALUES), *ab = floats(2 * HEADS), *sum = floats(H);
  float *logits = floats(EXPERTS), *by = floats(4), *gate = floats(INNER), *up = floats(INNER), *weights = floats(K);
  int *ids = (int*)room(64, 0, 0), *zero = (int*)room(64, 0, 0);
  Fifteen hq = codes(H), yq = codes(VALUES), mq = codes(INNER, K), sq = codes(INNER);
  const int T = 16 * 8 * 18, EACH = 16;
  for (int i = 0; i < LAYERS; i++) {
    std::vector<Launch> l;
    auto one = [](void* out, Mat w, int add = 0) { return One{view(out, w.n), w, nullptr, add, 0}; };
    auto normed = [&](const char* name, std::vector<One> m, std::vector<One> f, ConvOf conv) {
      StreamArgs a = {};
      int tiles = 0, outputs = 0;
      for (size_t j = 0; j < m.size(); j++) m[j].first = tiles, tiles += m[j].w.n / 16, a.set.m[j] = m[j];
      for (size_t j = 0; j < f.size(); j++) f[j].first = outputs, outputs += f[j].w.n, a.f[j] = f[j];
      a.set.rows = 1, a.set.count = m.size(), a.set.blocks = tiles, a.floats = f.size(), a.outputs = outputs, a.conv = conv;
      a.norm = {view(h, H), view(x, H), floats(H), hq, 1e-6f, 512};
      int shared = 72 * (H / 32) + 64 + EACH * 3 * T, fit = 0;
      OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&fit, (void*)normed_q4_0_1, 32 * EACH, shared));
      l.push_back(of(name, (void*)normed_q4_0_1, dim3(std::min(tiles + outputs + 1, std::max(fit, 1) * all)), 32 * EACH, shared, a));
    };
    View one_int = {zero, 1, 1, 1, 1, 1, 0};
    ConvOf conv = {view(turned, CHANNELS), one_int, one_int, one_int, floats(4 * CHANNELS), floats(3 * CHANNELS), 0, 3 * CHANNELS}, none = {};
    none.which = -1;
    normed("norm, qkv, z, a, b, convolution", {one(qkv, q4(CHANNELS, H)), one(z, q4(VALUES, H))}, {one(ab, f4(HEADS, H)), one(ab + HEADS, f4(HEADS, H))}, conv);
    DeltaGateArgs d = {};
    View heads = {y, 1, HEADS, 128, VALUES, 128, 0};
    d.d.out = heads, d.d.qkv = view(turned, CHANNELS), d.d.a = view(ab, HEADS), d.d.b = view(ab + HEADS, HEADS), d.d.decay = floats(HEADS), d.d.dt = floats(HEADS);
    d.d.state = floats(HEADS * 128 * 128), d.d.rows.seq_of = d.d.rows.rec_from = d.d.rows.rec_to = one_int, d.d.rows.n = d.d.rows.seqs = 1;
    d.d.n_k = 16, d.d.n_v = HEADS, d.d.d_k = d.d.d_v = 128, d.d.mod = 1, d.d.state_elems = HEADS * 128 * 128, d.d.slots = 1;
    d.g = heads, d.g.p = z, d.to = yq, d.w = floats(128), d.eps = 1e-6f, d.act = ACT_SILU;
    l.push_back(of("delta rule, norm, gate", (void*)delta_gate, dim3(HEADS, 4, 1), 128, 0, d));
    SetArgs a = {};
    a.q = yq, a.m[0] = one(x, q4(H, VALUES), 1), a.rows = a.count = 1, a.blocks = H / 16;
    l.push_back(of("output", (void*)stream_q4_0_1, dim3(H / 16), 512, 16 * 3 * (T + 576), a));
    normed("norm, router, shared gate, up", {one(gate, q4(INNER, H)), one(up, q4(INNER, H))}, {one(logits, f4(EXPERTS, H)), one(by, f4(1, H))}, none);
    RouteArgs route = {view(ids, K), view(weights, K), view(logits, EXPERTS), nullptr, nullptr, K, 1, 0, 0, 0, 1.f};
    ChosenUpArgs u = {route, hq, mq, sq, set(INNER, H), set(INNER, H), view(gate, INNER), view(up, INNER), {GLU_SWIGLU, 0, 0}, 0};
    l.push_back(of("choice, experts' gate, up", (void*)chosen_up_q4_0, dim3(K * (INNER / 32) + (INNER + 511) / 512), 512, 32 * T, u));
    ChosenDownArgs w = {route, mq, sq, set(H, INNER), q4(H, INNER), view(x, H), view(sum, H), view(by, 1), 0, 0};
    l.push_back(of("experts' down, sums", (void*)chosen_down_q4_0, dim3(H / 16), 32 * (K + 1), (K + 1) * 2 * T, w));
    layers.push_back(l);
  }
  OK(cudaDeviceSynchronize());
  std::vector<const Launch*> step;
  for (auto& l : layers) for (auto& k : l) step.push_back(&k);
  double whole = recorded(s, step);
  printf("a layer: %.2f us\n", whole);
  for (size_t k = 0; k < layers[0].size(); k++) {
    std::vector<const Launch*> without, alone;
    for (auto& l : layers) for (size_t j = 0; j < l.size(); j++) (j == k ? alone : without).push_back(&l[j]);
    printf("%-34s %3d blocks of %3d: adds %5.2f us, alone %5.2f us\n", layers[0][k].name, layers[0][k].grid.x * layers[0][k].grid.y, layers[0][k].threads, whole - recorded(s, without), recorded(s, alone));
  }
  OK(cudaDeviceSynchronize());
}
