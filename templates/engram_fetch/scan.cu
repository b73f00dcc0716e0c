// Rows of the Engram table, each once, for few pairs: one kernel and no workspace.
// grid  (ceil(num_rows * num_heads / (threads / 32)))   block (threads)   shared: none
//
// A warp has one pair and looks through all others. If one before it names the same row, that one
// writes x of both; else it reads the row and writes x of all that name it.
#include "templates/engram_fetch/table.cuh"

static_assert(pairs_per_warp == 1, "a warp has one pair");

constexpr int pieces_of_lane = (pieces + warp_lanes - 1) / warp_lanes;
constexpr int looks_at_once = 8;

__device__ __forceinline__ bool names(const Args& args, u32 pair, u32 end, i32 row) {
  return pair < end && row_of(args, pair) == row;
}

__device__ __forceinline__ bool is_named_before(const Args& args, u32 pair, i32 row) {
  for (u32 first = 0; first < pair; first += looks_at_once * warp_lanes) {
    bool is_named = false;
#pragma unroll
    for (int i = 0; i < looks_at_once; ++i)
      is_named |= names(args, first + i * warp_lanes + lane_id(), pair, row);
    if (__any_sync(all_lanes, is_named)) return true;
  }
  return false;
}

__device__ __forceinline__ void store_row(const Args& args, u32 pair,
                                          const Codes (&data)[pieces_of_lane]) {
#pragma unroll
  for (int i = 0; i < pieces_of_lane; ++i) {
    const int piece = i * warp_lanes + lane_id();
    if (piece < pieces) store_piece(args, pair, piece, data[i]);
  }
}

extern "C" __global__ void __launch_bounds__(threads)
    engram_fetch_scan(const __grid_constant__ Args args) {
  const PairsOfWarp own(args);
  if (own.count == 0) return;
  const u32 pairs = pairs_of(args);
  const i32 row = row_of(args, own.first);
  if (row >= 0 && is_named_before(args, own.first, row)) return;

  Codes data[pieces_of_lane];
#pragma unroll
  for (int i = 0; i < pieces_of_lane; ++i) {
    const int piece = i * warp_lanes + lane_id();
    if (piece < pieces) data[i] = load_codes(args, row, piece);
  }
  // The row is under way while the others are looked at.
  const u32 end = row >= 0 ? pairs : 0;
  for (u32 first = own.first + 1; first < end; first += warp_lanes) {
    u32 same = __ballot_sync(all_lanes, names(args, first + lane_id(), end, row));
    for (; same != 0; same &= same - 1)
      store_row(args, first + static_cast<u32>(__ffs(static_cast<int>(same))) - 1, data);
  }
  store_row(args, own.first, data);
}
