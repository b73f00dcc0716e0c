// The sum of squares of the four residual streams (ops.md B1.1): of each stream in the order of
// common/norm.cuh, then of the streams from the first on.
#pragma once

#include "templates/common/hc.cuh"
#include "templates/common/norm.cuh"
#include "templates/common/types.cuh"

template <int threads, int count>
struct StreamSums {
  float of_pieces[streams][count];

  __device__ __forceinline__ void clear(int i) {
#pragma unroll
    for (int j = 0; j < streams; ++j) of_pieces[j][i] = 0.0f;
  }
  __device__ __forceinline__ void add(int i, const Streams& x) {
#pragma unroll
    for (int j = 0; j < streams; ++j) of_pieces[j][i] = sum_of_squares(x.h[j]);
  }
  // `shared` has `streams` floats for each thread of the row.
  __device__ __forceinline__ float of_row(float* shared, int thread, int barrier_id) {
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < streams; ++j) {
      const float of_stream =
          sum_of_row<threads>(of_pieces[j], shared + j * threads, thread, barrier_id);
      sum = j == 0 ? of_stream : __fadd_rn(sum, of_stream);
    }
    return sum;
  }
};
