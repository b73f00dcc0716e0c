// Rows of the paged caches F1 to F4 (ops.md B8) as a warp takes them: codes come by cp.async into a
// strip of shared memory that belongs to the warp, and leave it decoded, as tensor-core fragments.
//
//   F1  bs x 512 E4M3 codes            | bs x 16 UE8M0 scales, one per 32 elements
//   F2  bs x 256 bytes of E2M1 pairs   | bs x 32 E4M3 scales, one per 16 elements
//   F3  bs x (448 E4M3 codes, 64 bf16) | bs x 8 UE8M0 scales, one per 64 elements, the last unused
//   F4  bs x 512 bf16                  |
//
// Lane = 4 * g + t throughout. A warp owns dims_per_warp of the 512 dims, in chunks of 64. Of a
// chunk, lane t owns the 16 dims 16t .. 16t + 15, and k-tile j of the chunk takes from it the four
// dims 4j + {1, 3} (its "odd" octet) and 4j + {0, 2} (its "even" octet): the order in which FP8 and
// FP4 codes unpack with the fewest instructions. Scores sum over dims, so any order serves as long
// as queries use the same; outputs come out in the same order, and a lane ends up with 16
// neighbouring columns of its heads.
//
// A strip holds, for n-tile i (8 slots), chunk c (64 dims) and lane (g, t), the lane's 16 elements
// of slot 8i + g: 16 bytes of FP8, 8 of FP4, 32 of bf16 (two units of 16). After the codes of all
// warps stands one more unit per n-tile for F3, whose last chunk is bf16. The scales of the warp's
// dims lie in 4 or 8 bytes a slot, slot 8i + g at g * n_tiles + i, so that a lane finds those of
// its slots side by side.
#pragma once

#include "templates/common/decode.cuh"
#include "templates/common/shared.cuh"
#include "templates/sparse_mla_decode/layout.cuh"

enum : int { none = 0, F1 = 1, F2 = 2, F3 = 3, F4 = 4 };

constexpr int n_tiles = tile_slots / 8;
constexpr int dims_per_warp = head_dim / warps;
constexpr int chunks = dims_per_warp / chunk_dims;
constexpr int k_tiles = dims_per_warp / 16;
constexpr int k_tiles_per_chunk = 4;
constexpr int octets = 2;  // of a k-tile: odd, even

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
// Of a slot and a warp.
template <int format>
constexpr int copied_scale_bytes = format == F2&& chunks == 2 ? 8 : 4;
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
// them (of F2 it is byte t of word `chunk`).
template <int format>
__device__ __forceinline__ int scales_of_warp(int warp) {
  if constexpr (format == F1) return (warp * dims_per_warp / 32) & ~3;
  if constexpr (format == F2) return warp * dims_per_warp / 16;
  return (warp * dims_per_warp / 64) & ~3;
}

template <int format>
__device__ __forceinline__ int scale_of_chunk(int warp, int chunk, int t) {
  if constexpr (format == F1) return (warp * dims_per_warp / 32 & 3) + 2 * chunk + (t >> 1);
  return (warp * dims_per_warp / 64 & 3) + chunk;
}

// Where the entry of a column stands: computed once for all warps, as a page takes a division.
struct Place {
  u64 codes;
  i32 to_scales;  // from there
  bool exists;
};

// Where there is no slot, as many bytes of an entry are read from `readable`.
__device__ __forceinline__ Place place_of(const List& list, u32 row, u32 scales, i32 slot,
                                          const void* readable) {
  const bool exists = static_cast<u32>(slot) < list.num_slots;
  const u32 index = exists ? static_cast<u32>(slot) : 0;
  const u32 size = list.page_size;
  const u32 page = (size & (size - 1)) == 0 ? index >> (31 - __clz(size)) : index / size;
  const u32 entry = index - page * size;
  const u64 codes =
      reinterpret_cast<u64>(list.cache) + static_cast<i64>(page) * list.page_stride + entry * row;
  return {exists ? codes : reinterpret_cast<u64>(readable),
          exists ? static_cast<i32>(size * row + entry * scales - entry * row) : 0, exists};
}

__device__ __forceinline__ void store_place(u32 to, const Place& place) {
  store_shared_16(to, {static_cast<u32>(place.codes), static_cast<u32>(place.codes >> 32),
                       static_cast<u32>(place.to_scales), 0});
}

