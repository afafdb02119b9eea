// Products of few rows with four-bit blocks whose codes are there.
#include "stream.cuh"

// Stages as many as leave as many blocks of eight warps to a multiprocessor as registers do: a grid is what fits at a time. The number of
// threads bounds the registers; a block has four, eight or sixteen warps.
#define STREAM(NAME, F, B, S, THREADS) \
  extern "C" __global__ void __launch_bounds__(THREADS, 1) stream_##NAME##_##B(const __grid_constant__ StreamArgs a) { stream<F, B, S, false>(a); }
STREAM(q4_0, Q4_0, 1, 3, 768)
STREAM(q4_0, Q4_0, 2, 3, 512)
STREAM(q4_0, Q4_0, 4, 2, 512)
STREAM(mxfp4, MXFP4, 1, 4, 512)
STREAM(mxfp4, MXFP4, 2, 3, 512)
STREAM(mxfp4, MXFP4, 4, 2, 512)
