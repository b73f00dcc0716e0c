// Rows of 512 bf16 into a paged KV cache: RMSNorm where it is asked for, RoPE on the last 64
// elements, then the quantiser, then the page layout (ops.md B3, B5, B4, B8). Shared by the ops
// that write F1 to F4.
//
//   F1  bs x 512 E4M3 codes            | bs x 16 UE8M0 scales, one per 32 elements
//   F2  bs x 256 bytes of E2M1 pairs   | bs x 32 E4M3 scales, one per 16 elements
//   F3  bs x (448 E4M3 codes, 64 bf16) | bs x 8 UE8M0 scales, one per 64 elements, the last 0
//   F4  bs x 512 bf16                  |
//
// A row is 64 lanes of 8 elements; the last 8 lanes rotate. Stores are at most 8 bytes wide where
// pages are only aligned to 8.
#pragma once

#include "templates/common/memory.cuh"
#include "templates/common/norm.cuh"
#include "templates/common/pages.cuh"
#include "templates/common/quantise_group.cuh"
#include "templates/common/rope.cuh"
#include "templates/common/types.cuh"

enum KvLayout : int { F1 = 1, F2 = 2, F3 = 3, F4 = 4 };

constexpr int lanes_per_kv_row = 64;
constexpr u32 first_rope_column = 448;

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
struct KvPiece {
  Piece x;
  RopeAngles angles;  // where the lane rotates
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
__device__ __forceinline__ void store_piece(const KvRows& kv, const KvPiece& piece,
                                            const Quantised& q, u32 column, bool allows_16_bytes) {
  constexpr u32 row_bytes = layout == F1 ? 512 : layout == F2 ? 256 : layout == F3 ? 576 : 1024;
  constexpr u32 scale_bytes = layout == F1 ? 16 : layout == F2 ? 32 : 8;
  u8* page = kv.cache + static_cast<i64>(piece.place.page) * kv.page_stride;
  u8* row = page + static_cast<u64>(piece.place.entry) * row_bytes;
  if constexpr (layout == F4) {
    store_bf16x8(row + 2 * column, q.fake, allows_16_bytes);
    return;
  }
  u8* scales = page + static_cast<u64>(kv.page_size) * row_bytes +
               static_cast<u64>(piece.place.entry) * scale_bytes;
  constexpr u32 group = group_of(quantiser);
  const bool is_tail = layout == F3 && column >= first_rope_column;
  if (column % group == 0) scales[column / group] = is_tail ? 0 : static_cast<u8>(q.scale);
  const uint2 codes = q.codes;
  if constexpr (layout == F2) {
    *reinterpret_cast<u32*>(row + column / 2) = codes.x;
  } else if (is_tail) {
    store_bf16x8(row + first_rope_column + 2 * (column - first_rope_column), piece.x.pairs,
                 allows_16_bytes);
  } else {
    *reinterpret_cast<uint2*>(row + column) = codes;
  }
}

// The squares of the rows of these 64 lanes, added in the order of norm.cuh: pieces j and j + 32
// lie in two warps.
template <int threads, int rows_per_thread>
__device__ __forceinline__ void add_squares(const KvPiece (&pieces)[rows_per_thread],
                                            float (&sums)[rows_per_thread]) {
  __shared__ float of_threads[rows_per_thread][threads];
#pragma unroll
  for (int i = 0; i < rows_per_thread; ++i) {
    const Piece& x = pieces[i].x;
    sums[i] = sum_of_squares({x.pairs[0], x.pairs[1], x.pairs[2], x.pairs[3]});
    of_threads[i][threadIdx.x] = sums[i];
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < rows_per_thread; ++i) {
    sums[i] = __fadd_rn(sums[i], of_threads[i][threadIdx.x ^ warp_lanes]);
#pragma unroll
    for (int half = warp_lanes / 2; half >= 1; half /= 2)
      sums[i] = __fadd_rn(sums[i], __shfl_xor_sync(all_lanes, sums[i], half));
  }
}

template <int threads, int rows_per_thread>
__device__ __forceinline__ void normalise(KvPiece (&pieces)[rows_per_thread],
                                          const uint4& weights) {
  const u32 of_pairs[4] = {weights.x, weights.y, weights.z, weights.w};
  float sums[rows_per_thread];
  add_squares<threads>(pieces, sums);
#pragma unroll
  for (int i = 0; i < rows_per_thread; ++i) {
    const float factor = norm_factor<8 * lanes_per_kv_row>(sums[i]);
#pragma unroll
    for (int j = 0; j < 4; ++j)
      pieces[i].x.pairs[j] = normalised(pieces[i].x.pairs[j], of_pairs[j], factor);
  }
}

// grid  (ceil(rows / (threads / 64 * rows_per_thread)))   block (threads)
// Rows rotate by the first position of their group of `ratio`.
template <int layout, int quantiser, bool has_norm, int ratio, int threads, int rows_per_thread>
__device__ __forceinline__ void insert_kv_rows(const KvRows& kv) {
  constexpr int rows_at_once = threads / lanes_per_kv_row;
  const u32 column = threadIdx.x % lanes_per_kv_row * 8;
  const i64 first = static_cast<i64>(blockIdx.x) * (rows_at_once * rows_per_thread) +
                    threadIdx.x / lanes_per_kv_row;

  uint4 weights = {0, 0, 0, 0};
  if constexpr (has_norm) weights = load_16(reinterpret_cast<const u8*>(kv.weight + column));
  i64 slots[rows_per_thread];
  i32 positions[rows_per_thread];
  KvPiece pieces[rows_per_thread];
#pragma unroll
  for (int i = 0; i < rows_per_thread; ++i) {
    const i64 row = min(first + i * rows_at_once, kv.rows - 1);
    const uint4 x = load_16(reinterpret_cast<const u8*>(kv.x + row * kv.x_stride + column));
    pieces[i].x = {{x.x, x.y, x.z, x.w}};
    slots[i] = kv.slots[row];
    positions[i] = kv.positions[row];
  }
#pragma unroll
  for (int i = 0; i < rows_per_thread; ++i) {
    const bool has_slot = find_slot(tied_to(slots[i], pieces[i].x.pairs[0] ^ weights.x, kv.rows),
                                    kv.page_size, kv.num_pages, pieces[i].place);
    pieces[i].is_written = has_slot && first + i * rows_at_once < kv.rows;
    pieces[i].rotates = column >= first_rope_column && pieces[i].is_written && positions[i] >= 0 &&
                        positions[i] < kv.num_positions;
    if (pieces[i].rotates) {
      const i32 position = positions[i] - positions[i] % ratio;
      pieces[i].angles = load_rope_angles(kv.table + position * kv.table_stride,
                                          static_cast<int>(column - first_rope_column) / 8);
    }
  }
  if constexpr (has_norm) normalise<threads>(pieces, weights);
  const bool allows_16_bytes =
      ((reinterpret_cast<u64>(kv.cache) | static_cast<u64>(kv.page_stride)) & 15) == 0;
#pragma unroll
  for (int i = 0; i < rows_per_thread; ++i) {
    if (pieces[i].rotates) rotate<false>(pieces[i].x.pairs, pieces[i].angles);
    const Quantised q = quantise<quantiser>(pieces[i].x);
    if (pieces[i].is_written)
      store_piece<layout, quantiser>(kv, pieces[i], q, column, allows_16_bytes);
  }
}
