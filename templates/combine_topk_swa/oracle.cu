// The naive form of combine_topk_swa: one thread per element, requests searched one by one.
#include "kiln_args.h"
#include "kiln_constants.h"  // ratio, top_k

extern "C" __global__ void combine_topk_swa_oracle(const __grid_constant__ Args args) {
  const long long t = blockIdx.x;
  const int base = args.query_start_loc[0];
  long long b = -1;
  for (long long candidate = 0; candidate < args.num_requests; ++candidate) {
    const bool starts_here_or_before = args.query_start_loc[candidate] - base <= t;
    const bool ends_after = args.query_start_loc[candidate + 1] - base > t;
    if (starts_here_or_before && ends_after) b = candidate;
  }

  long long from_topk = 0, from_window = 0, window_start = 0, first_gathered = 0;
  if (b >= 0) {
    const long long first_row = args.query_start_loc[b] - base;
    const long long query_len = args.query_start_loc[b + 1] - base - first_row;
    const long long position = args.seq_lens[b] - query_len + (t - first_row);
    first_gathered = args.seq_lens[b] - args.gather_lens[b];
    if (ratio != 0 && position >= 0) from_topk = (position + 1) / (ratio == 0 ? 1 : ratio);
    if (from_topk > top_k) from_topk = top_k;
    window_start = position - 127;
    if (window_start < 0) window_start = 0;
    if (window_start < first_gathered) window_start = first_gathered;
    from_window = position - window_start + 1;
    if (from_window < 0) from_window = 0;
  }

  for (long long column = threadIdx.x; column < args.idx_width; column += blockDim.x) {
    long long value = -1;
    if (column < from_topk) {
      const int entry = args.topk[t * args.topk_stride + column];
      if (entry >= 0 && entry < args.compressed_rows) value = b * args.rows_per_request + entry;
    } else if (column < from_topk + from_window) {
      value = b * args.rows_per_request + args.compressed_rows + (window_start - first_gathered) +
              (column - from_topk);
    }
    args.idx[t * args.idx_stride + column] = static_cast<int>(value);
  }
  if (threadIdx.x == 0) args.len[t] = static_cast<int>(from_topk + from_window);
}
