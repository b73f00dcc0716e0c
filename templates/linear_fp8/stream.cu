// y[t, g, n] = sum_k x[t, g, k] * w[g, n, k] * scale[g, n / 32, k / 32] for few rows (ops.md B6):
// weights stream once through CTAs that stay, each lane copying ahead what it will multiply.
// grid  (ctas * splits * groups * blocks of `rows` rows)
// block (32 * warps_along_columns * warps_along_depth)
// shared: per warp a ring of `ring_chunks` chunks of weights; per warp its part of x with rows < 8,
//         or the `shared_chunks` last chunks of it; then two sets of the warps' partial sums, one
//         if there is a single pass
//
// The weights are the 16-row operand of the mma and x is the 8-column one. A warp owns a part of K
// for good: it reads and quantises its part of x once into registers (of many rows and a long part
// some chunks into shared memory), then goes from one tile of columns of y to the next. The warps
// that share a tile add their sums in the order of K, while they already multiply the next tile.
#include "kiln_args.h"
#include "kiln_constants.h"  // columns, depth, groups, ctas, warps_along_columns, warps_along_depth,
                             // rows, shared_chunks, ring_chunks, splits,
                             // weight_layout, slot_order, x_format, output, min_ctas_per_sm
#include "templates/common/mma.cuh"
#include "templates/common/quantise.cuh"
#include "templates/common/shared.cuh"
#include "templates/common/types.cuh"
#include "templates/linear_fp8/fragments.cuh"
#include "templates/linear_fp8/problem.cuh"
#include "templates/linear_fp8/rows.cuh"

constexpr int warps = warps_along_columns * warps_along_depth;
constexpr int threads = warps * warp_lanes;
constexpr int tile_columns = 16;  // those of one mma
constexpr int tiles = columns / tile_columns;
constexpr int row_blocks = (rows + 7) / 8;
constexpr int parts = splits * warps_along_depth;
constexpr int part_chunks = (chunks + parts - 1) / parts;  // of the longest part
constexpr bool parts_are_equal = chunks % parts == 0;      // else some have a chunk less
constexpr int tile_step = ctas * warps_along_columns;
constexpr int passes = (tiles + tile_step - 1) / tile_step;
constexpr int chunk_bytes = tile_columns * chunk_elements;
constexpr int ring_bytes = ring_chunks * chunk_bytes;  // of a warp
constexpr int x_bytes =                                // of a warp
    rows * (rows < 8 ? part_chunks : shared_chunks) * chunk_elements * 2;
constexpr int own_chunks_of_x = part_chunks - shared_chunks;  // in registers
static_assert(part_chunks % ring_chunks == 0);
static_assert(parts <= chunks);  // none is empty
static_assert(columns % tile_columns == 0 && 2 * part_chunks <= warp_lanes);
static_assert(rows < 8 ? shared_chunks == 0 : rows % 8 == 0);

// Copies a warp's weights into its ring: lane by lane what the lane itself will multiply.
class WeightStream {
 public:
  __device__ __forceinline__ WeightStream(const Args& args, int group, int first_tile,
                                          int first_chunk, int own_chunks, u32 ring)
      : to_(ring + lane_id() * 16), own_chunks_(own_chunks) {
    const int lane = lane_id();
    const u8* w = args.w + static_cast<i64>(group) * weight_group_bytes;
    if constexpr (weight_layout == packed)
      from_ = w + static_cast<i64>(first_tile) * tile_bytes + first_chunk * block_bytes + lane * 16;
    else
      from_ = w + static_cast<i64>(first_tile) * tile_bytes + lane / 4 * depth +
              first_chunk * chunk_elements + lane % 4 * 16;
    ends_inside_ = depth % chunk_elements != 0 && weight_layout == checkpoint && lane % 4 >= 2
                       ? chunks - 1 - first_chunk
                       : -1;
  }

