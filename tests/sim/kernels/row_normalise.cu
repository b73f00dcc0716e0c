// out[r, i] = in[r, i] / (1 + sum over j of |in[r, j]|).
// grid (any)   block (128)   shared: a sum for each warp, and that of the row
#include "tests/sim/kernels/common.cuh"

constexpr int num_threads = 128;
constexpr int num_warps = num_threads / warp_lanes;

extern "C" __global__ void __launch_bounds__(num_threads)
    row_normalise(const float* in, float* out, i64 rows, i64 columns) {
  __shared__ float of_warp[warp_lanes];
  __shared__ float of_row;
  const int lane = lane_id();
  const int warp = warp_id();
  for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
    float sum = 0;
    for (i64 i = threadIdx.x; i < columns; i += num_threads) sum += fabsf(in[row * columns + i]);
    sum = warp_sum(sum);
    if (lane == 0) of_warp[warp] = sum;
    __syncthreads();  // all warps gave their sums
    if (warp == 0) {
      const float all = warp_sum(lane < num_warps ? of_warp[lane] : 0);
      if (lane == 0) of_row = 1 + all;
    }
    __syncthreads();  // the row's sum is there
    const float scale = 1 / of_row;
    for (i64 i = threadIdx.x; i < columns; i += num_threads)
      out[row * columns + i] = in[row * columns + i] * scale;
  }
}
