// y[t, g, n] = sum_k x[t, g, k] * w[g, n, k] * scale[g, n / 32, k / 32] for many rows (ops.md B6):
// a CTA computes a tile of y over one part of K.
// grid  (tiles of rows * tiles of columns * groups * splits)   block (threads)
// shared: `stages` slots, each for every run of K a chunk of x [tile_rows][64] in bf16 and one of w
//         [tile_columns][64]
//
// Weights stay FP8 in shared memory and become bf16 in registers; every warp decodes what it
// multiplies. They are the 16-row operand of the mma and x is the 8-column one: so what a 16-byte
// load brings of x are two register pairs that the mma takes as they are, and decoding can write
// the four neighbouring registers of the other operand. A warp of few columns and many rows decodes
// least; it keeps the decoded half of a chunk and lets its rows of x pass by, while it decodes the
// next half. A row of x in a slot has its 16-byte pieces at piece ^ (row & 1), so that eight lanes
// (two rows, every second piece) meet all banks.
//
// A part of K (splits) is cut again into warps_along_depth runs of chunks; a slot holds one chunk
// of each run. No run waits for another before the end: then the warps that hold one block of y
// share it out, rows by rows, and each adds its share in the order of the runs. With splits, every
// warp then leaves its partial sums in the workspace. The later of two splits adds both; those of
// more are added by sum_tiles.cu.
#include "kiln_args.h"
#include "kiln_constants.h"  // columns, depth, groups, tile_rows, tile_columns, warps_along_rows,
                             // warps_along_columns, warps_along_depth, stages, splits,
                             // adds_splits, band_rows, counter_bytes, weight_layout, slot_order,
                             // x_format, output, min_ctas_per_sm
#include "templates/common/mma.cuh"
#include "templates/common/shared.cuh"
#include "templates/common/types.cuh"
#include "templates/linear_fp8/fragments.cuh"
#include "templates/linear_fp8/problem.cuh"
#include "templates/linear_fp8/tiles.cuh"

constexpr int threads = warp_lanes * warps;
constexpr int scale_blocks = warp_columns / 32;
static_assert(row_blocks % 2 == 0 && row_blocks * 8 * warps_along_rows == tile_rows);
static_assert(stages >= 3);
static_assert(scale_blocks * 32 * warps_along_columns == tile_columns);

constexpr int x_row_bytes = chunk_elements * 2;
constexpr int x_slot_bytes = tile_rows * x_row_bytes;
constexpr int w_slot_bytes = tile_columns * chunk_elements;
constexpr int run_slot_bytes = x_slot_bytes + w_slot_bytes;
constexpr int slot_bytes = warps_along_depth * run_slot_bytes;

// The same number, but the compiler does not know: it would keep the tile in registers all the
// time.
__device__ __forceinline__ u32 block_again() {
  u32 block;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(block));
  return block;
}

// bf16 rows: those that prepare.cu wrote, or the caller's.
struct XRows {
  const u16* first;
  i64 stride;  // elements
};
__device__ __forceinline__ XRows x_rows(const Args& args, int group) {
  if constexpr (prepares_x)
    return {prepared_x(args) + static_cast<i64>(group) * depth, static_cast<i64>(groups) * depth};
  return {args.x + group * args.x_stride1, args.x_stride0};
}

// A run has its own threads, slots and barrier.
constexpr int run_threads = warp_lanes * warps_of_run;

__device__ __forceinline__ int run_of_warp() { return warp_id() / warps_of_run; }

__device__ __forceinline__ void sync_run() {
  if constexpr (warps_along_depth == 1)
    __syncthreads();
  else
    barrier(1 + run_of_warp(), run_threads);
}

// Copies the chunks of a run into its slots, one after another.
class ChunkCopies {
 public:
  __device__ __forceinline__ ChunkCopies(const Args& args, const Tile& tile, int run, u32 slots) {
    const int thread = run_thread();
    const int first = first_chunk(run);
    const XRows x = x_rows(args, tile.group);
    const int row = thread / 8;
    const int piece = thread % 8;
    x_ = reinterpret_cast<const u8*>(x.first + (tile.row + row) * x.stride) + piece * 16 +
         static_cast<i64>(first) * x_row_bytes;
    x_step_ = x.stride * 2 * x_rows_per_step;
    x_to_ = slots + row * x_row_bytes + (piece ^ (row & 1)) * 16;

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
    w_to_ = slots + x_slot_bytes + thread * 16;

    const i64 rows_left = args.num_rows - tile.row - row;
    const int columns_left = columns - column;
    wanted_ = 0;
    for (int i = 0; i < x_steps; ++i) wanted_ |= i * x_rows_per_step < rows_left ? 1u << i : 0;
    for (int i = 0; i < w_steps; ++i)
      wanted_ |= i * w_columns_per_step < columns_left ? 1u << (x_steps + i) : 0;
    // What K lacks in its last chunk; the packed layout holds zeros there.
    wanted_in_tail_ = wanted_ & ((piece < 4 ? x_mask : 0) |
                                 (thread % 4 < 2 || weight_layout == packed ? ~x_mask : 0));
    left_ = first_chunk(run + 1) - first;
    ends_k_ = run == runs - 1;
  }

