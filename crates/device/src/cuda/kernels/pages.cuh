// Pages of history and the operands of attention, shared by its kernels.
#pragma once
#include "common.cuh"

enum { KV_F32 = 0, KV_BF16 = 1 };
// A layer's pages: keys [heads, 256, d], then values, of each page.
struct Stream { u8* p; u64 page_bytes; int fmt, heads, d, ring; };

// Page of position `pos` of the step's sequence `seq`, -1 where there is none.
DEV long page_of(const Stream& st, const Rows& rows, int seq, int pos) {
  if (st.ring > 0) return (long)*i32(rows.seq_slot, seq) * st.ring + pos / 256 % st.ring;
  return pos / 256 < rows.page_table.cols ? i32(rows.page_table, seq)[pos / 256] : -1;
}
template <int K> DEV const u8* vector_at(const Stream& st, long page, int plane, int head, int at) {
  return st.p + page * st.page_bytes + ((long)(plane * st.heads + head) * 256 + at) * st.d * (K == KV_F32 ? 4 : 2);
}
template <int K> DEV float elem(const u8* v, int i) {
  return K == KV_F32 ? ((const float*)v)[i] : __bfloat162float(((const __nv_bfloat16*)v)[i]);
}

struct AttnArgs {
  View out, q;
  Stream st;
  Rows rows;
  float scale;
  int window;  // 0: none
  int since;   // positions before it are seen by nobody but themselves
  const float* sinks;
  float* scratch;
  int room;
  int whole;  // one partition, whatever the length: many rows
  int pad;
};
