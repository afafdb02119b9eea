// Pages of history and the operands of attention, shared by its kernels.
#pragma once
#include "common.cuh"

enum { KV_F32 = 0, KV_BF16 = 1, KV_Q8 = 2, KV_TQ4 = 3 };
// A layer's pages: the vectors of each key head, then those of each value head. Vectors of a head: the elements of 256 of
// them, then (rotated formats) their scales. Keys of the rotated formats lie sixteen together, four bytes of each in turn.
struct Stream { u8* p; u64 page_bytes; int fmt, heads, d, ring, layer, pad; };

// Page of position `pos` of the step's sequence `seq`, -1 where there is none.
DEV long page_of(const Stream& st, const Rows& rows, int seq, int pos) {
  if (st.ring > 0) return (long)*i32(rows.seq_slot, seq) * st.ring + pos / 256 % st.ring;
  return pos / 256 < rows.page_table.cols ? i32(rows.page_table, seq)[pos / 256] : -1;
}
DEV constexpr int code_bytes(int fmt, int d) { return fmt == KV_F32 ? 4 * d : fmt == KV_BF16 ? 2 * d : fmt == KV_Q8 ? d : d / 2; }
DEV constexpr bool rotated(int fmt) { return fmt >= KV_Q8; }
// The vectors of a head in a page.
DEV u8* block_at(const Stream& st, int fmt, int d, long page, int plane, int head) {
  long each = 256 * (code_bytes(fmt, d) + (rotated(fmt) ? 2 : 0));
  return st.p + page * st.page_bytes + (plane * st.heads + head) * each;
}
DEV __half* scales_of(u8* block, int fmt, int d) { return (__half*)(block + 256 * code_bytes(fmt, d)); }
// Byte `i` (a multiple of 4) of the elements of vector `at` of a block.
DEV int byte_at(int fmt, int d, int plane, int at, int i) {
  int each = code_bytes(fmt, d);
  if (plane == 0 && rotated(fmt)) return (at & ~15) * each + 16 * i + 4 * (at & 15);
  return at * each + i;
}
template <int K> DEV const u8* vector_at(const Stream& st, long page, int plane, int head, int at) {
  return block_at(st, K, st.d, page, plane, head) + at * code_bytes(K, st.d);
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
  int most;   // partitions, at most PARTS: what fits onto the card at a time for one row
};

// What a row sees, cut into partitions of equally many whole units of positions, which follow from its own position. Eight warps with
// sixteen keys each go through a unit at a time.
static constexpr int PARTS = 128, UNIT = 128;
struct Cut {
  int first, last, units, parts;
  // Positions of a partition: from the first of them up to, but not with, the second.
  DEV int2 part(int i) const {
    int from = (first / UNIT + i * units) * UNIT;
    return make_int2(max(first, from), min(last + 1, from + units * UNIT));
  }
};
DEV Cut cut_of(const AttnArgs& a, int pos) {
  Cut c;
  c.last = pos;
  c.first = max(a.window > 0 ? max(0, pos + 1 - a.window) : 0, min(a.since, pos));
  int units = c.last / UNIT - c.first / UNIT + 1;
  c.units = a.whole ? units : (units + a.most - 1) / a.most;
  c.parts = (units + c.units - 1) / c.units;
  return c;
}
// What a partition of a (row, head) came to: greatest score, sum of weights, weighted values.
DEV float* held(const AttnArgs& a, int row, int head, int part) {
  return a.scratch + (((long)row * a.q.heads + head) * a.room + part) * (a.st.d + 2);
}