  // Chunk number i of this pass, which takes `tile`, or of the next one if i goes beyond it, into
  // its slot: nothing for a tile or a chunk that does not exist, zeros for what K lacks in its last
  // chunk.
  __device__ __forceinline__ void start(int tile, int i) const {
    const int passes_on = i / part_chunks;
    const int j = i % part_chunks;
    const bool is_there = tile + passes_on * tile_step < tiles &&
                          (parts_are_equal || j < part_chunks - 1 || j < own_chunks_);
    if (is_there) {
#pragma unroll
      for (int block = 0; block < 2; ++block)
        copy_async_16(to_ + i % ring_chunks * chunk_bytes + block * block_bytes,
                      from_ + passes_on * pass_bytes + j * chunk_step + block * block_step,
                      depth % chunk_elements == 0 || j != ends_inside_ ? 16 : 0);
    }
    copy_async_commit();
  }

  __device__ __forceinline__ void end_pass() { from_ += pass_bytes; }

 private:
  static constexpr int chunk_step = weight_layout == packed ? block_bytes : chunk_elements;
  static constexpr i64 block_step =
      weight_layout == packed ? chunks * block_bytes : block_rows * depth;
  static constexpr i64 tile_bytes = 2 * block_step;
  static constexpr i64 pass_bytes = tile_step * tile_bytes;

  const u8* from_;
  u32 to_;
  int own_chunks_;
  int ends_inside_;  // the chunk of which this lane has nothing
};

using Sums = float[row_blocks][4];
// Of each chunk two registers for each of its four mma.
using XPart = u32[own_chunks_of_x][row_blocks][8];

__device__ __forceinline__ void store_piece(u8* to, int step, const u32 (&piece)[8]) {
  reinterpret_cast<uint4*>(to)[0] = {piece[0], piece[1], piece[2], piece[3]};
  reinterpret_cast<uint4*>(to + step)[0] = {piece[4], piece[5], piece[6], piece[7]};
}
__device__ __forceinline__ void load_piece(u32 (&piece)[8], const u8* from, int step) {
  const uint4 first = reinterpret_cast<const uint4*>(from)[0];
  const uint4 second = reinterpret_cast<const uint4*>(from + step)[0];
  piece[0] = first.x, piece[1] = first.y, piece[2] = first.z, piece[3] = first.w;
  piece[4] = second.x, piece[5] = second.y, piece[6] = second.z, piece[7] = second.w;
}

// Pieces that a lane prepares for shared memory. Few rows leave most lanes without one: then the
// warp deals all pieces of its part out among its lanes, [row][chunk][q].
constexpr int dealt_pieces = rows * part_chunks * 4;
constexpr int shared_pieces =
    rows < 8 ? (dealt_pieces + warp_lanes - 1) / warp_lanes : shared_chunks * row_blocks;
using SharedPieces = u32[shared_pieces == 0 ? 1 : shared_pieces][8];
// Halves of a piece of the shared chunks are this far apart: 16 bytes of all lanes.
constexpr int half_piece_bytes = warp_lanes * 16;

// Reads a warp's part of x: lane 4 g + q gets row g's elements 16 q .. of each chunk. Rows beyond
// the last repeat it, a chunk beyond the part repeats the one before: neither is used.
__device__ __forceinline__ void load_x(XPart& x, SharedPieces& shared, const Args& args,
                                       i64 first_row, int group, int first_chunk, int own_chunks) {
  const int lane = lane_id();
  const auto load = [&](u32(&piece)[8], i64 row, int chunk) {
    load_row_chunk(piece, args, min(first_row + row, args.num_rows - 1), group,
                   first_chunk + (parts_are_equal ? chunk : min(chunk, own_chunks - 1)), lane % 4);
  };
  if constexpr (rows < 8) {
#pragma unroll
    for (int i = 0; i < shared_pieces; ++i) {
      const int piece = min(i * warp_lanes + lane, dealt_pieces - 4 + lane % 4);
      load(shared[i], piece / (4 * part_chunks), piece / 4 % part_chunks);
    }
  } else {
#pragma unroll
    for (int i = 0; i < shared_pieces; ++i)
      load(shared[i], i % row_blocks * 8 + lane / 4, own_chunks_of_x + i / row_blocks);
#pragma unroll
    for (int i = 0; i < own_chunks_of_x * row_blocks; ++i)
      load(x[i / row_blocks][i % row_blocks], i % row_blocks * 8 + lane / 4, i / row_blocks);
  }
}