  // The next chunk; after the last one zeros.
  __device__ __forceinline__ void start(u32 slot_offset) {
    const int thread = run_thread();
    u32 wanted = left_ > 0 ? wanted_ : 0;
    if (depth % chunk_elements != 0 && ends_k_ && left_ == 1) wanted = wanted_in_tail_;
#pragma unroll
    for (int i = 0; i < x_steps; ++i) {
      if ((i + 1) * run_threads > x_copies && thread >= x_copies - i * run_threads) break;
      copy_async_16(x_to_ + slot_offset + i * run_threads * 16, x_ + i * x_step_,
                    wanted >> i & 1 ? 16 : 0);
    }
#pragma unroll
    for (int i = 0; i < w_steps; ++i) {
      if ((i + 1) * run_threads > w_copies && thread >= w_copies - i * run_threads) break;
      copy_async_16(w_to_ + slot_offset + i * run_threads * 16, w_ + i * w_step,
                    wanted >> (x_steps + i) & 1 ? 16 : 0);
    }
    --left_;
    copy_async_commit();
    x_ += x_row_bytes;
    w_ += w_chunk_bytes;
  }

 private:
  static constexpr int x_copies = tile_rows * 8;
  static constexpr int w_copies = tile_columns * 4;
  static constexpr int x_steps = (x_copies + run_threads - 1) / run_threads;
  static constexpr int w_steps = (w_copies + run_threads - 1) / run_threads;
  static constexpr int x_rows_per_step = run_threads / 8;
  static constexpr int w_columns_per_step = run_threads / 4;
  static constexpr u32 x_mask = (1u << x_steps) - 1;
  static constexpr int w_chunk_bytes = weight_layout == packed ? block_bytes : chunk_elements;
  static constexpr i64 w_step = weight_layout == packed
                                    ? static_cast<i64>(warps_of_run) * chunks * block_bytes
                                    : static_cast<i64>(w_columns_per_step) * depth;
  static_assert(x_steps + w_steps <= 32);

  __device__ __forceinline__ static int run_thread() {
    const int thread = static_cast<int>(threadIdx.x);
    return warps_along_depth == 1 ? thread : thread % run_threads;
  }

  const u8* x_;
  i64 x_step_;
  const u8* w_;
  u32 x_to_;
  u32 w_to_;
  u32 wanted_;  // bit i: step i of x lies inside; above them the steps of w
  u32 wanted_in_tail_;
  int left_;  // chunks of the run
  bool ends_k_;
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
      next_ |=
          static_cast<u32>(args.w_scales[block * depth_groups + min(element_, depth_groups - 1)])
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
using WCodes = uint4[column_blocks][2];     // rows g and g + 8: 16 codes, or 8 of half a chunk
using WOperand = u32[column_blocks][2][4];  // half of a chunk: two mma
// Row g of the blocks of rows to come: 8 elements, half of a chunk.
constexpr int blocks_ahead = row_blocks % 4 == 0 ? 4 : 2;
using XPieces = uint4[blocks_ahead];

// A thread that may have 240 registers reads the codes of a whole chunk at once, others by halves.
constexpr bool reads_whole_chunks = threads * min_ctas_per_sm <= 256;

// Where sums leave registers for it, a thread keeps the tile until the end.
constexpr bool keeps_tile = reads_whole_chunks && column_blocks * row_blocks <= 16;

template <int half>
__device__ __forceinline__ void load_w(WCodes& w, u32 from) {
#pragma unroll
  for (int j = 0; j < 2 * column_blocks; ++j) {
    uint4& codes = w[j / 2][j % 2];
    if constexpr (reads_whole_chunks) {
      if constexpr (half == 0) codes = load_shared_16(from + j * 2 * chunk_elements);
    } else {
      const uint2 two = load_shared_8(from + j * 2 * chunk_elements + 8 * half);
      (half == 0 ? codes.x : codes.z) = two.x;
      (half == 0 ? codes.y : codes.w) = two.y;
    }
  }
}

// What a lane multiplies its codes by in one chunk, for each block of 32 columns.
struct Factors {
  u32 first[scale_blocks];
  u32 second[scale_blocks];
};

template <bool is_wide>
__device__ __forceinline__ Factors factors_of(u32 bytes) {
  Factors factors;
#pragma unroll
  for (int b = 0; b < scale_blocks; ++b) {
    const u32 byte = bytes >> (8 * b) & 0xff;
    factors.first[b] = first_e4m3_factor(is_wide ? min(byte, largest_first_scale) : byte);
    factors.second[b] = is_wide ? second_e4m3_factor(byte) : 0;
  }
  return factors;
}

// Part number `part` of a half: block part / 2, mma part % 2.
constexpr int parts_of_half = 2 * column_blocks;

template <bool is_wide, int half>
__device__ __forceinline__ void decode_part(WOperand& operand, const WCodes& w,
                                            const Factors& factors, int part) {
  const int j = part / 2;
  const int step = part % 2;
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const uint4& codes = w[j][row];
    const u32 word = half == 0 ? (step == 0 ? codes.x : codes.y) : step == 0 ? codes.z : codes.w;
    WordPairs pairs =
        decode_weights<static_cast<WeightLayout>(weight_layout),
                       static_cast<SlotOrder>(slot_order)>(word, factors.first[j / 2]);
    if constexpr (is_wide)
      pairs = {multiply_bf16x2(pairs.low, factors.second[j / 2]),
               multiply_bf16x2(pairs.high, factors.second[j / 2])};
    operand[j][step][row] = pairs.low;
    operand[j][step][row + 2] = pairs.high;
  }
}

