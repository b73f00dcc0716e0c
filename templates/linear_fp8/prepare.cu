// What precedes tile.cu: writes x as the bf16 rows that it multiplies, Q8a applied or codes
// decoded, in slot order (ops.md B4); sets its counters to 0; and has the first weights of every
// run of K brought to L2, since DRAM would be idle otherwise. grid  (ceil(rows * groups * depth /
// (8 * pieces * threads)))   block (threads)   shared: none
//
// A thread takes `pieces` times 8 elements; the four lanes of a group of 32 share their maximum.
#include "kiln_args.h"
#include "kiln_constants.h"  // as of tile.cu; threads, pieces, chunks_ahead
#include "templates/common/memory.cuh"
#include "templates/common/quantise.cuh"
#include "templates/common/types.cuh"
#include "templates/linear_fp8/fragments.cuh"
#include "templates/linear_fp8/problem.cuh"
#include "templates/linear_fp8/tiles.cuh"

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

__device__ __forceinline__ void clear_counters(const Args& args) {
  const i64 all = row_tiles(args) * (counter_bytes / 4);
  for (i64 i = static_cast<i64>(blockIdx.x) * threads + threadIdx.x; i < all;
       i += static_cast<i64>(gridDim.x) * threads)
    counters(args)[i] = 0;
}

// Of each row of the layout the first chunks of every run; all scales.
__device__ __forceinline__ void request_weights(const Args& args) {
  constexpr u32 line_bytes = 128;
  constexpr u32 chunk_bytes = weight_layout == packed ? block_bytes : chunk_elements;
  constexpr u32 rows_of_layout = groups * columns / (weight_layout == packed ? block_rows : 1);
  constexpr u32 row_bytes = weight_layout == packed ? chunks * block_bytes : depth;
  constexpr u32 of_run = (chunks_ahead * chunk_bytes + line_bytes - 1) / line_bytes;
  for (u32 i = blockIdx.x * threads + threadIdx.x; i < rows_of_layout * runs * of_run;
       i += gridDim.x * threads) {
    const u32 row = i / (runs * of_run);
    const u32 run = i / of_run % runs;
    const u32 byte = min(first_chunk(run) * chunk_bytes + i % of_run * line_bytes, row_bytes - 1);
    prefetch_to_l2(args.w + static_cast<i64>(row) * row_bytes + byte);
  }
  for (u32 i = blockIdx.x * threads + threadIdx.x;
       i * line_bytes < groups * columns / 32 * depth_groups; i += gridDim.x * threads)
    prefetch_to_l2(args.w_scales + i * line_bytes);
}

__device__ __forceinline__ void prepare_x(const Args& args) {
  const i64 all = args.num_rows * groups * pieces_per_row;
  const i64 first = static_cast<i64>(blockIdx.x) * (threads * pieces) + threadIdx.x;
  u32 pairs[pieces][4];
  u32 scale_bytes[pieces];

#pragma unroll
  for (int i = 0; i < pieces; ++i) {
    const i64 piece = min(first + i * threads, all - 1);
    const Place place = place_of(piece);
    if constexpr (x_format == x_codes_q8a) {
      const uint2 codes = load_8(args.x_codes + place.row * args.x_codes_stride0 +
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
      store_16(prepared_x(args) + piece * 8, {low.low, low.high, high.low, high.high});
    }
  }
}

extern "C" __global__ void __launch_bounds__(threads)
    linear_fp8_prepare(const __grid_constant__ Args args) {
  if constexpr (adds_splits) clear_counters(args);
  if constexpr (chunks_ahead > 0) request_weights(args);
  if constexpr (prepares_x) prepare_x(args);
}
