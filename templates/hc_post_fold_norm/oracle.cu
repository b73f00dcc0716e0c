// The naive form of hc_post_fold_norm: a row a block, the folded row in shared memory.
// grid  (rows)   block (some)   shared: the row, and a float a piece
#include "kiln_args.h"
#include "kiln_constants.h"  // columns, x_format, with_sqrsum
#include "templates/naive/hc.cuh"

extern "C" __global__ void hc_post_fold_norm_oracle(const __grid_constant__ Args args) {
  __shared__ float sums[columns / 8];
  __shared__ unsigned short folded[columns];
  const long long row = blockIdx.x;
  unsigned short* h = args.h + row * args.h_stride0;
  const float quarters[4] = {0.25f, 0.25f, 0.25f, 0.25f};
  for (int column = threadIdx.x; column < columns; column += blockDim.x) {
    unsigned short before[4], after[4];
    for (int i = 0; i < 4; ++i) before[i] = h[i * args.h_stride1 + column];
    for (int j = 0; j < 4; ++j) {
      after[j] = naive::mixed(args.y[row * args.y_stride + column], before,
                              args.post + row * args.post_stride,
                              args.comb + row * args.comb_stride0, args.comb_stride1, j);
      h[j * args.h_stride1 + column] = after[j];
    }
    folded[column] = naive::folded(after, args.pre + row * args.pre_stride);
    if (args.mean != nullptr)
      args.mean[row * args.mean_stride + column] = naive::folded(after, quarters);
  }
  if (with_sqrsum) {
    __syncthreads();
    naive::put_sqrsum<columns>(h, args.h_stride1, args.sqrsum + row * args.sqrsum_stride);
  }
  const float factor = naive::norm_factor<columns>(folded, sums);
  naive::put_normed<columns>(x_format, folded, factor, args.weight, args.x + row * args.x_stride,
                             args.x_codes + row * args.x_codes_stride,
                             args.x_scales + row * args.x_scales_stride);
}
