// Divides rows of bf16 by their root mean square and multiplies them by a weight (ops.md B3).
// grid  (ceil(num_rows / (rows_per_cta * rows_in_turn)))   block (threads_per_row * rows_per_cta)
// shared: two floats a thread, where several warps share a row
//
// A row's threads hold all of it in registers: it is read once, all loads at once, and the next row
// of the same threads is on its way meanwhile. The steps and the order of the sum are those of
// common/norm.cuh.
#include "kiln_args.h"
#include "kiln_constants.h"  // columns, threads_per_row, rows_per_cta, rows_in_turn, early_weights
#include "templates/common/memory.cuh"
#include "templates/common/norm.cuh"
#include "templates/common/types.cuh"

using Part = RowPart<columns, threads_per_row>;

constexpr int block_threads = threads_per_row * rows_per_cta;
constexpr bool has_exchange = threads_per_row > warp_lanes;

extern "C" __global__ void __launch_bounds__(block_threads)
    rms_norm(const __grid_constant__ Args args) {
  const int row_in_cta = static_cast<int>(threadIdx.x / threads_per_row);
  const int thread = static_cast<int>(threadIdx.x % threads_per_row);
  const i64 first = static_cast<i64>(blockIdx.x) * (rows_per_cta * rows_in_turn) + row_in_cta;
  const auto load = [&](Part& x, int turn) {
    // Rows of one warp shuffle together, so none may leave: beyond the last it works in vain.
    const i64 row = min(first + turn * rows_per_cta, args.num_rows - 1);
    x.load(args.x + row * args.x_stride, thread);
  };
  Part x[rows_in_turn];
  load(x[0], 0);
  Part w;
  if constexpr (early_weights) w.load(args.weight, thread);

  // A row's sums stand where those of the row before do not: its threads may still read them.
  __shared__ float shared[has_exchange ? 2 * block_threads : 1];
#pragma unroll
  for (int turn = 0; turn < rows_in_turn; ++turn) {
    if (turn + 1 < rows_in_turn) load(x[turn + 1], turn + 1);
    float* const exchange =
        shared + (has_exchange ? turn % 2 * block_threads + row_in_cta * threads_per_row : 0);
    const float sum = sum_of_squares(x[turn], exchange, thread, row_in_cta);
    x[turn].keep_packed();
    const float factor = norm_factor<columns>(sum);
    const i64 row = first + turn * rows_per_cta;
    if (row >= args.num_rows) continue;
    u16* y = args.y + row * args.y_stride;
#pragma unroll
    for (int i = 0; i < Part::count; ++i) {
      const uint4 weights = early_weights ? w.data[i] : Part::piece(args.weight, thread, i);
      if (Part::holds(thread, i))
        store_16(Part::place(y, thread, i), normalised(x[turn].data[i], weights, factor));
    }
  }
}
