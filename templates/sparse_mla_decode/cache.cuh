// Rows of the paged caches F1 to F4 (ops.md B8) as a warp takes them: codes come by cp.async into a
// strip of shared memory that belongs to the warp, and leave it decoded, as tensor-core fragments.
//
//   F1  bs x 512 E4M3 codes            | bs x 16 UE8M0 scales, one per 32 elements
//   F2  bs x 256 bytes of E2M1 pairs   | bs x 32 E4M3 scales, one per 16 elements
//   F3  bs x (448 E4M3 codes, 64 bf16) | bs x 8 UE8M0 scales, one per 64 elements, the last unused
//   F4  bs x 512 bf16                  |
//
// A strip holds, for n-tile i (8 slots), chunk c (64 dims) and lane (g, t), the lane's 16 elements
// of slot 8i + g: 16 bytes of FP8, 8 of FP4, 32 of bf16 (two units of 16). After the codes of all
// warps stands one more unit per n-tile for F3, whose last chunk is bf16. The scales of the warp's
// dims lie in 8 bytes a slot.
#pragma once

#include "templates/common/decode.cuh"
#include "templates/common/shared.cuh"
#include "templates/sparse_mla_decode/layout.cuh"

enum : int { none = 0, F1 = 1, F2 = 2, F3 = 3, F4 = 4 };

constexpr int n_tiles = tile_slots / 8;

template <int format>
constexpr u32 row_bytes = format == F1   ? 512
                          : format == F2 ? 256
                          : format == F3 ? 576
                                         : 1024;
template <int format>
constexpr u32 scale_bytes = format == F1   ? 16
                            : format == F2 ? 32
                            : format == F3 ? 8
                                           : 0;

template <int format>
constexpr int unit_bytes = format == F2 ? 8 : 16;
template <int format>
constexpr int units_per_chunk = format == F4 ? 2 : 1;
template <int format>
constexpr int strip_bytes_of =
    format == none ? 0 : n_tiles* chunks* units_per_chunk<format>* unit_bytes<format>* warp_lanes;

__device__ constexpr int larger(int a, int b) { return a > b ? a : b; }
constexpr int strip_bytes =
    larger(strip_bytes_of<window_format>, strip_bytes_of<compressed_format>);
constexpr int scale_strip_bytes = tile_slots * 8;
constexpr int rope_bytes =
    window_format == F3 || compressed_format == F3 ? n_tiles * 16 * warp_lanes : 0;
constexpr int stage_bytes = warps * (strip_bytes + scale_strip_bytes) + rope_bytes;

// Scores and outputs of an FP4 row are formed from 2^-8 times its value, so that the bias of the
// codes and the scale are one factor that bf16 can hold. All of it is exact.
template <int format>
constexpr int unit_exponent = format == F2 ? 8 : 0;

// A warp's strip of one stage.
struct Strip {
  u32 codes;  // shared addresses
  u32 scales;
  u32 rope;
};

__device__ __forceinline__ Strip strip_of(u32 stage, int warp) {
  return {stage + warp * strip_bytes, stage + warps * strip_bytes + warp * scale_strip_bytes,
          stage + warps * (strip_bytes + scale_strip_bytes)};
}

// One list of slots of a row, and the cache that its slots point into.
struct List {
  const u8* cache;
  i64 page_stride;
  u32 page_size;
  u32 num_slots;
  const i32* slots;
  i32 len;  // columns that count
};

template <int format>
__device__ __forceinline__ bool is_rope_chunk(int warp, int chunk) {
  return format == F3 && chunk == chunks - 1 && warp == warps - 1;
}

// First byte of the scales that a warp copies, and where the scale of a lane's chunk stands in
// them.
template <int format>
__device__ __forceinline__ int scales_of_warp(int warp) {
  if constexpr (format == F1) return (warp * dims_per_warp / 32) & ~3;
  if constexpr (format == F2) return warp * dims_per_warp / 16;
  return (warp * dims_per_warp / 64) & ~3;
}

template <int format>
__device__ __forceinline__ int scale_of_chunk(int warp, int chunk, int t) {
  if constexpr (format == F1) return (warp * dims_per_warp / 32 & 3) + 2 * chunk + (t >> 1);
  if constexpr (format == F2) return 4 * chunk + t;
  return (warp * dims_per_warp / 64 & 3) + chunk;
}

