// Divides rows of bf16 by their root mean square and multiplies them by a weight (ops.md B3).
// grid  (ceil(num_rows / rows_per_cta))   block (threads_per_row * rows_per_cta)
// shared: a float a thread, where several warps share a row
//
// A row's threads hold all of it in registers: it is read once, all loads at once. The steps and
// the order of the sum are those of common/norm.cuh.
#include "kiln_args.h"
#include "kiln_constants.h"  // columns, threads_per_row, rows_per_cta, early_weights
#include "templates/common/memory.cuh"
#include "templates/common/norm.cuh"
#include "templates/common/types.cuh"

using Part = RowPart<columns, threads_per_row>;

extern "C" __global__ void __launch_bounds__(threads_per_row* rows_per_cta)
    rms_norm(const __grid_constant__ Args args) {
  const int row_in_cta = static_cast<int>(threadIdx.x) / threads_per_row;
  const int thread = static_cast<int>(threadIdx.x) % threads_per_row;
  const i64 wanted = static_cast<i64>(blockIdx.x) * rows_per_cta + row_in_cta;
  // Rows of one warp shuffle together, so none may leave: beyond the last it works in vain.
  const i64 row = min(wanted, args.num_rows - 1);
  Part x;
  x.load_once(args.x + row * args.x_stride, thread);
  Part w;
  if constexpr (early_weights) w.load_shared_by_all(args.weight, thread);

  __shared__ float shared[threads_per_row > warp_lanes ? threads_per_row * rows_per_cta : 1];
  float* const exchange =
      shared + (threads_per_row > warp_lanes ? row_in_cta * threads_per_row : 0);
  const float sum = sum_of_squares(x, exchange, thread, row_in_cta);
  if constexpr (!early_weights) w.load_shared_by_all(args.weight, thread);
  const float factor = norm_factor<columns>(sum);
  if (wanted != row) return;
  u16* y = args.y + row * args.y_stride;
#pragma unroll
  for (int i = 0; i < Part::count; ++i) {
    if (Part::holds(thread, i))
      store_16(y + Part::column(thread, i), normalised(x.data[i], w.data[i], factor));
  }
}
