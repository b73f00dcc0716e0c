// The naive form of embed_expand: a row a block, a column a thread.
// grid  (rows)   block (some)   shared: none
#include "kiln_args.h"
#include "kiln_constants.h"  // columns, copies

extern "C" __global__ void embed_expand_oracle(const __grid_constant__ Args args) {
  const long long row = blockIdx.x;
  const long long id = args.ids[row];
  const bool has_entry = id >= args.first_id && id - args.first_id < args.num_embeddings;
  for (int column = threadIdx.x; column < columns; column += blockDim.x) {
    unsigned short value = 0;
    if (has_entry) value = args.table[(id - args.first_id) * args.table_stride + column];
    for (int copy = 0; copy < copies; ++copy)
      args.h[row * args.h_stride0 + copy * args.h_stride1 + column] = value;
  }
}
