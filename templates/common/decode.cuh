// FP8 and FP4 codes to bf16 pairs by integer moves and exact multiplies (ops.md B4, B8, (f)3).
// A pair is a u32: the lower element in bits 0..15. `scale` is a bf16 that stands in both halves.
// The product of an exact code and its scale is formed once by fma.rn.bf16x2, which keeps
// subnormals and rounds to nearest even.
#pragma once

#include "templates/common/types.cuh"

constexpr u32 bf16_nan = 0x7fc0;

__device__ __forceinline__ u32 both_halves(u32 bf16) { return bf16 | (bf16 << 16); }
__device__ __forceinline__ float low_bf16(u32 pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high_bf16(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }

// Each rounded to nearest even.
__device__ __forceinline__ u32 to_bf16x2(float low, float high) {
  u32 pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

// a * b in both halves, rounded once. The addend -0 keeps the sign of a zero product.
__device__ __forceinline__ u32 multiply_bf16x2(u32 a, u32 b) {
  u32 product;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(product) : "r"(a), "r"(b), "r"(0x80008000u));
  return product;
}

// UE8M0 byte b: 2^(b - 127); 0 is the subnormal 2^-127, 255 is NaN.
__device__ __forceinline__ u32 ue8m0_to_bf16(u32 byte) {
  const u32 bits = byte == 0 ? 0x0040u : byte << 7;
  return byte == 255 ? bf16_nan : bits;
}

// An E4M3 code whose exponent was moved to that of bf16 is 2^-120 times its value. One factor holds
// 2^120 and a UE8M0 scale up to this byte (2^7), in both halves; a larger scale takes a second one.
constexpr u32 largest_first_scale = 134;
__device__ __forceinline__ u32 first_e4m3_factor(u32 scale_byte) {
  return scale_byte * 0x00800080u + 120u * 0x00800080u;
}
__device__ __forceinline__ u32 second_e4m3_factor(u32 scale_byte) {
  return (max(scale_byte, largest_first_scale) - largest_first_scale + 127) * 0x00800080u;
}

// Two E4M3 codes that stand in the upper byte of each half (the lower bytes are 0), exact, as bf16;
// 0x7f and 0xff become +-480.
__device__ __forceinline__ u32 e4m3x2_to_bf16x2(u32 codes_in_upper_bytes) {
  const u32 magnitude = (codes_in_upper_bytes >> 4) & 0x07f007f0u;
  const u32 raw = magnitude | (codes_in_upper_bytes & 0x80008000u);
  return multiply_bf16x2(raw, both_halves(0x7b80));  // 2^120: from the exponent bias 7 to 127
}

// E4M3 byte of an FP4 group scale; 0x7f and 0xff are NaN.
__device__ __forceinline__ u32 e4m3_to_bf16(u32 byte) {
  const u32 value = e4m3x2_to_bf16x2(byte << 8) & 0xffffu;
  return (byte & 0x7fu) == 0x7fu ? bf16_nan : value;
}

// NaN where the code is 0x7f or 0xff.
__device__ __forceinline__ u32 with_nan_codes(u32 pair, u32 codes_in_upper_bytes) {
  const u32 low = (codes_in_upper_bytes & 0x00007f00u) == 0x00007f00u ? bf16_nan : pair & 0xffffu;
  const u32 high =
      (codes_in_upper_bytes & 0x7f000000u) == 0x7f000000u ? bf16_nan << 16 : pair & 0xffff0000u;
  return low | high;
}

// Four E4M3 codes times one scale.
__device__ __forceinline__ uint2 decode_e4m3x4(u32 codes, u32 scale) {
  const u32 codes01 = __byte_perm(codes, 0, 0x1404);
  const u32 codes23 = __byte_perm(codes, 0, 0x3424);
  uint2 pairs = {multiply_bf16x2(e4m3x2_to_bf16x2(codes01), scale),
                 multiply_bf16x2(e4m3x2_to_bf16x2(codes23), scale)};
  const bool any_nan_code = (((codes & 0x7f7f7f7fu) + 0x01010101u) & 0x80808080u) != 0;
  if (any_nan_code) pairs = {with_nan_codes(pairs.x, codes01), with_nan_codes(pairs.y, codes23)};
  return pairs;
}

// Eight E2M1 codes, the first in bits 0..3, times one scale.
__device__ __forceinline__ uint4 decode_e2m1x8(u32 codes, u32 scale) {
  u32 pairs[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const u32 two = codes >> (8 * i);
    const u32 low = ((two << 12) & 0x8000u) | ((two << 6) & 0x01c0u);
    const u32 high = ((two << 24) & 0x80000000u) | ((two << 18) & 0x01c00000u);
    const u32 exact =
        multiply_bf16x2(low | high, both_halves(0x7e80));  // 2^126: from the exponent bias 1 to 127
    pairs[i] = multiply_bf16x2(exact, scale);
  }
  return {pairs[0], pairs[1], pairs[2], pairs[3]};
}
