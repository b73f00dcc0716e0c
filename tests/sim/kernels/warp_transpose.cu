// out[c, r] = in[r, c], in tiles of 32 x 32, each by one warp through shared memory of its own.
// grid (any)   block (64)   shared: a tile for each warp
#include "tests/sim/kernels/common.cuh"

constexpr int num_threads = 64;
constexpr int num_warps = num_threads / warp_lanes;
constexpr int side = 32;

extern "C" __global__ void __launch_bounds__(num_threads)
    warp_transpose(const u32* in, u32* out, i64 rows, i64 columns) {
  __shared__ u32 tiles[num_warps][side][side + 1];
  u32(&tile)[side][side + 1] = tiles[warp_id()];
  const int lane = lane_id();
  const i64 tiles_across = (columns + side - 1) / side;
  const i64 num_tiles = tiles_across * ((rows + side - 1) / side);
  for (i64 t = blockIdx.x * num_warps + warp_id(); t < num_tiles; t += gridDim.x * num_warps) {
    const i64 first_row = t / tiles_across * side;
    const i64 first_column = t % tiles_across * side;
    for (int i = 0; i < side; ++i) {
      if (first_row + i < rows && first_column + lane < columns)
        tile[i][lane] = in[(first_row + i) * columns + first_column + lane];
    }
    __syncwarp();  // the tile is complete
    for (int i = 0; i < side; ++i) {
      if (first_column + i < columns && first_row + lane < rows)
        out[(first_column + i) * rows + first_row + lane] = tile[lane][i];
    }
    __syncwarp();  // the tile may be filled again
  }
}
