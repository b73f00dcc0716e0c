// The page layouts F1 to F4 (ops.md B8): where a lane finds the 16 elements that it decodes, and
// how.
//
//   F1  bs x 512 E4M3 codes            | bs x 16 UE8M0 scales, one per 32 elements
//   F2  bs x 256 bytes of E2M1 pairs   | bs x 32 E4M3 scales, one per 16 elements
//   F3  bs x (448 E4M3 codes, 64 bf16) | bs x 8 UE8M0 scales, one per 64 elements, the last unused
//   F4  bs x 512 bf16                  |
//
// Half h of a lane is the elements 256 * h + 8 * lane .. + 7. Loads are at most 8 bytes wide, so
// that pages need 8-byte alignment only; F4 takes 16 bytes at a time where its pages allow it.
#pragma once

#include "kiln_constants.h"
#include "templates/common/decode.cuh"
#include "templates/common/memory.cuh"
#include "templates/common/types.cuh"

enum : int { F1 = 1, F2 = 2, F3 = 3, F4 = 4 };

constexpr u32 row_bytes = format == F1 ? 512 : format == F2 ? 256 : format == F3 ? 576 : 1024;
constexpr u32 scale_bytes_per_entry = format == F1 ? 16 : format == F2 ? 32 : format == F3 ? 8 : 0;
constexpr int group_elements = format == F1 ? 32 : format == F2 ? 16 : 64;
constexpr int first_rope_lane_of_f3 =
    (448 - 256) / 8;  // from here on the second half of a row is bf16

// What all pages have in common; the same for every thread.
struct PageLayout {
  u32 scales_offset;
  bool allows_16_bytes;  // of F4: every row starts at a multiple of 16

  __device__ PageLayout(const u8* cache, i64 page_stride, i64 page_size)
      : scales_offset(static_cast<u32>(page_size) * row_bytes),
        allows_16_bytes(((reinterpret_cast<u64>(cache) | static_cast<u64>(page_stride)) & 15) ==
                        0) {}
};

struct RawRow {
  uint4 codes[2];  // 16, 8 or 4 bytes of each are used
  u32 scale[2];    // the group's byte
};

// A lane of F3 whose second half is bf16. Such lanes take the same path as the others, with one
// more load: no warp diverges.
__device__ __forceinline__ bool is_rope_lane(int half, int lane) {
  return format == F3 && half == 1 && lane >= first_rope_lane_of_f3;
}

__device__ __forceinline__ uint4 load_bf16x8(const u8* p, const PageLayout& layout) {
  if (layout.allows_16_bytes) return load_16(p);
  const uint2 low = load_stream_8(p);
  const uint2 high = load_stream_8(p + 8);
  return {low.x, low.y, high.x, high.y};
}

__device__ __forceinline__ RawRow load_row(const u8* page, u32 entry, const PageLayout& layout,
                                           int lane) {
  const u8* codes = page + entry * row_bytes;
  const u8* scales = page + layout.scales_offset + entry * scale_bytes_per_entry;
  RawRow raw;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int element = half * 256 + lane * 8;
    if constexpr (format == F4) {
      raw.codes[half] = load_bf16x8(codes + 2 * element, layout);
    } else if constexpr (format == F2) {
      raw.codes[half].x = load_stream_4(codes + element / 2);
      raw.scale[half] = load_stream_1(scales + element / group_elements);
    } else {
      const bool rope = is_rope_lane(half, lane);
      const u8* eight_codes = codes + (rope ? 448 + 2 * (element - 448) : element);
      const uint2 low = load_stream_8(eight_codes);
      raw.codes[half].x = low.x;
      raw.codes[half].y = low.y;
      if (rope) {
        const uint2 high = load_stream_8(eight_codes + 8);
        raw.codes[half].z = high.x;
        raw.codes[half].w = high.y;
      }
      raw.scale[half] = load_stream_1(scales + element / group_elements);
    }
  }
  return raw;
}

// Eight elements as bf16.
__device__ __forceinline__ uint4 decode_half(const RawRow& raw, int half, int lane) {
  const uint4 codes = raw.codes[half];
  if constexpr (format == F4) {
    return codes;
  } else if constexpr (format == F2) {
    return decode_e2m1x8(codes.x, both_halves(e4m3_to_bf16(raw.scale[half])));
  } else {
    const u32 scale = both_halves(ue8m0_to_bf16(raw.scale[half]));
    const bool rope = is_rope_lane(half, lane);
    const uint2 low =
        decode_e4m3x4(rope ? 0 : codes.x, scale);  // bf16 bytes would look like NaN codes
    const uint2 high = decode_e4m3x4(rope ? 0 : codes.y, scale);
    return rope ? codes : uint4{low.x, low.y, high.x, high.y};
  }
}
