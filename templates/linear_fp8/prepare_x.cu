// Writes x as the bf16 rows that the tile kernel multiplies: Q8a applied or codes decoded, in slot
// order (ops.md B4).
// grid  (ceil(rows * groups * depth / (8 * pieces * threads)))   block (threads)   shared: none
//
// A thread takes `pieces` times 8 elements; the four lanes of a group of 32 share their maximum.
#include "kiln_args.h"
#include "kiln_constants.h"  // columns, depth, groups, threads, pieces, slot_order, x_format
#include "templates/common/memory.cuh"
#include "templates/common/quantise.cuh"
#include "templates/common/types.cuh"
#include "templates/linear_fp8/fragments.cuh"
#include "templates/linear_fp8/problem.cuh"

constexpr u32 pieces_per_row = depth / 8;

struct Place {
  i64 row;
  u32 group;
  u32 element;
};

__device__ __forceinline__ Place place_of(i64 piece) {
  const i64 row_of_all = piece / pieces_per_row;
  const u32 element = static_cast<u32>(piece - row_of_all * pieces_per_row) * 8;
  return {row_of_all / groups, static_cast<u32>(row_of_all % groups), element};
}

extern "C" __global__ void __launch_bounds__(threads)
    linear_fp8_prepare_x(const __grid_constant__ Args args) {
  const i64 all = args.num_rows * groups * pieces_per_row;
  const i64 first = static_cast<i64>(blockIdx.x) * (threads * pieces) + threadIdx.x;
  u32 pairs[pieces][4];
  u32 scale_bytes[pieces];

#pragma unroll
  for (int i = 0; i < pieces; ++i) {
    const i64 piece = min(first + i * threads, all - 1);
    const Place place = place_of(piece);
    if constexpr (x_format == x_codes_q8a) {
      const uint2 codes = load_stream_8(args.x_codes + place.row * args.x_codes_stride0 +
                                        place.group * args.x_codes_stride1 + place.element);
      pairs[i][0] = codes.x, pairs[i][1] = codes.y;
      scale_bytes[i] = args.x_scales[place.row * args.x_scales_stride0 +
                                     place.group * args.x_scales_stride1 + place.element / 32];
    } else {
      const uint4 eight = load_16(reinterpret_cast<const u8*>(
          args.x + place.row * args.x_stride0 + place.group * args.x_stride1 + place.element));
      pairs[i][0] = eight.x, pairs[i][1] = eight.y, pairs[i][2] = eight.z, pairs[i][3] = eight.w;
    }
  }

#pragma unroll
  for (int i = 0; i < pieces; ++i) {
    if constexpr (x_format == x_codes_q8a) {
      const u32 scale = both_halves(ue8m0_to_bf16(scale_bytes[i]));
      const uint2 low = decode_e4m3x4(pairs[i][0], scale);
      const uint2 high = decode_e4m3x4(pairs[i][1], scale);
      pairs[i][0] = low.x, pairs[i][1] = low.y, pairs[i][2] = high.x, pairs[i][3] = high.y;
    } else {
      u32 largest = largest_magnitude(pairs[i]);
      largest = max_or_nan_bf16x2(largest, __shfl_xor_sync(all_lanes, largest, 1));
      largest = max_or_nan_bf16x2(largest, __shfl_xor_sync(all_lanes, largest, 2));
      round_to_grid(pairs[i], q8a_grid(larger_half(largest)));
    }
    const i64 piece = first + i * threads;
    if (piece < all) {
      constexpr auto order = static_cast<SlotOrder>(slot_order);
      const WordPairs low = in_slot_order<order>(pairs[i][0], pairs[i][1]);
      const WordPairs high = in_slot_order<order>(pairs[i][2], pairs[i][3]);
      store_16(static_cast<u16*>(args.workspace) + piece * 8,
               {low.low, low.high, high.low, high.high});
    }
  }
}
