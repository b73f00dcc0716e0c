// The slots of each row's window in the paged window caches (ops.md B13.2, bit-exact).
//   slots[g, t, i] = slot of position start + i in cache g, i < n; else -1      lens[t] = n
// grid  (ceil(num_rows / rows_per_cta) * num_groups)   block (threads_per_row * rows_per_cta)
// shared: none
//
// Whole warps serve a row. Two trips to memory: what the row is, then its pages (one more for
// replay_start and for a draft).
#include "kiln_args.h"
#include "kiln_constants.h"  // window, is_draft, threads_per_row, rows_per_cta
#include "templates/common/memory.cuh"
#include "templates/common/pages.cuh"
#include "templates/common/types.cuh"

constexpr int vector_ints = 4;

struct Window {
  i64 start;  // position
  i32 count;
};

__device__ __forceinline__ Window find_window(const Args& args, i64 t, i32 request, bool exists) {
  i64 last, start;
  if constexpr (is_draft) {
    if (!exists) return {0, 0};
    const i64 seq_len = args.seq_lens[request];
    const i64 query_len = static_cast<i64>(args.query_start_loc[request + 1]) -
                          static_cast<i64>(args.query_start_loc[request]);
    last = seq_len - 1;
    start = max(seq_len - query_len - window, 0ll);
  } else {
    last = args.positions[t];
    start = last < window ? 0 : last - (window - 1);
    if (exists && args.replay_start != nullptr)
      start = max(start, static_cast<i64>(args.replay_start[request]));
  }
  const i64 count = last < start ? 0 : last - start + 1;
  return {start, static_cast<i32>(min(count, args.slot_width))};
}

struct Pages {
  const i32* row;  // of the table
  i64 width;       // 0: there is no such request
  u32 num_pages;
  PageSize page_size;
  i64 first_page;     // that the window reaches
  u32 start_in_page;  // of its first position

  template <int count>
  __device__ __forceinline__ void slots_from(i32 column, i32 window_count,
                                             i32 (&slots)[count]) const {
    i32 pages[count];
    u32 entries[count];
#pragma unroll
    for (int i = 0; i < count; ++i) {
      const u32 from_first = start_in_page + static_cast<u32>(column + i);
      const u32 page = page_size.page_of(from_first);
      entries[i] = from_first - page * page_size.entries();
      const bool exists = column + i < window_count && first_page + page < width;
      pages[i] = exists ? row[first_page + page] : -1;
    }
#pragma unroll
    for (int i = 0; i < count; ++i) slots[i] = slot_in(pages[i], entries[i], num_pages, page_size);
  }
};

extern "C" __global__ void __launch_bounds__(threads_per_row* rows_per_cta)
    window_slots(const __grid_constant__ Args args) {
  const u32 ctas_of_group = static_cast<u32>((args.num_rows + rows_per_cta - 1) / rows_per_cta);
  const u32 group = blockIdx.x / ctas_of_group;
  const int row_in_cta = static_cast<int>(threadIdx.x) / threads_per_row;
  const int thread = static_cast<int>(threadIdx.x) % threads_per_row;
  const i64 t = static_cast<i64>(blockIdx.x - group * ctas_of_group) * rows_per_cta + row_in_cta;
  if (t >= args.num_rows) return;

  const i32 request = args.requests[t];
  const bool is_valid = args.is_valid == nullptr || args.is_valid[t] != 0;
  const bool exists = is_valid && request >= 0 && request < args.num_requests;
  Window row = find_window(args, t, request, exists);
  if (!is_valid) row.count = 0;
  if (group == 0 && thread == 0) args.lens[t] = row.count;

  const PageSize page_size(args.page_size);
  const u32 first_page = page_size.page_of(static_cast<u32>(row.start));
  const Pages pages{
      args.block_table +
          (exists ? group * args.block_table_stride0 + request * args.block_table_stride1 : 0),
      exists ? args.table_width : 0,
      static_cast<u32>(args.num_pages),
      page_size,
      static_cast<i64>(first_page),
      static_cast<u32>(row.start) - first_page * page_size.entries()};

  i32* slots = args.slots + group * args.slots_stride0 + t * args.slots_stride1;
  const u32 width = static_cast<u32>(args.slot_width);
  if (width % vector_ints == 0 && aligned_16(slots)) {
    for (u32 vector = thread; vector < width / vector_ints; vector += threads_per_row) {
      i32 four[vector_ints];
      pages.slots_from(static_cast<i32>(vector * vector_ints), row.count, four);
      reinterpret_cast<int4*>(slots)[vector] = {four[0], four[1], four[2], four[3]};
    }
    return;
  }
  // Unsigned: a row may be so wide that the last step leaves int32.
  for (u32 column = thread; column < width; column += threads_per_row) {
    i32 one[1];
    pages.slots_from(static_cast<i32>(column), row.count, one);
    slots[column] = one[0];
  }
}
