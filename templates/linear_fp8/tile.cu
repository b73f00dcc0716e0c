// y[t, g, n] = sum_k x[t, g, k] * w[g, n, k] * scale[g, n / 32, k / 32] for many rows (ops.md B6):
// a CTA computes a tile of y over one part of K.
// grid  (tiles of rows * tiles of columns * groups * splits)   block (threads)
// shared: `stages` slots, each one chunk of x [tile_rows][64] in bf16 and of w [tile_columns][64]
//
// Weights stay FP8 in shared memory and become bf16 in registers; every warp decodes what it
// multiplies. They are the 16-row operand of the mma and x is the 8-column one: so what a 16-byte
// load brings of x are two register pairs that the mma takes as they are, and decoding can write the
// four neighbouring registers of the other operand. While the second half of a chunk is multiplied, the first half of the next is read, so
// one barrier a chunk suffices. A row of x in a slot has its 16-byte pieces at piece ^ (row & 1),
// so that eight lanes (two rows, every second piece) meet all banks.
#include "kiln_args.h"
#include "kiln_constants.h"  // columns, depth, groups, tile_rows, tile_columns, warps_along_rows,
                             // warps_along_columns, stages, splits, band_rows, weight_layout,
                             // slot_order, scale_factors, x_source, output,
                             // min_ctas_per_sm
#include "templates/linear_fp8/mma.cuh"
#include "templates/common/types.cuh"
#include "templates/linear_fp8/fragments.cuh"
#include "templates/linear_fp8/problem.cuh"

constexpr int threads = warp_lanes * warps_along_rows * warps_along_columns;
constexpr int warp_rows = tile_rows / warps_along_rows;
constexpr int warp_columns = tile_columns / warps_along_columns;
constexpr int row_blocks = warp_rows / 8;         // rows of y in an mma
constexpr int column_blocks = warp_columns / 16;  // columns of y in an mma
constexpr int scale_blocks = warp_columns / 32;
static_assert(row_blocks * 8 * warps_along_rows == tile_rows);
static_assert(scale_blocks * 32 * warps_along_columns == tile_columns);

constexpr int x_row_bytes = chunk_elements * 2;
constexpr int x_slot_bytes = tile_rows * x_row_bytes;
constexpr int w_slot_bytes = tile_columns * chunk_elements;
constexpr int slot_bytes = x_slot_bytes + w_slot_bytes;
constexpr int column_tiles_of_y = (columns + tile_columns - 1) / tile_columns;

struct Tile {
  i64 row;  // first row of y
  int column;
  int group;
  int split;
};

// CTAs that run at the same time share bands of `band_rows` row tiles.
__device__ __forceinline__ Tile find_tile(i64 num_rows) {
  constexpr u32 column_tiles = column_tiles_of_y;
  const u32 row_tiles = static_cast<u32>((num_rows + tile_rows - 1) / tile_rows);
  const u32 per_part = row_tiles * column_tiles;
  const u32 part = blockIdx.x / per_part;
  const u32 index = blockIdx.x - part * per_part;
  const u32 band = index / (band_rows * column_tiles);
  const u32 in_band = index - band * (band_rows * column_tiles);
  const u32 rows_in_band = min(static_cast<u32>(band_rows), row_tiles - band * band_rows);
  const u32 column_tile = in_band / rows_in_band;
  const u32 row_tile = band * band_rows + in_band - column_tile * rows_in_band;
  return {static_cast<i64>(row_tile) * tile_rows, static_cast<int>(column_tile) * tile_columns,
          static_cast<int>(part / splits), static_cast<int>(part % splits)};
}

