// A recurrent layer, one row, as the kernels that it takes, in one recorded step of as many layers as a model has: how long a layer takes,
// how much of it each kernel adds, and how long each takes behind its like. `mixture`: of a 35B-A3B model in Q4_0; `dense`: of a
// 27B one in MXFP4. Behind it: `apart` for floats and convolutions as kernels of their own; warps of a tile, blocks of a multiprocessor and
// blocks that there is room for, in place of what the backend takes.
// Where the kernels are, on a machine with a card (compute capability 9.0):
//   nvcc -O3 -std=c++17 -arch=sm_90 -I../../src/cuda/kernels layer.cu ../../src/cuda/kernels/{rows,recurrent,linear}.cu -o layer
#include <cstring>
#include <string>

#include "timing.cuh"
#include "normed.cu"
#include "stream.cu"
#include "chosen.cu"
#include "gated.cu"
#include "heads.cuh"
#define KERNEL(NAME, ARGS) extern "C" __global__ void NAME(ARGS);
struct GluArgs { View out, gate, up; Fifteen to; GluKind glu; int pad; };
struct ConvArgs { View out, x; const float* w; float* conv; Rows rows; int kernel, conv_elems, slots; };
KERNEL(rms_norm, NormArgs)
KERNEL(glu, GluArgs)
KERNEL(conv_silu, ConvArgs)
KERNEL(linear_f32_1, SetArgs)

static int LAYERS, H, CHANNELS, VALUES, HEADS, INNER;
static constexpr int EXPERTS = 256, K = 8;
static bool DENSE;
static View view(void* p, int cols) { return {p, 1, 1, cols, cols, cols, 0}; }
static float* floats(int n) { return (float*)room(4ul * n, 0x807fffff, 0x3e000000); }
static Mat q4(int n, int k, int count = 1) {
  size_t all = (size_t)n * k * count;
  u8* scales = DENSE ? (u8*)room(all / 32, 0x03030303, 0x78787878) : (u8*)room(all / 16, 0x00ff00ff, 0x14001400);
  return {(u8*)room(all / 2, ~0u, 0), nullptr, scales, n, k, 1, 0};
}
static MatSet set(int n, int k) { return {q4(n, k, EXPERTS), {(u64)n * k / 2, 0, (u64)n * k / 16}, EXPERTS, 0}; }
static Mat f4(int n, int k) { return {(u8*)floats(n * k), nullptr, nullptr, n, k, 1, 0}; }
static Fifteen codes(int k, int rows = 1) { return {(uint4*)room(k * rows, 0, 0), (uint4*)room(k * rows, 0, 0), (float2*)room(k / 4 * rows, 0, 0)}; }

