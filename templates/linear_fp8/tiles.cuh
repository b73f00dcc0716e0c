// What tile.cu shares with prepare.cu before it and sum_tiles.cu behind it: how K is cut, what a
// warp owns, the workspace, how y is stored.
#pragma once

#include "kiln_args.h"
#include "kiln_constants.h"
#include "templates/common/memory.cuh"
#include "templates/common/mma.cuh"
#include "templates/common/types.cuh"
#include "templates/linear_fp8/fragments.cuh"
#include "templates/linear_fp8/problem.cuh"

// K is cut into runs of whole chunks: warps_along_depth of each split, one split after another.
constexpr int runs = splits * warps_along_depth;
constexpr int run_chunks = (chunks + runs - 1) / runs;  // of the longest run
__device__ __forceinline__ int first_chunk(int run) { return run * chunks / runs; }

constexpr int warps_of_run = warps_along_rows * warps_along_columns;
constexpr int warps = warps_of_run * warps_along_depth;
constexpr int warp_rows = tile_rows / warps_along_rows;
constexpr int warp_columns = tile_columns / warps_along_columns;
constexpr int row_blocks = warp_rows / 8;         // rows of y in an mma
constexpr int column_blocks = warp_columns / 16;  // columns of y in an mma

// A warp has 32 columns. Row r of the eight rows number e of its mma (e = 0..3) is its column
// 8 * (r / 2) + 2 * e + r % 2: so lanes load 128 neighbouring bytes of weights, and end with eight
// neighbouring columns of y.
static_assert(warp_columns == 32);

// What a warp finishes: of its rows the share of its run.
constexpr int own_row_blocks = row_blocks / warps_along_depth;
static_assert(own_row_blocks * warps_along_depth == row_blocks);
constexpr int own_fours = column_blocks * own_row_blocks;   // of a lane
constexpr int split_step = warps * own_fours * warp_lanes;  // fours of a tile

constexpr int column_tiles = (columns + tile_columns - 1) / tile_columns;
__device__ __forceinline__ i64 row_tiles(const Args& args) {
  return (args.num_rows + tile_rows - 1) / tile_rows;
}

// Workspace: for each row of tiles `counter_bytes` of counters, one for each warp of a tile, if
// tile.cu adds the splits; x as prepared [rows][groups][depth]; partial sums
// [tile][split][warp][column block][row block][lane].
__device__ __forceinline__ u32* counters(const Args& args) {
  return static_cast<u32*>(args.workspace);
}
__device__ __forceinline__ u16* prepared_x(const Args& args) {
  return reinterpret_cast<u16*>(static_cast<u8*>(args.workspace) + row_tiles(args) * counter_bytes);
}
constexpr bool prepares_x = x_format != x_bf16;
__device__ __forceinline__ float4* partial_sums(const Args& args) {
  constexpr i64 row_elements = prepares_x ? static_cast<i64>(groups) * depth : 0;
  return reinterpret_cast<float4*>(prepared_x(args) + args.num_rows * row_elements);
}

struct Tile {
  i64 row;  // first row of y
  int column;
  int group;
  int split;
  i64 number;  // of the tile, all splits share it
};

// CTAs that run at the same time share bands of `band_rows` row tiles, and the splits of a tile run
// at the same time.
__device__ __forceinline__ Tile find_tile(const Args& args, u32 block) {
  const u32 tiles_of_column = static_cast<u32>(row_tiles(args));
  const u32 per_group = tiles_of_column * column_tiles;
  const u32 number = block / splits;
  const u32 group = groups == 1 ? 0 : number / per_group;
  const u32 index = number - group * per_group;
  const u32 band = index / (band_rows * column_tiles);
  const u32 in_band = index - band * (band_rows * column_tiles);
  const u32 rows_in_band = min(static_cast<u32>(band_rows), tiles_of_column - band * band_rows);
  const u32 column_tile = in_band / rows_in_band;
  const u32 row_tile = band * band_rows + in_band - column_tile * rows_in_band;
  return {static_cast<i64>(row_tile) * tile_rows, static_cast<int>(column_tile) * tile_columns,
          static_cast<int>(group), static_cast<int>(block % splits), number};
}

// First row and column of y that a warp finishes.
struct Corner {
  i64 row;
  int column;
};
__device__ __forceinline__ Corner corner_of(const Tile& tile, int warp) {
  const int of_run = warp % warps_of_run;
  return {
      tile.row + of_run % warps_along_rows * warp_rows + warp / warps_of_run * (8 * own_row_blocks),
      tile.column + of_run / warps_along_rows * warp_columns};
}

// Stores block number `block` of a warp's rows. Lane 4 g + q has the sums of rows 2 q, 2 q + 1 for
// row g of eights of the mma's rows; transposing these gives it row g and 8 neighbouring columns.
__device__ __forceinline__ void store_rows(const Args& args, const Tile& tile, const Corner& corner,
                                           int block, const float4 (&fours)[column_blocks]) {
  const i64 row = corner.row + 8 * block + lane_id() / 4;
  const int column = corner.column + lane_id() % 4 * 8;
  const bool is_there = row < args.num_rows && column < columns;
  if constexpr (output == output_bf16) {
    u32 pairs[4];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      pairs[2 * j] = transpose_8x8(to_bf16x2(fours[j].x, fours[j].y));
      pairs[2 * j + 1] = transpose_8x8(to_bf16x2(fours[j].z, fours[j].w));
    }
    if (is_there)
      store_16(y_bf16(args, row, tile.group) + column, {pairs[0], pairs[1], pairs[2], pairs[3]});
  } else {
    u32 words[8];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const u32 first = __float_as_uint(j % 2 == 0 ? fours[j / 2].x : fours[j / 2].z);
      const u32 second = __float_as_uint(j % 2 == 0 ? fours[j / 2].y : fours[j / 2].w);
      const u32 low = transpose_8x8(__byte_perm(first, second, 0x5410));
      const u32 high = transpose_8x8(__byte_perm(first, second, 0x7632));
      words[2 * j] = __byte_perm(low, high, 0x5410);
      words[2 * j + 1] = __byte_perm(low, high, 0x7632);
    }
    if (is_there) {
      float* const to = y_f32(args, row, tile.group) + column;
      store_16(to, {words[0], words[1], words[2], words[3]});
      store_16(to + 4, {words[4], words[5], words[6], words[7]});
    }
  }
}