struct PlaceOfCodes {
  u64 codes;
  i32 to_scales;
};

__device__ __forceinline__ PlaceOfCodes load_place(u32 from) {
  const uint4 words = load_shared_16(from);
  return {words.x | static_cast<u64>(words.y) << 32, static_cast<i32>(words.z)};
}

__device__ __forceinline__ u64 load_place_of_codes(u32 from) {
  const uint2 words = load_shared_8(from);
  return words.x | static_cast<u64>(words.y) << 32;
}

// Whether all places of a tile are read before the first request: shorter, but takes registers.
enum class Order { scales_first, places_first };

// Requests the tile whose slots have their places at `places`.
template <int format, Order order = Order::scales_first>
__device__ __forceinline__ void request_tile(u32 places, const Strip& strip, int warp, int lane) {
  const int g = lane / 4;
  const int t = lane % 4;
  const bool copies_scales = format != F4 && (tile_slots == warp_lanes || lane < tile_slots);
  PlaceOfCodes place{};
  if (copies_scales) place = load_place(places + lane * 16);
  const auto copy_scales = [&] {
    if (!copies_scales) return;
    constexpr int bytes = copied_scale_bytes<format>;
    copy_async<bytes>(strip.scales + (lane % 8 * n_tiles + lane / 8) * bytes,
                      place.codes + place.to_scales + scales_of_warp<format>(warp));
  };
  if constexpr (order == Order::scales_first) copy_scales();
  if constexpr (format == F2) {
    // Neighbouring lanes take neighbouring units of 16 bytes, of which a chunk has two.
    constexpr int units = 2 * chunks;
    constexpr int slots_at_once = warp_lanes / units;
    const int unit = lane % units;
    const int first_byte = warp * dims_per_warp / 2 + unit * 16;
    constexpr int rounds = tile_slots / slots_at_once;
    u64 codes[rounds];
#pragma unroll
    for (int i = 0; i < rounds; ++i)
      codes[i] = load_place_of_codes(places + (i * slots_at_once + lane / units) * 16);
    if constexpr (order == Order::places_first) copy_scales();
#pragma unroll
    for (int i = 0; i < rounds; ++i) {
      const int slot = i * slots_at_once + lane / units;
      const u32 to =
          strip.codes + (slot / 8 * chunks + unit / 2) * 256 + slot % 8 * 32 + unit % 2 * 16;
      copy_async<16>(to, codes[i] + first_byte);
    }
  } else {
    u64 codes[n_tiles];
#pragma unroll
    for (int i = 0; i < n_tiles; ++i) codes[i] = load_place_of_codes(places + (8 * i + g) * 16);
    if constexpr (order == Order::places_first) copy_scales();
#pragma unroll
    for (int i = 0; i < n_tiles; ++i) {
#pragma unroll
      for (int c = 0; c < chunks; ++c) {
        const int first_dim = warp * dims_per_warp + c * chunk_dims;
        const u32 unit = strip.codes + (i * chunks + c) * units_per_chunk<format> * 16 * warp_lanes;
        if (format == F4 || is_rope_chunk<format>(warp, c)) {
          // Four lanes copy 64 neighbouring bytes at a time: lane t the eight elements of its
          // neighbour.
          const u64 elements = codes[i] + (format == F4 ? 2 * first_dim : first_dim);
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const int owner = 4 * g + 2 * half + (t >> 1);
            const u32 second =
                format == F4 ? unit + 16 * warp_lanes : strip.rope + i * 16 * warp_lanes;
            copy_async<16>(((t & 1) == 0 ? unit : second) + owner * 16,
                           elements + 64 * half + 16 * t);
          }
        } else {
          copy_async<16>(unit + lane * 16, codes[i] + first_dim + 16 * t);
        }
      }
    }
  }
}

// Elements of one tile as B fragments of the score product: [n-tile][k-tile][octet].
using KeyFragments = u32[n_tiles][k_tiles][octets];

// Bytes of `from` by selector; a digit with bit 3 takes eight copies of that byte's sign, which
// __byte_perm does not.
__device__ __forceinline__ u32 spread_bytes(u32 from, u32 selector) {
  u32 bytes;
  asm("prmt.b32 %0, %1, %1, %2;" : "=r"(bytes) : "r"(from), "r"(selector));
  return bytes;
}

