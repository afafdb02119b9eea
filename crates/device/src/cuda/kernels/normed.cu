// The same behind a norm that goes along: one row, or up to four.
#include "stream.cuh"

#define NORMED(NAME, F, B, S) \
  extern "C" __global__ void __launch_bounds__(256 * TEAMS, 1) normed_##NAME##_##B(const __grid_constant__ StreamArgs a) { stream<F, B, S, true>(a); }
NORMED(q4_0, Q4_0, 1, 3)
NORMED(q4_0, Q4_0, 4, 2)
NORMED(mxfp4, MXFP4, 1, 4)
NORMED(mxfp4, MXFP4, 4, 2)
