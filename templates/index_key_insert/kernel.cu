// Normalises the index key of each row, rotates it by the first position of its group, quantises it
// and writes it to its slot of the paged cache (ops.md B10, B8).
//   cache[slot] = quantised(rope(norm(k[t]), first position of the group of positions[t]))
//   F5  bs x 64 bytes of E2M1 pairs | bs x 4 UE8M0 scales, one per 32 elements     q4m
//   F6  bs x 128 E4M3 codes         | bs x 1 fp32 scale                            q8k
// grid  (ceil(rows / (threads / 16 * rows_per_thread)))   block (threads)   shared: none
//
// 16 lanes of 8 elements to a row, the upper 8 rotate. The slot, the position, the row and the
// weights are loaded at once; only the angles wait for a load.
#include "kiln_args.h"
#include "kiln_constants.h"  // format, ratio, threads, rows_per_thread
#include "templates/common/memory.cuh"
#include "templates/common/norm.cuh"
#include "templates/common/pages.cuh"
#include "templates/common/quantise_group.cuh"
#include "templates/common/rope.cuh"
#include "templates/common/types.cuh"

enum Format : int { F5 = 5, F6 = 6 };

constexpr int columns = 128;
constexpr int lanes_per_row = 16;
constexpr int first_rope_lane = 8;
constexpr int rows_at_once = threads / lanes_per_row;
constexpr int quantiser = format == F5 ? q4m : q8k;
constexpr u32 row_bytes = format == F5 ? 64 : 128;

struct KeyPiece {
  uint4 x;
  RopeAngles angles;  // where the lane rotates
  bool rotates;
  EntryPlace place;
  bool is_written;
};

// Of the row of these 16 lanes, which lie in one warp and need no shared memory.
__device__ __forceinline__ float factor_of_row(const uint4& piece, int lane) {
  float of_pieces[1] = {sum_of_squares(piece)};
  return norm_factor<columns>(sum_of_row<lanes_per_row>(of_pieces, nullptr, lane, 0));
}

__device__ __forceinline__ void store_key(const Args& args, const EntryPlace& place,
                                          const Quantised& q, int lane, bool allows_8_bytes) {
  u8* page = args.cache + static_cast<i64>(place.page) * args.cache_stride;
  u8* codes = page + static_cast<u64>(place.entry) * row_bytes;
  u8* scales =
      page + static_cast<u64>(args.page_size) * row_bytes + static_cast<u64>(place.entry) * 4;
  const uint2 packed = q.codes;
  if constexpr (format == F5) {
    reinterpret_cast<u32*>(codes)[lane] = packed.x;
    if (lane % 4 == 0) scales[lane / 4] = static_cast<u8>(q.scale);
    return;
  }
  if (allows_8_bytes) {
    reinterpret_cast<uint2*>(codes)[lane] = packed;
  } else {
    reinterpret_cast<u32*>(codes)[2 * lane] = packed.x;
    reinterpret_cast<u32*>(codes)[2 * lane + 1] = packed.y;
  }
  constexpr u32 fp32_nan = 0x7fc00000u;
  if (lane == 0) *reinterpret_cast<u32*>(scales) = q.scale == 255 ? fp32_nan : q.scale << 23;
}

extern "C" __global__ void __launch_bounds__(threads)
    index_key_insert(const __grid_constant__ Args args) {
  const int lane = static_cast<int>(threadIdx.x) % lanes_per_row;
  const i64 first =
      static_cast<i64>(blockIdx.x) * (rows_at_once * rows_per_thread) + threadIdx.x / lanes_per_row;
  i64 slots[rows_per_thread];
  i32 positions[rows_per_thread];
  KeyPiece pieces[rows_per_thread];
#pragma unroll
  for (int i = 0; i < rows_per_thread; ++i) {
    const i64 row = min(first + i * rows_at_once, args.num_rows - 1);
    pieces[i].x = load_16(reinterpret_cast<const u8*>(args.k + row * args.k_stride + lane * 8));
    slots[i] = args.slots[row];
    positions[i] = args.positions[row];
  }
  const uint4 weights = load_16(reinterpret_cast<const u8*>(args.weight + lane * 8));
#pragma unroll
  for (int i = 0; i < rows_per_thread; ++i) {
    const bool has_slot = find_slot(tied_to(slots[i], pieces[i].x.x ^ weights.x, args.num_rows),
                                    args.page_size, args.num_pages, pieces[i].place);
    pieces[i].is_written = has_slot && first + i * rows_at_once < args.num_rows;
    pieces[i].rotates = lane >= first_rope_lane && pieces[i].is_written && positions[i] >= 0 &&
                        positions[i] < args.num_positions;
    if (pieces[i].rotates) {
      const i32 position = positions[i] - positions[i] % ratio;
      pieces[i].angles = load_rope_angles(args.rope_table + position * args.rope_table_stride,
                                          lane - first_rope_lane);
    }
  }
  const bool allows_8_bytes =
      ((reinterpret_cast<u64>(args.cache) | static_cast<u64>(args.cache_stride)) & 7) == 0;
#pragma unroll
  for (int i = 0; i < rows_per_thread; ++i) {
    uint4 key = normalised(pieces[i].x, weights, factor_of_row(pieces[i].x, lane));
    if (pieces[i].rotates) key = rotated<false>(key, pieces[i].angles);
    const Quantised q = quantise<quantiser>({{key.x, key.y, key.z, key.w}});
    if (pieces[i].is_written) store_key(args, pieces[i].place, q, lane, allows_8_bytes);
  }
}
