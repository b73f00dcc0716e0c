// The quantisers of ops.md B4 on groups that lie across neighbouring lanes, 8 elements to a lane;
// a group that holds a NaN or an infinity as in (f)4.
//   q8a, q8c   groups of 32, E4M3 codes, UE8M0 scales       q8d   groups of 64, the same
//   q8k        groups of 128, the same; its cache holds the scale as fp32
//   q4m        groups of 32, E2M1 codes, UE8M0 scales
//   q4n        groups of 16, E2M1 codes, E4M3 scales
// Values are rounded in pairs of bf16 (quantise.cuh). What a caller does not use of the result
// costs nothing.
#pragma once

#include "templates/common/decode.cuh"
#include "templates/common/memory.cuh"
#include "templates/common/quantise.cuh"
#include "templates/common/types.cuh"

// The numbers are constants of kernels.
enum Quantiser : int { q8a = 0, q8c = 1, q8d = 2, q4m = 3, q4n = 4, q8k = 5 };

__device__ constexpr bool is_fp4(int quantiser) { return quantiser == q4m || quantiser == q4n; }
__device__ constexpr int group_of(int quantiser) {
  return quantiser == q8k ? 128 : quantiser == q8d ? 64 : quantiser == q4n ? 16 : 32;
}

constexpr float reciprocal_of_6 = 1.0f / 6.0f;

struct Piece {
  u32 pairs[4];
};

__device__ __forceinline__ Piece load_piece(const u16* from) {
  const uint4 eight = load_16(reinterpret_cast<const u8*>(from));
  return {{eight.x, eight.y, eight.z, eight.w}};
}

// The largest magnitude of a group in both halves: from here on it holds a NaN or an infinity.
constexpr u32 least_without_number = bf16_infinity << 16;

__device__ __forceinline__ u32 swapped_halves(u32 pair) { return __byte_perm(pair, 0, 0x1032); }

template <int lanes_per_group>
__device__ __forceinline__ u32 largest_of_lanes(u32 largest) {
#pragma unroll
  for (int distance = 1; distance < lanes_per_group; distance *= 2)
    largest = max_or_nan_bf16x2(largest, __shfl_xor_sync(all_lanes, largest, distance));
  return largest;
}

// In both halves.
template <int lanes_per_group>
__device__ __forceinline__ u32 largest_of_group(const Piece& x) {
  const u32 largest = largest_magnitude(x.pairs);
  return largest_of_lanes<lanes_per_group>(max_or_nan_bf16x2(largest, swapped_halves(largest)));
}

// Of two groups that share their lanes, by the same shuffles.
template <int lanes_per_group>
__device__ __forceinline__ void largest_of_groups(const Piece& x, const Piece& y, u32& of_x,
                                                  u32& of_y) {
  const u32 in_x = largest_magnitude(x.pairs);
  const u32 in_y = largest_magnitude(y.pairs);
  const u32 both = largest_of_lanes<lanes_per_group>(
      max_or_nan_bf16x2(__byte_perm(in_x, in_y, 0x5410), __byte_perm(in_x, in_y, 0x7632)));
  of_x = __byte_perm(both, 0, 0x1010);
  of_y = __byte_perm(both, 0, 0x3232);
}

// A value in [2^-9, 448] rounded to E4M3, nearest even: 1.5 * 2^20 p has the ulp p / 8 in fp32.
__device__ __forceinline__ float rounded_to_e4m3(float value) {
  const float power = fmaxf(__uint_as_float(__float_as_uint(value) & 0x7f800000u), 0x1p-6f);
  const float many = power * (1.5f * 0x1p20f);
  return __fsub_rn(__fadd_rn(value, many), many);
}

// The scale of a group of numbers.
struct Scale {
  u32 byte;
  u32 pair;  // its bf16 in both halves
};