// Requests the tile whose slot number `lane` (mod tile_slots) is `slot`, or -1. Returns which slots
// exist, one bit each.
template <int format>
__device__ __forceinline__ u32 request_tile(const List& list, i32 slot, const Strip& strip,
                                            int warp, int lane) {
  const int g = lane / 4;
  const int t = lane % 4;
  const bool exists = static_cast<u32>(slot) < list.num_slots;
  const u32 existing = __ballot_sync(all_lanes, exists);

  const u32 index = exists ? static_cast<u32>(slot) : 0;
  const u32 size = list.page_size;
  const u32 page = (size & (size - 1)) == 0 ? index >> (31 - __clz(size)) : index / size;
  const u32 entry = index - page * size;
  const u8* base = list.cache + static_cast<i64>(page) * list.page_stride;
  const u64 codes = reinterpret_cast<u64>(base + entry * row_bytes<format>);

  if constexpr (format != F4) {
    const u8* scales = base + static_cast<u64>(size) * row_bytes<format> +
                       entry * scale_bytes<format> + scales_of_warp<format>(warp);
    constexpr int copied = format == F2 && chunks == 2 ? 8 : 4;
    if (lane < tile_slots) copy_async<copied>(strip.scales + lane * 8, scales, exists);
  }
#pragma unroll
  for (int i = 0; i < n_tiles; ++i) {
    const int from = 8 * i + g;
    const u8* row = reinterpret_cast<const u8*>(__shfl_sync(all_lanes, codes, from));
    const bool row_exists = (existing >> from & 1) != 0;
#pragma unroll
    for (int c = 0; c < chunks; ++c) {
      const int first_dim = warp * dims_per_warp + c * chunk_dims;
      const u32 unit = strip.codes +
                       (i * chunks + c) * units_per_chunk<format> * unit_bytes<format> * warp_lanes;
      if (format == F4 || is_rope_chunk<format>(warp, c)) {
        // Four lanes copy 64 neighbouring bytes at a time: lane t the eight elements of its
        // neighbour.
        const u8* elements = format == F4 ? row + 2 * first_dim : row + first_dim;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int owner = 4 * g + 2 * half + (t >> 1);
          const u32 second =
              format == F4 ? unit + 16 * warp_lanes : strip.rope + i * 16 * warp_lanes;
          copy_async<16>(((t & 1) == 0 ? unit : second) + owner * 16, elements + 64 * half + 16 * t,
                         row_exists);
        }
      } else if constexpr (format == F2) {
        copy_async<8>(unit + lane * 8, row + first_dim / 2 + 8 * t, row_exists);
      } else {
        copy_async<16>(unit + lane * 16, row + first_dim + 16 * t, row_exists);
      }
    }
  }
  return existing;
}

// Elements of one tile as B fragments of the score product: [n-tile][k-tile][octet].
using KeyFragments = u32[n_tiles][k_tiles][octets];

// Bytes of `from` by selector; a digit with bit 3 takes eight copies of that byte's sign, which
// __byte_perm does not.
__device__ __forceinline__ i32 spread_bytes(u32 from, u32 selector) {
  i32 bytes;
  asm("prmt.b32 %0, %1, %1, %2;" : "=r"(bytes) : "r"(from), "r"(selector));
  return bytes;
}

// Codes of an octet stand in the upper byte of each half. Of the lower half, the byte above it
// holds copies of its sign, so that one arithmetic shift moves both halves.
__device__ __forceinline__ u32 e4m3_octet(u32 codes, u32 selector, u32 scale) {
  return multiply_bf16x2(static_cast<u32>(spread_bytes(codes, selector) >> 4) & 0x87f087f0u, scale);
}

__device__ __forceinline__ u32 e2m1_octet(u32 codes, u32 selector, u32 scale) {
  return multiply_bf16x2(static_cast<u32>(spread_bytes(codes, selector) >> 6) & 0x81c081c0u, scale);
}

// Largest UE8M0 byte whose scale times 2^120 is a bf16; beyond it a second factor follows.
constexpr u32 largest_fused_scale = 134;

