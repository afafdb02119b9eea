// One decoder per weight format over the split layout (see split.rs): 32 codes of a row as signed bytes in element
// order, a scale for each half of them and an offset. Everything that multiplies is written once over `Codes`.
#pragma once
#include "common.cuh"

// A matrix [n, k] in the split layout. Planes: codes, high bits, scales. Row r of a gate or up matrix that lies fused
// with the other is row r * step of the planes.
struct Mat {
  const u8 *q, *h, *s;
  int n, k, step;
  int aux;  // affine formats: groups of 32 that share a scale, and from bit 16 on the type of scales
};

// value of element e = scale[e / 16] * code[e] + offset
struct Codes {
  int c[8];
  float s0, s1, b;
};

enum Fmt { F32 = 0, F16 = 1, BF16 = 2, Q4_0 = 3, Q4_1 = 4, Q5_0 = 5, Q5_1 = 6, Q8_0 = 7, Q4_K = 8, Q5_K = 9, Q6_K = 10,
           IQ4_NL = 11, IQ4_XS = 12, MXFP4 = 13, AFFINE4 = 14, AFFINE8 = 15 };

// Codes j and j + 16 share a byte.
DEV void nibbles(uint4 w, int* c) {
  c[0] = w.x & 0x0f0f0f0f; c[1] = w.y & 0x0f0f0f0f; c[2] = w.z & 0x0f0f0f0f; c[3] = w.w & 0x0f0f0f0f;
  c[4] = (w.x >> 4) & 0x0f0f0f0f; c[5] = (w.y >> 4) & 0x0f0f0f0f;
  c[6] = (w.z >> 4) & 0x0f0f0f0f; c[7] = (w.w >> 4) & 0x0f0f0f0f;
}
// Bit j of h becomes bit 4 of code j.
DEV void fifth_bits(u32 h, int* c) {
#pragma unroll
  for (int i = 0; i < 8; i++) c[i] |= (((h >> (4 * i)) & 15u) * 0x00204081u & 0x01010101u) << 4;
}
// Bits 2j and 2j + 1 of h become bits 4 and 5 of code j.
DEV void high_pairs(u32 h, int* c) {
#pragma unroll
  for (int i = 0; i < 4; i++) {
    u32 b = (h >> (8 * i)) & 255u;
    c[i] |= ((b | b << 6 | b << 12 | b << 18) & 0x03030303u) << 4;
  }
}
// 16 signed bytes by four-bit number: which four codes a half word names.
DEV int look_up(u32 four, u32 t0, u32 t1, u32 t2, u32 t3) {
  u32 low = four & 0x7777u;
  u32 a = __byte_perm(t0, t1, low), b = __byte_perm(t2, t3, low);
  return __byte_perm(a, b, 0x3210u | ((four & 0x8888u) >> 1));
}
// The table formats are repacked so that neighbouring codes share a byte, the first in the low half.
DEV void table(uint4 w, int* c, u32 t0, u32 t1, u32 t2, u32 t3) {
  const u32 v[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
  for (int i = 0; i < 4; i++) {
    c[2 * i] = look_up(v[i] & 0xffffu, t0, t1, t2, t3);
    c[2 * i + 1] = look_up(v[i] >> 16, t0, t1, t2, t3);
  }
}
// Bytes by the four half bytes of `four`: of 8 where its highest bit is clear, else the sign of one of them (zero here).
DEV u32 permute(u32 a, u32 b, u32 four) {
  u32 y;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(y) : "r"(a), "r"(b), "r"(four));
  return y;
}
DEV constexpr u32 bytes4(int a, int b, int c, int d) {
  return (u32)(a & 255) | (u32)(b & 255) << 8 | (u32)(c & 255) << 16 | (u32)(d & 255) << 24;
}

// What is loaded of a group, before any arithmetic: kernels that wait for memory load early and decode late.
struct Raw {
  uint4 q, e, s;
  uint2 h;
};
template <int F> DEV constexpr bool has_offset() {
  return F == Q4_0 || F == Q4_1 || F == Q5_0 || F == Q5_1 || F == Q4_K || F == Q5_K || F == MXFP4 || F == AFFINE4 || F == AFFINE8;
}

