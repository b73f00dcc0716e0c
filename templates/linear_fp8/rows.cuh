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
  u32 largest = largest_magnitude(pairs);
  largest = max_or_nan_bf16x2(largest, __shfl_xor_sync(all_lanes, largest, 1));
  round_to_grid(pairs, q8a_grid(larger_half(largest)));
}

// 16 bytes, or zeros without a load: a predicate instead of a branch, so that many loads can start
// before the first is used.
__device__ __forceinline__ uint4 load_16_if(const u8* from, bool is_wanted) {
  uint4 value;
  asm volatile(
      "{\n\t.reg .pred p;\n\tsetp.ne.u32 p, %5, 0;\n\t"
      "mov.u32 %0, 0;\n\tmov.u32 %1, 0;\n\tmov.u32 %2, 0;\n\tmov.u32 %3, 0;\n\t"
      "@p ld.global.v4.u32 {%0, %1, %2, %3}, [%4];\n\t}"
      : "=&r"(value.x), "=&r"(value.y), "=&r"(value.z), "=&r"(value.w)
      : "l"(from), "r"(static_cast<u32>(is_wanted)));
  return value;
}

// Elements 16 q .. 16 q + 15 of a chunk of a row as they lie in memory; zeros beyond K. Codes take
// half of the registers, their scale byte the sixth. Rows and chunks that do not exist must not be
// asked for: callers repeat one that does and drop the result.
__device__ __forceinline__ void load_row_chunk(u32 (&x)[8], const Args& args, i64 row, int group,
                                               int chunk, int q) {
  const int element = chunk * chunk_elements + q * 16;
  const bool is_there = depth % chunk_elements == 0 || element < depth;
  const auto load = [&](const u8* from) {
    return depth % chunk_elements == 0 ? load_16(from) : load_16_if(from, is_there);
  };
  if constexpr (x_format == x_codes_q8a) {
    const uint4 codes = load(args.x_codes + row * args.x_codes_stride0 +
                             group * args.x_codes_stride1 + element);
    x[0] = codes.x, x[1] = codes.y, x[2] = codes.z, x[3] = codes.w;
    x[4] = is_there ? args.x_scales[row * args.x_scales_stride0 + group * args.x_scales_stride1 +
                                    element / 32]
                    : 0;
  } else {
    const u8* from = reinterpret_cast<const u8*>(args.x + row * args.x_stride0 +
                                                 group * args.x_stride1 + element);
    const uint4 first = load(from);
    const uint4 second = load(from + 16);
    x[0] = first.x, x[1] = first.y, x[2] = first.z, x[3] = first.w;
    x[4] = second.x, x[5] = second.y, x[6] = second.z, x[7] = second.w;
  }
}

// What load_row_chunk brought, quantised and in slot order. All lanes of a warp call it.
__device__ __forceinline__ void prepare_row_chunk(u32 (&x)[8]) {
  if constexpr (x_format == x_codes_q8a) decode_row_codes(x, {x[0], x[1], x[2], x[3]}, x[4]);
  if constexpr (x_format == x_bf16_q8a) quantise_half_group(x);
#pragma unroll
  for (int s = 0; s < words_per_chunk; ++s) {
    const WordPairs ordered =
        in_slot_order<static_cast<SlotOrder>(slot_order)>(x[2 * s], x[2 * s + 1]);
    x[2 * s] = ordered.low;
    x[2 * s + 1] = ordered.high;
  }
}
