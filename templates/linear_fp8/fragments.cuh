// How a lane holds weights and activations, the same in every kernel of this op.
//
// K goes in chunks of 64, the last one filled up with zeros where K is an odd multiple of 32. Of a
// chunk, lane l = 4 g + q holds the elements 16 q .. 16 q + 15 of row g (of eight): 16 bytes of
// weights, word s of which are the elements 16 q + 4 s .. 16 q + 4 s + 3, and 32 bytes of x. The
// mma number s of a chunk (s = 0..3) takes word s of every lane: its k are the 16 elements
// 16 q + 4 s + 0..3 of the four q. So 16-byte loads feed the mma without a shuffle, and lanes with
// q < 2 need the scale of the chunk's first 32 elements only, the others that of the second.
//
// Eight rows of a chunk are a block of 512 bytes in shared memory, lane l's 16 bytes at 16 l. That
// is eight rows of 64 bytes in the checkpoint layout; the packed layout holds such blocks one after
// another, [N / 8][K / 64] (pack_weights draws their words).
//
// slot_order says which elements of a word share a register: `natural` 0 1 | 2 3 or `paired`
// 0 2 | 1 3, which costs fewer instructions to decode from the checkpoint layout.
#pragma once

#include "templates/common/decode.cuh"
#include "templates/common/types.cuh"

constexpr int chunk_elements = 64;
constexpr int words_per_chunk = 4;  // of weights, per lane
constexpr int block_rows = 8;
constexpr int block_bytes = block_rows * chunk_elements;

enum SlotOrder : int { natural = 0, paired = 1 };
enum WeightLayout : int { checkpoint = 0, packed = 1 };

struct WordPairs {
  u32 low;   // k slots 2q, 2q + 1 of the mma
  u32 high;  // k slots 2q + 8, 2q + 9
};

// Codes in the upper byte of each half, lower bytes anything.
__device__ __forceinline__ u32 raw_from_upper(u32 codes) {
  return ((codes >> 4) & 0x07f007f0u) | (codes & 0x80008000u);
}
__device__ __forceinline__ u32 raw_from_lower(u32 codes) {
  return ((codes << 4) & 0x07f007f0u) | ((codes << 8) & 0x80008000u);
}

template <WeightLayout layout, SlotOrder order>
__device__ __forceinline__ WordPairs raw_pairs(u32 word) {
  static_assert(layout == checkpoint || order == natural);
  if constexpr (layout == packed) {
    // Low pair in its final place; of the high pair each half has the sign at bit 11, the upper
    // three magnitude bits at 12..14 and the lower four at 0..3.
    return {word & 0x87f087f0u, ((word << 4) & 0x80f080f0u) | ((word >> 4) & 0x07000700u)};
  } else if constexpr (order == paired) {
    return {raw_from_lower(word), raw_from_upper(word)};
  } else {
    return {raw_from_upper(__byte_perm(word, 0, 0x1404)),
            raw_from_upper(__byte_perm(word, 0, 0x3424))};
  }
}

template <WeightLayout layout, SlotOrder order>
__device__ __forceinline__ WordPairs decode_weights(u32 word, u32 factor) {
  const WordPairs raw = raw_pairs<layout, order>(word);
  return {multiply_bf16x2(raw.low, factor), multiply_bf16x2(raw.high, factor)};
}

// Four elements of x, two registers in natural order, into slot order.
template <SlotOrder order>
__device__ __forceinline__ WordPairs in_slot_order(u32 first, u32 second) {
  if constexpr (order == natural) return {first, second};
  return {__byte_perm(first, second, 0x5410), __byte_perm(first, second, 0x7632)};
}
