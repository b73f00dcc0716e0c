// Mixes the output of a sub-layer into the four residual streams, in place (ops.md B1.4).
//   h[j] = post[j] * y + sum over i of comb[i][j] * h[i]
// grid  (num_rows * row_parts)   block (threads)   shared: none
//
// A part of a row is `threads * pieces_per_thread` pieces of 8 columns.
// A thread reads a piece's streams before it writes them: nobody else has these columns.
#include "kiln_args.h"
#include "kiln_constants.h"  // columns, with_sqrsum, threads, pieces_per_thread
#include "templates/common/hc.cuh"
#include "templates/common/hc_sums.cuh"
#include "templates/common/norm.cuh"

constexpr int pieces = columns / piece_elements;
constexpr int pieces_per_part = threads * pieces_per_thread;
constexpr int row_parts = (pieces + pieces_per_part - 1) / pieces_per_part;

extern "C" __global__ void __launch_bounds__(threads) hc_post(const __grid_constant__ Args args) {
  const i64 row = blockIdx.x / row_parts;
  const int first = static_cast<int>(blockIdx.x % row_parts) * pieces_per_part;
  const int thread = static_cast<int>(threadIdx.x);
  const u16* y = args.y + row * args.y_stride;
  u16* h = args.h + row * args.h_stride0;
  PostGates gates;
  gates.load(args.post + row * args.post_stride, args.comb + row * args.comb_stride0,
             args.comb_stride1);
#pragma unroll
  for (int i = 0; i < pieces_per_thread; ++i) {
    const int piece = first + i * threads + thread;
    float squares = 0.0f;
    if (pieces % pieces_per_part == 0 || piece < pieces) {
      Streams x;
      x.load(h + piece * piece_elements, args.h_stride1);
      mix(load_16(reinterpret_cast<const u8*>(y + piece * piece_elements)), x, gates);
      x.store(h + piece * piece_elements, args.h_stride1);
      squares = sum_of_squares(x);
    }
    if constexpr (with_sqrsum)
      store_sqrsum<pieces>(args.sqrsum + row * args.sqrsum_stride, piece, squares);
  }
}
