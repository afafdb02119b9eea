// Queries and keys of few rows before attention: the norm and the rotation of each head of both, and keys and values to where
// history has them.
#include "heads.cuh"
#include "pages.cuh"

// Blocks of a row's key heads, then query heads; then, where history is not packed, value heads.
struct HeadsArgs { NormRopeArgs k, q; Stream st; Rows rows; View v; int append, pad; };
DEV void keep(const HeadsArgs& a, const float* x, int row, int head, int plane) {
  int pos = *i32(a.rows.pos, row);
  long page = page_of(a.st, a.rows, *i32(a.rows.seq_of, row), pos);
  if (page < 0) return;
  u8* to = block_at(a.st, a.st.fmt, a.st.d, page, plane, head) + pos % 256 * code_bytes(a.st.fmt, a.st.d);
  for (int i = threadIdx.x; i < a.st.d; i += blockDim.x)
    if (a.st.fmt == KV_F32) ((float*)to)[i] = x[i];
    else ((__nv_bfloat16*)to)[i] = __float2bfloat16(x[i]);
}
extern "C" __global__ void __launch_bounds__(128) heads(const __grid_constant__ HeadsArgs a) {
  int block = blockIdx.x, rows = a.rows.n, keys = rows * a.st.heads, queries = rows * a.q.norm.x.heads;
  if (block < keys + queries) {
    bool key = block < keys;
    const NormRopeArgs& n = key ? a.k : a.q;
    int own = key ? block : block - keys;
    norm<TURNED>(n.norm, &n.rope, nullptr, own);
    if (!key || !a.append) return;
    __syncthreads();
    int row = own / a.st.heads, head = own % a.st.heads;
    keep(a, f32(n.norm.out, row, head), row, head, 0);
  } else {
    begin();
    int own = block - keys - queries, row = own / a.st.heads, head = own % a.st.heads;
    keep(a, f32(a.v, row, head), row, head, 1);
  }
}
