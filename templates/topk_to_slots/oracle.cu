// The naive form of topk_to_slots: one thread per element, the count by one thread.
#include "kiln_args.h"
#include "kiln_constants.h"  // top_k

extern "C" __global__ void topk_to_slots_oracle(const __grid_constant__ Args args) {
  const long long t = blockIdx.x;
  const long long b = args.requests[t];
  const bool padding = args.is_valid != nullptr && args.is_valid[t] == 0;
  int count = 0;
  for (int i = 0; i < top_k; ++i) {
    const long long entry = args.topk[t * args.topk_stride + i];
    if (!padding && entry >= 0) ++count;
    if (i % static_cast<int>(blockDim.x) != static_cast<int>(threadIdx.x)) continue;
    long long slot = -1;
    if (!padding && entry >= 0 && b >= 0 && b < args.num_requests &&
        entry / args.page_size < args.table_width) {
      const long long page = args.block_table[b * args.block_table_stride + entry / args.page_size];
      if (page >= 0 && page < args.num_pages) slot = page * args.page_size + entry % args.page_size;
    }
    args.slots[t * args.slots_stride + i] = static_cast<int>(slot);
  }
  if (threadIdx.x == 0) args.lens[t] = count;
}
