// Steps that the lanes of a warp take together.
#pragma once

#include "templates/common/types.cuh"

// For all lanes.
__device__ __forceinline__ i64 sum_of_warp(i64 value) {
#pragma unroll
  for (int distance = warp_lanes / 2; distance > 0; distance /= 2)
    value += __shfl_xor_sync(all_lanes, value, distance);
  return value;
}
