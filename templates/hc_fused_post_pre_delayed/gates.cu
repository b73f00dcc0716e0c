// Third kernel of hc_fused_post_pre_delayed (ops.md B1.1, B1.2): see common/hc_stats_gates.cuh.
// grid  (ceil(num_rows / rows_per_cta))   block (32 * warps)
// shared: 32 floats for each row and group, 20 for each row
#include "kiln_args.h"
#include "kiln_constants.h"  // columns, num_streams, splits, groups, warps, rows_per_cta
#include "templates/common/hc_stats_gates.cuh"

extern "C" __global__ void __launch_bounds__(32 * warps)
    hc_fused_gates(const __grid_constant__ Args args) {
  const auto targets_of = [&](i64 row) {
    return GateTargets{args.next_pre + row * args.next_pre_stride,
                       args.next_post + row * args.next_post_stride,
                       args.next_comb + row * args.next_comb_stride0, args.next_comb_stride1};
  };
  put_gates<num_streams * columns, splits, groups, warps, rows_per_cta>(
      args, targets_of, static_cast<int>(threadIdx.x));
}
