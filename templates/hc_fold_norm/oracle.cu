// The naive form of hc_fold_norm: a row a block, the folded row in shared memory.
// grid  (rows)   block (some)   shared: the row, and a float a piece
#include "kiln_args.h"
#include "kiln_constants.h"  // columns, x_format
#include "templates/naive/hc.cuh"

extern "C" __global__ void hc_fold_norm_oracle(const __grid_constant__ Args args) {
  __shared__ float sums[columns / 8];
  __shared__ unsigned short folded[columns];
  const long long row = blockIdx.x;
  for (int column = threadIdx.x; column < columns; column += blockDim.x) {
    unsigned short h[4];
    for (int i = 0; i < 4; ++i) h[i] = args.h[row * args.h_stride0 + i * args.h_stride1 + column];
    folded[column] = naive::folded(h, args.pre + row * args.pre_stride);
    if (args.folded != nullptr) args.folded[row * args.folded_stride + column] = folded[column];
  }
  const float factor = naive::norm_factor<columns>(folded, sums);
  naive::put_normed<columns>(x_format, folded, factor, args.weight, args.x + row * args.x_stride,
                             args.x_codes + row * args.x_codes_stride,
                             args.x_scales + row * args.x_scales_stride);
}
