// Wide loads and stores. What `stream` loads read is read once: it goes through the read-only path
// and, but for single bytes, skips L1 and is the first to leave the L2. Nothing that another kernel
// reads soon may be loaded so (rms_norm/NOTES.md).
#pragma once

#include "templates/common/types.cuh"

__device__ __forceinline__ bool aligned_16(const void* p) {
  return (reinterpret_cast<u64>(p) & 15) == 0;
}

__device__ __forceinline__ u32 load_stream_1(const u8* p) {
  u32 value;
  asm volatile("ld.global.nc.u8 %0, [%1];" : "=r"(value) : "l"(p));
  return value;
}

__device__ __forceinline__ u32 load_stream_4(const u8* p) {
  u32 value;
  asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(value) : "l"(p));
  return value;
}

__device__ __forceinline__ uint2 load_stream_8(const u8* p) {
  uint2 value;
  asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];"
               : "=r"(value.x), "=r"(value.y)
               : "l"(p));
  return value;
}

__device__ __forceinline__ u32 load_4(const void* p) {
  u32 value;
  asm volatile("ld.global.u32 %0, [%1];" : "=r"(value) : "l"(p));
  return value;
}

__device__ __forceinline__ uint2 load_8(const void* p) {
  uint2 value;
  asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(value.x), "=r"(value.y) : "l"(p));
  return value;
}

// Through L1: whole rows of 16-byte loads run 3 % faster so (gather_dequant_kv/NOTES.md).
__device__ __forceinline__ uint4 load_16(const u8* p) {
  uint4 value;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(p));
  return value;
}

// `value`, as if it depended on `other` too, so that the compiler asks for both before it waits for
// either; it moves loads down to their uses behind such a wait. not_negative is an argument that
// never is, which the compiler cannot know.
template <typename Integer>
__device__ __forceinline__ Integer tied_to(Integer value, u32 other, i64 not_negative) {
  return value | static_cast<Integer>(other & static_cast<u32>(not_negative >> 63));
}

// Write-back: the next kernel reads what this one writes.
__device__ __forceinline__ void store_16(void* p, uint4 value) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(value.x), "r"(value.y),
               "r"(value.z), "r"(value.w)
               : "memory");
}

__device__ __forceinline__ float4 load_four(const float* p) {
  const uint4 bits = load_16(reinterpret_cast<const u8*>(p));
  return {__uint_as_float(bits.x), __uint_as_float(bits.y), __uint_as_float(bits.z),
          __uint_as_float(bits.w)};
}

__device__ __forceinline__ void store_four(float* p, const float4& four) {
  store_16(p, {__float_as_uint(four.x), __float_as_uint(four.y), __float_as_uint(four.z),
               __float_as_uint(four.w)});
}

// The bytes around p will be read soon, by anyone.
__device__ __forceinline__ void prefetch_to_l2(const void* p) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}