// Multiplies half of a chunk; x holds the first blocks of rows and in the end those of the next
// half. `between(pair)` is work to do after each pair of blocks.
template <typename Between>
__device__ __forceinline__ void multiply_half(Sums& sums, const WOperand& w, XPieces& x, u32 x_this,
                                              u32 x_next, const Between& between) {
#pragma unroll
  for (int pair = 0; pair < row_blocks / 2; ++pair) {
#pragma unroll
    for (int step = 0; step < 2; ++step) {
#pragma unroll
      for (int of_pair = 0; of_pair < 2; ++of_pair) {
        const int i = 2 * pair + of_pair;
#pragma unroll
        for (int j = 0; j < column_blocks; ++j)
          mma_bf16(sums[j][i], {w[j][step][0], w[j][step][1], w[j][step][2], w[j][step][3]},
                   step == 0 ? x[i % blocks_ahead].x : x[i % blocks_ahead].z,
                   step == 0 ? x[i % blocks_ahead].y : x[i % blocks_ahead].w);
      }
    }
#pragma unroll
    for (int i = 2 * pair; i < 2 * pair + 2; ++i)
      x[i % blocks_ahead] = load_shared_16((i + blocks_ahead < row_blocks ? x_this : x_next) +
                                           (i + blocks_ahead) % row_blocks * (8 * x_row_bytes));
    between(pair);
  }
}

template <bool is_wide>
__device__ __forceinline__ void multiply_chunks(Sums& sums, const Args& args, ChunkCopies& copies,
                                                Scales& scales, u32 shared) {
  const int lane = lane_id();
  const int warp = warp_id() % warps_of_run;
  const int warp_row = warp % warps_along_rows * warp_rows;
  const int warp_column = warp / warps_along_rows * warp_columns;
  const int g = lane / 4;
  const int q = lane % 4;
  const u32 run = shared + run_of_warp() * run_slot_bytes;
  const u32 x_base = run + (warp_row + g) * x_row_bytes + ((2 * q) ^ (g & 1)) * 16;
  const u32 w_base = run + x_slot_bytes + warp_column * chunk_elements + g / 2 * block_bytes +
                     g % 2 * chunk_elements + q * 16;

  XPieces x;
  WCodes w;
  WOperand operand[2];
#pragma unroll
  for (int i = 0; i < blocks_ahead; ++i) x[i] = load_shared_16(x_base + i * (8 * x_row_bytes));
  load_w<0>(w, w_base);
  Factors factors = factors_of<is_wide>(scales.bytes(0));
#pragma unroll
  for (int part = 0; part < parts_of_half; ++part)
    decode_part<is_wide, 0>(operand[0], w, factors, part);

  // Of the parts of a half, those to decode after a pair of blocks of rows.
  constexpr int pairs = row_blocks / 2;
  const auto first_part = [](int pair) { return pair * parts_of_half / pairs; };
  u32 slot = 0;
  u32 free_slot = (stages - 1) * slot_bytes;
#pragma unroll 1
  for (int chunk = 0; chunk < run_chunks; ++chunk) {
    load_w<1>(w, w_base + slot);
    multiply_half(sums, operand[0], x, x_base + slot, (x_base ^ 16) + slot, [&](int pair) {
#pragma unroll
      for (int part = first_part(pair); part < first_part(pair + 1); ++part)
        decode_part<is_wide, 1>(operand[1], w, factors, part);
    });

    copy_async_wait<stages - 3>();
    sync_run();  // the next chunk is there, and everyone has left the one before this
    copies.start(free_slot);
    free_slot = slot;
    const u32 x_this = (x_base ^ 16) + slot;
    slot = slot == (stages - 1) * slot_bytes ? 0 : slot + slot_bytes;
    load_w<0>(w, w_base + slot);
    const int next_of_batch = (chunk + 1) % Scales::batch_chunks;
    if (next_of_batch == 0) scales.read_ahead(args);
    factors = factors_of<is_wide>(scales.bytes(next_of_batch));

    multiply_half(sums, operand[1], x, x_this, x_base + slot, [&](int pair) {
#pragma unroll
      for (int part = first_part(pair); part < first_part(pair + 1); ++part)
        decode_part<is_wide, 0>(operand[0], w, factors, part);
    });
  }
}

