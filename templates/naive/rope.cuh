// RoPE by the definition of ops.md B5 and (f)5, for oracles.
#pragma once

#include "templates/naive/quantise.cuh"

namespace naive {

// Element e of a row of which the last 64 elements rotate by `angles`: 32 cosines, then 32 sines;
// nullptr: none does. A NaN is 0x7fff.
__device__ inline unsigned short rotated(const unsigned short* row, int width, int e,
                                         const float* angles) {
  const int first = width - 64;
  if (e < first || angles == nullptr) return row[e];
  const int i = (e - first) / 2;
  const float a = bf16(row[first + 2 * i]), b = bf16(row[first + 2 * i + 1]);
  const float cos = angles[i], sin = angles[32 + i];
  const float value = e % 2 == 0 ? __fadd_rn(__fmul_rn(a, cos), -__fmul_rn(b, sin))
                                 : __fadd_rn(__fmul_rn(a, sin), __fmul_rn(b, cos));
  return value != value ? 0x7fff : round_to_bf16(value);
}

}  // namespace naive
