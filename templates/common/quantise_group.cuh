// The quantisers of ops.md B4 on groups that lie across neighbouring lanes, 8 elements to a lane;
// a group that holds a NaN or an infinity as in (f)4.
//   q8a, q8c   groups of 32, E4M3 codes, UE8M0 scales       q8d   groups of 64, the same
//   q8k        groups of 128, the same; its cache holds the scale as fp32
//   q4m        groups of 32, E2M1 codes, UE8M0 scales
//   q4n        groups of 16, E2M1 codes, E4M3 scales
// Values are rounded in pairs without leaving bf16 (quantise.cuh), but for q4n, whose scale is no
// power of two. What a caller does not use of the result costs nothing.
#pragma once

#include "templates/common/decode.cuh"
#include "templates/common/quantise.cuh"
#include "templates/common/types.cuh"

// The numbers are constants of kernels.
enum Quantiser : int { q8a = 0, q8c = 1, q8d = 2, q4m = 3, q4n = 4, q8k = 5 };

__device__ constexpr bool is_fp4(int quantiser) { return quantiser == q4m || quantiser == q4n; }
__device__ constexpr int group_of(int quantiser) {
  return quantiser == q8k ? 128 : quantiser == q8d ? 64 : quantiser == q4n ? 16 : 32;
}

constexpr u32 nan_pair = bf16_nan | bf16_nan << 16;
constexpr float reciprocal_of_6 = 1.0f / 6.0f;

struct Piece {
  u32 pairs[4];
};

template <int lanes_per_group>
__device__ __forceinline__ u32 largest_of_group(const Piece& x) {
  u32 largest = largest_magnitude(x.pairs);
#pragma unroll
  for (int distance = 1; distance < lanes_per_group; distance *= 2)
    largest = max_or_nan_bf16x2(largest, __shfl_xor_sync(all_lanes, largest, distance));
  return larger_half(largest);
}

// E4M3 code of a value in [2^-9, 448], nearest even.
__device__ __forceinline__ u32 e4m3_code(float value) {
  const u32 bits = __float_as_uint(value);
  if (value < 0.015625f) return __float_as_uint(value + 16384.0f) - __float_as_uint(16384.0f);
  return ((bits + 0x7ffffu + (bits >> 20 & 1)) >> 20) - (120 << 3);
}

// Scale byte of a group without NaN and infinity.
template <int quantiser>
__device__ __forceinline__ u32 scale_byte(u32 largest_bits) {
  const float largest = __uint_as_float(largest_bits << 16);
  if constexpr (quantiser == q8c)
    return largest_bits == 0 ? 0 : power_of_two_above(largest * reciprocal_of_448);
  if constexpr (!is_fp4(quantiser)) return q8a_scale(largest_bits);
  if constexpr (quantiser == q4m)
    return power_of_two_above(fmaxf(largest, 6.0f * 0x1p-126f) * reciprocal_of_6);
  return e4m3_code(fminf(fmaxf(largest, 6.0f * 0x1p-9f) * reciprocal_of_6, 448.0f));
}

// 2^(127 - byte) in both halves, for bytes up to 253; 0 counts as 1: its group is all zeros.
__device__ __forceinline__ u32 reciprocal_of_scale(u32 byte) {
  return both_halves((254 - max(byte, 1u)) << 7);
}

// x / scale rounded to the code's grid, signs kept; |x / scale| is at most 448 or 6.
template <int quantiser>
__device__ __forceinline__ u32 rounded_quotient(u32 pair, u32 reciprocal) {
  const u32 quotient = multiply_bf16x2(pair, reciprocal);
  const u32 sign = pair & 0x80008000u;
  // As in quantise.cuh: steps of p / 8 from 2^-6 on, or of p / 2 from 1 on.
  constexpr u32 least_power = is_fp4(quantiser) ? 0x3f803f80u : 0x3c803c80u;
  constexpr u32 many = is_fp4(quantiser) ? 0x42c042c0u : 0x41c041c0u;  // 96, 24
  const u32 power = max_bf16x2(quotient & 0x7f807f80u, least_power);
  const u32 sum = fma_bf16x2(power, many, quotient);
  return fma_bf16x2(power, many | 0x80008000u, sum) | sign;
}

