// Adds the outputs of a token's experts and of the shared one (ops.md B18.3).
//   y[t] = bf16((sum over i, by ascending expert, of pairs[t, i]) + shared[t])
// grid  (num_rows * row_parts)   block (threads)   shared: the order of the experts
//
// Every thread of a CTA has columns of one token. The first top_k of them find the order.
#include "kiln_args.h"
#include "kiln_constants.h"  // columns, top_k, threads, pieces_per_thread
#include "templates/common/decode.cuh"
#include "templates/common/memory.cuh"
#include "templates/common/types.cuh"

constexpr int piece_elements = 8;
constexpr int pieces = columns / piece_elements;
constexpr int pieces_per_part = threads * pieces_per_thread;
constexpr int row_parts = (pieces + pieces_per_part - 1) / pieces_per_part;
static_assert(top_k <= threads);

struct Sum {
  float of[piece_elements];

  __device__ __forceinline__ void add(const uint4& piece) {
    const u32 pairs[4] = {piece.x, piece.y, piece.z, piece.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      of[2 * i] = __fadd_rn(of[2 * i], low_bf16(pairs[i]));
      of[2 * i + 1] = __fadd_rn(of[2 * i + 1], high_bf16(pairs[i]));
    }
  }
  __device__ __forceinline__ uint4 in_bf16() const {
    return {to_bf16x2(of[0], of[1]), to_bf16x2(of[2], of[3]), to_bf16x2(of[4], of[5]),
            to_bf16x2(of[6], of[7])};
  }
};

// Places of the pairs by ascending expert, then their number; of equal experts the first comes
// first.
__device__ __forceinline__ int find_order(const i32* ids, int (&order)[top_k]) {
  const int own = static_cast<int>(threadIdx.x);
  int count = 0;
  int before = 0;
#pragma unroll
  for (int i = 0; i < top_k; ++i) {
    const i32 id = ids[i];
    const bool counts = id >= 0;
    count += counts ? 1 : 0;
    if (own < top_k && counts) before += id < ids[own] || (id == ids[own] && i < own) ? 1 : 0;
  }
  if (own < top_k && ids[own] >= 0) order[before] = own;
  return count;
}

extern "C" __global__ void __launch_bounds__(threads)
    moe_combine(const __grid_constant__ Args args) {
  __shared__ int order[top_k];
  const i64 row = blockIdx.x / row_parts;
  const int first =
      static_cast<int>(blockIdx.x % row_parts) * pieces_per_part + static_cast<int>(threadIdx.x);
  const int count = find_order(args.ids + row * args.ids_stride, order);
  __syncthreads();
  const u16* pairs = args.pairs + row * args.pairs_stride0;
  Sum sums[pieces_per_thread]{};
#pragma unroll 2
  for (int i = 0; i < count; ++i) {
    const u16* from = pairs + order[i] * args.pairs_stride1;
#pragma unroll
    for (int p = 0; p < pieces_per_thread; ++p) {
      const int piece = first + p * threads;
      if (pieces % pieces_per_part == 0 || piece < pieces)
        sums[p].add(load_16(reinterpret_cast<const u8*>(from + piece * piece_elements)));
    }
  }
#pragma unroll
  for (int p = 0; p < pieces_per_thread; ++p) {
    const int piece = first + p * threads;
    if (pieces % pieces_per_part != 0 && piece >= pieces) continue;
    const int column = piece * piece_elements;
    if (args.shared != nullptr)
      sums[p].add(
          load_16(reinterpret_cast<const u8*>(args.shared + row * args.shared_stride + column)));
    store_16(args.y + row * args.y_stride + column, sums[p].in_bf16());
  }
}