struct Launch { const char* name; void* f; dim3 grid; int threads, shared; std::vector<char> args; };
template <class A> static Launch of(const char* name, void* f, dim3 grid, int threads, int shared, const A& a) {
  return {name, f, grid, threads, shared, std::vector<char>((const char*)&a, (const char*)&a + sizeof a)};
}
static double a_layer(cudaStream_t s, const std::vector<const Launch*>& all) {
  return recorded(s, [&] { for (const Launch* l : all) launch_with(l->f, l->grid, l->threads, l->shared, s, true, l->args.data()); }) / LAYERS;
}
int main(int argc, char** argv) {
  DENSE = argc > 1 && !strcmp(argv[1], "dense");
  bool apart = argc > 2 && !strcmp(argv[2], "apart");
  auto number = [&](int i) { return argc > i + apart ? atoi(argv[i + apart]) : 0; };
  int asked = number(2), each = number(3), fitting = number(4);
  LAYERS = DENSE ? 48 : 40, H = DENSE ? 5120 : 2048, CHANNELS = DENSE ? 10240 : 8192, VALUES = DENSE ? 6144 : 4096, HEADS = VALUES / 128, INNER = DENSE ? 17408 : 512;
  cudaDeviceProp card;
  OK(cudaGetDeviceProperties(&card, 0));
  int all = card.multiProcessorCount;
  cudaStream_t s;
  OK(cudaStreamCreate(&s));
  void* kernel = DENSE ? (void*)stream_mxfp4_1 : (void*)stream_q4_0_1, *normed = (void*)normed_q4_0_1;
  for (void* f : {kernel, normed, (void*)chosen_up_q4_0, (void*)chosen_down_q4_0}) OK(cudaFuncSetAttribute(f, cudaFuncAttributeMaxDynamicSharedMemorySize, 200 << 10));
  std::vector<std::vector<Launch>> layers;
  float *x = floats(H), *h = floats(H), *qkv = floats(CHANNELS), *z = floats(VALUES), *turned = floats(CHANNELS), *y = floats(VALUES), *ab = floats(2 * HEADS), *sum = floats(H);
  float *logits = floats(EXPERTS), *by = floats(4), *gate = floats(INNER), *up = floats(INNER), *weights = floats(K);
  int *ids = (int*)room(64, 0, 0), *zero = (int*)room(64, 0, 0);
  Fifteen hq = codes(H), yq = codes(VALUES), mq = codes(INNER, K), sq = codes(INNER);
  const int T = 16 * 8 * (DENSE ? 17 : 18), STAGES = DENSE ? 4 : 3;
  for (int i = 0; i < LAYERS; i++) {
    std::vector<Launch> l;
    auto one = [](void* out, Mat w, int add = 0) { return One{view(out, w.n), w, nullptr, add, 0}; };
    ConvOf none = {};
    none.which = -1;
    auto product = [&](const char* name, Fifteen q, bool behind, std::vector<One> m, std::vector<One> f, ConvOf conv) {
      StreamArgs a = {};
      int tiles = 0, outputs = 0, k = m[0].w.k;
      for (size_t j = 0; j < m.size(); j++) m[j].first = tiles, tiles += m[j].w.n / 16, a.set.m[j] = m[j];
      for (size_t j = 0; j < f.size(); j++) f[j].first = outputs, outputs += f[j].w.n, a.f[j] = f[j];
      a.set.x = view(h, k), a.set.q = q, a.set.rows = 1, a.set.count = m.size(), a.set.blocks = tiles, a.conv = conv;
      if (behind) a.norm = {view(h, H), view(x, H), floats(H), hq, 1e-6f, 512};
      bool also = apart && f.size(), turns = apart && conv.which >= 0;
      if (also) {
        SetArgs o = {view(h, H)};
        for (size_t j = 0; j < f.size(); j++) o.m[j] = a.f[j];
        o.rows = 1, o.count = f.size(), o.blocks = outputs;
        l.push_back(of("floats", (void*)linear_f32_1, dim3(outputs), 128, 0, o));
        outputs = 0;
      }
      if (turns) a.conv.which = -1;
      a.floats = outputs ? f.size() : 0, a.outputs = outputs;
      int warps = behind ? 16 : asked ? asked : k <= 2048 || tiles >= 2048 ? 4 : tiles <= all && k >= 4096 ? 16 : 8, fit = 0;
      int shared = behind ? 72 * (H / 32) + 64 + warps * STAGES * T : warps * STAGES * (T + 576), wanted = tiles + (behind ? outputs + 1 : (outputs + warps / 4 - 1) / (warps / 4));
      void* f1 = behind ? normed : kernel;
      OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&fit, f1, 32 * warps, shared));
      if (each && !behind) fit = each, shared = std::max(shared, (int)(card.sharedMemPerMultiprocessor / fitting - 1024) & ~127);
      l.push_back(of(name, f1, dim3(std::min(wanted, std::max(fit, 1) * all)), 32 * warps, shared, a));
      if (turns) l.push_back(of("convolution", (void*)conv_silu, dim3(CHANNELS / 128), 128, 0, ConvArgs{view(turned, CHANNELS), view(qkv, CHANNELS), conv.w, conv.state, {conv.seq_of, conv.seq_of, conv.seq_of, conv.seq_of, conv.from, conv.to, 1, 1}, 4, conv.elems, 1}));
    };
    auto norm = [&] { l.push_back(of("norm", (void*)rms_norm, dim3(1), DENSE ? 640 : 512, 0, NormArgs{view(h, H), view(x, H), floats(H), hq, 1e-6f, 640})); };
    View one_int = {zero, 1, 1, 1, 1, 1, 0};
    ConvOf conv = {view(turned, CHANNELS), one_int, one_int, one_int, floats(4 * CHANNELS), floats(3 * CHANNELS), 0, 3 * CHANNELS};
    if (DENSE) norm();
    product(DENSE ? "qkv, z, a, b, convolution" : "norm, qkv, z, a, b, convolution", hq, !DENSE, {one(qkv, q4(CHANNELS, H)), one(z, q4(VALUES, H))}, {one(ab, f4(HEADS, H)), one(ab + HEADS, f4(HEADS, H))}, conv);
    DeltaGateArgs d = {};
    View heads = {y, 1, HEADS, 128, VALUES, 128, 0};
    d.d.out = heads, d.d.qkv = view(turned, CHANNELS), d.d.a = view(ab, HEADS), d.d.b = view(ab + HEADS, HEADS), d.d.decay = floats(HEADS), d.d.dt = floats(HEADS);
    d.d.state = floats(HEADS * 128 * 128), d.d.rows.seq_of = d.d.rows.rec_from = d.d.rows.rec_to = one_int, d.d.rows.n = d.d.rows.seqs = 1;
    d.d.n_k = 16, d.d.n_v = HEADS, d.d.d_k = d.d.d_v = 128, d.d.mod = 1, d.d.state_elems = HEADS * 128 * 128, d.d.slots = 1;
    d.g = heads, d.g.p = z, d.to = yq, d.w = floats(128), d.eps = 1e-6f, d.act = ACT_SILU;
    l.push_back(of("delta rule, norm, gate", (void*)delta_gate, dim3(HEADS, 4, 1), 128, 0, d));
    product("output", yq, false, {one(x, q4(H, VALUES), 1)}, {}, none);
    if (DENSE) {
      norm();
      product("gate, up", hq, false, {one(gate, q4(INNER, H)), one(up, q4(INNER, H))}, {}, none);
      l.push_back(of("unit", (void*)glu, dim3(INNER / 256), 256, 0, GluArgs{view(gate, INNER), view(gate, INNER), view(up, INNER), sq, {GLU_SWIGLU, 0, 0}, 0}));
      product("down", sq, false, {one(x, q4(H, INNER), 1)}, {}, none);
    } else {
      product("norm, router, shared gate, up", hq, true, {one(gate, q4(INNER, H)), one(up, q4(INNER, H))}, {one(logits, f4(EXPERTS, H)), one(by, f4(1, H))}, none);
      RouteArgs route = {view(ids, K), view(weights, K), view(logits, EXPERTS), nullptr, nullptr, K, 1, 0, 0, 0, 1.f};
      ChosenUpArgs u = {route, hq, mq, sq, set(INNER, H), set(INNER, H), view(gate, INNER), view(up, INNER), {GLU_SWIGLU, 0, 0}, 0};
      l.push_back(of("choice, experts' gate, up", (void*)chosen_up_q4_0, dim3(K * (INNER / 32) + (INNER + 511) / 512), 512, 32 * T, u));
      ChosenDownArgs w = {route, mq, sq, set(H, INNER), q4(H, INNER), view(x, H), view(sum, H), view(by, 1), 0, 0};
      l.push_back(of("experts' down, sums", (void*)chosen_down_q4_0, dim3(H / 16), 32 * (K + 1), (K + 1) * 2 * T, w));
    }
    layers.push_back(l);
  }
  OK(cudaDeviceSynchronize());
  std::vector<const Launch*> step;
  for (auto& l : layers) for (auto& k : l) step.push_back(&k);
  double whole = a_layer(s, step);
  printf("a layer: %.2f us\n", whole);
  for (size_t k = 0; k < layers[0].size(); k++) {
    std::vector<const Launch*> without, alone;
    for (auto& l : layers) for (size_t j = 0; j < l.size(); j++) (j == k ? alone : without).push_back(&l[j]);
    printf("%-28s %4d blocks of %3d: adds %5.2f us, alone %5.2f us\n", layers[0][k].name, layers[0][k].grid.x * layers[0][k].grid.y, layers[0][k].threads, whole - a_layer(s, without), a_layer(s, alone));
  }
  OK(cudaDeviceSynchronize());
}
