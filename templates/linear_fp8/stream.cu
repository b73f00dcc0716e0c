// y[t, g, n] = sum_k x[t, g, k] * w[g, n, k] * scale[g, n / 32, k / 32] for few rows (ops.md B6):
// weights stream once through CTAs that stay, each lane copying ahead what it will multiply.
// grid  (ctas * splits * groups * blocks of rows)
// block (32 * warps_along_columns * warps_along_depth)
// shared: per warp a ring of `passes_ahead` passes of chunks, 1 KB a chunk; then the partial sums
//
// The weights are the 16-row operand of the mma and x is the 8-column one. A warp owns a part of K
// for good: it reads and quantises its part of x once into registers, then goes from one tile of 16
// columns of y to the next. The warps that share a tile add their sums in the order of K.
#include "kiln_args.h"
#include "kiln_constants.h"  // columns, depth, groups, ctas, warps_along_columns, warps_along_depth,
                             // row_blocks, passes_ahead, splits, weight_layout, slot_order, x_format,
                             // output, min_ctas_per_sm
#include "templates/linear_fp8/mma.cuh"
#include "templates/common/quantise.cuh"
#include "templates/common/types.cuh"
#include "templates/linear_fp8/fragments.cuh"
#include "templates/linear_fp8/problem.cuh"
#include "templates/linear_fp8/rows.cuh"

constexpr int warps = warps_along_columns * warps_along_depth;
constexpr int threads = warps * warp_lanes;
constexpr int tile_columns = 16;
constexpr int tiles = columns / tile_columns;
constexpr int rows = 8 * row_blocks;
constexpr int parts = splits * warps_along_depth;
constexpr int part_chunks = (chunks + parts - 1) / parts;  // of the longest part
constexpr int passes = (tiles + ctas * warps_along_columns - 1) / (ctas * warps_along_columns);
constexpr int chunk_bytes = tile_columns * chunk_elements;
constexpr int ring_chunks = passes_ahead * part_chunks;
constexpr int ring_bytes = ring_chunks * chunk_bytes;  // of a warp
static_assert(2 * part_chunks <= warp_lanes);

// Where a lane finds its weights: of pass p, chunk j of its part.
class WeightStream {
 public:
  __device__ __forceinline__ WeightStream(const Args& args, int group, int first_tile,
                                          int first_chunk, int own_chunks, u32 ring)
      : ring_(ring + lane_id() * 16), first_tile_(first_tile), own_chunks_(own_chunks) {
    const int lane = lane_id();
    const u8* w = args.w + static_cast<i64>(group) * weight_group_bytes;
    if constexpr (weight_layout == packed)
      from_ = w + (static_cast<i64>(first_tile) * 2 * chunks + first_chunk) * block_bytes + lane * 16;
    else
      from_ = w + (static_cast<i64>(first_tile) * tile_columns + lane / 4) * depth +
              static_cast<i64>(first_chunk) * chunk_elements + lane % 4 * 16;
    tail_chunk_ = depth % chunk_elements != 0 && weight_layout == checkpoint && lane % 4 >= 2
                      ? chunks - 1 - first_chunk
                      : -1;
  }

  static constexpr int tile_step = ctas * warps_along_columns;

  // Chunks beyond the part, tiles beyond the end and what K lacks in its last chunk become zeros.
  __device__ __forceinline__ void start(int pass, int j) const {
    constexpr int chunk_step = weight_layout == packed ? block_bytes : chunk_elements;
    constexpr i64 half_step = weight_layout == packed ? static_cast<i64>(chunks) * block_bytes
                                                      : static_cast<i64>(block_rows) * depth;
    constexpr i64 pass_step = tile_step * 2 * half_step;
    const bool is_there = first_tile_ + pass * tile_step < tiles && j < own_chunks_ &&
                          (depth % chunk_elements == 0 || j != tail_chunk_);
    const u32 to = slot(pass, j);
    const u8* from = from_ + pass * pass_step + j * chunk_step;
#pragma unroll
    for (int half = 0; half < 2; ++half)
      copy_async_16(to + half * block_bytes, from + half * half_step, is_there ? 16 : 0);
    commit_copies();
  }

  __device__ __forceinline__ u32 slot(int pass, int j) const {
    return ring_ + (pass % passes_ahead * part_chunks + j) * chunk_bytes;
  }

 private:
  const u8* from_;
  u32 ring_;
  int first_tile_;
  int own_chunks_;
  int tail_chunk_;
};

using Sums = float[row_blocks][4];
using XPart = u32[part_chunks][row_blocks][8];  // two registers for each of the four mma of a chunk

__device__ __forceinline__ void multiply_chunk(Sums& sums, const u32 (&x)[row_blocks][8],
                                               const uint4& top, const uint4& bottom,
                                               u32 scale_byte, bool any_is_wide) {
  const u32 top_words[4] = {top.x, top.y, top.z, top.w};
  const u32 bottom_words[4] = {bottom.x, bottom.y, bottom.z, bottom.w};
  const u32 factor = first_factor(min(scale_byte, largest_single_scale));
  WordPairs a[words_per_chunk];
  WordPairs b[words_per_chunk];
#pragma unroll
  for (int s = 0; s < words_per_chunk; ++s) {
    constexpr auto layout = static_cast<WeightLayout>(weight_layout);
    constexpr auto order = static_cast<SlotOrder>(slot_order);
    a[s] = decode_weights<layout, order>(top_words[s], factor);
    b[s] = decode_weights<layout, order>(bottom_words[s], factor);
  }
  if (any_is_wide) {
    const u32 more = second_factor(scale_byte);
#pragma unroll
    for (int s = 0; s < words_per_chunk; ++s) {
      a[s] = {multiply_bf16x2(a[s].low, more), multiply_bf16x2(a[s].high, more)};
      b[s] = {multiply_bf16x2(b[s].low, more), multiply_bf16x2(b[s].high, more)};
    }
  }
#pragma unroll
  for (int s = 0; s < words_per_chunk; ++s) {
#pragma unroll
    for (int r = 0; r < row_blocks; ++r)
      multiply_add(sums[r], a[s].low, b[s].low, a[s].high, b[s].high, x[r][2 * s],
                   x[r][2 * s + 1]);
  }
}

