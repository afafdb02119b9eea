// Asynchronous copies, shared-memory matrices and bf16 products of tensor cores (compute capability 8.0 and later).
#pragma once
#include "common.cuh"

DEV u32 smem_of(const void* p) { return (u32)__cvta_generic_to_shared(p); }
DEV void copy16(u32 to, const void* from, bool there) {
  int n = there ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(n));
}
// What is read once shall not push out of the second cache what the next kernels need, their code and arguments among it.
DEV u64 read_once() {
  u64 policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
DEV void copy16_once(u32 to, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "l"(read_once()));
}
DEV void commit() { asm volatile("cp.async.commit_group;"); }
DEV void wait_all() { asm volatile("cp.async.wait_all;"); }
DEV void ldsm4(u32* r, u32 at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at));
}
DEV void mma(float* c, const u32* a, const u32* b) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

DEV u32 pack(float a, float b) {
  __nv_bfloat162 v = __floats2bfloat162_rn(a, b);
  return *(u32*)&v;
}
DEV void store16(u32 to, const u32* v) {
  asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3]));
}
DEV void ldsm4_t(u32* r, u32 at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at));
}

// Waits until all but the last N groups of copies are there.
template <int N> DEV void wait_but() { asm volatile("cp.async.wait_group %0;" ::"n"(N)); }
// Copies that stay in the nearest cache too, because others will ask for the same.
template <int N> DEV void copy_near(u32 to, const void* from) { asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(from), "n"(N)); }
template <int N> DEV void copy_near_once(u32 to, const void* from) {
  asm volatile("cp.async.ca.shared.global.L2::cache_hint [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(N), "l"(read_once()));
}
// Whole-number products: 16 outputs by 32 signed bytes by 8 columns, added to `d` or to nothing.
template <bool FIRST> DEV void mma8(int* d, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  int c[4] = {FIRST ? 0 : d[0], FIRST ? 0 : d[1], FIRST ? 0 : d[2], FIRST ? 0 : d[3]};
  asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
               : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]));
}