__device__ __forceinline__ u32 fused_e4m3_scale(u32 byte) {
  return (min(byte, largest_fused_scale) + 120) * 0x00800080u;
}

// Two E4M3 scale bytes' worth: value * 2^118, in both halves.
__device__ __forceinline__ u32 fused_e2m1_scale(u32 byte) {
  const u32 raw = byte * 0x00100010u;  // value * 2^-120
  return multiply_bf16x2(multiply_bf16x2(raw, both_halves(0x7f00)), both_halves(0x7700));
}

template <int format>
__device__ __forceinline__ void decode_tile(KeyFragments& keys, const Strip& strip, int warp,
                                            int lane) {
  const int g = lane / 4;
  const int t = lane % 4;
#pragma unroll
  for (int i = 0; i < n_tiles; ++i) {
#pragma unroll
    for (int c = 0; c < chunks; ++c) {
      const u32 unit = strip.codes +
                       (i * chunks + c) * units_per_chunk<format> * unit_bytes<format> * warp_lanes;
      u32(&fragments)[k_tiles][octets] = keys[i];
      if (format == F4 || is_rope_chunk<format>(warp, c)) {
        const u32 second = format == F4 ? unit + 16 * warp_lanes : strip.rope + i * 16 * warp_lanes;
        const uint4 low = load_shared_16(unit + lane * 16);
        const uint4 high = load_shared_16(second + lane * 16);
        const u32 pairs[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
        for (int j = 0; j < k_tiles_per_chunk; ++j) {
          fragments[4 * c + j][0] = __byte_perm(pairs[2 * j], pairs[2 * j + 1], 0x7632);
          fragments[4 * c + j][1] = __byte_perm(pairs[2 * j], pairs[2 * j + 1], 0x5410);
        }
      } else {
        const u32 byte =
            load_shared_1(strip.scales + (8 * i + g) * 8 + scale_of_chunk<format>(warp, c, t));
        if constexpr (format == F2) {
          const u32 scale = fused_e2m1_scale(byte);
          const uint2 codes = load_shared_8(unit + lane * 8);
          const u32 words[2] = {codes.x, codes.y};
#pragma unroll
          for (int j = 0; j < k_tiles_per_chunk; ++j) {
            const u32 selector = j % 2 == 0 ? 0x1800 : 0x3a20;
            fragments[4 * c + j][0] = e2m1_octet(words[j / 2], selector, scale);
            fragments[4 * c + j][1] = e2m1_octet(words[j / 2] << 4, selector, scale);
          }
        } else {
          const u32 scale = fused_e4m3_scale(byte);
          const uint4 codes = load_shared_16(unit + lane * 16);
          const u32 words[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
          for (int j = 0; j < k_tiles_per_chunk; ++j) {
            fragments[4 * c + j][0] = e4m3_octet(words[j], 0x3910, scale);
            fragments[4 * c + j][1] = e4m3_octet(words[j], 0x2800, scale);
          }
        }
      }
    }
  }
  if constexpr (format == F1 || format == F3) {
    // Rows of huge values: a scale byte above 134 in any slot of the tile.
    const u32 bytes = load_shared_4(strip.scales + lane % tile_slots * 8);
    const u32 above = ((bytes & 0x7f7f7f7fu) + 0x79797979u) & bytes & 0x80808080u;
    if (__any_sync(all_lanes, above != 0)) {
#pragma unroll
      for (int i = 0; i < n_tiles; ++i) {
#pragma unroll
        for (int c = 0; c < chunks; ++c) {
          if (is_rope_chunk<format>(warp, c)) continue;
          const u32 byte =
              load_shared_1(strip.scales + (8 * i + g) * 8 + scale_of_chunk<format>(warp, c, t));
          const u32 factor =
              (max(byte, largest_fused_scale) - largest_fused_scale + 127) * 0x00800080u;
#pragma unroll
          for (int j = 4 * c; j < 4 * c + 4; ++j) {
            keys[i][j][0] = multiply_bf16x2(keys[i][j][0], factor);
            keys[i][j][1] = multiply_bf16x2(keys[i][j][1], factor);
          }
        }
      }
    }
  }
}