// From the largest magnitude in both halves.
template <int quantiser>
__device__ __forceinline__ Scale scale_of(u32 largest_pair) {
  const float largest = high_bf16(largest_pair);
  if constexpr (quantiser == q4n) {
    const float scale =
        rounded_to_e4m3(fminf(fmaxf(largest, 6.0f * 0x1p-9f) * reciprocal_of_6, 448.0f));
    return {__float_as_uint(scale * 0x1p-120f) >> 20,
            __byte_perm(__float_as_uint(scale), 0, 0x3232)};
  }
  u32 byte = 0;
  if constexpr (quantiser == q8c) {
    if (largest_pair != 0) byte = power_of_two_above(largest * reciprocal_of_448);
  } else if constexpr (quantiser == q4m) {
    byte = power_of_two_above(fmaxf(largest, 6.0f * 0x1p-126f) * reciprocal_of_6);
  } else {
    byte = q8a_scale(largest);
  }
  return {byte, both_halves(ue8m0_to_bf16(byte))};
}

// 2^(127 - byte) in both halves, for bytes up to 253.
__device__ __forceinline__ u32 reciprocal_of_scale(u32 byte) {
  return 254u * 0x00800080u - byte * 0x00800080u;
}

__device__ __forceinline__ float reciprocal_of(float value) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
  return result;
}

// |x| / scale in bf16. Where the scale is no power of two, the quotient is rounded, but not across
// a point between two codes: points times scale have at most 7 significant bits, so that an x
// beside one is at least 2^-8 of it away, which is half a step of bf16 there or more (below a
// power of two the step is half as wide), while the quotient of an x on one is off by 2^-22 and
// becomes the point. A quotient beyond 6 counts as 6.
struct Quotient {
  u32 reciprocal_pair;  // of powers of two
  float reciprocal;     // of others

  template <int quantiser>
  __device__ __forceinline__ u32 of(u32 magnitudes) const {
    if constexpr (quantiser != q4n) return multiply_bf16x2(magnitudes, reciprocal_pair);
    return min_bf16x2(
        to_bf16x2(low_bf16(magnitudes) * reciprocal, high_bf16(magnitudes) * reciprocal),
        both_halves(0x40c0));
  }
};

// A quotient of at most 448 or 6, rounded to the code's grid.
template <int quantiser>
__device__ __forceinline__ u32 rounded_to_codes(u32 quotient) {
  // As in quantise.cuh: steps of p / 8 from 2^-6 on, or of p / 2 from 1 on.
  constexpr u32 least_power = is_fp4(quantiser) ? 0x3f803f80u : 0x3c803c80u;
  constexpr u32 many = is_fp4(quantiser) ? 0x42c042c0u : 0x41c041c0u;  // 96, 24
  const u32 power = max_bf16x2(quotient & 0x7f807f80u, least_power);
  const u32 sum = fma_bf16x2(power, many, quotient);
  return fma_bf16x2(power, many | 0x80008000u, sum);
}

// E4M3 codes of a rounded pair, in bytes 0 and 2.
__device__ __forceinline__ u32 magnitudes_of_e4m3(u32 rounded) {
  // 2^-120 brings the exponents of E4M3, subnormals included, to those of bf16.
  return multiply_bf16x2(rounded, 0x03800380u) >> 4;
}

// Of two pairs, a code in each byte.
__device__ __forceinline__ u32 e4m3_codes(u32 rounded, u32 pair, u32 next_rounded, u32 next_pair) {
  const u32 magnitudes =
      __byte_perm(magnitudes_of_e4m3(rounded), magnitudes_of_e4m3(next_rounded), 0x6420);
  return magnitudes | (__byte_perm(pair, next_pair, 0x7531) & 0x80808080u);
}

// What brings magnitudes to twice, once and half of their quotients.
struct E2m1Factors {
  u32 twice, once, half;
};

template <int quantiser>
__device__ __forceinline__ E2m1Factors e2m1_factors(u32 scale_byte) {
  if constexpr (quantiser == q4n) return {0x40004000u, 0x3f803f80u, 0x3f003f00u};
  const u32 once = reciprocal_of_scale(scale_byte);
  return {multiply_bf16x2(once, 0x40004000u), once, multiply_bf16x2(once, 0x3f003f00u)};
}

