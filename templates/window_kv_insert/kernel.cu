// Rotates the window kv of each row, quantises it and writes it to its slot of the paged cache
// (ops.md B7, B8); with has_norm it is normalised before.
//   cache[slot] = quantised(rope(kv[t], positions[t]))     f1, f4: q8a     f3: q8d, tail as bf16
// grid  (ceil(rows / (threads / 32 * rows_per_thread)))   block (threads)   shared: none
//
// A warp to a row (common/kv_insert.cuh). The slot, the position and the row are loaded at once;
// only the angles of the last 8 lanes wait for a load.
#include "kiln_args.h"
#include "kiln_constants.h"  // format, has_norm, threads, rows_per_thread
#include "templates/common/kv_insert.cuh"

extern "C" __global__ void __launch_bounds__(threads)
    window_kv_insert(const __grid_constant__ Args args) {
  constexpr int quantiser = format == F3 ? q8d : q8a;
  constexpr int every_position = 1;
  const u16* weight = nullptr;
  if constexpr (has_norm) weight = args.weight;
  const KvRows kv{args.kv,
                  args.kv_stride,
                  weight,
                  args.positions,
                  args.slots,
                  args.rope_table,
                  args.rope_table_stride,
                  args.num_positions,
                  args.num_rows,
                  args.cache,
                  args.cache_stride,
                  args.page_size,
                  args.num_pages};
  insert_kv_rows<format, quantiser, has_norm, every_position, threads, rows_per_thread>(kv);
}
