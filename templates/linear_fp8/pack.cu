// Weights from checkpoint layout [groups * columns][depth] to the packed layout (fragments.cuh):
// lane-ordered blocks whose words have the low pair of codes in its final place.
// grid  (groups * columns / 8 * chunks)   block (32)   shared: none
#include "kiln_args.h"
#include "kiln_constants.h"  // columns, depth, groups
#include "templates/common/types.cuh"
#include "templates/linear_fp8/fragments.cuh"
#include "templates/linear_fp8/problem.cuh"

// One half of a word: the code of the low pair and that of the high pair.
__device__ __forceinline__ u32 half_of_word(u32 low, u32 high) {
  return (low & 0x80) << 8 | (low & 0x7f) << 4 | (high & 0x80) << 4 | (high & 0x70) << 8 |
         (high & 0x0f);
}

extern "C" __global__ void __launch_bounds__(32) linear_fp8_pack(const __grid_constant__ Args args) {
  const i64 block = blockIdx.x;
  const i64 block_row = block / chunks;
  const int chunk = static_cast<int>(block - block_row * chunks);
  const int lane = lane_id();
  const int element = chunk * chunk_elements + lane % 4 * 16;
  uint4 words = {0, 0, 0, 0};
  if (element < depth)
    words = *reinterpret_cast<const uint4*>(args.w + (block_row * block_rows + lane / 4) * depth +
                                            element);
  u32* to = static_cast<u32*>(args.y) + block * (block_bytes / 4) + lane * words_per_chunk;
  const u32 from[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
  for (int s = 0; s < words_per_chunk; ++s) {
    const u32 w = from[s];
    to[s] = half_of_word(w & 0xff, w >> 16 & 0xff) | half_of_word(w >> 8 & 0xff, w >> 24) << 16;
  }
}
