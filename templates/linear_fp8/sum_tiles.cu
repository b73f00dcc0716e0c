// y = the sum of the splits' partial sums of tile.cu, in ascending order.
// grid  (ceil(tiles * warps * own_row_blocks / warps_of_cta))   block (32 * warps_of_cta)
// shared: none
//
// A warp adds one block of rows of a warp of tile.cu, held as that one held it.
#include "kiln_args.h"
#include "kiln_constants.h"  // as of tile.cu; warps_of_cta
#include "templates/common/memory.cuh"
#include "templates/common/types.cuh"
#include "templates/linear_fp8/problem.cuh"
#include "templates/linear_fp8/tiles.cuh"

extern "C" __global__ void __launch_bounds__(warp_lanes* warps_of_cta)
    linear_fp8_sum_tiles(const __grid_constant__ Args args) {
  const u32 unit = blockIdx.x * warps_of_cta + warp_id();
  const u32 tile_number = unit / (warps * own_row_blocks);
  if (tile_number >= row_tiles(args) * (column_tiles * groups)) return;
  const int warp = static_cast<int>(unit / own_row_blocks % warps);
  const int block = static_cast<int>(unit % own_row_blocks);
  const float4* from = partial_sums(args) + static_cast<i64>(tile_number) * splits * split_step +
                       (warp * own_fours + block) * warp_lanes + lane_id();
  float4 parts[column_blocks][splits];
#pragma unroll
  for (int j = 0; j < column_blocks; ++j) {
#pragma unroll
    for (int s = 0; s < splits; ++s)
      parts[j][s] = from[s * split_step + j * own_row_blocks * warp_lanes];
  }
  float4 sums[column_blocks];
#pragma unroll
  for (int j = 0; j < column_blocks; ++j) {
    sums[j] = parts[j][0];
#pragma unroll
    for (int s = 1; s < splits; ++s) sums[j] = add(sums[j], parts[j][s]);
  }
  const Tile tile = find_tile(args, tile_number * splits);
  store_rows(args, tile, corner_of(tile, warp), block, sums);
}
