// The naive form of engram_hash: a token a block, a column a thread.
// grid  (rows)   block (some)   shared: none
#include "kiln_args.h"
#include "kiln_constants.h"  // num_heads

extern "C" __global__ void engram_hash_oracle(const __grid_constant__ Args args) {
  const long long t = blockIdx.x;
  const int request = args.requests[t];
  for (int column = threadIdx.x; column < 3 * num_heads; column += blockDim.x) {
    int* row = args.rows + t * args.rows_stride + column;
    *row = -1;
    if (request < 0 || request >= args.num_requests) continue;
    const long long since_first = t - (args.query_start_loc[request] - args.query_start_loc[0]);
    if (since_first < 0) continue;
    unsigned long long hash = 0;
    bool is_over = false;
    for (int n = 0; n <= 1 + column / num_heads; ++n) {
      const int id = n <= since_first
                         ? args.ids[t - n]
                         : args.history[request * args.history_stride + 3 - (n - since_first)];
      is_over = is_over || id < 0;
      hash ^= static_cast<unsigned long long>(is_over ? args.pad_id : id) *
              static_cast<unsigned long long>(args.multipliers[n]);
    }
    *row =
        static_cast<int>(hash % static_cast<unsigned>(args.primes[column])) + args.offsets[column];
  }
}
