// Packs the columns that count of dense rows of slots (ops.md B13.3 1, bit-exact).
//   indptr[t] = sum of the lengths of the rows before t
//   indices[indptr[t] + i] = slots[t, i],   i < length of row t
// grid  (ceil(num_rows / rows_per_cta) + 1)   block (threads)   shared: one sum a warp
//
// Every CTA adds up the lengths of all rows before its own: they come from L2 and spare a second
// launch. Then each warp scans the lengths of the CTA's rows for itself and copies some of them.
#include "kiln_args.h"
#include "kiln_constants.h"  // threads, rows_per_cta, batch
#include "templates/common/types.cuh"
#include "templates/common/warp.cuh"

constexpr int warps = threads / warp_lanes;
static_assert(rows_per_cta <= warp_lanes, "one lane scans one row");

__device__ __forceinline__ i64 length_of(const Args& args, i64 t) {
  return min(max(static_cast<i64>(args.lens[t]), 0ll), args.width);
}

__device__ __forceinline__ i64 length_of_rows_before(const Args& args, i64 first) {
  constexpr int unroll = 8;
  i64 sum = 0;
  for (i64 t = threadIdx.x; t < first; t += unroll * threads) {
#pragma unroll
    for (int i = 0; i < unroll; ++i) {
      const i64 row = t + i * threads;
      sum += row < first ? length_of(args, row) : 0;
    }
  }
  return sum_of_warp(sum);
}

extern "C" __global__ void __launch_bounds__(threads)
    ragged_indptr(const __grid_constant__ Args args) {
  __shared__ i64 sums[warps];
  const int lane = lane_id();
  const i64 first = static_cast<i64>(blockIdx.x) * rows_per_cta;
  if (first > args.num_rows) return;

  const i64 mine = first + lane;
  const i64 length = lane < rows_per_cta && mine < args.num_rows ? length_of(args, mine) : 0;
  const i64 sum = length_of_rows_before(args, first);
  if (lane == 0) sums[warp_id()] = sum;
  __syncthreads();
  i64 begin = sum_of_warp(lane < warps ? sums[lane] : 0);

  i64 behind = length;  // end of the lane's row
#pragma unroll
  for (int distance = 1; distance < warp_lanes; distance *= 2) {
    const i64 before = __shfl_up_sync(all_lanes, behind, distance);
    if (lane >= distance) behind += before;
  }
  begin += behind - length;
  if (warp_id() == 0 && lane < rows_per_cta && mine <= args.num_rows)
    args.indptr[mine] = static_cast<i32>(min(begin, args.capacity));

  for (int row = warp_id(); row < rows_per_cta; row += warps) {
    const i64 to = __shfl_sync(all_lanes, begin, row);
    const i64 count = min(__shfl_sync(all_lanes, length, row), args.capacity - to);
    const i32* slots = args.slots + (first + row) * args.slots_stride;
    for (i64 column = lane; column < count; column += batch * warp_lanes) {
      i32 values[batch];
#pragma unroll
      for (int i = 0; i < batch; ++i) {
        const i64 at = column + i * warp_lanes;
        if (at < count) values[i] = slots[at];
      }
#pragma unroll
      for (int i = 0; i < batch; ++i) {
        const i64 at = column + i * warp_lanes;
        if (at < count) args.indices[to + at] = values[i];
      }
    }
  }
}