// Codes of an octet stand in the lower byte of each half, copies of their signs above them: moved
// up, exponent and mantissa are where bf16 has them, and one mask leaves one copy of the sign. A
// move up is a multiply, of which the FMA pipe has more to give than the integer pipe of shifts.
__device__ __forceinline__ u32 e4m3_octet(u32 codes, u32 selector, u32 scale) {
  return multiply_bf16x2(spread_bytes(codes, selector) * 16 & 0x87f087f0u, scale);
}

// Of codes in the upper half of each byte.
__device__ __forceinline__ u32 e2m1_octet(u32 codes, u32 selector, u32 scale) {
  return multiply_bf16x2(spread_bytes(codes, selector) * 4 & 0x81c081c0u, scale);
}

// Two E4M3 scale bytes' worth: value * 2^118, in both halves.
__device__ __forceinline__ u32 fused_e2m1_scale(u32 byte) {
  const u32 raw = byte * 0x00100010u;  // value * 2^-120
  return multiply_bf16x2(multiply_bf16x2(raw, both_halves(0x7f00)), both_halves(0x7700));
}

// A lane's codes of one tile, and the scale bytes of its slots.
template <int format>
constexpr int code_words = format == F2   ? 2
                           : format == F4 ? 8
                                          : 4;
constexpr int words_of_chunk = larger(code_words<window_format>, code_words<compressed_format>);
template <int format>
constexpr int scale_words = copied_scale_bytes<format> / 4;

constexpr int rope_rows = rope_bytes > 0 ? n_tiles : 1;

struct RawTile {
  u32 codes[n_tiles][chunks][words_of_chunk];
  u32 rope[rope_rows][4];  // of the rope chunk of F3, the upper half
  u32 scales[n_tiles * 2];
};

__device__ __forceinline__ void load_words(u32 (&words)[4], u32 from) {
  const uint4 four = load_shared_16(from);
  words[0] = four.x, words[1] = four.y, words[2] = four.z, words[3] = four.w;
}

// Codes of FP8 and FP4 are finite whatever they are; bf16 and scales might not be, and are cleared
// where there is no slot.
constexpr u32 all_slots = tile_slots == 32 ? all_lanes : (1u << tile_slots % 32) - 1;

__device__ __forceinline__ bool is_missing(u32 existing, int i, int lane) {
  return (existing >> (8 * i + lane / 4) & 1) == 0;
}

template <int format>
__device__ __forceinline__ void load_scales(RawTile& raw, const Strip& strip, u32 existing,
                                            int lane) {
  if constexpr (format == F4) return;
  constexpr int words = n_tiles * scale_words<format>;
  const u32 from = strip.scales + lane / 4 * words * 4;
  if constexpr (words == 2) {
    const uint2 pair = load_shared_8(from);
    raw.scales[0] = pair.x, raw.scales[1] = pair.y;
  } else {
#pragma unroll
    for (int i = 0; i < words; i += 4) {
      const uint4 four = load_shared_16(from + i * 4);
      raw.scales[i] = four.x, raw.scales[i + 1] = four.y;
      raw.scales[i + 2] = four.z, raw.scales[i + 3] = four.w;
    }
  }
  if (existing == all_slots) return;
#pragma unroll
  for (int word = 0; word < words; ++word) {
    if (is_missing(existing, word / scale_words<format>, lane)) raw.scales[word] = 0;
  }
}