using OwnSums = float[column_blocks][own_row_blocks][4];

// Adds the sums of the runs, in the order of K: each warp gives away all but its own share.
__device__ __forceinline__ void add_runs(OwnSums& own, const Sums& sums, u8* shared) {
  static_assert((warps_along_depth - 1) * warps_of_run * column_blocks * row_blocks * warp_lanes *
                    16 <=
                stages * slot_bytes);
  float4* const exchange = reinterpret_cast<float4*>(shared);
  const int own_run = run_of_warp();
  const int warp = warp_id() % warps_of_run;
  // What run `from` gives to another one, `step` runs further on.
  const auto place = [&](int from, int step, int four) -> float4& {
    return exchange
        [(((from * (warps_along_depth - 1) + step - 1) * warps_of_run + warp) * own_fours + four) *
             warp_lanes +
         lane_id()];
  };
#pragma unroll
  for (int run = 0; run < warps_along_depth; ++run) {
    if (run != own_run) continue;
#pragma unroll
    for (int j = 0; j < column_blocks; ++j) {
#pragma unroll
      for (int i = 0; i < row_blocks; ++i) {
        const float(&four)[4] = sums[j][i];
        const int to = i / own_row_blocks;
        const int own_i = i % own_row_blocks;
        const int step = (to - run + warps_along_depth) % warps_along_depth;
        if (step > 0)
          place(run, step, j * own_row_blocks + own_i) = {four[0], four[1], four[2], four[3]};
        else
          for (int v = 0; v < 4; ++v) own[j][own_i][v] = four[v];
      }
    }
  }
  if (warps_along_depth == 1) return;
  __syncthreads();
#pragma unroll
  for (int j = 0; j < column_blocks; ++j) {
#pragma unroll
    for (int i = 0; i < own_row_blocks; ++i) {
      float(&four)[4] = own[j][i];
      float4 sum = {0, 0, 0, 0};
#pragma unroll
      for (int from = 0; from < warps_along_depth; ++from) {
        const int step = (own_run - from + warps_along_depth) % warps_along_depth;
        const float4 part = step == 0 ? float4{four[0], four[1], four[2], four[3]}
                                      : place(from, step, j * own_row_blocks + i);
        sum = from == 0 ? part : add(sum, part);
      }
      four[0] = sum.x, four[1] = sum.y, four[2] = sum.z, four[3] = sum.w;
    }
  }
}

