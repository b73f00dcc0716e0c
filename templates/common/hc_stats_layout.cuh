// What the two steps of the statistics hand over: of each split and row, 24 sums of products and
// the sum of squares.
#pragma once

#include "templates/common/types.cuh"

constexpr int gates = 24;
constexpr int sums_of_row = gates + 1;  // the last is that of squares
constexpr int slots_of_row = 32;

__device__ __forceinline__ float* partial_sums(void* workspace, i64 num_rows, int split, i64 row) {
  return static_cast<float*>(workspace) + (split * num_rows + row) * slots_of_row;
}
