// Rounding of bf16 pairs to the E4M3 grid of their group (ops.md B4, Q8a), without leaving bf16.
// A pair is a u32: the lower element in bits 0..15.
//
// x / s rounded to E4M3 and multiplied by s again is x rounded to a multiple of
//   step = 2^(max(exponent of x, exponent of s - 6) - 3).
// With p = 2^max(...), 24 p has the ulp `step` in bf16 and so does x + 24 p, whatever the sign of
// x: the sum, rounded once, is x on the grid plus 24 p, and subtracting 24 p is exact. Ties go to
// even, since 24 p is an even multiple of step. The group's scale keeps x / s within 448: no clamp.
#pragma once

#include "templates/common/decode.cuh"
#include "templates/common/types.cuh"

__device__ __forceinline__ u32 fma_bf16x2(u32 a, u32 b, u32 c) {
  u32 d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

__device__ __forceinline__ u32 max_bf16x2(u32 a, u32 b) {
  u32 d;
  asm("max.bf16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}

__device__ __forceinline__ u32 min_bf16x2(u32 a, u32 b) {
  u32 d;
  asm("min.bf16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}

__device__ __forceinline__ u32 magnitude_bf16x2(u32 pair) { return pair & 0x7fff7fffu; }

// NaN if one is NaN. (max.xorsign.abs would spare the two magnitudes but begins with sm_86.)
__device__ __forceinline__ u32 max_or_nan_bf16x2(u32 a, u32 b) {
  u32 d;
  asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}

template <int count>
__device__ __forceinline__ u32 largest_magnitude(const u32 (&pairs)[count]) {
  u32 largest = magnitude_bf16x2(pairs[0]);
#pragma unroll
  for (int i = 1; i < count; ++i) largest = max_or_nan_bf16x2(largest, magnitude_bf16x2(pairs[i]));
  return largest;
}

// Bits of the larger magnitude of the two halves; above 0x7f80 for NaN.
__device__ __forceinline__ u32 larger_half(u32 pair) {
  return max(pair & 0x7fffu, pair >> 16 & 0x7fffu);
}

// 2^(byte - 127) is the smallest power of two that is at least value: value > 0, normal.
__device__ __forceinline__ u32 power_of_two_above(float value) {
  const u32 bits = __float_as_uint(value);
  return (bits + 0x7fffffu) >> 23;
}

constexpr u32 bf16_infinity = 0x7f80;
constexpr float reciprocal_of_448 = 1.0f / 448.0f;

// UE8M0 byte of Q8a, from the group's largest magnitude, which is finite.
__device__ __forceinline__ u32 q8a_scale(float largest) {
  return power_of_two_above(fmaxf(largest, 1e-4f) * reciprocal_of_448);
}

// What rounds the pairs of one group.
struct E4m3Grid {
  u32 least_power;       // 2^-6 s in both halves
  u32 minus_24;          // NaN for a group that holds a NaN or an infinity
  bool needs_shrinking;  // 25 p would overflow
};

// From here on a group's largest magnitude is too large to be rounded plainly, or no number.
constexpr u32 least_magnitude_with_care = 0x7b80;

__device__ __forceinline__ E4m3Grid q8a_grid(u32 largest_bits) {
  const bool is_finite = largest_bits < bf16_infinity;
  const u32 scale = q8a_scale(is_finite ? __uint_as_float(largest_bits << 16) : 0.0f);
  return {both_halves((scale - 6) << 7), is_finite ? 0xc1c0c1c0u : both_halves(bf16_nan),
          is_finite && largest_bits >= least_magnitude_with_care};
}

// least_power of a group that needs no care, from a pair of which one half is its largest
// magnitude.
__device__ __forceinline__ u32 q8a_least_power(u32 largest) {
  const u32 in_upper_half = max_bf16x2(largest, __byte_perm(largest, 0, 0x1032)) & 0x7fff0000u;
  const float scale = fmaxf(__uint_as_float(in_upper_half), 1e-4f) * (reciprocal_of_448 / 64.0f);
  return __byte_perm(__float_as_uint(scale) + 0x7fffffu, 0, 0x3232) & 0x7f807f80u;
}

__device__ __forceinline__ u32 round_to_grid(u32 pair, u32 least_power, u32 minus_24) {
  const u32 power = max_bf16x2(pair & 0x7f807f80u, least_power);
  const u32 sum = fma_bf16x2(power, 0x41c041c0u, pair);
  return fma_bf16x2(power, minus_24, sum);
}

// Values of 2^120 and more are rounded 2^16 times smaller.
template <int count>
__device__ __forceinline__ void round_to_grid(u32 (&pairs)[count], const E4m3Grid& grid) {
  if (grid.needs_shrinking) {
#pragma unroll
    for (int i = 0; i < count; ++i) {
      const u32 small = multiply_bf16x2(pairs[i], 0x37803780u);
      const u32 least = multiply_bf16x2(grid.least_power, 0x37803780u);
      pairs[i] = multiply_bf16x2(round_to_grid(small, least, grid.minus_24), 0x47804780u);
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < count; ++i)
    pairs[i] = round_to_grid(pairs[i], grid.least_power, grid.minus_24);
}
