// Products of block weights with fifteen-bit rows, shared by linear layers and experts.
#pragma once
#include "decode.cuh"
#include "fifteen.cuh"

struct Row15 { uint4 h0, h1, l0, l1; float2 meta; };
DEV Row15 load15(const Fifteen& x, long row, int g, int groups) {
  long at = row * 2 * groups + g;
  return {x.hi[at], x.hi[at + groups], x.lo[at], x.lo[at + groups], x.meta[row * groups + g]};
}
DEV int dot4(const int* c, uint4 x, int y = 0) {
  return __dp4a(c[3], (int)x.w, __dp4a(c[2], (int)x.z, __dp4a(c[1], (int)x.y, __dp4a(c[0], (int)x.x, y))));
}
template <int F> DEV float group_dot(const Codes& w, const Row15& x, float acc) {
  if (F != Q6_K) {
    int all = dot4(w.c + 4, x.h1, dot4(w.c, x.h0)) * 128 + dot4(w.c + 4, x.l1, dot4(w.c, x.l0));
    acc = fmaf(w.s0 * x.meta.x, (float)all, acc);
    return has_offset<F>() ? fmaf(w.b, x.meta.y, acc) : acc;
  }
  int a = dot4(w.c, x.h0) * 128 + dot4(w.c, x.l0), b = dot4(w.c + 4, x.h1) * 128 + dot4(w.c + 4, x.l1);
  acc = fmaf(w.s0 * x.meta.x, (float)a, acc);
  return fmaf(w.s1 * x.meta.x, (float)b, acc);
}

