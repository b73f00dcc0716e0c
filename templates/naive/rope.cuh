// RoPE by the definition of ops.md B5 and (f)5, for oracles.
#pragma once

#include "templates/naive/quantise.cuh"

namespace naive {

struct Pair {
  unsigned short a, b;
};

// A NaN is 0x7fff.
__device__ inline Pair rotated(const Pair& pair, float cos, float sin) {
  const float a = bf16(pair.a), b = bf16(pair.b);
  const float x = __fadd_rn(__fmul_rn(a, cos), -__fmul_rn(b, sin));
  const float y = __fadd_rn(__fmul_rn(a, sin), __fmul_rn(b, cos));
  constexpr unsigned short nan = 0x7fff;
  return {x != x ? nan : round_to_bf16(x), y != y ? nan : round_to_bf16(y)};
}

// Element e of a row of which the last 64 elements rotate by `angles`: 32 cosines, then 32 sines;
// nullptr: none does.
__device__ inline unsigned short rotated(const unsigned short* row, int width, int e,
                                         const float* angles) {
  const int first = width - 64;
  if (e < first || angles == nullptr) return row[e];
  const int i = (e - first) / 2;
  const Pair pair =
      rotated({row[first + 2 * i], row[first + 2 * i + 1]}, angles[i], angles[32 + i]);
  return e % 2 == 0 ? pair.a : pair.b;
}

}  // namespace naive
