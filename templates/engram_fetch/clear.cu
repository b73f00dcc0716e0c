// Forgets all claims, those of the last call included: the kernel behind it begins with none.
// grid  (ceil(num_rows * num_heads / threads))   block (threads)   shared: none
#include "templates/common/memory.cuh"
#include "templates/engram_fetch/pairs.cuh"  // threads

static_assert(claims_of_pair * sizeof(u64) == sizeof(uint4),
              "a thread clears the claims of a pair");

extern "C" __global__ void __launch_bounds__(threads)
    engram_fetch_clear(const __grid_constant__ Args args) {
  const i64 pair = static_cast<i64>(blockIdx.x) * threads + static_cast<int>(threadIdx.x);
  if (pair >= pairs_of(args)) return;
  store_16(claims_of(args) + claims_of_pair * pair, {~0u, ~0u, ~0u, ~0u});
}
