// The naive form of rms_norm: a row a block, the sum by halves in shared memory.
// grid  (rows)   block (some)   shared: a float a piece
#include "kiln_args.h"
#include "kiln_constants.h"  // columns

constexpr int pieces = columns / 8;

__device__ float bf16(unsigned short bits) { return __int_as_float(bits << 16); }

// Nearest even; any NaN becomes one.
__device__ unsigned short round_to_bf16(float value) {
  const unsigned int bits = __float_as_uint(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
  return static_cast<unsigned short>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

extern "C" __global__ void rms_norm_oracle(const __grid_constant__ Args args) {
  __shared__ float sums[pieces];
  const unsigned short* x = args.x + blockIdx.x * args.x_stride;
  for (int j = threadIdx.x; j < pieces; j += blockDim.x) {
    float chains[2] = {0.0f, 0.0f};
    for (int i = 0; i < 8; ++i) {
      const float value = bf16(x[8 * j + i]);
      chains[i % 2] = fmaf(value, value, chains[i % 2]);
    }
    sums[j] = chains[0] + chains[1];
  }
  for (int half = 1 << 30; half >= 1; half /= 2) {
    if (half >= pieces) continue;
    __syncthreads();
    for (int j = threadIdx.x; j < half && j + half < pieces; j += blockDim.x)
      sums[j] += sums[j + half];
  }
  __syncthreads();
  const float mean = fmaf(sums[0], 1.0f / columns, 1e-20f);
  const float factor = __fdiv_rn(1.0f, sqrtf(mean));
  for (int column = threadIdx.x; column < columns; column += blockDim.x) {
    const float scaled = bf16(x[column]) * factor;
    args.y[blockIdx.x * args.y_stride + column] = round_to_bf16(scaled * bf16(args.weight[column]));
  }
}
