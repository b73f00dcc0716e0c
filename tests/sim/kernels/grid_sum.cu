// out[0] = the sum of `in`: every block leaves its part in `parts`, the one that comes last adds
// them up. `arrived` is 0 before and after.
// grid (any)   block (64)   shared: a sum for each warp, and whether the block came last
#include "tests/sim/kernels/common.cuh"

constexpr int num_threads = 64;
constexpr int num_warps = num_threads / warp_lanes;

extern "C" __global__ void __launch_bounds__(num_threads)
    grid_sum(const float* in, float* parts, u32* arrived, float* out, i64 num_values) {
  __shared__ float of_warp[num_warps];
  __shared__ bool is_last;
  const i64 step = static_cast<i64>(gridDim.x) * num_threads;
  float sum = 0;
  for (i64 i = blockIdx.x * num_threads + threadIdx.x; i < num_values; i += step) sum += in[i];
  sum = warp_sum(sum);
  if (lane_id() == 0) of_warp[warp_id()] = sum;
  __syncthreads();  // all warps gave their sums
  if (threadIdx.x == 0) {
    float part = 0;
    for (int w = 0; w < num_warps; ++w) part += of_warp[w];
    parts[blockIdx.x] = part;
    __threadfence();  // the part before the arrival
    is_last = atomicAdd(arrived, 1) == gridDim.x - 1;
  }
  __syncthreads();  // it is known who came last
  if (!is_last || warp_id() != 0) return;
  __threadfence();  // the arrivals before the parts
  float total = 0;
  for (u32 block = lane_id(); block < gridDim.x; block += warp_lanes) total += parts[block];
  total = warp_sum(total);
  if (lane_id() != 0) return;
  out[0] = total;
  atomicExch(arrived, 0);
}