// One of the floats beside a matrix, as its type has it; widened to the bits of an f32.
DEV u32 aside(const u8* p, long i, int type) {
  if (type == F32) return __ldg((const u32*)p + i);
  u32 h = __ldg((const u16*)p + i);
  return type == BF16 ? h << 16 : __float_as_uint(__half2float(__ushort_as_half((u16)h)));
}
// Sixteen bytes that are read once: they shall not push rows out of the nearest cache, nor code out of the second one.
DEV uint4 once(const uint4* p) {
  uint4 v;
  u64 policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p), "l"(policy));
  return v;
}
// Group `g` (of 32 elements) of the matrix's row `row`; a row has `groups` of them.
template <int F> DEV Raw load(const Mat& m, long row, int g, int groups) {
  Raw w;
  long at = row * m.step * groups + g;
  if (F == Q8_0 || F == AFFINE8) {
    w.q = once((const uint4*)m.q + 2 * at);
    w.e = once((const uint4*)m.q + 2 * at + 1);
  } else {
    w.q = once((const uint4*)m.q + at);
  }
  if (F == Q5_0 || F == Q5_1 || F == Q5_K) w.h.x = __ldg((const u32*)m.h + at);
  if (F == Q6_K) w.h = __ldg((const uint2*)m.h + at);
  if (F == Q4_0 || F == Q5_0 || F == Q8_0 || F == IQ4_NL) w.s.x = __ldg((const u16*)m.s + at);
  if (F == Q4_1 || F == Q5_1) w.s.x = __ldg((const u32*)m.s + at);
  if (F == Q4_K || F == Q5_K) w.s = __ldg((const uint4*)m.s + (at >> 3));
  if (F == Q6_K) {
    const u16* s = (const u16*)(m.s + 18 * (at >> 3));
    w.s.x = __ldg(s + (g & 7));
    w.s.y = __ldg(s + 8);
  }
  if (F == IQ4_XS) {
    uint2 s = __ldg((const uint2*)m.s + (at >> 3));
    w.s.x = s.x;
    w.s.y = s.y;
  }
  if (F == MXFP4) w.s.x = __ldg(m.s + at);
  if (F == AFFINE4 || F == AFFINE8) {
    int share = m.aux & 0xffff, type = m.aux >> 16;
    long i = row * m.step * (groups / share) + g / share;
    w.s.x = aside(m.s, i, type);
    w.h.x = aside(m.h, i, type);
  }
  return w;
}
// Half of 2^(e - 127); e = 0 and 1 are below the normals.
DEV float half_power(u32 e) { return __uint_as_float(e >= 2 ? (e - 1) << 23 : 0x00200000u << e); }
DEV float half_of(u32 bits) { return __half2float(__ushort_as_half((u16)bits)); }
DEV u32 byte_of(u32 lo, u32 mid, u32 hi, int i) { return (i < 4 ? lo : i < 8 ? mid : hi) >> (8 * (i & 3)) & 255u; }
// Header of a Q4_K or Q5_K block: d, dmin, twelve bytes of six-bit scales and minima; sub-block j.
DEV void k_scales(uint4 s, int j, Codes& o) {
  u32 sc, m;
  if (j < 4) {
    sc = byte_of(s.y, s.z, s.w, j) & 63u;
    m = byte_of(s.y, s.z, s.w, j + 4) & 63u;
  } else {
    u32 both = byte_of(s.y, s.z, s.w, j + 4);
    sc = (both & 15u) | (byte_of(s.y, s.z, s.w, j - 4) >> 6) << 4;
    m = both >> 4 | (byte_of(s.y, s.z, s.w, j) >> 6) << 4;
  }
  o.s0 = o.s1 = half_of(s.x) * (float)sc;
  o.b = -half_of(s.x >> 16) * (float)m;
}

