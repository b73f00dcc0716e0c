// What the two steps of the statistics hand over: of each split and row, 24 sums of products and
// the sum of squares.
#pragma once

#include "templates/common/types.cuh"

constexpr int gates = 24;
constexpr int sums_per_row = gates + 1;  // the last is that of squares
constexpr int slots_of_row = 32;

__device__ __forceinline__ float* partial_sums(void* workspace, i64 num_rows, int split, i64 row) {
  return static_cast<float*>(workspace) + (split * num_rows + row) * slots_of_row;
}

// Behind the sums of all splits, for what folds too.
__device__ __forceinline__ u16* folded_rows(void* workspace, i64 num_rows, int splits) {
  return reinterpret_cast<u16*>(partial_sums(workspace, num_rows, splits, 0));
}
