// One step of rotary position embedding (ops.md B5, (f)5): neighbours (a, b) become
//   a' = a * cos - b * sin,   b' = a * sin + b * cos        inverse: with -sin
// in fp32, products rounded separately, then one addition, then one rounding to bf16.
#pragma once

#include "templates/common/decode.cuh"
#include "templates/common/types.cuh"

enum class Rotation { forward, inverse };

// A NaN becomes 0x7fff.
template <Rotation direction>
__device__ __forceinline__ u32 rotate_bf16x2(u32 pair, float cos, float sin) {
  const float a = low_bf16(pair), b = high_bf16(pair);
  const float s = direction == Rotation::inverse ? -sin : sin;
  return to_bf16x2(__fsub_rn(__fmul_rn(a, cos), __fmul_rn(b, s)),
                   __fadd_rn(__fmul_rn(a, s), __fmul_rn(b, cos)));
}
