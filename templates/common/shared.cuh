// Shared memory by 32-bit address, cp.async into it, and barriers of a part of the CTA.
#pragma once

#include "templates/common/types.cuh"

__device__ __forceinline__ u32 shared_address(const void* p) {
  return static_cast<u32>(__cvta_generic_to_shared(p));
}

// 4, 8 or 16 bytes; 16 go past L1.
template <int bytes>
__device__ __forceinline__ void copy_async(u32 to, u64 from) {
  if constexpr (bytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(from), "n"(bytes)
                 : "memory");
  }
}

__device__ __forceinline__ void copy_async_16(u32 to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

// The bytes from `valid_bytes` on become 0 and are not read; the rest of the 128 goes to L2 too.
__device__ __forceinline__ void copy_async_16(u32 to, const void* from, int valid_bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(valid_bytes)
               : "memory");
}

// Whole warps `count` threads of which meet at barrier `id`, apart from the rest of the CTA.
__device__ __forceinline__ void barrier(int id, int count) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(count) : "memory");
}

// The same; whether the predicate holds for any of the threads.
__device__ __forceinline__ bool barrier_or(int id, int count, bool predicate) {
  u32 any;
  asm volatile(
      "{.reg .pred p, q; setp.ne.u32 p, %1, 0; bar.red.or.pred q, %2, %3, p; "
      "selp.u32 %0, 1, 0, q;}"
      : "=r"(any)
      : "r"(static_cast<u32>(predicate)), "r"(id), "r"(count)
      : "memory");
  return any != 0;
}

__device__ __forceinline__ void copy_async_commit() { asm volatile("cp.async.commit_group;"); }

template <int newer_groups>
__device__ __forceinline__ void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(newer_groups) : "memory");
}

__device__ __forceinline__ u32 load_shared_1(u32 address) {
  u32 value;
  asm volatile("ld.shared.u8 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return value;
}

__device__ __forceinline__ u32 load_shared_4(u32 address) {
  u32 value;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return value;
}

__device__ __forceinline__ float load_shared_float(u32 address) {
  return __uint_as_float(load_shared_4(address));
}

__device__ __forceinline__ uint2 load_shared_8(u32 address) {
  uint2 value;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];"
               : "=r"(value.x), "=r"(value.y)
               : "r"(address)
               : "memory");
  return value;
}

__device__ __forceinline__ uint4 load_shared_16(u32 address) {
  uint4 value;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(address)
               : "memory");
  return value;
}

__device__ __forceinline__ void store_shared_float(u32 address, float value) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
}

__device__ __forceinline__ void store_shared_4(u32 address, u32 value) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}

__device__ __forceinline__ void store_shared_8(u32 address, uint2 value) {
  asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(address), "r"(value.x), "r"(value.y)
               : "memory");
}

__device__ __forceinline__ void store_shared_16(u32 address, uint4 value) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(value.x),
               "r"(value.y), "r"(value.z), "r"(value.w)
               : "memory");
}