// E2M1 codes of quotients y of at most 6, without their signs, in bytes 0 and 2; bytes 1 and 3 are
// 0x43. The code of a point of the grid is the least of 2 y, y + 2 and y / 2 + 4, of which each is
// right in its part of the grid and not smaller elsewhere; codes are even where mantissas are, so
// that the code of any y is this number rounded to the nearest, even at ties. 128 more and bf16 has
// steps of 1.
__device__ __forceinline__ u32 magnitudes_of_e2m1(u32 magnitudes, const E2m1Factors& factors) {
  return min_bf16x2(min_bf16x2(fma_bf16x2(magnitudes, factors.twice, both_halves(0x4300)),
                               fma_bf16x2(magnitudes, factors.once, both_halves(0x4302))),
                    fma_bf16x2(magnitudes, factors.half, both_halves(0x4304)));
}

// Of two pairs, two codes in byte 1 and two in byte 3, the first of each in the low bits.
__device__ __forceinline__ u32 e2m1_codes(u32 magnitudes, u32 pair, u32 next_magnitudes,
                                          u32 next_pair) {
  const u32 signs = __byte_perm(pair, next_pair, 0x5713) >> 4 & 0x08080808u;
  const u32 codes = __byte_perm(magnitudes, next_magnitudes, 0x4602) | signs;
  return codes + (codes << 12);
}

struct Quantised {
  u32 scale;    // byte
  uint2 codes;  // as they lie in memory: 8 bytes of E4M3, or 4 bytes (in x) of E2M1 with the even
                // element in the low bits
  u32 fake[4];  // what the codes stand for
};

// Of the piece of this lane. `largest` is that of its group.
template <int quantiser>
__device__ __forceinline__ Quantised quantise(const Piece& x, u32 largest) {
  const Scale scale = scale_of<quantiser>(largest);
  const Quotient quotient{reciprocal_of_scale(scale.byte), reciprocal_of(high_bf16(scale.pair))};
  u32 rounded[4];
  Quantised q;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    rounded[i] = rounded_to_codes<quantiser>(quotient.of<quantiser>(magnitude_bf16x2(x.pairs[i])));
    q.fake[i] = multiply_bf16x2(rounded[i], scale.pair) | (x.pairs[i] & 0x80008000u);
  }
  if constexpr (is_fp4(quantiser)) {
    const E2m1Factors factors = e2m1_factors<quantiser>(scale.byte);
    u32 codes[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const u32 magnitudes = magnitude_bf16x2(x.pairs[i]);
      codes[i] =
          magnitudes_of_e2m1(quantiser == q4n ? quotient.of<q4n>(magnitudes) : magnitudes, factors);
    }
    q.codes = {__byte_perm(e2m1_codes(codes[0], x.pairs[0], codes[1], x.pairs[1]),
                           e2m1_codes(codes[2], x.pairs[2], codes[3], x.pairs[3]), 0x7531),
               0};
  } else {
    q.codes = {e4m3_codes(rounded[0], x.pairs[0], rounded[1], x.pairs[1]),
               e4m3_codes(rounded[2], x.pairs[2], rounded[3], x.pairs[3])};
  }

  const bool is_number = largest < least_without_number;
  q.scale = is_number ? scale.byte : quantiser == q4n ? 0x7f : 255;
  constexpr u32 code_of_none = is_fp4(quantiser) ? 0 : 0x7f7f7f7fu;
  q.codes.x = is_number ? q.codes.x : code_of_none;
  q.codes.y = is_number ? q.codes.y : code_of_none;
#pragma unroll
  for (u32& pair : q.fake) pair = is_number ? pair : both_halves(bf16_nan);
  if (quantiser == q8c && largest == 0) q = {};
  return q;
}

// In a warp whose lanes hold whole groups side by side.
template <int quantiser>
__device__ __forceinline__ Quantised quantise(const Piece& x) {
  return quantise<quantiser>(x, largest_of_group<group_of(quantiser) / 8>(x));
}
