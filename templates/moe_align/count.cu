// How many pairs of each expert the part of each CTA of moe_align has.
// grid  (that of kernel.cu)   block (threads)   shared: a number an expert
#include "templates/moe_align/pairs.cuh"

extern "C" __global__ void __launch_bounds__(threads)
    moe_align_count(const __grid_constant__ Args args) {
  __shared__ __align__(16) i32 counts[4 * count_vectors];
  for (int expert = static_cast<int>(threadIdx.x); expert < 4 * count_vectors; expert += threads)
    counts[expert] = 0;
  __syncthreads();
  const Part part(number_of_pairs(args));
  for_each_pair(args, part.begin, part.end,
                [&](u32, i32 expert) { atomicAdd(&counts[expert], 1); });
  __syncthreads();
  int4* to = reinterpret_cast<int4*>(args.workspace) + static_cast<i64>(blockIdx.x) * count_vectors;
  for (int i = static_cast<int>(threadIdx.x); i < count_vectors; i += threads)
    to[i] = reinterpret_cast<const int4*>(counts)[i];
}
