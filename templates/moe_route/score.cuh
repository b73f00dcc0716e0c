// The router's score in fp32 steps whose bits are the same on every GPU (ops.md B17):
//   s = sqrt(ln(1 + exp(x)))
// With t = exp(-|x|) it is sqrt(x + ln(1 + t)) from 0 on, and sqrt(t) * sqrt(ln(1 + t) / t) below,
// where sqrt(t) = exp(-|x| / 2) stays a number long after t has become 0.
#pragma once

#include "templates/common/norm.cuh"

__device__ __forceinline__ float infinity() { return __int_as_float(0x7f800000); }

// exp(-distance / 2). Beyond 210 it is 0, as it is for NaN.
__device__ __forceinline__ float exp_of_half(float distance) {
  const float half = __fmul_rn(fminf(distance, 210.0f), 0.5f);
  // The nearest whole number stands in the last bits of what is added.
  constexpr float whole_numbers = 12582912.0f;
  const float shifted = __fmaf_rn(half, -1.44269502f, whole_numbers);
  const float whole = __fsub_rn(shifted, whole_numbers);
  float r = __fmaf_rn(whole, -0.693145752f, -half);
  r = __fmaf_rn(whole, -1.42860677e-6f, r);
  float p = 0.00139261759f;
  p = __fmaf_rn(p, r, 0.00836317334f);
  p = __fmaf_rn(p, r, 0.0416665561f);
  p = __fmaf_rn(p, r, 0.166665778f);
  p = __fmaf_rn(p, r, 0.5f);
  p = __fmaf_rn(p, r, 1.0f);
  p = __fmaf_rn(p, r, 1.0f);
  // Times 2^(whole + 64), exactly; then the one rounding of a subnormal.
  const float power = __uint_as_float((__float_as_uint(shifted) << 23) + ((127u + 64u) << 23));
  return __fmul_rn(__fmul_rn(p, power), 0x1p-64f);
}

// ln(1 + t) / t for t from 0 to 1.
__device__ __forceinline__ float log1p_over(float t) {
  float p = 0.00512610236f;
  p = __fmaf_rn(p, t, -0.0290740654f);
  p = __fmaf_rn(p, t, 0.0775160864f);
  p = __fmaf_rn(p, t, -0.136022478f);
  p = __fmaf_rn(p, t, 0.190768808f);
  p = __fmaf_rn(p, t, -0.248353988f);
  p = __fmaf_rn(p, t, 0.333181202f);
  p = __fmaf_rn(p, t, -0.499994457f);
  return __fmaf_rn(p, t, 1.0f);
}

// NaN for NaN.
__device__ __forceinline__ float score_of(float logit) {
  const bool is_below = logit < 0.0f;
  const float root_of_t = exp_of_half(fabsf(logit));
  const float t = __fmul_rn(root_of_t, root_of_t);
  const float p = log1p_over(t);
  const float square = is_below ? p : __fmaf_rn(t, p, logit);
  const float root = square == infinity() ? infinity() : sqrt_rn(square);
  return is_below ? __fmul_rn(root_of_t, root) : root;
}
