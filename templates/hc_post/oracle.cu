// The naive form of hc_post: a row a block, a column a thread.
// grid  (rows)   block (some)   shared: none
#include "kiln_args.h"
#include "kiln_constants.h"  // columns, with_sqrsum
#include "templates/naive/hc.cuh"

extern "C" __global__ void hc_post_oracle(const __grid_constant__ Args args) {
  const long long row = blockIdx.x;
  unsigned short* h = args.h + row * args.h_stride0;
  for (int column = threadIdx.x; column < columns; column += blockDim.x) {
    unsigned short before[4];
    for (int i = 0; i < 4; ++i) before[i] = h[i * args.h_stride1 + column];
    for (int j = 0; j < 4; ++j) {
      h[j * args.h_stride1 + column] = naive::mixed(
          args.y[row * args.y_stride + column], before, args.post + row * args.post_stride,
          args.comb + row * args.comb_stride0, args.comb_stride1, j);
    }
  }
  if (!with_sqrsum) return;
  __syncthreads();
  naive::put_sqrsum<columns>(h, args.h_stride1, args.sqrsum + row * args.sqrsum_stride);
}