// Quantises what load_x brought, chunk by chunk as it arrives, and puts it where multiply_pass
// expects it.
__device__ __forceinline__ void prepare_x(XPart& x, SharedPieces& shared, u8* shared_x) {
  const int lane = lane_id();
  if constexpr (shared_pieces > 0) {
    prepare_pieces(shared);
#pragma unroll
    for (int i = 0; i < shared_pieces; ++i) {
      if constexpr (rows >= 8)
        store_piece(shared_x + i * 2 * half_piece_bytes + lane * 16, half_piece_bytes, shared[i]);
      else if (i * warp_lanes + lane < dealt_pieces)
        store_piece(shared_x + (i * warp_lanes + lane) * 32, 16, shared[i]);
    }
  }
  if constexpr (rows < 8) {
    __syncwarp();
#pragma unroll
    for (int j = 0; j < part_chunks; ++j) {
      const int row = min(lane / 4, rows - 1);
      load_piece(x[j][0], shared_x + ((row * part_chunks + j) * 4 + lane % 4) * 32, 16);
    }
  } else {
#pragma unroll
    for (int j = 0; j < own_chunks_of_x; ++j) prepare_pieces(x[j]);
  }
}

// The 16 codes of columns g and g + 8 times their factors.
template <bool is_wide>
__device__ __forceinline__ void multiply_chunk(Sums& sums, const u32 (&x)[row_blocks][8],
                                               const uint4& top, const uint4& bottom, u32 factor,
                                               u32 more) {
  const u32 top_words[4] = {top.x, top.y, top.z, top.w};
  const u32 bottom_words[4] = {bottom.x, bottom.y, bottom.z, bottom.w};
#pragma unroll
  for (int s = 0; s < words_per_chunk; ++s) {
    constexpr auto layout = static_cast<WeightLayout>(weight_layout);
    constexpr auto order = static_cast<SlotOrder>(slot_order);
    WordPairs a = decode_weights<layout, order>(top_words[s], factor);
    WordPairs b = decode_weights<layout, order>(bottom_words[s], factor);
    if constexpr (is_wide) {
      a = {multiply_bf16x2(a.low, more), multiply_bf16x2(a.high, more)};
      b = {multiply_bf16x2(b.low, more), multiply_bf16x2(b.high, more)};
    }
#pragma unroll
    for (int r = 0; r < row_blocks; ++r)
      mma_bf16(sums[r], {a.low, b.low, a.high, b.high}, x[r][2 * s], x[r][2 * s + 1]);
  }
}

// One tile of a warp: its part of K, chunk by chunk, each replaced by a later one.
template <bool is_wide>
__device__ __forceinline__ void multiply_pass(Sums& sums, const XPart& x, const u8* shared_x,
                                              const WeightStream& weights, int tile, u32 ring,
                                              u32 scales, int own_chunks) {
#pragma unroll
  for (int j = 0; j < part_chunks; ++j) {
    copy_async_wait<ring_chunks - 1>();
    if (parts_are_equal || j < part_chunks - 1 || j < own_chunks) {
      const u32 byte = __shfl_sync(all_lanes, scales, 2 * j + lane_id() % 4 / 2);
      const u32 factor = first_e4m3_factor(is_wide ? min(byte, largest_first_scale) : byte);
      const u32 more = is_wide ? second_e4m3_factor(byte) : 0;
      const u32 from = ring + j % ring_chunks * chunk_bytes;
      u32 x_of_chunk[row_blocks][8];
#pragma unroll
      for (int r = 0; r < row_blocks; ++r) {
        if (j < own_chunks_of_x) {
#pragma unroll
          for (int k = 0; k < 8; ++k) x_of_chunk[r][k] = x[j][r][k];
        } else {
          const int piece = (j - own_chunks_of_x) * row_blocks + r;
          load_piece(x_of_chunk[r], shared_x + piece * 2 * half_piece_bytes + lane_id() * 16,
                     half_piece_bytes);
        }
      }
      const uint4 top = load_shared_16(from);
      const uint4 bottom = load_shared_16(from + block_bytes);
      multiply_chunk<is_wide>(sums, x_of_chunk, top, bottom, factor, more);
    }
    if constexpr (passes * part_chunks > ring_chunks)
      weights.start(tile, j + ring_chunks);
    else
      copy_async_commit();
  }
}

// Sums of a warp: [row][column of the tile], the columns' eights exchanged by row, so that the
// lanes of a store meet many banks.
constexpr int sums_floats = rows * tile_columns;
constexpr int sums_buffers = passes == 1 ? 1 : 2;