// Of chunk c.
template <int format>
__device__ __forceinline__ void load_codes(RawTile& raw, const Strip& strip, u32 existing, int c,
                                           bool is_rope, int lane) {
#pragma unroll
  for (int i = 0; i < n_tiles; ++i) {
    const u32 unit =
        strip.codes + (i * chunks + c) * units_per_chunk<format> * unit_bytes<format> * warp_lanes;
    u32(&codes)[words_of_chunk] = raw.codes[i][c];
    if constexpr (format == F2) {
      const uint2 two = load_shared_8(unit + lane * 8);
      codes[0] = two.x, codes[1] = two.y;
    } else {
      const uint4 four = load_shared_16(unit + lane * 16);
      codes[0] = four.x, codes[1] = four.y, codes[2] = four.z, codes[3] = four.w;
    }
    if constexpr (format == F4) {
      const uint4 four = load_shared_16(unit + 16 * warp_lanes + lane * 16);
      codes[4] = four.x, codes[5] = four.y, codes[6] = four.z, codes[7] = four.w;
    }
  }
  if (format == F3 && is_rope) {
#pragma unroll
    for (int i = 0; i < n_tiles; ++i)
      load_words(raw.rope[i % rope_rows], strip.rope + (i * warp_lanes + lane) * 16);
  }
  if (format != F4 && !is_rope) return;
  if (existing == all_slots) return;
#pragma unroll
  for (int i = 0; i < n_tiles; ++i) {
    if (!is_missing(existing, i, lane)) continue;
#pragma unroll
    for (int word = 0; word < words_of_chunk; ++word) raw.codes[i][c][word] = 0;
#pragma unroll
    for (int word = 0; word < 4; ++word) raw.rope[i % rope_rows][word] = 0;
  }
}

// Rows of huge values: a scale byte above 134 in any slot of the tile.
template <int format>
__device__ __forceinline__ bool has_huge_scales(const RawTile& raw) {
  if constexpr (format != F1 && format != F3) return false;
  u32 above = 0;
#pragma unroll
  for (int i = 0; i < n_tiles; ++i)
    above |= ((raw.scales[i] & 0x7f7f7f7fu) + 0x79797979u) & raw.scales[i];
  return __any_sync(all_lanes, (above & 0x80808080u) != 0);
}

// The byte of chunk c of n-tile i.
template <int format>
__device__ __forceinline__ u32 scale_byte(const RawTile& raw, int i, int c, int warp, int t) {
  if constexpr (format == F2)
    return __byte_perm(raw.scales[i * scale_words<format> + c], 0, 0x4440 | t);
  return __byte_perm(raw.scales[i], 0, 0x4440 | scale_of_chunk<format>(warp, c, t));
}

using ChunkScales = u32[n_tiles];

template <int format>
__device__ __forceinline__ void chunk_scales(ChunkScales& scales, const RawTile& raw, int c,
                                             int warp, int t) {
#pragma unroll
  for (int i = 0; i < n_tiles; ++i) {
    if constexpr (format == F2)
      scales[i] = fused_e2m1_scale(scale_byte<format>(raw, i, c, warp, t));
    if constexpr (format == F1 || format == F3)
      scales[i] =
          first_e4m3_factor(min(scale_byte<format>(raw, i, c, warp, t), largest_first_scale));
  }
}

// k-tile j of chunk c, of all slots.
template <int format, bool huge_scales>
__device__ __forceinline__ void decode_k_tile(KeyFragments& keys, const RawTile& raw,
                                              const ChunkScales& scales, int c, int j, bool is_rope,
                                              int warp, int t) {
#pragma unroll
  for (int i = 0; i < n_tiles; ++i) {
    u32(&fragment)[octets] = keys[i][k_tiles_per_chunk * c + j];
    const u32(&codes)[words_of_chunk] = raw.codes[i][c];
    if (format == F4 || is_rope) {
      u32 pair[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int word = 2 * j + e;
        pair[e] = word < 4       ? codes[word]
                  : format == F4 ? codes[word % words_of_chunk]
                                 : raw.rope[i % rope_rows][word - 4];
      }
      fragment[0] = __byte_perm(pair[0], pair[1], 0x7632);
      fragment[1] = __byte_perm(pair[0], pair[1], 0x5410);
    } else if constexpr (format == F2) {
      const u32 selector = j % 2 == 0 ? 0x9180 : 0xb3a2;
      fragment[0] = e2m1_octet(codes[j / 2], selector, scales[i]);
      fragment[1] = e2m1_octet(codes[j / 2] * 16, selector, scales[i]);
    } else {
      fragment[0] = e4m3_octet(codes[j % 4], 0xb391, scales[i]);
      fragment[1] = e4m3_octet(codes[j % 4], 0xa280, scales[i]);
      if constexpr (huge_scales) {
        const u32 rest = second_e4m3_factor(scale_byte<format>(raw, i, c, warp, t));
        fragment[0] = multiply_bf16x2(fragment[0], rest);
        fragment[1] = multiply_bf16x2(fragment[1], rest);
      }
    }
  }
}