// Copies the chunks of one part of K into slots, one after another.
class ChunkCopies {
 public:
  __device__ __forceinline__ ChunkCopies(const Args& args, const Tile& tile, int first, int end,
                                         u32 shared)
      : chunks_left_(end - first) {
    const int thread = static_cast<int>(threadIdx.x);
    const XRows x = x_rows<x_source>(args, tile.group);
    const int row = thread / 8;
    const int piece = thread % 8;
    x_ = reinterpret_cast<const u8*>(x.first + (tile.row + row) * x.stride) + piece * 16 +
         static_cast<i64>(first) * x_row_bytes;
    x_step_ = x.stride * 2 * x_rows_per_step;
    x_to_ = shared + row * x_row_bytes + (piece ^ (row & 1)) * 16;

    const u8* w = args.w + static_cast<i64>(tile.group) * weight_group_bytes;
    int column;
    if constexpr (weight_layout == packed) {
      const int block = tile.column / block_rows + thread / warp_lanes;
      column = block * block_rows;
      w_ = w + (static_cast<i64>(block) * chunks + first) * block_bytes + thread % warp_lanes * 16;
    } else {
      column = tile.column + thread / 4;
      w_ = w + static_cast<i64>(column) * depth + thread % 4 * 16 + first * chunk_elements;
    }
    w_to_ = shared + x_slot_bytes + thread * 16;

    const i64 rows_left = args.num_rows - tile.row - row;
    const int columns_left = columns - column;
    wanted_ = 0;
    for (int i = 0; i < x_steps; ++i) wanted_ |= i * x_rows_per_step < rows_left ? 1u << i : 0;
    for (int i = 0; i < w_steps; ++i)
      wanted_ |= i * w_columns_per_step < columns_left ? 1u << (x_steps + i) : 0;
    // What K lacks in its last chunk; the packed layout holds zeros there.
    wanted_in_tail_ = wanted_ & ((piece < 4 ? x_mask : 0) |
                                 (thread % 4 < 2 || weight_layout == packed ? ~x_mask : 0));
    if (end != chunks) wanted_in_tail_ = wanted_;
  }

  // The next chunk; after the last one zeros.
  __device__ __forceinline__ void start(u32 slot_offset) {
    u32 wanted = chunks_left_ > 0 ? wanted_ : 0;
    if (depth % chunk_elements != 0 && chunks_left_ == 1) wanted = wanted_in_tail_;
    const int thread = static_cast<int>(threadIdx.x);
#pragma unroll
    for (int i = 0; i < x_steps; ++i) {
      if ((i + 1) * threads > x_copies && thread >= x_copies - i * threads) break;
      copy_async_16(x_to_ + slot_offset + i * threads * 16, x_ + i * x_step_,
                    wanted >> i & 1 ? 16 : 0);
    }
#pragma unroll
    for (int i = 0; i < w_steps; ++i) {
      if ((i + 1) * threads > w_copies && thread >= w_copies - i * threads) break;
      copy_async_16(w_to_ + slot_offset + i * threads * 16, w_ + i * w_step,
                    wanted >> (x_steps + i) & 1 ? 16 : 0);
    }
    commit_copies();
    x_ += x_row_bytes;
    w_ += w_chunk_bytes;
    --chunks_left_;
  }

 private:
  static constexpr int x_copies = tile_rows * 8;
  static constexpr int w_copies = tile_columns * 4;
  static constexpr int x_steps = (x_copies + threads - 1) / threads;
  static constexpr int w_steps = (w_copies + threads - 1) / threads;
  static constexpr int x_rows_per_step = threads / 8;
  static constexpr int w_columns_per_step = threads / 4;
  static constexpr u32 x_mask = (1u << x_steps) - 1;
  static constexpr int w_chunk_bytes = weight_layout == packed ? block_bytes : chunk_elements;
  static constexpr i64 w_step = weight_layout == packed
                                    ? static_cast<i64>(threads / warp_lanes) * chunks * block_bytes
                                    : static_cast<i64>(w_columns_per_step) * depth;

  const u8* x_;
  i64 x_step_;
  const u8* w_;
  u32 x_to_;
  u32 w_to_;
  u32 wanted_;  // bit i: step i of x lies inside; above them the steps of w
  u32 wanted_in_tail_;
  int chunks_left_;
};

// Scale bytes of a warp's columns, 16 chunks at a time: lane l holds those of 32 elements number l,
// block b in bits 8 b.
class Scales {
 public:
  static constexpr int batch_chunks = 16;

  __device__ __forceinline__ Scales(const Tile& tile, int warp_column, int first)
      : block_(tile.group * (columns / 32) + (tile.column + warp_column) / 32),
        blocks_left_(columns / 32 - 1 - (tile.column + warp_column) / 32),
        element_(2 * first + lane_id()) {}

  // Before the first chunk, then before the first chunk of each batch.
  __device__ __forceinline__ void read_ahead(const Args& args) {
    current_ = next_;
    next_ = 0;
#pragma unroll
    for (int b = 0; b < scale_blocks; ++b) {
      const int block = columns % tile_columns == 0 ? block_ + b : block_ + min(b, blocks_left_);
      next_ |= static_cast<u32>(args.w_scales[block * depth_groups + min(element_, depth_groups - 1)])
               << (8 * b);
    }
    element_ += 2 * batch_chunks;
  }

