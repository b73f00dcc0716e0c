// Second of two kernels of hc_post_fold_norm: the norm of the rows that the first has folded.
// grid  (ceil(num_rows / rows_per_cta))   block (threads_per_row * rows_per_cta)
// shared: a float a thread, where several warps share a row
#include "kiln_args.h"
#include "kiln_constants.h"  // columns, x_format, threads_per_row, rows_per_cta
#include "templates/common/hc_post_fold_norm.cuh"

constexpr bool has_exchange = threads_per_row > warp_lanes;

extern "C" __global__ void __launch_bounds__(threads_per_row* rows_per_cta)
    hc_post_fold_norm_of_folded(const __grid_constant__ Args args) {
  __shared__ float shared[has_exchange ? threads_per_row * rows_per_cta : 1];
  const int row_in_cta = static_cast<int>(threadIdx.x / threads_per_row);
  const int thread = static_cast<int>(threadIdx.x % threads_per_row);
  const i64 row = static_cast<i64>(blockIdx.x) * rows_per_cta + row_in_cta;
  if (row >= args.num_rows) return;  // whole warps
  float* const exchange = shared + (has_exchange ? row_in_cta * threads_per_row : 0);
  norm_of_folded<columns, x_format, threads_per_row>(
      args, static_cast<const u16*>(args.workspace) + row * columns, row, exchange, thread,
      row_in_cta);
}
