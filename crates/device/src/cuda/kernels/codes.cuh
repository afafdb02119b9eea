// Codes of packed history as bf16 for tensor cores.
#pragma once
#include "pages.cuh"
#include "rotation.cuh"
#include "tensor.cuh"

// Two centroids by byte, once for each lane so that no two lanes of a warp meet in a bank: 32 KiB.
static constexpr int TABLE_BYTES = 256 * 128;
DEV void fill_table(u32* table, int d) {
  // A lane has a centroid; a warp writes whole rows.
  float mine = centroid(d, threadIdx.x & 15);
  for (int i = threadIdx.x; i < 256 * 32; i += blockDim.x) {
    int byte = i >> 5;
    table[i] = pack(__shfl_sync(FULL, mine, byte & 15), __shfl_sync(FULL, mine, byte >> 4));
  }
}
// The pair that byte `b` of a word names; `table` is this lane's column.
template <int B> DEV u32 pair_of(const u8* table, u32 word) {
  u32 at = B == 0 ? word << 7 : word >> (8 * B - 7);
  return *(const u32*)(table + (at & 0x7f80u));
}
// Signed bytes `at` and `at + 1` of a word.
DEV u32 bytes_pair(u32 word, int at) {
  float a = (float)(i8)(word >> (8 * at)), b = (float)(i8)(word >> (8 * at + 8));
  return pack(a, b);
}
// What a scale stands for: an element is scale * code.
template <int FMT> DEV float unit_of(int d) { return FMT == KV_Q8 ? 1.f / 127.f : rsqrtf((float)d); }
