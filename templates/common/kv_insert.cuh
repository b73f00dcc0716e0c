// Rows of 512 bf16 into a paged KV cache: RMSNorm where it is asked for, RoPE on the last 64
// elements, then the quantiser, then the page layout (ops.md B3, B5, B4, B8). Shared by the ops
// that write F1 to F4.
//
//   F1  bs x 512 E4M3 codes            | bs x 16 UE8M0 scales, one per 32 elements
//   F2  bs x 256 bytes of E2M1 pairs   | bs x 32 E4M3 scales, one per 16 elements
//   F3  bs x (448 E4M3 codes, 64 bf16) | bs x 8 UE8M0 scales, one per 64 elements, the last 0
//   F4  bs x 512 bf16                  |
//
// A row is a warp: each lane has 8 elements of its first half and 8 of its second, so that all
// rotated ones are second pieces, of the last 8 lanes. Stores are at most 8 bytes wide where pages
// are only aligned to 8.
#pragma once

#include "templates/common/memory.cuh"
#include "templates/common/norm.cuh"
#include "templates/common/pages.cuh"
#include "templates/common/quantise_group.cuh"
#include "templates/common/rope.cuh"
#include "templates/common/types.cuh"

enum KvLayout : int { F1 = 1, F2 = 2, F3 = 3, F4 = 4 };

constexpr int kv_columns_of_row = 512;
constexpr u32 second_piece = 256;  // columns behind the first of a lane
constexpr u32 first_rope_column = 448;
constexpr u32 first_rope_lane = (first_rope_column - second_piece) / 8;

struct KvRows {
  const u16* x;
  i64 x_stride;
  const u16* weight;  // of the norm, if there is one
  const i32* positions;
  const i64* slots;
  const float* table;
  i64 table_stride;
  i64 num_positions;
  i64 rows;
  u8* cache;
  i64 page_stride;
  i64 page_size;
  i64 num_pages;
};

// What a lane has loaded of one row.
struct KvPart {
  Piece pieces[2];
  RopeAngles angles;  // where the second piece rotates
  bool rotates;
  EntryPlace place;
  bool is_written;
};

__device__ __forceinline__ void store_bf16x8(u8* to, const u32 (&pairs)[4], bool allows_16_bytes) {
  if (allows_16_bytes) {
    store_16(to, {pairs[0], pairs[1], pairs[2], pairs[3]});
  } else {
    reinterpret_cast<uint2*>(to)[0] = {pairs[0], pairs[1]};
    reinterpret_cast<uint2*>(to)[1] = {pairs[2], pairs[3]};
  }
}

template <int layout, int quantiser>
__device__ __forceinline__ void store_piece(const KvRows& kv, const EntryPlace& place,
                                            const Piece& piece, const Quantised& q, u32 column,
                                            bool allows_16_bytes) {
  constexpr u32 row_bytes = layout == F1 ? 512 : layout == F2 ? 256 : layout == F3 ? 576 : 1024;
  constexpr u32 scale_bytes = layout == F1 ? 16 : layout == F2 ? 32 : 8;
  u8* page = kv.cache + static_cast<i64>(place.page) * kv.page_stride;
  u8* row = page + static_cast<u64>(place.entry) * row_bytes;
  if constexpr (layout == F4) {
    store_bf16x8(row + 2 * column, q.fake, allows_16_bytes);
    return;
  }
  u8* scales = page + static_cast<u64>(kv.page_size) * row_bytes +
               static_cast<u64>(place.entry) * scale_bytes;
  constexpr u32 group = group_of(quantiser);
  const bool is_tail = layout == F3 && column >= first_rope_column;
  if (column % group == 0) scales[column / group] = is_tail ? 0 : static_cast<u8>(q.scale);
  const uint2 codes = q.codes;
  if constexpr (layout == F2) {
    *reinterpret_cast<u32*>(row + column / 2) = codes.x;
  } else if (is_tail) {
    store_bf16x8(row + first_rope_column + 2 * (column - first_rope_column), piece.pairs,
                 allows_16_bytes);
  } else {
    *reinterpret_cast<uint2*>(row + column) = codes;
  }
}

__device__ __forceinline__ void normalise(KvPart& part, const Piece (&weights)[2]) {
  float squares[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const u32(&x)[4] = part.pieces[half].pairs;
    squares[half] = sum_of_squares({x[0], x[1], x[2], x[3]});
  }
  const float factor =
      norm_factor<kv_columns_of_row>(sum_of_row<warp_lanes>(squares, nullptr, lane_id(), 0));
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      u32& pair = part.pieces[half].pairs[j];
      pair = normalised(pair, weights[half].pairs[j], factor);
    }
  }
}

// grid  (ceil(rows / (threads / 32 * rows_per_thread)))   block (threads)   shared: none
// Rows rotate by the first position of their group of `ratio`.
template <int layout, int quantiser, bool has_norm, int ratio, int threads, int rows_per_thread>
__device__ __forceinline__ void insert_kv_rows(const KvRows& kv) {
  constexpr int rows_at_once = threads / warp_lanes;
  const u32 lane = static_cast<u32>(lane_id());
  const u32 column = lane * 8;
  const i64 first = static_cast<i64>(blockIdx.x) * (rows_at_once * rows_per_thread) + warp_id();

  Piece weights[2] = {};
  if constexpr (has_norm) {
    weights[0] = load_piece(kv.weight + column);
    weights[1] = load_piece(kv.weight + column + second_piece);
  }
  i64 slots[rows_per_thread];
  i32 positions[rows_per_thread];
  KvPart parts[rows_per_thread];
#pragma unroll
  for (int i = 0; i < rows_per_thread; ++i) {
    const i64 row = min(first + i * rows_at_once, kv.rows - 1);
    const u16* x = kv.x + row * kv.x_stride + column;
#pragma unroll
    for (int half = 0; half < 2; ++half)
      parts[i].pieces[half] = load_piece(x + half * second_piece);
    slots[i] = kv.slots[row];
    positions[i] = kv.positions[row];
  }
#pragma unroll
  for (int i = 0; i < rows_per_thread; ++i) {
    KvPart& part = parts[i];
    const u32 loaded = part.pieces[0].pairs[0] ^ part.pieces[1].pairs[0] ^ weights[0].pairs[0];
    const bool has_slot = find_slot(tied_to(slots[i], loaded ^ weights[1].pairs[0], kv.rows),
                                    kv.page_size, kv.num_pages, part.place);
    part.is_written = has_slot && first + i * rows_at_once < kv.rows;
    part.rotates = lane >= first_rope_lane && part.is_written && positions[i] >= 0 &&
                   positions[i] < kv.num_positions;
    if (part.rotates) {
      const i32 position = positions[i] - positions[i] % ratio;
      part.angles = load_rope_angles(kv.table + position * kv.table_stride,
                                     static_cast<int>(lane - first_rope_lane));
    }
  }
  const bool allows_16_bytes =
      ((reinterpret_cast<u64>(kv.cache) | static_cast<u64>(kv.page_stride)) & 15) == 0;
#pragma unroll
  for (int i = 0; i < rows_per_thread; ++i) {
    KvPart& part = parts[i];
    if constexpr (has_norm) {
      normalise(part, weights);
    }
    // The first half is done while the angles are on their way.
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      Piece& piece = part.pieces[half];
      if (half == 1 && part.rotates) rotate<false>(piece.pairs, part.angles);
      const Quantised q = quantise<quantiser>(piece);
      if (part.is_written)
        store_piece<layout, quantiser>(kv, part.place, piece, q, column + half * second_piece,
                                       allows_16_bytes);
    }
  }
}
