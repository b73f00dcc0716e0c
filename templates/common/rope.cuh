// Rotation of neighbouring elements of bf16 by the angles of a position (ops.md B5), the same bits
// wherever it is a step: products rounded, then one addition, then one rounding to bf16. A pair is
// a u32: the lower element in bits 0..15. A table row holds 32 cosines, then 32 sines, in fp32.
#pragma once

#include "templates/common/decode.cuh"
#include "templates/common/types.cuh"

constexpr int rope_pairs = 32;

__device__ __forceinline__ u32 rotate(u32 pair, float cosine, float sine) {
  const float a = low_bf16(pair);
  const float b = high_bf16(pair);
  return to_bf16x2(__fsub_rn(__fmul_rn(a, cosine), __fmul_rn(b, sine)),
                   __fadd_rn(__fmul_rn(a, sine), __fmul_rn(b, cosine)));
}

__device__ __forceinline__ u32 rotate_back(u32 pair, float cosine, float sine) {
  const float a = low_bf16(pair);
  const float b = high_bf16(pair);
  return to_bf16x2(__fadd_rn(__fmul_rn(a, cosine), __fmul_rn(b, sine)),
                   __fsub_rn(__fmul_rn(b, cosine), __fmul_rn(a, sine)));
}

// Of four neighbouring pairs.
struct RopeAngles {
  float cosines[4];
  float sines[4];
};

// Of elements 8 * piece .. 8 * piece + 7, from a row of the table that is 16-byte aligned.
__device__ __forceinline__ RopeAngles load_rope_angles(const float* row, int piece) {
  const float4 c = __ldg(reinterpret_cast<const float4*>(row) + piece);
  const float4 s = __ldg(reinterpret_cast<const float4*>(row + rope_pairs) + piece);
  return {{c.x, c.y, c.z, c.w}, {s.x, s.y, s.z, s.w}};
}

template <bool inverse>
__device__ __forceinline__ void rotate(u32 (&pairs)[4], const RopeAngles& angles) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    pairs[i] = inverse ? rotate_back(pairs[i], angles.cosines[i], angles.sines[i])
                       : rotate(pairs[i], angles.cosines[i], angles.sines[i]);
  }
}

template <bool inverse>
__device__ __forceinline__ uint4 rotated(const uint4& x, const RopeAngles& angles) {
  u32 pairs[4] = {x.x, x.y, x.z, x.w};
  rotate<inverse>(pairs, angles);
  return {pairs[0], pairs[1], pairs[2], pairs[3]};
}
