// What all layers of one ratio need to know of a chunk and of its packed keys (ops.md B13, B13.3 2,
// bit-exact).
//   lens[b] = seq_lens[b] / ratio      indptr = exclusive sums of lens      indices = slots of keys
//   of each row: requests, positions, key_begin, key_end
// grid  (min(2048, ceil(max_keys / (threads * keys_per_thread))) * num_requests + 1)
// block (threads)
// shared: one sum a warp
//
// The CTAs of a request share its keys and its rows. Each adds up the lengths of the requests
// before, which come from L2 and spare a second launch. The last CTA writes the rows of padding.
#include "kiln_args.h"
#include "kiln_constants.h"  // ratio, threads, keys_per_thread
#include "templates/common/pages.cuh"
#include "templates/common/types.cuh"
#include "templates/common/warp.cuh"

constexpr int warps = threads / warp_lanes;
constexpr int keys_per_cta = threads * keys_per_thread;
constexpr i32 window = 128;

__device__ __forceinline__ i64 keys_of(i64 seq_len) { return max(seq_len, i64{0}) / ratio; }

__device__ __forceinline__ i64 keys_of_requests_before(const Args& args, i64 request) {
  __shared__ i64 sums[warps];
  i64 sum = 0;
  for (i64 b = threadIdx.x; b < request; b += threads) sum += keys_of(args.seq_lens[b]);
  sum = sum_of_warp(sum);
  if (lane_id() == 0) sums[warp_id()] = sum;
  __syncthreads();
  return sum_of_warp(lane_id() < warps ? sums[lane_id()] : 0);
}

__device__ __forceinline__ void write_row(const Args& args, i64 t, i32 request, i32 position,
                                          i64 begin, i64 end) {
  args.requests[t] = request;
  args.positions[t] = position;
  args.key_begin[t] = static_cast<i32>(min(begin, args.capacity));
  args.key_end[t] = static_cast<i32>(min(end, args.capacity));
}

__device__ __forceinline__ void write_slots(const Args& args, i64 request, i64 begin, i64 keys,
                                            i64 first, i64 step) {
  const PageSize page_size(args.page_size);
  const i32* table = args.block_table + request * args.block_table_stride;
  const u32 num_pages = static_cast<u32>(args.num_pages);
  keys = min(keys, args.capacity - begin);
  for (; first < keys; first += step) {
    i32 pages[keys_per_thread];
    u32 entries[keys_per_thread];
#pragma unroll
    for (int i = 0; i < keys_per_thread; ++i) {
      const i64 key = first + i * threads + threadIdx.x;
      const u32 column = page_size.page_of(static_cast<u32>(key));
      entries[i] = static_cast<u32>(key) - column * page_size.entries();
      pages[i] = key < keys && column < args.table_width ? table[column] : -1;
    }
#pragma unroll
    for (int i = 0; i < keys_per_thread; ++i) {
      const i64 key = first + i * threads + threadIdx.x;
      if (key < keys)
        args.indices[begin + key] = slot_in(pages[i], entries[i], num_pages, page_size);
    }
  }
}

extern "C" __global__ void __launch_bounds__(threads)
    ragged_keys(const __grid_constant__ Args args) {
  const u32 num_requests = static_cast<u32>(args.num_requests);
  const u32 ctas_of_request = num_requests == 0 ? 1 : (gridDim.x - 1) / num_requests;
  const u32 request = blockIdx.x / ctas_of_request;
  const u32 cta = blockIdx.x - request * ctas_of_request;
  // In 64 bits: boundaries that do not ascend must not lead outside of the rows.
  const i64 base = args.query_start_loc[0];
  const i64 first_row = args.query_start_loc[request] - base;
  const i64 rows_in_front = max(-first_row, i64{0});
  const i64 begin = keys_of_requests_before(args, request);
  if (request == num_requests) {
    if (threadIdx.x == 0) args.indptr[request] = static_cast<i32>(min(begin, args.capacity));
    for (i64 t = first_row + rows_in_front + threadIdx.x; t < args.num_rows; t += threads)
      write_row(args, t, -1, -1, 0, 0);
    return;
  }

  const i64 query_len = args.query_start_loc[request + 1] - base - first_row;
  const i32 seq_len = args.seq_lens[request];
  const i64 prefix_len = seq_len - query_len;
  const i64 keys = keys_of(seq_len);
  if (cta == 0 && threadIdx.x == 0) {
    args.lens[request] = static_cast<i32>(keys);
    args.gather_lens[request] =
        static_cast<i32>(max(query_len + min(prefix_len, i64{window - 1}), i64{0}));
    args.indptr[request] = static_cast<i32>(min(begin, args.capacity));
  }
  if (args.indices != nullptr) {
    write_slots(args, request, begin, keys, static_cast<i64>(cta) * keys_per_cta,
                static_cast<i64>(ctas_of_request) * keys_per_cta);
  }
  const i64 step = static_cast<i64>(ctas_of_request) * threads;
  for (i64 row = rows_in_front + static_cast<i64>(cta) * threads + threadIdx.x;
       row < query_len && first_row + row < args.num_rows; row += step) {
    const i64 position = prefix_len + row;
    write_row(args, first_row + row, static_cast<i32>(request), static_cast<i32>(position), begin,
              begin + keys_of(position + 1));
  }
}
