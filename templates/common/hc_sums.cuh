// The sums of squares of the four residual streams (ops.md B1.5), a number for 256 columns: a warp
// has their 32 pieces. Of a piece the streams are added from the first on, then pieces by halves.
#pragma once

#include "templates/common/hc.cuh"
#include "templates/common/norm.cuh"
#include "templates/common/types.cuh"

__device__ __forceinline__ float sum_of_squares(const Streams& x) {
  float sum = sum_of_squares(x.h[0]);
#pragma unroll
  for (int j = 1; j < streams; ++j) sum = __fadd_rn(sum, sum_of_squares(x.h[j]));
  return sum;
}

// For whole warps, each with 32 neighbouring pieces from a multiple of 32 on; `squares` is 0 beyond
// the last of the row's `pieces`.
template <int pieces>
__device__ __forceinline__ void store_sqrsum(float* row, int piece, float squares) {
#pragma unroll
  for (int half = warp_lanes / 2; half >= 1; half /= 2)
    squares = __fadd_rn(squares, __shfl_xor_sync(all_lanes, squares, half));
  if (lane_id() == 0 && piece < pieces) row[piece / warp_lanes] = squares;
}
