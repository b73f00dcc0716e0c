// First kernel of hc_fused_post_pre_delayed (ops.md B1.5): the streams and the next input, see
// common/hc_post_fold_norm.cuh.
// grid  (ceil(num_rows / rows_per_cta))   block (threads_per_row * rows_per_cta)
// shared: a float a thread, where several warps share a row
#include "kiln_args.h"
#include "kiln_constants.h"  // columns, x_format, threads_per_row, rows_per_cta
#include "templates/common/hc_post_fold_norm.cuh"

extern "C" __global__ void __launch_bounds__(threads_per_row* rows_per_cta)
    hc_fused_streams(const __grid_constant__ Args args) {
  post_fold_norm<columns, x_format, false, threads_per_row, rows_per_cta>(args);
}