__device__ __forceinline__ int place_of_sum(int row, int column) {
  return row * tile_columns + (column ^ (row / 2 % (tile_columns / 8) * 8));
}

__device__ __forceinline__ void leave_sums(float* to, const Sums& sums) {
  const int g = lane_id() / 4;
  const int q = lane_id() % 4;
#pragma unroll
  for (int r = 0; r < row_blocks; ++r) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = 8 * r + 2 * q + i % 2;
      if (rows < 8 && row >= rows) continue;
      to[place_of_sum(row, g + i / 2 * 8)] = sums[r][i];
    }
  }
}

extern "C" __global__ void __launch_bounds__(threads, min_ctas_per_sm)
    linear_fp8_stream(const __grid_constant__ Args args) {
  extern __shared__ __align__(128) u8 shared[];
  u8* const all_x = shared + warps * ring_bytes;
  float* const all_sums = reinterpret_cast<float*>(all_x + warps * x_bytes);

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

  const u32 ring = shared_address(shared) + warp_id() * ring_bytes;
  WeightStream weights(args, group, first_tile, first_chunk, own_chunks, ring);
  const u8* scales = args.w_scales + static_cast<i64>(group) * (columns / 32) * depth_groups +
                     min(2 * first_chunk + lane, depth_groups - 1);
  const auto scale_of = [&](int pass) -> u32 {
    const int tile = min(first_tile + pass * tile_step, tiles - 1);
    return scales[static_cast<i64>(tile / 2) * depth_groups];
  };

  // x first: it decides when the first warp can multiply, and comes from L2.
  XPart x;
  SharedPieces shared_part;
  load_x(x, shared_part, args, first_row, group, first_chunk, own_chunks);
  u32 next_scales = scale_of(0);
#pragma unroll
  for (int i = 0; i < ring_chunks; ++i) weights.start(first_tile, i);
  u8* const shared_x = all_x + warp_id() * x_bytes;
  prepare_x(x, shared_part, shared_x);

  // Threads take turns in adding the sums of a pass, a few whole warps each time.
  constexpr int tile_fours = rows * tile_columns / 4;
  constexpr int adders =
      (warps_along_columns * tile_fours + warp_lanes - 1) / warp_lanes * warp_lanes % threads;
  int adder = static_cast<int>(threadIdx.x);
#pragma unroll 1
  for (int pass = 0; pass < passes; ++pass) {
    const u32 own_scales = next_scales;
    next_scales = scale_of(pass + 1);
    float* const sums_of_pass = all_sums + pass % sums_buffers * (warps * sums_floats);
    const int tile = first_tile + pass * tile_step;
    if (tile < tiles) {
      Sums sums = {};
      const u32 own_ring = ring + lane * 16;
      if (__any_sync(all_lanes, own_scales > largest_first_scale))
        multiply_pass<true>(sums, x, shared_x, weights, tile, own_ring, own_scales, own_chunks);
      else
        multiply_pass<false>(sums, x, shared_x, weights, tile, own_ring, own_scales, own_chunks);
      leave_sums(sums_of_pass + warp_id() * sums_floats, sums);
    }
    weights.end_pass();
    __syncthreads();  // the sums are there, and those of the pass before are read

    for (int i = adder; i < warps_along_columns * tile_fours; i += threads) {
      const int column_in_tile = i % (tile_columns / 4) * 4;
      const int row_in_tile = i / (tile_columns / 4) % rows;
      const int of_columns = i / tile_fours;
      const int summed_tile = cta * warps_along_columns + of_columns + pass * tile_step;
      const i64 row = first_row + row_in_tile;
      if (row >= args.num_rows || summed_tile >= tiles) continue;
      const float* from = sums_of_pass + of_columns * warps_along_depth * sums_floats +
                          place_of_sum(row_in_tile, column_in_tile);
      float4 sum = *reinterpret_cast<const float4*>(from);
#pragma unroll
      for (int k = 1; k < warps_along_depth; ++k) {
        const float4 more = *reinterpret_cast<const float4*>(from + k * sums_floats);
        sum = add(sum, more);
      }
      store_four(args, split, row, group, summed_tile * tile_columns + column_in_tile, sum);
    }
    adder -= adders;
    if (adder < 0) adder += threads;
  }
}
