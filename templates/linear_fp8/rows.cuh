// A lane's 16 elements of a row of x, quantised as x_format says, in slot order.
#pragma once

#include "templates/common/memory.cuh"
#include "templates/common/quantise.cuh"
#include "templates/linear_fp8/fragments.cuh"
#include "templates/linear_fp8/problem.cuh"

// Decodes pieces of 16 codes, four registers, with their scale byte in the fifth, into slot order.
// NaN codes and scales that one multiply cannot hold are rare and make all of the warp's pieces
// take the longer way.
template <int count>
__device__ __forceinline__ void decode_pieces(u32 (&pieces)[count][8]) {
  constexpr auto order = static_cast<SlotOrder>(slot_order);
  u32 nan_codes = 0;
  u32 largest_scale = 0;
#pragma unroll
  for (int i = 0; i < count; ++i) {
#pragma unroll
    for (int k = 0; k < 4; ++k) nan_codes |= (pieces[i][k] & 0x7f7f7f7fu) + 0x01010101u;
    largest_scale = max(largest_scale, pieces[i][4]);
  }
  const bool needs_care = (nan_codes & 0x80808080u) != 0 || largest_scale > largest_first_scale;
  if (__any_sync(all_lanes, needs_care)) {
#pragma unroll
    for (int i = 0; i < count; ++i) {
      const u32 scale = both_halves(ue8m0_to_bf16(pieces[i][4]));
      const u32 words[4] = {pieces[i][0], pieces[i][1], pieces[i][2], pieces[i][3]};
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const uint2 four = decode_e4m3x4(words[k], scale);
        const WordPairs ordered = in_slot_order<order>(four.x, four.y);
        pieces[i][2 * k] = ordered.low;
        pieces[i][2 * k + 1] = ordered.high;
      }
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < count; ++i) {
    const u32 factor = first_e4m3_factor(pieces[i][4]);
    const u32 words[4] = {pieces[i][0], pieces[i][1], pieces[i][2], pieces[i][3]};
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const WordPairs pairs = decode_weights<checkpoint, order>(words[k], factor);
      pieces[i][2 * k] = pairs.low;
      pieces[i][2 * k + 1] = pairs.high;
    }
  }
}

// Q8a on pieces of 16 elements; a group of 32 is those of two neighbouring lanes. Groups that need
// care are rare and make all of the warp's pieces take the longer way, so that the usual one has no
// branches.
template <int count>
__device__ __forceinline__ void quantise_half_groups(u32 (&pieces)[count][8]) {
  u32 largest[count];
  u32 largest_of_all = 0;
#pragma unroll
  for (int i = 0; i < count; ++i) {
    largest[i] = largest_magnitude(pieces[i]);
    largest[i] = max_or_nan_bf16x2(largest[i], __shfl_xor_sync(all_lanes, largest[i], 1));
    largest_of_all = max_or_nan_bf16x2(largest_of_all, largest[i]);
  }
  if (__any_sync(all_lanes, larger_half(largest_of_all) >= least_magnitude_with_care)) {
#pragma unroll
    for (int i = 0; i < count; ++i) round_to_grid(pieces[i], q8a_grid(larger_half(largest[i])));
    return;
  }
#pragma unroll
  for (int i = 0; i < count; ++i) {
    const u32 least_power = q8a_least_power(largest[i]);
#pragma unroll
    for (int k = 0; k < 8; ++k)
      pieces[i][k] = round_to_grid(pieces[i][k], least_power, 0xc1c0c1c0u);
  }
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
    const uint4 codes =
        load(args.x_codes + row * args.x_codes_stride0 + group * args.x_codes_stride1 + element);
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
template <int count>
__device__ __forceinline__ void prepare_pieces(u32 (&pieces)[count][8]) {
  if constexpr (x_format == x_codes_q8a) {
    decode_pieces(pieces);
  } else {
    if constexpr (x_format == x_bf16_q8a) quantise_half_groups(pieces);
#pragma unroll
    for (int i = 0; i < count; ++i) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        constexpr auto order = static_cast<SlotOrder>(slot_order);
        const WordPairs ordered = in_slot_order<order>(pieces[i][2 * k], pieces[i][2 * k + 1]);
        pieces[i][2 * k] = ordered.low;
        pieces[i][2 * k + 1] = ordered.high;
      }
    }
  }
}
