// Copies the embedding of each token into its residual streams (ops.md B6.3).
//   h[t, c] = table[ids[t] - first_id], zeros where the rank has no such row
// grid  (num_rows * row_parts)   block (threads)   shared: none
#include "kiln_args.h"
#include "kiln_constants.h"  // columns, copies, threads, pieces_per_thread
#include "templates/common/memory.cuh"
#include "templates/common/types.cuh"

constexpr int piece_elements = 8;
constexpr int pieces = columns / piece_elements;
constexpr int pieces_per_part = threads * pieces_per_thread;
constexpr int row_parts = (pieces + pieces_per_part - 1) / pieces_per_part;

extern "C" __global__ void __launch_bounds__(threads)
    embed_expand(const __grid_constant__ Args args) {
  const i64 row = blockIdx.x / row_parts;
  const int first =
      static_cast<int>(blockIdx.x % row_parts) * pieces_per_part + static_cast<int>(threadIdx.x);
  const i64 entry = args.ids[row] - args.first_id;
  const bool has_entry = entry >= 0 && entry < args.num_embeddings;
  const u16* from = args.table + (has_entry ? entry * args.table_stride : 0);
  u16* to = args.h + row * args.h_stride0;
  uint4 data[pieces_per_thread];
#pragma unroll
  for (int i = 0; i < pieces_per_thread; ++i) {
    const int piece = first + i * threads;
    const bool is_read = has_entry && (pieces % pieces_per_part == 0 || piece < pieces);
    data[i] = is_read ? load_16(reinterpret_cast<const u8*>(from + piece * piece_elements))
                      : uint4{0, 0, 0, 0};
  }
#pragma unroll
  for (int i = 0; i < pieces_per_thread; ++i) {
    const int piece = first + i * threads;
    if (pieces % pieces_per_part != 0 && piece >= pieces) break;
#pragma unroll
    for (int copy = 0; copy < copies; ++copy)
      store_16(to + copy * args.h_stride1 + piece * piece_elements, data[i]);
  }
}
