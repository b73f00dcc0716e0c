// The naive form of rope: one thread a pair.
// grid  (rows)   block (some)   shared: none
#include "kiln_args.h"
#include "kiln_constants.h"  // heads, inverse

__device__ float bf16(unsigned short bits) { return __int_as_float(bits << 16); }

// Nearest even; any NaN becomes one.
__device__ unsigned short round_to_bf16(float value) {
  const unsigned int bits = __float_as_uint(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
  return static_cast<unsigned short>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

extern "C" __global__ void rope_oracle(const __grid_constant__ Args args) {
  const long long row = blockIdx.x;
  const int position = args.positions[row];
  if (position < 0 || position >= args.num_positions) return;
  const float* table = args.rope_table + position * args.rope_table_stride;
  for (int number = threadIdx.x; number < 32 * heads; number += blockDim.x) {
    const int pair = number % 32;
    unsigned short* x = args.x + row * args.x_stride0 + number / 32 * args.x_stride1 + 2 * pair;
    const float a = bf16(x[0]), b = bf16(x[1]);
    const float cosine = table[pair];
    const float sine = inverse ? -table[32 + pair] : table[32 + pair];
    x[0] = round_to_bf16(a * cosine - b * sine);
    x[1] = round_to_bf16(a * sine + b * cosine);
  }
}
