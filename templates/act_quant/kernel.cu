// Quantises rows of bf16 by groups to codes and scales, or to the bf16 numbers that these stand for
// (ops.md B4; a group that holds a NaN or an infinity as in (f)4).
//   q8a, q8c   groups of 32, E4M3 codes, UE8M0 scales       q8d   groups of 64, the same
//   q4m        groups of 32, E2M1 codes, UE8M0 scales
//   q4n        groups of 16, E2M1 codes, E4M3 scales
// grid  (at least ceil(rows * columns / (8 * pieces * threads)))   block (threads)   shared: none
//
// A thread takes `pieces` times 8 elements, `threads` apart, and loads all before it works on the
// first. The lanes of a group, 2, 4 or 8 neighbours, share its largest magnitude
// (common/quantise_group.cuh).
#include "kiln_args.h"
#include "kiln_constants.h"  // columns, format, output, threads, pieces
#include "templates/common/memory.cuh"
#include "templates/common/quantise_group.cuh"
#include "templates/common/types.cuh"

enum Output : int { output_codes = 0, output_bf16 = 1 };

constexpr int group = group_of(format);
constexpr u32 pieces_per_row = columns / 8;
static_assert(columns % group == 0);

__device__ __forceinline__ void store(const Args& args, i64 row, u32 column, const Quantised& q) {
  if constexpr (output == output_bf16) {
    store_16(args.y + row * args.y_stride + column, {q.fake[0], q.fake[1], q.fake[2], q.fake[3]});
    return;
  }
  const uint2 codes = q.codes;
  if constexpr (is_fp4(format)) {
    *reinterpret_cast<u32*>(args.codes + row * args.codes_stride + column / 2) = codes.x;
  } else {
    *reinterpret_cast<uint2*>(args.codes + row * args.codes_stride + column) = codes;
  }
  if (column % group == 0)
    args.scales[row * args.scales_stride + column / group] = static_cast<u8>(q.scale);
}

extern "C" __global__ void __launch_bounds__(threads) act_quant(const __grid_constant__ Args args) {
  const i64 all = args.num_rows * pieces_per_row;
  const i64 first_of_cta = static_cast<i64>(blockIdx.x) * (threads * pieces);
  if (first_of_cta >= all) return;
  const i64 first = first_of_cta + threadIdx.x;
  Piece x[pieces];
  i64 rows[pieces];
  u32 at[pieces];
#pragma unroll
  for (int i = 0; i < pieces; ++i) {
    const i64 piece = min(first + i * threads, all - 1);
    rows[i] = piece / pieces_per_row;
    at[i] = static_cast<u32>(piece - rows[i] * pieces_per_row) * 8;
    x[i] = load_piece(args.x + rows[i] * args.x_stride + at[i]);
  }
#pragma unroll
  for (int i = 0; i < pieces; ++i) {
    const Quantised q = quantise<format>(x[i]);
    if (first + i * threads < all) store(args, rows[i], at[i], q);
  }
}
