// The same behind a norm that goes along: one row, or up to four.
#include "stream.cuh"

// Where registers are few enough, a block of the gated delta rule finds room beside one of these, and asks for its state early.
#define NORMED(NAME, F, B, S, THREADS) \
  extern "C" __global__ void __launch_bounds__(THREADS, 1) normed_##NAME##_##B(const __grid_constant__ StreamArgs a) { stream<F, B, S, true>(a); }
NORMED(q4_0, Q4_0, 1, 3, 640)
NORMED(q4_0, Q4_0, 4, 2, 512)
NORMED(mxfp4, MXFP4, 1, 4, 640)
NORMED(mxfp4, MXFP4, 4, 2, 512)
