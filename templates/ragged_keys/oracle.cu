// The naive form of ragged_keys: one CTA a request and one for padding; sums by every thread.
#include "kiln_args.h"
#include "kiln_constants.h"  // ratio

__device__ int clamped(long long value, long long capacity) {
  return static_cast<int>(value < capacity ? value : capacity);
}

extern "C" __global__ void ragged_keys_oracle(const __grid_constant__ Args args) {
  const long long b = blockIdx.x;
  long long begin = 0;
  for (long long before = 0; before < b; ++before) {
    if (args.seq_lens[before] > 0) begin += args.seq_lens[before] / ratio;
  }
  const long long base = args.query_start_loc[0];
  const long long first = args.query_start_loc[b] - base;
  if (threadIdx.x == 0) args.indptr[b] = clamped(begin, args.capacity);
  if (b == args.num_requests) {
    for (long long t = first + threadIdx.x; t < args.num_rows; t += blockDim.x) {
      if (t < 0) continue;
      args.requests[t] = args.positions[t] = -1;
      args.key_begin[t] = args.key_end[t] = 0;
    }
    return;
  }
  const long long query = args.query_start_loc[b + 1] - base - first;
  const long long seq_len = args.seq_lens[b];
  const long long prefix = seq_len - query;
  const long long keys = seq_len > 0 ? seq_len / ratio : 0;
  if (threadIdx.x == 0) {
    const long long gathered = query + (prefix < 127 ? prefix : 127);
    args.lens[b] = static_cast<int>(keys);
    args.gather_lens[b] = static_cast<int>(gathered > 0 ? gathered : 0);
  }
  for (long long t = first + threadIdx.x; t < first + query && t < args.num_rows; t += blockDim.x) {
    if (t < 0) continue;
    const long long position = prefix + (t - first);
    args.requests[t] = static_cast<int>(b);
    args.positions[t] = static_cast<int>(position);
    args.key_begin[t] = clamped(begin, args.capacity);
    args.key_end[t] = clamped(begin + (position >= 0 ? (position + 1) / ratio : 0), args.capacity);
  }
  for (long long j = threadIdx.x; args.indices != nullptr && j < keys; j += blockDim.x) {
    if (begin + j >= args.capacity) break;
    const long long column = j / args.page_size;
    long long slot = -1;
    if (column < args.table_width) {
      const long long page = args.block_table[b * args.block_table_stride + column];
      if (page >= 0 && page < args.num_pages) slot = page * args.page_size + j % args.page_size;
    }
    args.indices[begin + j] = static_cast<int>(slot);
  }
}