template <int F> DEV Codes codes(const Raw& w, int g) {
  Codes o;
  o.b = 0.f;
  if (F == Q8_0 || F == AFFINE8) {
    o.c[0] = w.q.x; o.c[1] = w.q.y; o.c[2] = w.q.z; o.c[3] = w.q.w;
    o.c[4] = w.e.x; o.c[5] = w.e.y; o.c[6] = w.e.z; o.c[7] = w.e.w;
  } else if (F == IQ4_NL || F == IQ4_XS) {
    table(w.q, o.c, bytes4(-127, -104, -83, -65), bytes4(-49, -35, -22, -10), bytes4(1, 13, 25, 38), bytes4(53, 69, 89, 113));
  } else if (F == AFFINE4) {  // neighbours share a byte
    table(w.q, o.c, bytes4(0, 1, 2, 3), bytes4(4, 5, 6, 7), bytes4(8, 9, 10, 11), bytes4(12, 13, 14, 15));
  } else if (F == MXFP4) {
    // Twice the value of an e2m1 number and twelve more, so that no byte has a sign: what is looked up among the positive
    // numbers is zero for the negative ones, and the other way round.
    constexpr u32 p0 = bytes4(12, 13, 14, 15), p1 = bytes4(16, 18, 20, 24), n0 = bytes4(12, 11, 10, 9), n1 = bytes4(8, 6, 4, 0);
    const u32 v[4] = {w.q.x, w.q.y, w.q.z, w.q.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
      u32 turned = v[i] ^ 0x88888888u;
      o.c[2 * i] = permute(p0, p1, v[i]) | permute(n0, n1, turned);
      o.c[2 * i + 1] = permute(p0, p1, v[i] >> 16) | permute(n0, n1, turned >> 16);
    }
  } else {
    nibbles(w.q, o.c);
  }
  if (F == Q5_0 || F == Q5_1 || F == Q5_K) fifth_bits(w.h.x, o.c);
  if (F == Q6_K) {
    high_pairs(w.h.x, o.c);
    high_pairs(w.h.y, o.c + 4);
#pragma unroll
    for (int i = 0; i < 8; i++) {  // 0..63 to -32..31: flip bit 5 and carry it into the sign
      u32 y = o.c[i] ^ 0x20202020u;
      o.c[i] = y | (y & 0x20202020u) * 6u;
    }
    float d = half_of(w.s.y);
    o.s0 = d * (float)(i8)w.s.x;
    o.s1 = d * (float)(i8)(w.s.x >> 8);
  }
  if (F == Q4_0 || F == Q5_0 || F == Q8_0 || F == IQ4_NL || F == Q4_1 || F == Q5_1) o.s0 = o.s1 = half_of(w.s.x);
  if (F == AFFINE4 || F == AFFINE8) {
    o.s0 = o.s1 = __uint_as_float(w.s.x);
    o.b = __uint_as_float(w.h.x);
  }
  if (F == AFFINE8) {  // 0..255 to -128..127
#pragma unroll
    for (int i = 0; i < 8; i++) o.c[i] ^= 0x80808080;
    o.b = fmaf(128.f, o.s0, o.b);
  }
  if (F == Q4_0) o.b = -8.f * o.s0;
  if (F == Q5_0) o.b = -16.f * o.s0;
  if (F == Q4_1 || F == Q5_1) o.b = half_of(w.s.x >> 16);
  if (F == Q4_K || F == Q5_K) k_scales(w.s, g & 7, o);
  if (F == IQ4_XS) {  // d, scales_h, scales_l[4]
    int j = g & 7, low = w.s.y >> (4 * j) & 15, high = w.s.x >> (16 + 2 * j) & 3;
    o.s0 = o.s1 = half_of(w.s.x) * (float)((low | high << 4) - 32);
  }
  if (F == MXFP4) {
    o.s0 = o.s1 = half_power(w.s.x);
    o.b = -12.f * o.s0;
  }
  return o;
}
template <int F> DEV Codes decode(const Mat& m, long row, int g, int groups) { return codes<F>(load<F>(m, row, g, groups), g); }

// Plain floats: element by element.
template <int F> DEV float plain(const u8* p, long i) {
  if (F == F32) return ((const float*)p)[i];
  if (F == F16) return __half2float(((const __half*)p)[i]);
  return __bfloat162float(((const __nv_bfloat16*)p)[i]);
}
DEV float code_of(const Codes& o, int e) {
  int c = (int)(i8)(o.c[e >> 2] >> (8 * (e & 3)));
  return fmaf(e < 16 ? o.s0 : o.s1, (float)c, o.b);
}
