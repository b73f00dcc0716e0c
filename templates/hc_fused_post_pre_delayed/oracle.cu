// The naive form of hc_fused_post_pre_delayed: a row a block, the folded row in shared memory, the
// gates in float64.
// grid  (rows)   block (threads)   shared: the row, a float a piece, and 25 doubles a thread
#include "kiln_args.h"
#include "kiln_constants.h"  // columns, x_format, threads
#include "templates/naive/hc.cuh"
#include "templates/naive/hc_stats.cuh"

extern "C" __global__ void hc_fused_post_pre_delayed_oracle(const __grid_constant__ Args args) {
  __shared__ float sums[columns / 8];
  __shared__ unsigned short folded[columns];
  __shared__ double shared[threads][naive::gates + 1];
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
  const float factor = naive::norm_factor<columns>(folded, sums);
  naive::put_normed<columns>(x_format, folded, factor, args.weight, args.x + row * args.x_stride,
                             args.x_codes + row * args.x_codes_stride,
                             args.x_scales + row * args.x_scales_stride);
  __syncthreads();
  naive::put_gates<columns>(
      h, args.h_stride1, args.fn, args.fn_stride, args.scale, args.base, shared,
      {args.next_pre + row * args.next_pre_stride, args.next_post + row * args.next_post_stride,
       args.next_comb + row * args.next_comb_stride0, args.next_comb_stride1});
}
