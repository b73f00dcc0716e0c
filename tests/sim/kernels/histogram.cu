// counts[k] += how often key k occurs. Keys are below 64.
// grid (any)   block (128)   shared: counts for each warp
//
// A warp counts for itself, pairs of warps add up, then the block adds to the total.
#include "tests/sim/kernels/common.cuh"

constexpr int num_threads = 128;
constexpr int num_warps = num_threads / warp_lanes;
constexpr int num_keys = 64;

__device__ __forceinline__ void pair_barrier() {
  asm volatile("bar.sync %0, 64;" ::"r"(1 + warp_id() / 2) : "memory");
}

extern "C" __global__ void __launch_bounds__(num_threads)
    histogram(const u32* keys, u32* counts, i64 num_values) {
  __shared__ u32 of_warp[num_warps][num_keys];
  const int lane = lane_id();
  const int warp = warp_id();
  for (int key = lane; key < num_keys; key += warp_lanes) of_warp[warp][key] = 0;
  __syncwarp();  // the counts are zero
  const i64 step = static_cast<i64>(gridDim.x) * num_threads;
  for (i64 i = blockIdx.x * num_threads + threadIdx.x; i < num_values; i += step)
    atomicAdd(&of_warp[warp][keys[i]], 1);
  pair_barrier();  // both warps have counted
  if (warp % 2 == 0) {
    for (int key = lane; key < num_keys; key += warp_lanes)
      of_warp[warp][key] += of_warp[warp + 1][key];
  }
  __syncthreads();  // all pairs have added up
  if (threadIdx.x < num_keys) {
    u32 count = 0;
    for (int w = 0; w < num_warps; w += 2) count += of_warp[w][threadIdx.x];
    atomicAdd(&counts[threadIdx.x], count);
  }
}
