// The naive form of pack_weights: one thread per byte of the packed weights, from the drawing of
// the layout in the description. grid  (rows / 8)   block (128)   shared: none
#include "kiln_args.h"
#include "kiln_constants.h"

__device__ int code_at(const Args& args, long long row, long long column) {
  return column < args.in_features ? args.w[row * args.w_stride + column] : 0;
}

extern "C" __global__ void pack_weights_oracle(const __grid_constant__ Args args) {
  const long long block_row = blockIdx.x;
  const long long bytes = (args.in_features + 63) / 64 * 512;
  for (long long at = threadIdx.x; at < bytes; at += blockDim.x) {
    const int in_block = static_cast<int>(at % 512);
    const long long row = block_row * 8 + in_block / 64;
    const int half = in_block % 4 / 2;
    const long long a_column = at / 512 * 64 + in_block % 64 / 4 * 4 + half;
    const int a = code_at(args, row, a_column);
    const int b = code_at(args, row, a_column + 2);
    int bits = 0;  // of the half word
    for (int i = 0; i < 7; ++i) bits |= (a >> i & 1) << (4 + i);
    bits |= (a >> 7) << 15;
    for (int i = 0; i < 4; ++i) bits |= (b >> i & 1) << i;
    for (int i = 4; i < 7; ++i) bits |= (b >> i & 1) << (8 + i);
    bits |= (b >> 7) << 11;
    args.packed[block_row * args.packed_stride + at] =
        static_cast<unsigned char>(in_block % 2 == 0 ? bits & 255 : bits >> 8);
  }
}
