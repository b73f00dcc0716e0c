// The naive form of rope: one thread a pair.
// grid  (rows)   block (some)   shared: none
#include "kiln_args.h"
#include "kiln_constants.h"  // heads, inverse
#include "templates/naive/rope.cuh"

extern "C" __global__ void rope_oracle(const __grid_constant__ Args args) {
  const long long row = blockIdx.x;
  const int position = args.positions[row];
  if (position < 0 || position >= args.num_positions) return;
  const float* table = args.rope_table + position * args.rope_table_stride;
  for (int number = threadIdx.x; number < 32 * heads; number += blockDim.x) {
    const int i = number % 32;
    unsigned short* x = args.x + row * args.x_stride0 + number / 32 * args.x_stride1 + 2 * i;
    const float sine = inverse ? -table[32 + i] : table[32 + i];
    const naive::Pair pair = naive::rotated({x[0], x[1]}, table[i], sine);
    x[0] = pair.a;
    x[1] = pair.b;
  }
}
