// c = a * b^T: a is M x depth and b is columns x depth, both bf16; c is f32.
// grid (M / 32, columns / 16)   block (64)
// shared: two slices of both tiles, and for each warp half of its rows of c
//
// Slices of the depth come through cp.async, one ahead of the one that is multiplied. Warp w has
// rows 16 w to 16 w + 15 of the tile.
#include "tests/sim/kernels/common.cuh"

constexpr int num_threads = 64;
constexpr int num_warps = num_threads / warp_lanes;
constexpr int tile_rows = 32;
constexpr int tile_columns = 16;
constexpr int slice = 32;
constexpr int pitch = slice + 8;  // so that eight rows of ldmatrix meet all banks
constexpr int vector = 8;         // elements of one cp.async

struct Stage {
  u16 a[tile_rows][pitch];
  u16 b[tile_columns][pitch];
};

__device__ __forceinline__ void copy_slice(Stage& stage, const u16* a, const u16* b, i64 depth) {
  constexpr int vectors_per_row = slice / vector;
  constexpr int vectors = (tile_rows + tile_columns) * vectors_per_row;
  for (int i = threadIdx.x; i < vectors; i += num_threads) {
    const int row = i / vectors_per_row;
    const int element = i % vectors_per_row * vector;
    if (row < tile_rows) {
      copy_async_16(&stage.a[row][element], a + row * depth + element);
    } else {
      const int b_row = row - tile_rows;
      copy_async_16(&stage.b[b_row][element], b + b_row * depth + element);
    }
  }
}

extern "C" __global__ void __launch_bounds__(num_threads)
    tile_gemm(const u16* a, const u16* b, float* c, i64 columns, i64 depth) {
  __shared__ __align__(16) Stage stages[2];
  __shared__ __align__(16) float halves[num_warps][16][8];
  const int lane = lane_id();
  const int warp = warp_id();
  a += blockIdx.x * tile_rows * depth;
  b += blockIdx.y * tile_columns * depth;
  c += (blockIdx.x * tile_rows + 16 * warp) * columns + blockIdx.y * tile_columns;

  float sums[2][4] = {};
  const int slices = static_cast<int>(depth) / slice;
  copy_slice(stages[0], a, b, depth);
  commit_copies();  // the first slice
  for (int s = 0; s < slices; ++s) {
    const int next = s + 1;
    if (next < slices) copy_slice(stages[next % 2], a + next * slice, b + next * slice, depth);
    commit_copies();  // the next slice
    wait_for_copies<1>();
    __syncthreads();  // everyone's copies are there
    const Stage& stage = stages[s % 2];
#pragma unroll
    for (int k = 0; k < slice; k += 16) {
      u32 from_a[4];
      u32 from_b[4];
      load_matrices(from_a, &stage.a[16 * warp + lane % 16][k + lane / 16 * 8]);
      load_matrices(from_b, &stage.b[lane % 8 + lane / 16 * 8][k + lane / 8 % 2 * 8]);
      multiply(sums[0], from_a, from_b[0], from_b[1]);
      multiply(sums[1], from_a, from_b[2], from_b[3]);
    }
    __syncthreads();  // the stage may be filled again
  }

  float(&half)[16][8] = halves[warp];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
#pragma unroll
    for (int i = 0; i < 4; ++i) half[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2] = sums[h][i];
    __syncwarp();  // the half is complete
    const int row = lane / 2;
    const int column = lane % 2 * 4;
    const float4 four = *reinterpret_cast<const float4*>(&half[row][column]);
    *reinterpret_cast<float4*>(c + row * columns + 8 * h + column) = four;
    __syncwarp();  // the half may be filled again
  }
}