  // The bytes of all blocks for this lane's half of a chunk.
  __device__ __forceinline__ u32 bytes(int chunk_of_batch) const {
    return __shfl_sync(all_lanes, current_, 2 * chunk_of_batch + (lane_id() % 4) / 2);
  }

 private:
  int block_;
  int blocks_left_;
  int element_;
  u32 current_ = 0;
  u32 next_ = 0;
};

using Sums = float[column_blocks][row_blocks][4];
using XHalf = uint4[row_blocks];         // row g: 8 elements
using WBlocks = uint4[column_blocks][2];  // columns g and g + 8: 16 codes

// Half h of the chunk at x_from: pieces 2 q + h.
__device__ __forceinline__ void load_x(XHalf& x, u32 x_from) {
#pragma unroll
  for (int i = 0; i < row_blocks; ++i) x[i] = load_shared_16(x_from + 8 * i * x_row_bytes);
}

__device__ __forceinline__ void load_w(uint4 (&w)[2], u32 w_from) {
  w[0] = load_shared_16(w_from);
  w[1] = load_shared_16(w_from + block_bytes);
}

template <int half>
__device__ __forceinline__ u32 word_of(const uint4& words, int step) {
  if constexpr (half == 0) return step == 0 ? words.x : words.y;
  return step == 0 ? words.z : words.w;
}

__device__ __forceinline__ WordPairs decode_word(u32 word, u32 factor, u32 more) {
  WordPairs pairs = decode_weights<static_cast<WeightLayout>(weight_layout),
                                   static_cast<SlotOrder>(slot_order)>(word, factor);
  if constexpr (scale_factors == 2)
    pairs = {multiply_bf16x2(pairs.low, more), multiply_bf16x2(pairs.high, more)};
  return pairs;
}

// Multiplies half of a chunk. A block of w is replaced by that of the next chunk after its last use.
template <int half>
__device__ __forceinline__ void multiply_half(Sums& sums, const XHalf& x, WBlocks& w,
                                              const u32 (&factors)[scale_blocks],
                                              const u32 (&more)[scale_blocks], u32 next_w) {
#pragma unroll
  for (int j = 0; j < column_blocks; ++j) {
    WordPairs top[2];
    WordPairs bottom[2];
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      top[step] = decode_word(word_of<half>(w[j][0], step), factors[j / 2], more[j / 2]);
      bottom[step] = decode_word(word_of<half>(w[j][1], step), factors[j / 2], more[j / 2]);
    }
    if constexpr (half == 1) load_w(w[j], next_w + 2 * j * block_bytes);
#pragma unroll
    for (int i = 0; i < row_blocks; ++i)
      multiply_add(sums[j][i], top[0].low, bottom[0].low, top[0].high, bottom[0].high, x[i].x,
                   x[i].y);
#pragma unroll
    for (int i = 0; i < row_blocks; ++i)
      multiply_add(sums[j][i], top[1].low, bottom[1].low, top[1].high, bottom[1].high, x[i].z,
                   x[i].w);
  }
}

__device__ __forceinline__ void multiply_chunks(Sums& sums, const Args& args, ChunkCopies& copies,
                                                Scales& scales, u32 shared, int count) {
  const int lane = lane_id();
  const int warp_row = warp_id() % warps_along_rows * warp_rows;
  const int warp_column = warp_id() / warps_along_rows * warp_columns;
  const int g = lane / 4;
  const int q = lane % 4;
  const u32 x_base = shared + (warp_row + g) * x_row_bytes + ((2 * q) ^ (g & 1)) * 16;
  const u32 w_base = shared + x_slot_bytes + warp_column * chunk_elements + lane * 16;

  XHalf x[2];
  WBlocks w;
  u32 slot = 0;
  load_x(x[0], x_base);
#pragma unroll
  for (int j = 0; j < column_blocks; ++j) load_w(w[j], w_base + 2 * j * block_bytes);

#pragma unroll 1
  for (int chunk = 0; chunk < count; ++chunk) {
    const int chunk_of_batch = chunk % Scales::batch_chunks;
    if (chunk_of_batch == 0) scales.read_ahead(args);
    const u32 bytes = scales.bytes(chunk_of_batch);
    u32 factors[scale_blocks];
    u32 more[scale_blocks];
#pragma unroll
    for (int b = 0; b < scale_blocks; ++b) {
      const u32 byte = bytes >> (8 * b) & 0xff;
      factors[b] = first_factor(scale_factors == 2 ? min(byte, largest_single_scale) : byte);
      more[b] = scale_factors == 2 ? second_factor(byte) : 0;
    }

    load_x(x[1], (x_base ^ 16) + slot);
    multiply_half<0>(sums, x[0], w, factors, more, 0);

    wait_for_copies<stages - 2>();
    __syncthreads();  // the next chunk is there, and everyone has read this one
    copies.start(slot);
    slot = slot == (stages - 1) * slot_bytes ? 0 : slot + slot_bytes;

    load_x(x[0], x_base + slot);
    multiply_half<1>(sums, x[1], w, factors, more, w_base + slot);
  }
}

