// Weights from the layout of a checkpoint, [rows][in_features], to the packed one: blocks of 8 rows
// and 64 columns, 512 bytes each, as lanes of a warp load them.
// grid  (rows / (8 * warps) * blocks of a row)   block (32 * warps)   shared: none
//
// Lane l = 4 g + q owns bytes 16 l .. 16 l + 15 of a block: the columns 16 q .. 16 q + 15 of row g,
// four to a word of 32 bits. A half of a word holds two codes, a in its final place for bf16:
//   bit  15      14 13 12           11      10 .. 4     3 .. 0
//        sign a  bits 6 5 4 of b    sign b  bits 6..0   bits 3..0 of b
//                                           of a
// The lower half has columns 0 (a) and 2 (b) of the word's four, the upper half 1 and 3.
#include "kiln_args.h"
#include "kiln_constants.h"  // warps
#include "templates/common/types.cuh"

constexpr int block_rows = 8;
constexpr int block_columns = 64;
constexpr int block_bytes = block_rows * block_columns;

__device__ __forceinline__ u32 half_of_word(u32 a, u32 b) {
  return (a & 0x80) << 8 | (a & 0x7f) << 4 | (b & 0x80) << 4 | (b & 0x70) << 8 | (b & 0x0f);
}

__device__ __forceinline__ u32 packed_word(u32 codes) {
  return half_of_word(codes & 0xff, codes >> 16 & 0xff) |
         half_of_word(codes >> 8 & 0xff, codes >> 24) << 16;
}

extern "C" __global__ void __launch_bounds__(32 * warps)
    pack_weights(const __grid_constant__ Args args) {
  const u32 blocks_of_row =
      static_cast<u32>((args.in_features + block_columns - 1) / block_columns);
  const i64 block_row = static_cast<i64>(blockIdx.x / blocks_of_row) * warps + warp_id();
  const i64 block = blockIdx.x % blocks_of_row;
  const int lane = lane_id();
  const i64 column = block * block_columns + lane % 4 * 16;
  if (block_row * block_rows >= args.num_rows) return;

  uint4 codes = {0, 0, 0, 0};  // beyond the last column
  if (column < args.in_features)
    codes = *reinterpret_cast<const uint4*>(
        args.w + (block_row * block_rows + lane / 4) * args.w_stride + column);
  *reinterpret_cast<uint4*>(args.packed + block_row * args.packed_stride + block * block_bytes +
                            lane * 16) = {packed_word(codes.x), packed_word(codes.y),
                                          packed_word(codes.z), packed_word(codes.w)};
}
