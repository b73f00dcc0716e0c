// Copies the last g = min(gather_lens[b], max_rows) entries of each request from its paged cache
// into a dense bf16 workspace (ops.md B15.1).
//   x = lens[b] - gather_lens[b] + i        out[b, offset + i, 0..511] = entry x of request b,
//   dequantised
// grid  (ctas_per_request * num_requests)   block (threads)   shared: none
//
// A warp takes rows_per_warp neighbouring rows at a time: lane u finds the entry of row u through
// the block table, then all lanes load the rows, then decode, then store. Per row a lane holds two
// groups of 8 elements, at 8 * lane and at 256 + 8 * lane, so that every store instruction of the
// warp writes 512 consecutive bytes.
#include "kiln_args.h"
#include "kiln_constants.h"  // format, threads, rows_per_warp
#include "templates/common/decode.cuh"
#include "templates/common/memory.cuh"
#include "templates/common/types.cuh"
#include "templates/gather_dequant_kv/layout.cuh"

constexpr int warps_per_cta = threads / warp_lanes;
constexpr int rows_per_cta = warps_per_cta * rows_per_warp;
constexpr i64 no_entry = -1;

struct Request {
  i64 index;  // b
  i64 first;  // entry of workspace row 0
  i64 rows;
};

__device__ __forceinline__ Request find_request(const Args& args, i64 index) {
  const i64 length = args.lens[index];
  const i64 wanted = args.gather_lens != nullptr ? args.gather_lens[index] : length;
  return {index, length - wanted, min(wanted, args.max_rows)};
}

// The entry of workspace row `row`, or no_entry when the table or the cache does not hold it.
__device__ __forceinline__ i64 find_entry(const Args& args, const Request& request, i64 row,
                                          u32& entry_in_page) {
  const i64 entry = request.first + row;
  if (entry < 0) return no_entry;
  const u32 page_size = static_cast<u32>(args.page_size);
  const u32 column = static_cast<u32>(entry) / page_size;
  entry_in_page = static_cast<u32>(entry) - column * page_size;
  if (column >= args.table_width) return no_entry;
  const i64 page = args.block_table[request.index * args.block_table_stride + column];
  return page >= 0 && page < args.num_pages ? page * args.cache_stride : no_entry;
}

extern "C" __global__ void __launch_bounds__(threads)
    gather_dequant_kv(const __grid_constant__ Args args) {
  const u32 num_requests = static_cast<u32>(args.num_requests);
  const u32 ctas_per_request = gridDim.x / num_requests;
  const u32 request_index = blockIdx.x / ctas_per_request;
  const u32 cta_of_request = blockIdx.x - request_index * ctas_per_request;
  const Request request = find_request(args, request_index);
  const int lane = lane_id();
  const PageLayout layout(args.cache, args.cache_stride, args.page_size);

  i64 row = static_cast<i64>(cta_of_request) * rows_per_cta + warp_id() * rows_per_warp;
  for (; row < request.rows; row += static_cast<i64>(ctas_per_request) * rows_per_cta) {
    u32 my_entry_in_page = 0;
    i64 my_page_offset = no_entry;
    if (lane < rows_per_warp && row + lane < request.rows) {
      my_page_offset = find_entry(args, request, row + lane, my_entry_in_page);
    }

    const u32 existing =
        __ballot_sync(all_lanes, my_page_offset != no_entry);  // bit u: row u has an entry

    RawRow raw[rows_per_warp];
#pragma unroll
    for (int u = 0; u < rows_per_warp; ++u) {
      const i64 page_offset = __shfl_sync(all_lanes, my_page_offset, u);
      const u32 entry_in_page = __shfl_sync(all_lanes, my_entry_in_page, u);
      if (existing >> u & 1)
        raw[u] = load_row(args.cache + page_offset, entry_in_page, layout, lane);
    }

#pragma unroll
    for (int u = 0; u < rows_per_warp; ++u) {
      if (row + u >= request.rows) break;
      u16* out_row =
          args.out + request.index * args.out_stride0 + (args.offset + row + u) * args.out_stride1;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint4 values =
            (existing >> u & 1) ? decode_half(raw[u], half, lane) : uint4{0, 0, 0, 0};
        store_16(out_row + half * 256 + lane * 8, values);
      }
    }
  }
}
