// First step of the statistics of residual streams (ops.md B1.1): the products of a part of the
// columns with fn, and the sums of their squares, of 16 * m_tiles rows. A CTA has `warps` warps;
// grid (ceil(num_rows / (16 * m_tiles)), splits). Args has h, fn, workspace and num_rows.
//
// fn in fp32 is the sum of three bf16, to the bit from 2^-110 to 3.38e38, and h is bf16: products
// are exact on tensor cores; two of the three are the 16 leading bits. Tensor cores truncate as
// they add, so the products of 32 columns are added there, the small ones first, and then in fp32.
// A lane has 8 neighbouring columns of a row, which is another order of the columns within a
// product than usual, the same for h and fn: all loads are 16 bytes and nothing passes through
// shared memory.
#pragma once

#include "templates/common/decode.cuh"
#include "templates/common/hc_stats_layout.cuh"
#include "templates/common/mma.cuh"
#include "templates/common/norm.cuh"
#include "templates/common/types.cuh"

constexpr int block_columns = 32;
constexpr int n_tiles = gates / 8;

// Four pairs of a row of fn, in bf16: term 0 is the nearest, the next what it lacks.
template <int terms>
struct Terms {
  u32 pairs[terms][4];

  __device__ __forceinline__ Terms(const float4& low, const float4& high) {
    float rest[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
    for (int term = 0; term < terms; ++term) {
#pragma unroll
      for (int p = 0; p < 4; ++p) {
        const u32 pair = to_bf16x2(rest[2 * p], rest[2 * p + 1]);
        rest[2 * p] = __fsub_rn(rest[2 * p], low_bf16(pair));
        rest[2 * p + 1] = __fsub_rn(rest[2 * p + 1], high_bf16(pair));
        pairs[term][p] = pair;
      }
    }
  }
};

// A lane's part of fn in 32 columns of a stream: 8 columns of every 8th gate.
struct Weights {
  float4 of[n_tiles][2];

  // fn at the first of the 32 columns.
  __device__ __forceinline__ void load(const float* fn, i64 fn_stride, int lane) {
    const float* own = fn + lane / 4 * fn_stride + lane % 4 * 8;
#pragma unroll
    for (int n = 0; n < n_tiles; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half)
        of[n][half] = load_four(own + 8 * n * fn_stride + 4 * half);
    }
  }
};

template <int m_tiles>
struct StatsSums {
  float dots[m_tiles][n_tiles][4];
  float squares[m_tiles][2];

  // Rows lane / 4 and 8 beyond of each tile, in the columns of the weights.
  template <int terms>
  __device__ __forceinline__ void add(const uint4 (&a)[m_tiles][2], const Weights& weights) {
#pragma unroll
    for (int n = 0; n < n_tiles; ++n) {
      const Terms<terms> b(weights.of[n][0], weights.of[n][1]);
#pragma unroll
      for (int m = 0; m < m_tiles; ++m) {
        float products[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
        for (int term = terms - 1; term >= 0; --term) {
          mma_bf16(products, {a[m][0].x, a[m][1].x, a[m][0].y, a[m][1].y}, b.pairs[term][0],
                   b.pairs[term][1]);
          mma_bf16(products, {a[m][0].z, a[m][1].z, a[m][0].w, a[m][1].w}, b.pairs[term][2],
                   b.pairs[term][3]);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) dots[m][n][i] = __fadd_rn(dots[m][n][i], products[i]);
      }
    }
#pragma unroll
    for (int m = 0; m < m_tiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half)
        squares[m][half] = __fadd_rn(squares[m][half], sum_of_squares(a[m][half]));
    }
  }
};

// The sums of the warps of a CTA, added from the first on, to the workspace.
template <int warps, int m_tiles, typename Args>
__device__ __forceinline__ void store_partials(const StatsSums<m_tiles>& sums, const Args& args,
                                               int split, i64 first_row) {
  constexpr int rows_per_cta = 16 * m_tiles;
  __shared__ float shared[warps][rows_per_cta][sums_per_row];
  const int lane = lane_id();
  float(&own)[rows_per_cta][sums_per_row] = shared[warp_id()];
#pragma unroll
  for (int m = 0; m < m_tiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float* const to = own[16 * m + 8 * half + lane / 4];
#pragma unroll
      for (int n = 0; n < n_tiles; ++n) {
        to[8 * n + lane % 4 * 2] = sums.dots[m][n][2 * half];
        to[8 * n + lane % 4 * 2 + 1] = sums.dots[m][n][2 * half + 1];
      }
      float squares = sums.squares[m][half];
      squares = __fadd_rn(squares, __shfl_xor_sync(all_lanes, squares, 1));
      squares = __fadd_rn(squares, __shfl_xor_sync(all_lanes, squares, 2));
      if (lane % 4 == 0) to[gates] = squares;
    }
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < rows_per_cta * sums_per_row; i += 32 * warps) {
    const int row = i / sums_per_row;
    const int which = i % sums_per_row;
    if (first_row + row >= args.num_rows) break;
    float sum = shared[0][row][which];
#pragma unroll
    for (int warp = 1; warp < warps; ++warp) sum = __fadd_rn(sum, shared[warp][row][which]);
    partial_sums(args.workspace, args.num_rows, split, first_row + row)[which] = sum;
  }
}

// What a warp reads of 32 columns of one stream.
template <int m_tiles>
struct Block {
  uint4 a[m_tiles][2];
  Weights weights;

  template <int columns, typename Args>
  __device__ __forceinline__ void load(const Args& args, const u16* const (&rows)[m_tiles][2],
                                       int block, int lane) {
    constexpr int blocks_of_stream = columns / block_columns;
    const int first = block % blocks_of_stream * block_columns + lane % 4 * 8;
    const i64 of_stream = block / blocks_of_stream * args.h_stride1 + first;
#pragma unroll
    for (int m = 0; m < m_tiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half)
        a[m][half] = load_16(reinterpret_cast<const u8*>(rows[m][half] + of_stream));
    }
    weights.load(args.fn + block * block_columns, args.fn_stride, lane);
  }
};

// The next block is on its way while one is added.
template <int columns, int num_streams, int terms, int warps, int m_tiles, typename Args>
__device__ __forceinline__ void put_partials(const Args& args) {
  constexpr int rows_per_cta = 16 * m_tiles;
  const int lane = lane_id();
  const int split = static_cast<int>(blockIdx.y);
  const i64 first_row = static_cast<i64>(blockIdx.x) * rows_per_cta;
  const u16* rows[m_tiles][2];
#pragma unroll
  for (int m = 0; m < m_tiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      // Rows beyond the last are the last one again; nobody reads what comes of them.
      const i64 row = min(first_row + 16 * m + 8 * half + lane / 4, args.num_rows - 1);
      rows[m][half] = args.h + row * args.h_stride0;
    }
  }

  constexpr int all_blocks = num_streams * (columns / block_columns);
  const int splits = static_cast<int>(gridDim.y);
  const int end = all_blocks * (split + 1) / splits;
  int block = all_blocks * split / splits + warp_id();
  StatsSums<m_tiles> sums{};
  Block<m_tiles> next;
  if (block < end) next.template load<columns>(args, rows, block, lane);
#pragma unroll 1
  while (block < end) {
    const Block<m_tiles> own = next;
    block += warps;
    if (block < end) next.template load<columns>(args, rows, block, lane);
    sums.template add<terms>(own.a, own.weights);
  }
  store_partials<warps>(sums, args, split, first_row);
}
