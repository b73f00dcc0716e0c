// First of two kernels of hc_post_fold_norm, for few rows: many CTAs share a row's columns. The
// folded rows go to the workspace.
// grid  (num_rows * row_parts)   block (part_threads)   shared: none
#include "kiln_args.h"
#include "kiln_constants.h"  // columns, with_sqrsum, part_threads
#include "templates/common/hc_post_fold_norm.cuh"

constexpr int pieces = columns / piece_elements;
constexpr int row_parts = (pieces + part_threads - 1) / part_threads;

extern "C" __global__ void __launch_bounds__(part_threads)
    hc_post_fold(const __grid_constant__ Args args) {
  const i64 row = blockIdx.x / row_parts;
  const int piece =
      static_cast<int>(blockIdx.x % row_parts) * part_threads + static_cast<int>(threadIdx.x);
  const uint4 folded = MixedRow<with_sqrsum, pieces>(args, row).put(piece);
  u16* const to = static_cast<u16*>(args.workspace) + row * columns;
  if (pieces % part_threads == 0 || piece < pieces) store_16(to + piece * piece_elements, folded);
}
