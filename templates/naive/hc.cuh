// Mixing and folding of the four residual streams by their definitions (ops.md B1), for oracles.
#pragma once

#include "templates/naive/norm.cuh"
#include "templates/naive/quantise.cuh"

namespace naive {

// A NaN is 0x7fff.
__device__ inline unsigned short to_bf16(float value) {
  return value != value ? 0x7fff : round_to_bf16(value);
}

// Stream j of a column after the sub-layer; h are the streams before it.
__device__ inline unsigned short mixed(unsigned short y, const unsigned short (&h)[4],
                                       const float* post, const float* comb, long long comb_stride,
                                       int j) {
  float sum = __fmul_rn(post[j], bf16(y));
  for (int i = 0; i < 4; ++i)
    sum = __fadd_rn(sum, __fmul_rn(comb[i * comb_stride + j], bf16(h[i])));
  return to_bf16(sum);
}

__device__ inline unsigned short folded(const unsigned short (&h)[4], const float* pre) {
  float sum = __fmul_rn(pre[0], bf16(h[0]));
  for (int i = 1; i < 4; ++i) sum = __fadd_rn(sum, __fmul_rn(pre[i], bf16(h[i])));
  return to_bf16(sum);
}

// Of each 256 columns of the four streams, for all threads of the block.
template <int columns>
__device__ inline void put_sqrsum(const unsigned short* h, long long stream_stride, float* to) {
  constexpr int pieces = 32;
  for (int part = threadIdx.x; part < (columns + 255) / 256; part += blockDim.x) {
    float sums[pieces] = {};
    for (int piece = 0; piece < pieces; ++piece) {
      const int first = 8 * (pieces * part + piece);
      for (int j = 0; j < 4 && first < columns; ++j) {
        float even = 0.0f, odd = 0.0f;
        for (int i = first; i < first + 8; i += 2) {
          const float low = bf16(h[j * stream_stride + i]);
          const float high = bf16(h[j * stream_stride + i + 1]);
          even = __fmaf_rn(low, low, even);
          odd = __fmaf_rn(high, high, odd);
        }
        sums[piece] = __fadd_rn(sums[piece], __fadd_rn(even, odd));
      }
    }
    for (int half = pieces / 2; half > 0; half /= 2)
      for (int i = 0; i < half; ++i) sums[i] = __fadd_rn(sums[i], sums[i + half]);
    to[part] = sums[0];
  }
}

// The norm of a row, as x_format says: 0 bf16, 1 Q8a codes and scales, 2 both. `row` is shared
// memory, which is overwritten.
template <int columns>
__device__ inline void put_normed(int x_format, unsigned short* row, float factor,
                                  const unsigned short* weight, unsigned short* x,
                                  unsigned char* codes, unsigned char* scales) {
  for (int column = threadIdx.x; column < columns; column += blockDim.x) {
    row[column] = normalised(row[column], factor, weight[column]);
    if (x_format != 1) x[column] = row[column];
  }
  if (x_format == 0) return;
  __syncthreads();
  constexpr int size = group_of(q8a);
  for (int group = threadIdx.x; group < columns / size; group += blockDim.x) {
    const Scale scale = scale_of(q8a, row + size * group);
    scales[group] = static_cast<unsigned char>(scale.byte);
    for (int i = size * group; i < size * (group + 1); ++i)
      codes[i] = static_cast<unsigned char>(quantised(q8a, scale, row[i]).code);
  }
}

}  // namespace naive
