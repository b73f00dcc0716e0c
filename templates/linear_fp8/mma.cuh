// Tensor-core multiply and asynchronous copies of Ampere.
//
// mma.m16n8k16, what lane l = 4 g + q holds (k pairs: two neighbouring k in one register):
//   a[0] row g,     k 2q, 2q+1      b[0] column g, k 2q, 2q+1      d[0], d[1] row g
//   a[1] row g + 8, k 2q, 2q+1      b[1] column g, k 2q+8, 2q+9    d[2], d[3] row g + 8
//   a[2] row g,     k 2q+8, 2q+9                                   columns 2q, 2q+1
//   a[3] row g + 8, k 2q+8, 2q+9
#pragma once

#include "templates/common/types.cuh"

// d += a * b in bf16 with fp32 sums.
__device__ __forceinline__ void multiply_add(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0,
                                             u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ __forceinline__ u32 shared_address(const void* p) {
  return static_cast<u32>(__cvta_generic_to_shared(p));
}

// 16 bytes to shared memory past L1; the bytes from `valid_bytes` on become 0 and are not read.
__device__ __forceinline__ void copy_async_16(u32 to, const u8* from, int valid_bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(valid_bytes)
               : "memory");
}

__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int groups_left>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(groups_left) : "memory");
}

__device__ __forceinline__ uint4 load_shared_16(u32 from) {
  uint4 value;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(from));
  return value;
}
