// From the file's blocks to the split layout. A thread per group of 32 elements; the source lies at any byte.
#include "decode.cuh"

struct RepackArgs { const u8* src; u8 *q, *h, *s; int fmt, groups; long rows; };

DEV u32 word(const u8* p) { return (u32)p[0] | (u32)p[1] << 8 | (u32)p[2] << 16 | (u32)p[3] << 24; }
DEV void copy(u8* to, const u8* from, int n) { for (int i = 0; i < n; i++) to[i] = from[i]; }
// Codes j and j + 16 of a byte become neighbours.
DEV void neighbours(u8* to, const u8* from) {
  for (int i = 0; i < 8; i++) {
    u8 a = from[2 * i], b = from[2 * i + 1];
    to[i] = (a & 15) | (b & 15) << 4;
    to[8 + i] = a >> 4 | (b & 0xf0);
  }
}

extern "C" __global__ void repack(RepackArgs a) {
  begin();
  long i = (long)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= a.rows * a.groups) return;
  int j = i & 7;
  u8* q = a.q + 16 * i;
  switch (a.fmt) {
    case Q4_0: { const u8* b = a.src + 18 * i; copy(a.s + 2 * i, b, 2); copy(q, b + 2, 16); break; }
    case Q4_1: { const u8* b = a.src + 20 * i; copy(a.s + 4 * i, b, 4); copy(q, b + 4, 16); break; }
    case Q5_0: { const u8* b = a.src + 22 * i; copy(a.s + 2 * i, b, 2); copy(a.h + 4 * i, b + 2, 4); copy(q, b + 6, 16); break; }
    case Q5_1: { const u8* b = a.src + 24 * i; copy(a.s + 4 * i, b, 4); copy(a.h + 4 * i, b + 4, 4); copy(q, b + 8, 16); break; }
    case Q8_0: { const u8* b = a.src + 34 * i; copy(a.s + 2 * i, b, 2); copy(a.q + 32 * i, b + 2, 32); break; }
    case MXFP4: { const u8* b = a.src + 17 * i; a.s[i] = b[0]; neighbours(q, b + 1); break; }
    case IQ4_NL: { const u8* b = a.src + 18 * i; copy(a.s + 2 * i, b, 2); neighbours(q, b + 2); break; }
    case IQ4_XS: {
      const u8* b = a.src + 136 * (i >> 3);
      if (j == 0) copy(a.s + 8 * (i >> 3), b, 8);
      neighbours(q, b + 8 + 16 * j);
      break;
    }
    case Q4_K:
    case Q5_K: {
      // Sub-blocks 2k and 2k + 1 share 32 bytes: the low halves, then the high ones.
      bool five = a.fmt == Q5_K;
      const u8 *b = a.src + (five ? 176 : 144) * (i >> 3), *qs = b + (five ? 48 : 16) + 32 * (j >> 1);
      if (j == 0) copy(a.s + 16 * (i >> 3), b, 16);
      for (int e = 0; e < 16; e++) {
        u8 lo = qs[e] >> (4 * (j & 1)) & 15, hi = qs[e + 16] >> (4 * (j & 1)) & 15;
        q[e] = lo | hi << 4;
      }
      if (five) {
        u32 bits = 0;
        for (int e = 0; e < 32; e++) bits |= (u32)(b[16 + e] >> j & 1) << e;
        *(u32*)(a.h + 4 * i) = bits;
      }
      break;
    }
    case Q6_K: {
      const u8 *b = a.src + 210 * (i >> 3), *ql = b + 64 * (j >> 2) + 32 * (j & 1), *qh = b + 128 + 32 * (j >> 2);
      if (j == 0) { copy(a.s + 18 * (i >> 3), b + 192, 16); copy(a.s + 18 * (i >> 3) + 16, b + 208, 2); }
      int k = j & 3;
      u32 h[2] = {0, 0};
      for (int e = 0; e < 16; e++) {
        u8 lo = k < 2 ? ql[e] & 15 : ql[e] >> 4, hi = k < 2 ? ql[e + 16] & 15 : ql[e + 16] >> 4;
        q[e] = lo | hi << 4;
        h[0] |= (u32)(qh[e] >> (2 * k) & 3) << (2 * e);
        h[1] |= (u32)(qh[e + 16] >> (2 * k) & 3) << (2 * e);
      }
      *(uint2*)(a.h + 8 * i) = make_uint2(h[0], h[1]);
      break;
    }
  }
}
