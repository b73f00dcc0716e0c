// The naive form of window_slots: one thread per element.
#include "kiln_args.h"
#include "kiln_constants.h"  // window, is_draft

extern "C" __global__ void window_slots_oracle(const __grid_constant__ Args args) {
  const long long t = blockIdx.x % args.num_rows;
  const long long group = blockIdx.x / args.num_rows;
  const long long b = args.requests[t];
  const bool padding = args.is_valid != nullptr && args.is_valid[t] == 0;
  const bool exists = !padding && b >= 0 && b < args.num_requests;
  long long first = 0, last = -1;
  if (is_draft) {
    if (exists) {
      const long long query = args.query_start_loc[b + 1] - args.query_start_loc[b];
      last = args.seq_lens[b] - 1;
      first = args.seq_lens[b] - query - window;
      if (first < 0) first = 0;
    }
  } else {
    last = args.positions[t];
    first = last < window - 1 ? 0 : last - window + 1;
    if (exists && args.replay_start != nullptr && first < args.replay_start[b])
      first = args.replay_start[b];
  }
  long long count = 0;
  if (!padding && last >= first) count = last - first + 1;
  if (count > args.slot_width) count = args.slot_width;

  for (long long i = threadIdx.x; i < args.slot_width; i += blockDim.x) {
    long long slot = -1;
    const long long column = (first + i) / args.page_size;
    if (i < count && exists && column < args.table_width) {
      const long long page = args.block_table[group * args.block_table_stride0 +
                                              b * args.block_table_stride1 + column];
      if (page >= 0 && page < args.num_pages)
        slot = page * args.page_size + (first + i) % args.page_size;
    }
    args.slots[group * args.slots_stride0 + t * args.slots_stride1 + i] = static_cast<int>(slot);
  }
  if (group == 0 && threadIdx.x == 0) args.lens[t] = static_cast<int>(count);
}