// A warp's sums go through shared memory, 8 rows of y at a time: lanes hold columns, y has rows.
// Row r of the 8 starts at r * exchange_pitch, so that the lanes of a store meet all banks.
template <typename Element>
constexpr int exchange_pitch = warp_columns + 16 / static_cast<int>(sizeof(Element));

template <typename Element>
__device__ __forceinline__ void leave(Element* to, float value) {
  if constexpr (sizeof(Element) == 2)
    *to = static_cast<Element>(to_bf16x2(value, 0));
  else
    *to = value;
}

template <typename Element, typename RowOfY>
__device__ __forceinline__ void store_sums(const Sums& sums, Element* exchange, i64 rows_left,
                                           int columns_left, const RowOfY& row_of_y) {
  constexpr int per_store = 16 / static_cast<int>(sizeof(Element));
  constexpr int stores_per_row = warp_columns / per_store;
  const int lane = lane_id();
  const int g = lane / 4;
  const int q = lane % 4;
#pragma unroll
  for (int i = 0; i < row_blocks; ++i) {
    __syncwarp();
#pragma unroll
    for (int j = 0; j < column_blocks; ++j) {
#pragma unroll
      for (int v = 0; v < 4; ++v)
        leave(exchange + (2 * q + v % 2) * exchange_pitch<Element> + 16 * j + g + v / 2 * 8,
              sums[j][i][v]);
    }
    __syncwarp();
#pragma unroll
    for (int s = lane; s < 8 * stores_per_row; s += warp_lanes) {
      const int row = s / stores_per_row;
      const int column = s % stores_per_row * per_store;
      if (8 * i + row < rows_left && column < columns_left)
        store_16(row_of_y(8 * i + row) + column,
                 *reinterpret_cast<const uint4*>(exchange + row * exchange_pitch<Element> + column));
    }
  }
}

__device__ __forceinline__ void store_sums(const Args& args, const Tile& tile, const Sums& sums,
                                           u8* shared) {
  using Element = TypeOfOutput<output>;
  constexpr int exchange_bytes = 8 * exchange_pitch<Element> * static_cast<int>(sizeof(Element));
  static_assert(exchange_bytes * threads / warp_lanes <= stages * slot_bytes);
  const i64 row = tile.row + warp_id() % warps_along_rows * warp_rows;
  const int column = tile.column + warp_id() / warps_along_rows * warp_columns;
  Element* exchange = reinterpret_cast<Element*>(shared + warp_id() * exchange_bytes);
  store_sums(sums, exchange, args.num_rows - row, columns - column, [&](int r) {
    if constexpr (output == output_bf16)
      return y_bf16(args, row + r, tile.group) + column;
    else if constexpr (output == output_f32)
      return y_f32(args, row + r, tile.group) + column;
    else
      return partial(args, tile.split, row + r, tile.group) + column;
  });
}

extern "C" __global__ void __launch_bounds__(threads, min_ctas_per_sm)
    linear_fp8_tile(const __grid_constant__ Args args) {
  extern __shared__ __align__(128) u8 slots[];
  const u32 shared = shared_address(slots);
  const Tile tile = find_tile(args.num_rows);
  const int first = tile.split * chunks / splits;
  const int end = (tile.split + 1) * chunks / splits;

  ChunkCopies copies(args, tile, first, end, shared);
#pragma unroll
  for (int s = 0; s < stages; ++s) copies.start(s * slot_bytes);

  Scales scales(tile, warp_id() / warps_along_rows * warp_columns, first);
  scales.read_ahead(args);
  wait_for_copies<stages - 1>();
  __syncthreads();  // the first chunk is there

  Sums sums = {};
  multiply_chunks(sums, args, copies, scales, shared, end - first);
  wait_for_copies<0>();
  __syncthreads();  // the slots are free
  store_sums(args, find_tile(args.num_rows), sums, slots);
}
