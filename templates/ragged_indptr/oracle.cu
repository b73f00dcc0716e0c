// The naive form of ragged_indptr: one CTA a boundary; each thread adds up all lengths before it.
#include "kiln_args.h"
#include "kiln_constants.h"

__device__ long long length_of(const Args& args, long long t) {
  long long length = args.lens[t];
  if (length < 0) length = 0;
  if (length > args.width) length = args.width;
  return length;
}

extern "C" __global__ void ragged_indptr_oracle(const __grid_constant__ Args args) {
  const long long t = blockIdx.x;
  long long begin = 0;
  for (long long before = 0; before < t; ++before) begin += length_of(args, before);
  if (threadIdx.x == 0)
    args.indptr[t] = static_cast<int>(begin < args.capacity ? begin : args.capacity);
  if (t == args.num_rows) return;
  for (long long i = threadIdx.x; i < length_of(args, t); i += blockDim.x) {
    if (begin + i < args.capacity) args.indices[begin + i] = args.slots[t * args.slots_stride + i];
  }
}
