// How a warp goes through the pieces of x of its pairs: some loads at once, then their stores.
#pragma once

#include "templates/common/memory.cuh"
#include "templates/common/types.cuh"
#include "templates/engram_fetch/pairs.cuh"  // threads, pairs_per_warp, loads, columns, x_format

enum : int { x_bf16 = 0, x_codes = 1 };

constexpr int group_columns = 32;
constexpr int piece_columns = x_format == x_bf16 ? 8 : 16;  // 16 bytes of x
constexpr int pieces = columns / piece_columns;             // of a pair
constexpr int pieces_per_group = group_columns / piece_columns;
constexpr int steps = (pairs_per_warp * pieces + warp_lanes - 1) / warp_lanes;
constexpr int warps = threads / warp_lanes;

struct PairsOfWarp {
  u32 first;
  int count;  // 0: none are left

  __device__ explicit PairsOfWarp(const Args& args) {
    const i64 begin = (static_cast<i64>(blockIdx.x) * warps + warp_id()) * pairs_per_warp;
    const i64 left = static_cast<i64>(pairs_of(args)) - begin;
    first = static_cast<u32>(begin);
    count = static_cast<int>(max(min(left, static_cast<i64>(pairs_per_warp)), 0ll));
  }
};

// Elements of x that a piece begins at, and the group that it is of.
struct PlaceOfX {
  i64 row;
  int column;
  int group;

  __device__ PlaceOfX(u32 pair, int piece) {
    const u32 t = pair / num_heads;
    const int head = static_cast<int>(pair - t * num_heads);
    row = t;
    column = head * columns + piece * piece_columns;
    group = head * (columns / group_columns) + piece / pieces_per_group;
  }
};

// For every piece of the warp's pairs: data = load(from, piece); store(pair, piece, data). Lane i
// holds in `of_lane` the `from` of the pair at place i, or that the pair is skipped, as those are
// that the warp does not have.
constexpr i32 skipped = -2;
template <typename Data, typename Load, typename Store>
__device__ __forceinline__ void through_pieces(const PairsOfWarp& own, i32 of_lane, Load load,
                                               Store store) {
#pragma unroll 1
  for (int step = 0; step < steps; step += loads) {
    Data data[loads];
    i32 of_pair[loads];
#pragma unroll
    for (int i = 0; i < loads; ++i) {
      const int index = (step + i) * warp_lanes + lane_id();
      const int place = index / pieces;
      of_pair[i] = __shfl_sync(all_lanes, of_lane, place % warp_lanes);
      if (place >= pairs_per_warp) of_pair[i] = skipped;  // beyond the last step
      if (of_pair[i] != skipped) data[i] = load(of_pair[i], index - place * pieces);
    }
#pragma unroll
    for (int i = 0; i < loads; ++i) {
      const int index = (step + i) * warp_lanes + lane_id();
      const int place = index / pieces;
      if (of_pair[i] != skipped)
        store(own.first + static_cast<u32>(place), index - place * pieces, data[i]);
    }
  }
}
