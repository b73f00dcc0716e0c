// A lane's 16 elements of a row of x, quantised as x_format says, in slot order.
#pragma once

#include "templates/common/memory.cuh"
#include "templates/common/quantise.cuh"
#include "templates/linear_fp8/fragments.cuh"
#include "templates/linear_fp8/problem.cuh"

enum XFormat : int { x_bf16_q8a = 0, x_codes_q8a = 1, x_bf16 = 2 };

// 16 codes times their scale.
__device__ __forceinline__ void decode_row_codes(u32 (&pairs)[8], const uint4& codes, u32 scale_byte) {
  const u32 scale = ue8m0_to_bf16(scale_byte);
  const u32 words[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint2 four = decode_e4m3x4(words[i], both_halves(scale));
    pairs[2 * i] = four.x;
    pairs[2 * i + 1] = four.y;
  }
}

// Q8a on 16 elements; a group of 32 is those of two neighbouring lanes.
__device__ __forceinline__ void quantise_half_group(u32 (&pairs)[8]) {
  u32 largest = max_magnitude_bf16x2(pairs[0], pairs[1]);
#pragma unroll
  for (int i = 2; i < 8; ++i) largest = max_magnitude_bf16x2(largest, pairs[i]);
  largest = max_magnitude_bf16x2(largest, __shfl_xor_sync(all_lanes, largest, 1));
  round_to_grid(pairs, q8a_grid(larger_half(largest)));
}

// Elements 16 q .. 16 q + 15 of chunk `chunk` of a row; zeros beyond the rows and beyond K. All lanes
// of a warp call it.
__device__ __forceinline__ void load_row_chunk(u32 (&x)[8], const Args& args, int row, int group,
                                               int chunk, bool is_wanted) {
  const int q = lane_id() % 4;
  const int element = chunk * chunk_elements + q * 16;
  const bool is_there = is_wanted && row < args.num_rows && element < depth;
  u32 pairs[8] = {};
  if constexpr (x_format == x_codes_q8a) {
    if (is_there) {
      const u8* codes =
          args.x_codes + row * args.x_codes_stride0 + group * args.x_codes_stride1 + element;
      const u8* scales = args.x_scales + row * args.x_scales_stride0 +
                         group * args.x_scales_stride1 + element / 32;
      decode_row_codes(pairs, load_16(codes), scales[0]);
    }
  } else {
    if (is_there) {
      const u8* from = reinterpret_cast<const u8*>(args.x + row * args.x_stride0 +
                                                   group * args.x_stride1 + element);
      const uint4 first = load_16(from);
      const uint4 second = load_16(from + 16);
      pairs[0] = first.x, pairs[1] = first.y, pairs[2] = first.z, pairs[3] = first.w;
      pairs[4] = second.x, pairs[5] = second.y, pairs[6] = second.z, pairs[7] = second.w;
    }
    if constexpr (x_format == x_bf16_q8a) quantise_half_group(pairs);
  }
#pragma unroll
  for (int s = 0; s < words_per_chunk; ++s) {
    const WordPairs ordered =
        in_slot_order<static_cast<SlotOrder>(slot_order)>(pairs[2 * s], pairs[2 * s + 1]);
    x[2 * s] = ordered.low;
    x[2 * s + 1] = ordered.high;
  }
}
