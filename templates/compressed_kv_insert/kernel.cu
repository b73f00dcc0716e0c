// Rotates the latent of each row by the first position of its group, quantises it and writes it to
// its slot of the paged cache (ops.md B9, B8).
//   cache[slot] = quantised(rope(latent[t], first position of the group of positions[t]))
//   f1: q8a     f2, f4: q4n     f3: q8d, tail as bf16
// grid  (ceil(rows / (threads / 32 * rows_per_thread)))   block (threads)   shared: none
//
// A warp to a row (common/kv_insert.cuh). The slot, the position and the row are loaded at once;
// only the angles of the last 8 lanes wait for a load.
#include "kiln_args.h"
#include "kiln_constants.h"  // format, ratio, threads, rows_per_thread
#include "templates/common/kv_insert.cuh"

extern "C" __global__ void __launch_bounds__(threads)
    compressed_kv_insert(const __grid_constant__ Args args) {
  constexpr int quantiser = format == F1 ? q8a : format == F3 ? q8d : q4n;
  constexpr bool has_norm = false;  // the compressor has normalised them
  const u16* const no_weight = nullptr;
  const KvRows kv{
      args.latent,       args.latent_stride,     no_weight,          args.positions, args.slots,
      args.rope_table,   args.rope_table_stride, args.num_positions, args.num_rows,  args.cache,
      args.cache_stride, args.page_size,         args.num_pages};
  insert_kv_rows<format, quantiser, has_norm, ratio, threads, rows_per_thread>(kv);
}
