// y = the sum of the splits' partial sums of stream.cu, in ascending order.
// grid  (ceil(rows * groups * columns / (4 * threads)))   block (threads)   shared: none
#include "kiln_args.h"
#include "kiln_constants.h"  // columns, depth, groups, threads, splits, output
#include "templates/common/memory.cuh"
#include "templates/common/types.cuh"
#include "templates/linear_fp8/problem.cuh"

extern "C" __global__ void __launch_bounds__(threads)
    linear_fp8_sum_splits(const __grid_constant__ Args args) {
  constexpr i64 fours_per_row = columns / 4;
  const i64 four = static_cast<i64>(blockIdx.x) * threads + threadIdx.x;
  if (four >= args.num_rows * groups * fours_per_row) return;
  const i64 row_of_all = four / fours_per_row;
  const int column = static_cast<int>(four - row_of_all * fours_per_row) * 4;
  const i64 row = row_of_all / groups;
  const int group = static_cast<int>(row_of_all % groups);

  float4 parts[splits];
#pragma unroll
  for (int s = 0; s < splits; ++s)
    parts[s] = *reinterpret_cast<const float4*>(partial(args, s, row, group) + column);
  float4 sum = parts[0];
#pragma unroll
  for (int s = 1; s < splits; ++s) sum = add(sum, parts[s]);
  store_four(args, 0, row, group, column, sum);
}
