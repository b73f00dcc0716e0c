// The naive form of moe_combine: a row a block, a column a thread.
// grid  (rows)   block (some)   shared: none
#include "kiln_args.h"
#include "kiln_constants.h"  // columns, top_k
#include "templates/naive/quantise.cuh"

extern "C" __global__ void moe_combine_oracle(const __grid_constant__ Args args) {
  const long long row = blockIdx.x;
  const int* ids = args.ids + row * args.ids_stride;
  for (int column = threadIdx.x; column < columns; column += blockDim.x) {
    float sum = 0.0f;
    bool is_done[top_k] = {};
    for (int step = 0; step < top_k; ++step) {
      int least = -1;
      for (int i = 0; i < top_k; ++i) {
        if (ids[i] >= 0 && !is_done[i] && (least < 0 || ids[i] < ids[least])) least = i;
      }
      if (least < 0) break;
      is_done[least] = true;
      const long long place = row * args.pairs_stride0 + least * args.pairs_stride1 + column;
      sum = __fadd_rn(sum, naive::bf16(args.pairs[place]));
    }
    if (args.shared != nullptr)
      sum = __fadd_rn(sum, naive::bf16(args.shared[row * args.shared_stride + column]));
    args.y[row * args.y_stride + column] = sum != sum ? 0x7fff : naive::round_to_bf16(sum);
  }
}