// Codes of a pair, in the low bits of each half.
template <int quantiser>
__device__ __forceinline__ u32 codes_of(u32 rounded) {
  if constexpr (is_fp4(quantiser)) {
    const u32 raw = multiply_bf16x2(rounded, both_halves(0x0080));  // 2^-126
    return (raw >> 6 & 0x00070007u) | (raw >> 12 & 0x00080008u);
  }
  const u32 raw = multiply_bf16x2(rounded, both_halves(0x0380));  // 2^-120
  return (raw >> 4 & 0x007f007fu) | (raw >> 8 & 0x00800080u);
}

// E2M1 code of x / scale by the decision points of B4, which are compared as points * scale: these
// have at most 7 significant bits, so an x beside one is 2^-8 away and no quotient in fp32 would
// round onto it.
struct Q4nPoints {
  float points[7];

  __device__ __forceinline__ explicit Q4nPoints(float scale)
      : points{0.25f * scale, 0.75f * scale, 1.25f * scale, 1.75f * scale,
               2.5f * scale,  3.5f * scale,  5.0f * scale} {}

  __device__ __forceinline__ u32 code(float x) const {
    const float a = fabsf(x);
    const u32 code = (a > points[0]) + (a >= points[1]) + (a > points[2]) + (a >= points[3]) +
                     (a > points[4]) + (a >= points[5]) + (a > points[6]);
    return code | (__float_as_uint(x) >> 28 & 8);
  }
};

struct Quantised {
  u32 scale;     // byte
  u32 codes[4];  // of the pairs, in the low bits of each half
  u32 fake[4];   // what the codes stand for
};

// Of the piece of this lane, in a warp whose lanes hold whole groups side by side.
template <int quantiser>
__device__ __forceinline__ Quantised quantise(const Piece& x) {
  const u32 largest = largest_of_group<group_of(quantiser) / 8>(x);
  Quantised q;
  if (largest >= bf16_infinity) {
    q.scale = quantiser == q4n ? 0x7f : 255;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      q.codes[i] = is_fp4(quantiser) ? 0 : 0x007f007fu;
      q.fake[i] = nan_pair;
    }
    return q;
  }
  q.scale = scale_byte<quantiser>(largest);
  if constexpr (quantiser == q4n) {
    const u32 scale_bf16 = e4m3_to_bf16(q.scale);
    const Q4nPoints points(__uint_as_float(scale_bf16 << 16));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      q.codes[i] = points.code(low_bf16(x.pairs[i])) | points.code(high_bf16(x.pairs[i])) << 16;
      const u32 raw = (q.codes[i] << 6 & 0x01c001c0u) | (q.codes[i] << 12 & 0x80008000u);
      q.fake[i] =
          multiply_bf16x2(multiply_bf16x2(raw, both_halves(0x7e80)), both_halves(scale_bf16));
    }
    return q;
  }
  const u32 reciprocal = reciprocal_of_scale(q.scale);
  const u32 scale = both_halves(ue8m0_to_bf16(q.scale));
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const u32 rounded = rounded_quotient<quantiser>(x.pairs[i], reciprocal);
    q.codes[i] = codes_of<quantiser>(rounded);
    q.fake[i] = multiply_bf16x2(rounded, scale);
  }
  if (quantiser == q8c && largest == 0) {
#pragma unroll
    for (int i = 0; i < 4; ++i) q.codes[i] = q.fake[i] = 0;
  }
  return q;
}

// The codes of the piece as they lie in memory: 8 bytes of E4M3, or 4 bytes (in x) of E2M1 with the
// even element in the low bits.
template <int quantiser>
__device__ __forceinline__ uint2 packed_codes(const Quantised& q) {
  // The bytes 0 and 2 of two pairs.
  const u32 low = __byte_perm(q.codes[0], q.codes[1], 0x6420);
  const u32 high = __byte_perm(q.codes[2], q.codes[3], 0x6420);
  if constexpr (!is_fp4(quantiser)) return {low, high};
  const u32 two = low | low >> 4;  // bytes 0 and 2 hold two codes each
  const u32 next = high | high >> 4;
  return {__byte_perm(two, next, 0x6420), 0};
}