// Sums of a warp: [row][16 columns].
constexpr int sums_floats = rows * tile_columns;

__device__ __forceinline__ void leave_sums(float* to, const Sums& sums) {
  const int g = lane_id() / 4;
  const int q = lane_id() % 4;
#pragma unroll
  for (int r = 0; r < row_blocks; ++r) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      to[(8 * r + 2 * q + i % 2) * tile_columns + g + i / 2 * 8] = sums[r][i];
  }
}

extern "C" __global__ void __launch_bounds__(threads, min_ctas_per_sm)
    linear_fp8_stream(const __grid_constant__ Args args) {
  extern __shared__ __align__(128) u8 shared[];
  float* all_sums = reinterpret_cast<float*>(shared + warps * ring_bytes);

  const int lane = lane_id();
  const int warp_of_columns = warp_id() / warps_along_depth;
  const int warp_of_depth = warp_id() % warps_along_depth;
  const int cta = static_cast<int>(blockIdx.x) % ctas;
  const int split = static_cast<int>(blockIdx.x) / ctas % splits;
  const int group = static_cast<int>(blockIdx.x) / (ctas * splits) % groups;
  const i64 first_row = static_cast<i64>(blockIdx.x / (ctas * splits * groups)) * rows;
  const int part = split * warps_along_depth + warp_of_depth;
  const int first_chunk = part * chunks / parts;
  const int own_chunks = (part + 1) * chunks / parts - first_chunk;
  const int first_tile = cta * warps_along_columns + warp_of_columns;

  const WeightStream weights(args, group, first_tile, first_chunk, own_chunks,
                             shared_address(shared) + warp_id() * ring_bytes);
  const u8* scales =
      args.w_scales + static_cast<i64>(group) * (columns / 32) * depth_groups +
      min(2 * first_chunk + lane, depth_groups - 1);
  const auto scale_of = [&](int pass) -> u32 {
    const int tile = min(first_tile + pass * WeightStream::tile_step, tiles - 1);
    return scales[static_cast<i64>(tile / 2) * depth_groups];
  };

  u32 next_scales = scale_of(0);
#pragma unroll
  for (int p = 0; p < passes_ahead; ++p) {
#pragma unroll
    for (int j = 0; j < part_chunks; ++j) weights.start(p, j);
  }

  XPart x;
#pragma unroll
  for (int j = 0; j < part_chunks; ++j) {
#pragma unroll
    for (int r = 0; r < row_blocks; ++r)
      load_row_chunk(x[j][r], args, first_row + 8 * r + lane / 4, group, first_chunk + j,
                     j < own_chunks);
  }
#pragma unroll
  for (int j = 0; j < part_chunks; ++j) {
#pragma unroll
    for (int r = 0; r < row_blocks; ++r) prepare_row_chunk(x[j][r]);
  }

#pragma unroll 1
  for (int pass = 0; pass < passes; ++pass) {
    const u32 own_scales = next_scales;
    next_scales = scale_of(pass + 1);
    const bool any_is_wide = __any_sync(all_lanes, own_scales > largest_single_scale);
    Sums sums = {};
#pragma unroll
    for (int j = 0; j < part_chunks; ++j) {
      wait_for_copies<ring_chunks - 1>();
      const uint4 top = load_shared_16(weights.slot(pass, j));
      const uint4 bottom = load_shared_16(weights.slot(pass, j) + block_bytes);
      const u32 byte = __shfl_sync(all_lanes, own_scales, 2 * j + lane % 4 / 2);
      multiply_chunk(sums, x[j], top, bottom, byte, any_is_wide);
      weights.start(pass + passes_ahead, j);
    }

    __syncthreads();  // the sums of the pass before are read
    leave_sums(all_sums + warp_id() * sums_floats, sums);
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < warps_along_columns * sums_floats; i += threads) {
      const int column_in_tile = i % tile_columns;
      const i64 row = first_row + i / tile_columns % rows;
      const int of_columns = i / sums_floats;
      const int tile = cta * warps_along_columns + of_columns + pass * WeightStream::tile_step;
      if (row >= args.num_rows || tile >= tiles) continue;
      const float* from = all_sums + of_columns * warps_along_depth * sums_floats + i % sums_floats;
      float sum = from[0];
#pragma unroll
      for (int k = 1; k < warps_along_depth; ++k) sum += from[k * sums_floats];
      const int column = tile * tile_columns + column_in_tile;
      if constexpr (output == output_bf16)
        y_bf16(args, row, group)[column] = static_cast<u16>(to_bf16x2(sum, 0) & 0xffffu);
      else if constexpr (output == output_f32)
        y_f32(args, row, group)[column] = sum;
      else
        partial(args, split, row, group)[column] = sum;
    }
  }
}
