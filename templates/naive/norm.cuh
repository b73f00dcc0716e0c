// RMSNorm in the order that op rms_norm documents (ops.md B3), for oracles.
#pragma once

#include "templates/naive/quantise.cuh"

namespace naive {

// For all threads of the block, which come to it together. `sums` is shared memory for a float a
// piece of 8 elements.
template <int columns>
__device__ inline float sum_of_squares(const unsigned short* x, float* sums) {
  constexpr int pieces = columns / 8;
  __syncthreads();
  for (int j = threadIdx.x; j < pieces; j += blockDim.x) {
    float chains[2] = {0.0f, 0.0f};
    for (int i = 0; i < 8; ++i) {
      const float value = bf16(x[8 * j + i]);
      chains[i % 2] = __fmaf_rn(value, value, chains[i % 2]);
    }
    sums[j] = __fadd_rn(chains[0], chains[1]);
  }
  for (int half = 1 << 30; half >= 1; half /= 2) {
    if (half >= pieces) continue;
    __syncthreads();
    for (int j = threadIdx.x; j < half && j + half < pieces; j += blockDim.x)
      sums[j] = __fadd_rn(sums[j], sums[j + half]);
  }
  __syncthreads();
  return sums[0];
}

// 1 / sqrt(sum(x^2) / columns + 1e-20), likewise.
template <int columns>
__device__ inline float norm_factor(const unsigned short* x, float* sums) {
  const float mean = __fmaf_rn(sum_of_squares<columns>(x, sums), 1.0f / columns, 1e-20f);
  return __fdiv_rn(1.0f, __fsqrt_rn(mean));
}

// A NaN is 0x7fff.
__device__ inline unsigned short normalised(unsigned short x, float factor, unsigned short weight) {
  const float value = __fmul_rn(__fmul_rn(bf16(x), factor), bf16(weight));
  return value != value ? 0x7fff : round_to_bf16(value);
}

}  // namespace naive
