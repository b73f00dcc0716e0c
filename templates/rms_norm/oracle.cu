// The naive form of rms_norm: a row a block, the sum by halves in shared memory.
// grid  (rows)   block (some)   shared: a float a piece
#include "kiln_args.h"
#include "kiln_constants.h"  // columns
#include "templates/naive/norm.cuh"

extern "C" __global__ void rms_norm_oracle(const __grid_constant__ Args args) {
  __shared__ float sums[columns / 8];
  const unsigned short* x = args.x + blockIdx.x * args.x_stride;
  unsigned short* y = args.y + blockIdx.x * args.y_stride;
  const float factor = naive::norm_factor<columns>(x, sums);
  for (int column = threadIdx.x; column < columns; column += blockDim.x)
    y[column] = naive::normalised(x[column], factor, args.weight[column]);
}
