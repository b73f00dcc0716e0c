// First of two kernels of hc_fused_post_pre_delayed, for few rows (ops.md B1.5): a CTA mixes 16
// rows of some columns, folds them to the workspace, and adds their products with fn.
// grid  (ceil(num_rows / 16), parts of the columns)   block (32 * warps)
// shared: the new streams of the CTA's columns, and 25 floats for each row and warp
//
// Four warps have 32 columns. They ask for fn first, a stream each; then a thread mixes four
// columns of a row, and a warp takes what has become of its stream.
#include "kiln_args.h"
#include "kiln_constants.h"  // columns, warps
#include "templates/common/hc.cuh"
#include "templates/common/hc_stats_partials.cuh"

constexpr int tile_rows = 16;
constexpr int blocks = warps / streams;
constexpr int part_columns = blocks * block_columns;
constexpr int quads = part_columns / 4;
static_assert(warps % streams == 0 && tile_rows * quads == 32 * warps);

using Tile = u16[streams][blocks][tile_rows][block_columns];

// Of the thread's four columns of its row.
__device__ __forceinline__ void mix_and_fold(const Args& args, i64 row, int column,
                                             uint2 (&after)[streams]) {
  PostGates gates;
  gates.load(args.post + row * args.post_stride, args.comb + row * args.comb_stride0,
             args.comb_stride1);
  const float4 pre = load_four(args.pre + row * args.pre_stride);
  const uint2 y = load_8(args.y + row * args.y_stride + column);
  u16* const h = args.h + row * args.h_stride0 + column;
  u32 low[streams], high[streams];
#pragma unroll
  for (int i = 0; i < streams; ++i) {
    const uint2 before = load_8(h + i * args.h_stride1);
    low[i] = before.x;
    high[i] = before.y;
  }
  mix_pair(y.x, low, gates);
  mix_pair(y.y, high, gates);
#pragma unroll
  for (int i = 0; i < streams; ++i) {
    after[i] = {low[i], high[i]};
    *reinterpret_cast<uint2*>(h + i * args.h_stride1) = after[i];
  }
  u16* const folded = folded_rows(args.workspace, args.num_rows, static_cast<int>(gridDim.y));
  *reinterpret_cast<uint2*>(folded + row * columns + column) = {fold_pair(low, pre),
                                                                fold_pair(high, pre)};
  if (args.mean != nullptr) {
    *reinterpret_cast<uint2*>(args.mean + row * args.mean_stride + column) = {
        fold_pair(low, quarters()), fold_pair(high, quarters())};
  }
}

extern "C" __global__ void __launch_bounds__(32 * warps)
    hc_fused_streams_and_partials(const __grid_constant__ Args args) {
  __shared__ __align__(16) Tile tile;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = lane_id();
  const int stream = warp_id() % streams;
  const int block = warp_id() / streams;
  const i64 first_row = static_cast<i64>(blockIdx.x) * tile_rows;
  const int first_column = static_cast<int>(blockIdx.y) * part_columns;
  const int block_column = first_column + block * block_columns;
  const bool has_block = columns % part_columns == 0 || block_column < columns;
  Weights weights;
  if (has_block) weights.load(args.fn + stream * i64{columns} + block_column, args.fn_stride, lane);

  const int row_in_tile = thread / quads;
  const int quad = thread % quads;
  const int column = first_column + 4 * quad;
  uint2 after[streams] = {};
  if (first_row + row_in_tile < args.num_rows && (columns % part_columns == 0 || column < columns))
    mix_and_fold(args, first_row + row_in_tile, column, after);
#pragma unroll
  for (int i = 0; i < streams; ++i) {
    u16* const row = tile[i][4 * quad / block_columns][row_in_tile];
    *reinterpret_cast<uint2*>(row + 4 * quad % block_columns) = after[i];
  }
  __syncthreads();

  StatsSums<1> sums{};
  if (has_block) {
    uint4 a[1][2];
#pragma unroll
    for (int half = 0; half < 2; ++half)
      a[0][half] =
          *reinterpret_cast<const uint4*>(tile[stream][block][8 * half + lane / 4] + lane % 4 * 8);
    sums.add<3>(a, weights);
  }
  store_partials<warps>(sums, args, static_cast<int>(blockIdx.y), first_row);
}