// Leaves a warp's partial sums in the workspace, as its lanes hold them. If there is no kernel to
// add them, the later of two splits gets true and the sum of both.
__device__ __forceinline__ bool add_splits(OwnSums& own, const Args& args, const Tile& tile) {
  float4* const of_first = partial_sums(args) + tile.number * splits * split_step +
                           warp_id() * own_fours * warp_lanes + lane_id();
#pragma unroll
  for (int j = 0; j < column_blocks; ++j) {
#pragma unroll
    for (int i = 0; i < own_row_blocks; ++i) {
      const float(&four)[4] = own[j][i];
      of_first[tile.split * split_step + (j * own_row_blocks + i) * warp_lanes] = {
          four[0], four[1], four[2], four[3]};
    }
  }
  if (!adds_splits) return false;
  static_assert(!adds_splits || splits == 2);

  __threadfence();  // the sums before the count
  __syncwarp();
  u32 before = 0;
  if (lane_id() == 0) before = atomicAdd(counters(args) + tile.number * warps + warp_id(), 1u);
  if (__shfl_sync(all_lanes, before, 0) == 0) return false;
  __threadfence();  // the count before the other's sums
  __syncwarp();
  const float4* const of_other = of_first + (1 - tile.split) * split_step;
#pragma unroll
  for (int j = 0; j < column_blocks; ++j) {
#pragma unroll
    for (int i = 0; i < own_row_blocks; ++i) {
      float(&four)[4] = own[j][i];
      const float4 sum = add({four[0], four[1], four[2], four[3]},
                             of_other[(j * own_row_blocks + i) * warp_lanes]);
      four[0] = sum.x, four[1] = sum.y, four[2] = sum.z, four[3] = sum.w;
    }
  }
  return true;
}

__device__ __forceinline__ void store_sums(const Args& args, const Tile& tile, const OwnSums& own) {
  const Corner corner = corner_of(tile, warp_id());
#pragma unroll
  for (int i = 0; i < own_row_blocks; ++i) {
    float4 fours[column_blocks];
#pragma unroll
    for (int j = 0; j < column_blocks; ++j)
      fours[j] = {own[j][i][0], own[j][i][1], own[j][i][2], own[j][i][3]};
    store_rows(args, tile, corner, i, fours);
  }
}

// All scale bytes that a warp applies, dealt out among the lanes: loaded before anything else, so
// that no one waits for them. A short run ends with a chunk of zeros: its scales are applied too.
class LargestScale {
 public:
  __device__ __forceinline__ LargestScale(const Args& args, const Tile& tile, int warp_column,
                                          int first) {
    const int block = (tile.column + warp_column) / 32;
#pragma unroll
    for (int b = 0; b < scale_blocks; ++b) {
      const u8* of_block = args.w_scales + static_cast<i64>(tile.group * (columns / 32) +
                                                            min(block + b, columns / 32 - 1)) *
                                               depth_groups;
#pragma unroll
      for (int i = 0; i < loads; ++i)
        bytes_[b][i] = of_block[min(2 * first + i * warp_lanes + lane_id(),
                                    min(2 * (first + run_chunks), depth_groups) - 1)];
    }
  }

  // True for all lanes if one needs two factors.
  __device__ __forceinline__ bool is_wide() const {
    u32 largest = 0;
#pragma unroll
    for (int b = 0; b < scale_blocks; ++b) {
#pragma unroll
      for (int i = 0; i < loads; ++i) largest = max(largest, static_cast<u32>(bytes_[b][i]));
    }
    return __any_sync(all_lanes, largest > largest_first_scale);
  }

 private:
  static constexpr int loads = (2 * run_chunks + warp_lanes - 1) / warp_lanes;
  u8 bytes_[scale_blocks][loads];
};

extern "C" __global__ void __launch_bounds__(threads, min_ctas_per_sm)
    linear_fp8_tile(const __grid_constant__ Args args) {
  extern __shared__ __align__(128) u8 slots[];
  const u32 shared = shared_address(slots);
  const Tile tile = find_tile(args, blockIdx.x);
  const int run = tile.split * warps_along_depth + run_of_warp();
  const int warp_column = warp_id() % warps_of_run / warps_along_rows * warp_columns;

  Scales scales(tile, warp_column, first_chunk(run));
  scales.read_ahead(args);
  scales.read_ahead(args);
  const LargestScale largest_scale(args, tile, warp_column, first_chunk(run));
  ChunkCopies copies(args, tile, run, shared + run_of_warp() * run_slot_bytes);
#pragma unroll 1  // little code, since nothing runs before it has been fetched
  for (int s = 0; s < stages - 1; ++s) copies.start(s * slot_bytes);
  const bool is_wide = largest_scale.is_wide();
  copy_async_wait<stages - 2>();
  sync_run();  // the first chunk is there

  Sums sums = {};
  if (is_wide)
    multiply_chunks<true>(sums, args, copies, scales, shared);
  else
    multiply_chunks<false>(sums, args, copies, scales, shared);
  copy_async_wait<0>();
  __syncthreads();  // the slots are free
  OwnSums own;
  add_runs(own, sums, slots);
  const Tile tile_again = keeps_tile ? tile : find_tile(args, block_again());
  if (splits == 1 || add_splits(own, args, tile_again)) store_sums(args, tile_again, own);
}
