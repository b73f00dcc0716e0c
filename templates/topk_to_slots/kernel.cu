// From top-k entries to slots of the compressed cache (ops.md B13.1, bit-exact).
//   slots[t, i] = block_table[b, topk[t, i] / page_size] * page_size + topk[t, i] % page_size
//   lens[t]     = number of i with topk[t, i] >= 0
// grid  (ceil(num_rows / rows_per_cta))   block (threads_per_row * rows_per_cta)
// shared: one count a warp where several share a row
//
// Whole warps serve a row. Two trips to memory: request and entries together, then the pages.
#include "kiln_args.h"
#include "kiln_constants.h"  // top_k, threads_per_row, rows_per_cta, batch
#include "templates/common/memory.cuh"
#include "templates/common/pages.cuh"
#include "templates/common/shared.cuh"
#include "templates/common/types.cuh"

constexpr int vector_ints = 4;
constexpr int row_vectors = top_k / vector_ints;
constexpr int warps_per_row = threads_per_row / warp_lanes;

struct Table {
  const i32* row;  // of the request
  u32 width;       // 0: there is no such request
  u32 num_pages;
  PageSize page_size;

  // All columns are loaded before the first is used.
  template <int count>
  __device__ __forceinline__ void look_up(const i32 (&entries)[count], i32 (&slots)[count]) const {
    i32 pages[count];
#pragma unroll
    for (int i = 0; i < count; ++i) {
      const u32 column = page_size.page_of(static_cast<u32>(entries[i]));
      const bool exists = entries[i] >= 0 && column < width;
      pages[i] = exists ? row[column] : -1;
    }
#pragma unroll
    for (int i = 0; i < count; ++i) {
      const u32 entry = static_cast<u32>(entries[i]);
      const u32 of_page = entry - page_size.page_of(entry) * page_size.entries();
      slots[i] = slot_in(pages[i], of_page, num_pages, page_size);
    }
  }
};

__device__ __forceinline__ i32 sum_of_row(i32 count, int row_in_cta) {
  count = static_cast<i32>(__reduce_add_sync(all_lanes, static_cast<u32>(count)));
  if constexpr (warps_per_row > 1) {
    __shared__ i32 counts[rows_per_cta][warps_per_row];
    const int warp = warp_id() % warps_per_row;
    if (lane_id() == 0) counts[row_in_cta][warp] = count;
    barrier(1 + row_in_cta, threads_per_row);
    count = 0;
#pragma unroll
    for (int i = 0; i < warps_per_row; ++i) count += counts[row_in_cta][i];
  }
  return count;
}

extern "C" __global__ void __launch_bounds__(threads_per_row* rows_per_cta)
    topk_to_slots(const __grid_constant__ Args args) {
  const int row_in_cta = static_cast<int>(threadIdx.x) / threads_per_row;
  const int thread = static_cast<int>(threadIdx.x) % threads_per_row;
  const i64 t = static_cast<i64>(blockIdx.x) * rows_per_cta + row_in_cta;
  if (t >= args.num_rows) return;

  const i32* topk = args.topk + t * args.topk_stride;
  i32* slots = args.slots + t * args.slots_stride;
  const i32 request = args.requests[t];
  const bool is_valid = args.is_valid == nullptr || args.is_valid[t] != 0;
  const bool exists = is_valid && request >= 0 && request < args.num_requests;
  const Table table{args.block_table + (exists ? request * args.block_table_stride : 0),
                    exists ? static_cast<u32>(args.table_width) : 0u,
                    static_cast<u32>(args.num_pages), PageSize(args.page_size)};

  i32 count = 0;
  if (top_k % vector_ints == 0 && aligned_16(topk) && aligned_16(slots)) {
#pragma unroll 1
    for (int first = thread; first < row_vectors; first += batch * threads_per_row) {
      i32 entries[batch * vector_ints], found[batch * vector_ints];
#pragma unroll
      for (int i = 0; i < batch; ++i) {
        const int vector = first + i * threads_per_row;
        const int4 four = vector < row_vectors ? reinterpret_cast<const int4*>(topk)[vector]
                                               : int4{-1, -1, -1, -1};
        entries[4 * i] = four.x;
        entries[4 * i + 1] = four.y;
        entries[4 * i + 2] = four.z;
        entries[4 * i + 3] = four.w;
      }
      table.look_up(entries, found);
#pragma unroll
      for (int i = 0; i < batch * vector_ints; ++i) count += entries[i] >= 0;
#pragma unroll
      for (int i = 0; i < batch; ++i) {
        const int vector = first + i * threads_per_row;
        if (vector < row_vectors) {
          reinterpret_cast<int4*>(slots)[vector] = {found[4 * i], found[4 * i + 1],
                                                    found[4 * i + 2], found[4 * i + 3]};
        }
      }
    }
  } else {
    for (int column = thread; column < top_k; column += threads_per_row) {
      const i32 entries[1] = {topk[column]};
      i32 found[1];
      table.look_up(entries, found);
      count += entries[0] >= 0;
      slots[column] = found[0];
    }
  }
  count = sum_of_row(is_valid ? count : 0, row_in_cta);
  if (thread == 0) args.lens[t] = count;
}
