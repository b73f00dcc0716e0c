// hc_post and the hc_fold_norm behind it in one pass over the streams (ops.md B1.4, B1.3, B1.5).
//   h[j] = post[j] * y + sum over i of comb[i][j] * h[i];   x = rms_norm(fold(h, pre), weight)
// grid  (ceil(num_rows / rows_per_cta))   block (threads_per_row * rows_per_cta)
// shared: a float a thread, where several warps share a row
//
// The steps are those of hc_post and hc_fold_norm, from the same headers, so that the bits are
// theirs too: see common/hc_post_fold_norm.cuh.
#include "kiln_args.h"
#include "kiln_constants.h"  // columns, x_format, with_sqrsum, threads_per_row, rows_per_cta
#include "templates/common/hc_post_fold_norm.cuh"

extern "C" __global__ void __launch_bounds__(threads_per_row* rows_per_cta)
    hc_post_fold_norm(const __grid_constant__ Args args) {
  post_fold_norm<columns, x_format, with_sqrsum, threads_per_row, rows_per_cta>(args);
}
