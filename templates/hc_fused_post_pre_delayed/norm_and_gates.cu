// Second of two kernels of hc_fused_post_pre_delayed, for few rows (ops.md B1.3, B1.1, B1.2): some
// warps normalise the row that the first kernel has folded, others make its gates.
// grid  (num_rows)   block (threads_per_row + 32 * gate_warps)
// shared: a float for each thread of the norm, 32 for each group of splits, 20
#include "kiln_args.h"
#include "kiln_constants.h"  // columns, x_format, threads_per_row, splits, groups, gate_warps
#include "templates/common/hc_post_fold_norm.cuh"
#include "templates/common/hc_stats_gates.cuh"

extern "C" __global__ void __launch_bounds__(threads_per_row + 32 * gate_warps)
    hc_fused_norm_and_gates(const __grid_constant__ Args args) {
  __shared__ float exchange[threads_per_row];
  const int thread = static_cast<int>(threadIdx.x);
  const i64 row = blockIdx.x;
  if (thread < threads_per_row) {
    const u16* folded = folded_rows(args.workspace, args.num_rows, splits) + row * columns;
    norm_of_folded<columns, x_format, threads_per_row>(args, folded, row, exchange, thread, 0);
    return;
  }
  const auto targets_of = [&](i64 of) {
    return GateTargets{args.next_pre + of * args.next_pre_stride,
                       args.next_post + of * args.next_post_stride,
                       args.next_comb + of * args.next_comb_stride0, args.next_comb_stride1};
  };
  put_gates<streams * columns, splits, groups, gate_warps, 1>(args, targets_of,
                                                              thread - threads_per_row);
}
